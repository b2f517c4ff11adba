"""Train without the val of other data sets, and without questions of evaluations."""

import json
import shutil
from pathlib import Path

import dagster as dg
import pytest

from niels_cache_assets.artifacts.graph import graph
from niels_cache_assets.artifacts.input_problems import input_problems
from niels_cache_assets.artifacts.materialize import materialize
from niels_cache_assets.cleaning.settings import REASONS
from niels_cache_assets.dedup.text_set import TextMatch
from niels_cache_assets.defs.checks import cache
from niels_cache_assets.facts.lineage import Lineage
from niels_cache_assets.inspection import splits
from niels_cache_assets.inspection.shared_texts import SharedText, SharedTexts, shared_texts
from niels_cache_assets.project.registry import Registry, load_registry
from niels_cache_assets.sources.reading.references import questions
from niels_cache_assets.streaming.decontaminate import REASONS_OF_REFERENCES, ReferenceOrigin, ReferenceTexts, open_references
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.meta import Meta, read_meta
from niels_cache_runtime.verify import verify_dataset
from tests.build_cache.test_determinism import digests
from tests.helpers.builds import build_dataset, build_tokenizer
from tests.helpers.corpora import write_jsonl
from tests.helpers.tiny import sentences
from tests.streaming.test_decontaminate import sources_of


def found(
    texts: list[str], references: list[str], folder: Path, *, share: float = 0.5, run: int = 50, units: str = "words"
) -> list[TextMatch | None]:
    wanted = ReferenceTexts(
        identity={},
        texts=lambda: ((ReferenceOrigin("", "questions", row), text) for row, text in enumerate(references)),
        threshold=0.8,
        share=share,
        run=run,
        units=units,
    )
    with open_references(wanted, folder=folder) as screen:
        assert [place.row for place in screen.origins] == [*range(len(references))]
        return screen.texts.find(texts)


def test_texts_overlap_exactly_nearly_and_by_ngrams(tmp_path: Path) -> None:
    words = [f"w{number}" for number in range(400)]
    question, other, short = " ".join(words[:40]), " ".join(words[100:200]), "one two three"
    before, after = " ".join(words[300:350]), " ".join(words[350:])
    documents = [
        question.upper(),
        question + " more.",
        f"{before} {question} {after}",
        f"{before} {' '.join(words[:27])} {after}",  # 15 of 28 13-grams
        f"{before} {' '.join(words[:26])} {after}",  # 14 of 28
        f"{before} {' '.join(words[:25])} {after}",
        f"{before} {' '.join(words[100:150])} {after}",  # a run of 50 words
        f"{before} {' '.join(words[100:149])} {after}",
        "One, two: three!",
        f"{before} {short} {after}",
        "",
    ]
    overlaps = found(documents, [question, other, short], tmp_path)
    shares = "shares_ngrams_with_held_out"
    expected = ["in_held_out", "near_held_out", shares, shares, shares, None, shares, None, "in_held_out", None, None]
    assert [overlap and REASONS_OF_REFERENCES[overlap.kind] for overlap in overlaps] == expected
    assert [overlap.similarity for overlap in overlaps[2:5] if overlap] == [1.0, round(15 / 28, 6), 0.5]
    assert overlaps[6] is not None
    assert (overlaps[6].ordinal, overlaps[6].run) == (1, 50)
    overlaps = found(documents, [question, other, short], tmp_path, share=1.0, run=49)
    assert [place for place, overlap in enumerate(overlaps) if overlap] == [0, 1, 2, 6, 7, 8]
    assert found(documents, [], tmp_path) == [None] * len(documents)


READS = [("evals.jsonl", False), ("evals.jsonl", True), ("code.jsonl", True)]
SOLUTION = (
    "    total = 0\n    for index, value in enumerate(values):\n        total += value*weights[index]\n    return total/len(values)\n"
)


def test_code_is_compared_by_its_words_without_signs_and_blanks(tmp_path: Path) -> None:
    reformatted = SOLUTION.replace("    ", "\t").replace("*", " * ").replace("/", " / ").replace("+= value", "+= (value")
    before, after = "".join(f"x{number} = {number}\n" for number in range(300)), "y = '0'\n" * 400
    documents = [
        SOLUTION,
        reformatted,
        f"{before}def mean(values):\n{reformatted}{after}",
        before + SOLUTION.replace("\n", "  # a word of comment\n").replace("total = 0", '"""Another text"""\n    total = 0') + after,
        before + SOLUTION.replace("total", "result") + after,
        before + after,
    ]
    kinds = [match and match.kind for match in found(documents, [SOLUTION], tmp_path, units="code")]
    assert kinds == ["exact", "ngrams", "ngrams", "ngrams", None, None]
    assert [match and match.kind for match in found(documents, [SOLUTION], tmp_path)] == ["exact", *[None] * 5]
    rows = (
        {"prompt": 'def mean(values):\n    """Mean"""\n', "canonical_solution": SOLUTION, "test": "mean([1])"},
        {"text": "Mean", "code": "x"},
    )
    (tmp_path / "evals.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "code.jsonl").write_text('{"code": "x", "n": 1}\n')
    read = [[each.text for each in questions(str(tmp_path / name), with_code=code)] for name, code in READS]
    prompt, bare = rows[0]["prompt"], "def mean(values):\n     \n"
    assert read == [[prompt, "Mean"], [prompt, SOLUTION, bare, "Mean", "x"], ["x"]]


NEWS = 60
KEY = 'decontaminate_against = ["web", "evals/*.jsonl"]\n'


@pytest.fixture
def project(tmp_path: Path, tiny_model: Path) -> Path:
    """Two data sets that each have documents of the other one, and a file of questions. Nothing is built but the tokenizer."""
    shutil.copy(tiny_model, tmp_path / "spm.model")
    texts = sentences(200, words=40)
    write_jsonl(tmp_path / "news.jsonl", texts[:NEWS])
    write_jsonl(tmp_path / "web.jsonl", [*texts[NEWS:120], *texts[10:40]])
    questions = [{"id": row, "question": text} for row, text in enumerate([texts[5], texts[150]])]
    (tmp_path / "evals").mkdir()
    (tmp_path / "evals" / "quiz.jsonl").write_text("".join(json.dumps(row) + "\n" for row in questions), encoding="utf-8")
    build_tokenizer(registry_of(tmp_path), root=tmp_path / "cache")
    return tmp_path


def registry_of(folder: Path, news: str = "", web: str = "") -> Registry:
    tables = [
        f'[pretrain.{name}]\nsource = "jsonl"\nfiles = ["{name}.jsonl"]\nval_frac = {share}\n{lines}'
        for name, share, lines in (("news", 0.1, news), ("web", 0.25, web))
    ]
    config = folder / "niels_cache.toml"
    config.write_text('[tokenizer]\nmodel = "spm.model"\n[build]\nthreads = 1\n' + "\n".join(tables), encoding="utf-8")
    return load_registry(profile="quickstart", config=str(config))


def rows_of(folder: Path, split: str) -> set[int]:
    return {int(source.rsplit("-", 1)[1]) for source in sources_of(folder, split)}


def leaks(root: Path) -> int:
    """Return how many documents of the val of `web` are in the train of `news`."""
    val = {row - 60 + 10 for row in rows_of(root / "pretrain" / "web", "val") if row >= 60}
    return len(val & rows_of(root / "pretrain" / "news", "train"))


def disjoint(registry: Registry, name: str, root: Path) -> dg.AssetCheckResult:
    meta = read_meta(str(root / "pretrain" / name / "meta.json"))
    return cache._disjoint_result(registry, name, root, meta, is_sound=True, skipped=None)


def test_the_val_of_another_data_set_stays_out_of_train_in_either_order(project: Path) -> None:
    plain, root = registry_of(project), project / "cache"
    for name in ("news", "web"):
        build_dataset(plain, name, root=root)
    before = leaks(root)
    assert before > 3
    shared = shared_texts({name: root / "pretrain" / name for name in ("news", "web")}, trains=["news"])
    assert shared.not_checked == ()
    assert [(each.train, each.val, each.documents, each.first.file) for each in shared.found] == [("news", "web", before, "news.jsonl")]
    warned = disjoint(plain, "news", root)
    assert (warned.passed, warned.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert 'decontaminate_against = ["web"]' in str(warned.description)
    others = warned.metadata["in_val_of_others"]
    assert isinstance(others, dg.TableMetadataValue)
    assert [(record.data["data_set"], record.data["documents"]) for record in others.records] == [("web", before)]

    both = registry_of(project, news=KEY, web='decontaminate_against = ["news"]\n')
    built = {}
    for place, order in (("cache", ["news", "web"]), ("other", ["web", "news"])):
        root = project / place
        if place == "other":
            build_tokenizer(both, root=root)
        outcomes = {name: build_dataset(both, name, root=root) for name in order}
        assert {outcome.state for outcome in outcomes.values()} == {"built"}
        assert all(build_dataset(both, name, root=root).state == "cache_hit" for name in order)
        assert leaks(root) == 0
        built[place] = {name: digests(outcome.directory) for name, outcome in outcomes.items()}
        meta = outcomes["news"].meta
        assert verify_dataset(outcomes["news"].directory) == []
        assert meta["dropped"] == {"in_held_out": before + (5 in range(NEWS) and 5 not in rows_of(root / "pretrain" / "news", "val"))}
        examples = meta["decontaminated_examples"]
        assert len(examples) == meta["dropped"]["in_held_out"]
        assert {(row["because"]["of"], row["because"]["file"]) for row in examples} == {("web", "web.jsonl"), ("", "quiz.jsonl")}
        assert all(disjoint(both, name, root).passed for name in order)
    assert built["cache"] == built["other"]


@pytest.mark.parametrize("prepare", ["", 'prepare = ["clean"]\n'])
def test_a_mixture_leaves_out_what_a_member_keeps_out(project: Path, prepare: str) -> None:
    root = project / "cache"
    skipped = json.dumps([reason for reason in REASONS if reason not in ("empty", "not_text")])
    mix = '[pretrain.mix]\nsource = "interleave"\nmembers = { news = 1.0 }\nval_frac = 0.1\n' + prepare
    mix += f"[cleaning]\nskip = {skipped}\n" if prepare else ""

    def built(news: str) -> tuple[set[int], Meta]:
        registry = registry_of(project, news=news, web=mix)
        for name in ("news", "web"):
            build_dataset(registry, name, root=root)
        for key in graph(registry, root).order(["mix"]):
            materialize(graph(registry, root)[key])
        folder = root / "pretrain" / "mix"
        meta = read_meta(str((root / "corpus" / "mix" if prepare else folder) / "meta.json"))
        return rows_of(folder, "train") | rows_of(folder, "val"), meta

    everything, before = built("")
    kept, after = built(KEY)
    own = read_meta(str(root / "pretrain" / "news" / "meta.json"))["dropped"]
    assert own["in_held_out"] > 3
    assert {reason: after["dropped"][reason] for reason in own} == own
    assert len(everything - kept) == own["in_held_out"]
    assert kept < everything
    assert kept.isdisjoint(row - 60 + 10 for row in rows_of(root / "pretrain" / "web", "val") if row >= 60)
    assert before["fingerprint"] != after["fingerprint"]
    assert built(KEY)[1] == after


def test_a_changed_val_or_file_makes_the_cache_stale(project: Path) -> None:
    root, registry = project / "cache", registry_of(project, news=KEY)
    first = build_dataset(registry, "news", root=root)
    assert graph(registry, root).state("pretrain/news").condition == "complete"
    assert build_dataset(registry, "news", root=root).state == "cache_hit"
    quiz = project / "evals" / "quiz.jsonl"
    quiz.write_text(quiz.read_text() + json.dumps({"question": "A new question."}) + "\n", encoding="utf-8")
    second = build_dataset(registry, "news", root=root)
    assert second.state == "built"
    assert second.meta["dataset_revision"] != first.meta["dataset_revision"]
    write_jsonl(project / "web.jsonl", sentences(20, seed=9, words=40))
    assert build_dataset(registry, "news", root=root).state == "built"
    assert build_dataset(registry_of(project, news=KEY + "decontaminate_share = 0.4\n"), "news", root=root).state == "built"


@pytest.mark.parametrize(
    ("table", "others", "advice"),
    [
        ("", ["web"], 'decontaminate_against = ["web"]'),
        ("", ["web", "mix"], 'decontaminate_against = ["web"]'),
        ("", ["mix"], ""),
        ('prepare = ["clean"]\n', ["web"], 'decontaminate_against = ["web"]'),
        ('prepare = ["clean"]\n', ["mix"], '"dedup"'),
        ("parts = 2\n", ["web"], ""),
    ],
)
def test_the_check_names_only_a_key_that_the_data_set_can_have(project: Path, table: str, others: list[str], advice: str) -> None:
    registry = registry_of(project, news=table, web='[pretrain.mix]\nsource = "interleave"\nmembers = { web = 1 }\n')
    place = Lineage(0, "a", "a.jsonl", 0, 9)
    found = tuple(SharedText(train="news", val=name, documents=9, first=place) for name in others)
    (told,) = splits._describe_shared(registry, "news", SharedTexts(found=found))
    assert advice in told
    assert ("keeps them out" in told) == bool(advice)


def test_the_val_of_a_data_set_in_parts_is_that_of_its_plan(project: Path) -> None:
    """Remote files are listed once. If upstream changes after that, neither data set is built again."""
    root, texts = project / "cache", sentences(200, words=40)
    for number in range(2):
        write_jsonl(project / "pages" / f"{number}.jsonl", texts[number * 45 : number * 45 + 60])
    registry_of(project, news='decontaminate_against = ["web"]\n', web="parts = 2\n")
    config = project / "niels_cache.toml"
    config.write_text(config.read_text().replace('"web.jsonl"', f'"file://{project}/pages/*.jsonl"'))
    registry = load_registry(profile="quickstart", config=str(config))
    materialize(graph(registry, root)["plan/web"])
    meta = build_dataset(registry, "news", root=root).meta
    assert {row["because"]["file"] for row in meta["decontaminated_examples"]} == {"0.jsonl", "1.jsonl"}
    write_jsonl(project / "pages" / "1.jsonl", texts[:80])
    assert build_dataset(registry, "news", root=root).state == "cache_hit"
    (root / "pretrain" / ".parts" / "web" / "plan.json").unlink()
    assert build_dataset(registry, "news", root=root).meta["dataset_revision"] != meta["dataset_revision"]


def build_in_order(registry: Registry, names: list[str], root: Path) -> dict[str, Meta]:
    found = graph(registry, root)
    for key in found.order(names):
        materialize(found[key])
    return {name: read_meta(str(root / "pretrain" / name / "meta.json")) for name in names}


PREPARED = f"""prepare = ["clean", "dedup"]
[pretrain.NAME.cleaning]
skip = {json.dumps([reason for reason in REASONS if reason not in ("empty", "not_text")])}
"""


@pytest.mark.parametrize("parts", ["", "parts = 2\n"])
def test_a_corpus_loses_what_the_key_names_when_its_tokens_are_made(project: Path, parts: str) -> None:
    write_jsonl(project / "news_more.jsonl", sentences(5, seed=3, words=40))
    steps = PREPARED.replace('"clean", "dedup"', '"clean"')
    tables = {name: steps.replace("NAME", name) for name in ("news", "web")}
    root = project / "cache"

    def registry(news: str = KEY, web: str = 'decontaminate_against = ["news"]\n') -> Registry:
        registry_of(project, news=parts + news + tables["news"], web=web + tables["web"])
        config = project / "niels_cache.toml"
        config.write_text(config.read_text().replace('["news.jsonl"]', '["news.jsonl", "news_more.jsonl"]'))
        return load_registry(profile="quickstart", config=str(config))

    before = build_in_order(registry("", ""), ["news", "web"], root)
    shared = leaks(root)
    assert shared > 3
    corpus = read_meta(str(root / "corpus" / "news" / "meta.json"))
    after = build_in_order(registry(), ["news", "web"], root)
    assert read_meta(str(root / "corpus" / "news" / "meta.json")) == corpus
    assert leaks(root) == 0
    assert after["news"]["dropped"]["in_held_out"] >= shared
    assert "in_held_out" not in before["news"]["dropped"]
    assert after["news"]["dataset_revision"] != corpus["dataset_revision"]
    assert verify_dataset(root / "pretrain" / "news") == []
    assert graph(registry(), root).state("pretrain/news").condition == "complete"
    assert build_in_order(registry(), ["web", "news"], root) == after
    quiz = project / "evals" / "quiz.jsonl"
    quiz.write_text(quiz.read_text() + json.dumps({"question": sentences(1, words=40)[0]}) + "\n", encoding="utf-8")
    changed = build_in_order(registry(), ["news", "web"], root)
    assert changed["news"]["fingerprint"] != after["news"]["fingerprint"]
    assert changed["web"] == after["web"]


@pytest.mark.parametrize("lines", ["parts = 2\n", 'parts = 2\ntokens_in_parts = true\nprepare = ["clean"]\n'])
def test_a_cache_in_parts_cannot_have_the_key_yet(project: Path, lines: str) -> None:
    with pytest.raises(NielsCacheError, match="tokens_in_parts"):
        registry_of(project, news=lines + KEY)


def test_a_data_set_that_has_grown_without_parts_is_refused(project: Path) -> None:
    write_jsonl(project / "more.jsonl", sentences(10, seed=9))
    registry = registry_of(project, news='decontaminate_against = ["web"]\n', web='[[pretrain.web.added]]\nfiles = ["more.jsonl"]\n')
    [problem] = input_problems(registry)
    assert (problem.table, "'web'" in problem.message) == ("pretrain.news", True), "before a tokenizer is trained"
    with pytest.raises(NielsCacheError, match=r"'web'.*added"):
        build_dataset(registry, "news", root=project / "cache")


@pytest.mark.parametrize(
    ("news", "parts"),
    [
        ('decontaminate_against = ["wbe"]\n', ["wbe", "web"]),
        ('decontaminate_against = ["nowhere/*.jsonl"]\n', ["nowhere"]),
        ('decontaminate_against = ["evals/wrong.jsonl"]\n', ["wrong.jsonl", "fields: id (", "question"]),
    ],
)
def test_a_mistake_is_one_clear_line(project: Path, news: str, parts: list[str]) -> None:
    (project / "evals" / "wrong.jsonl").write_text('{"id": 1}\n', encoding="utf-8")
    with pytest.raises(NielsCacheError) as caught:
        build_dataset(registry_of(project, news=news), "news", root=project / "cache")
    assert [part for part in parts if part not in str(caught.value)] == []
    assert not (project / "cache" / "pretrain" / "news" / "meta.json").exists()
