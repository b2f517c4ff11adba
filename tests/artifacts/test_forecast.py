"""`niels-cache build-all --dry-run`: the steps of a build, their reasons and estimates. Nothing is written."""

import gzip
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from niels_cache_assets.artifacts.forecast import estimates, sample
from niels_cache_assets.artifacts.forecast import steps as steps_module
from niels_cache_assets.artifacts.forecast.estimates import Estimate
from niels_cache_assets.artifacts.forecast.steps import Step, forecast, peak_memory
from niels_cache_assets.artifacts.graph import Graph, graph
from niels_cache_assets.artifacts.materialize import materialize
from niels_cache_assets.artifacts.parts.plan import PartsPlan
from niels_cache_assets.cli import main
from niels_cache_assets.disk.build_lock import BuildStatus
from niels_cache_assets.facts.contents import total_bytes
from niels_cache_assets.project.registry import load_registry
from niels_cache_assets.sources import huggingface
from niels_cache_assets.sources.errors import SourceUnavailableError
from niels_cache_assets.sources.huggingface import Huggingface
from niels_cache_assets.sources.types import ListedFile
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.meta import read_meta
from tests.helpers import programs
from tests.helpers.corpora import articles, write_jsonl
from tests.helpers.loopback_hub import LoopbackHub
from tests.helpers.messages import missing
from tests.helpers.parts_project import NAME, PartsProject, build, parts_of
from tests.helpers.small_project import small_project


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """The small project with all of its artifacts."""
    folder = tmp_path_factory.mktemp("built")
    shutil.copy(tiny_model, folder / "spm.model")
    small_project(folder, Path("spm.model"))
    for key in of(folder).order():
        materialize(of(folder)[key])
    return folder


@pytest.fixture
def folder(built: Path, tmp_path: Path) -> Path:
    """A copy of it to change."""
    return Path(shutil.copytree(built, tmp_path / "project"))


@pytest.fixture
def parts(tmp_path: Path, tiny_model: Path) -> PartsProject:
    project = PartsProject(tmp_path, tiny_model)
    project.write([9, 2, 30, 14, 7])
    return project


def of(folder: Path) -> Graph:
    return graph(load_registry(config=str(folder / "niels_cache.toml")), folder / "cache")


def by_name(steps: list[Step]) -> dict[str, Step]:
    return {step.name: step for step in steps}


def estimated(steps: list[Step], name: str) -> Estimate:
    found = by_name(steps)[name].estimate
    assert found is not None
    return found


def actions(steps: list[Step]) -> dict[str, str]:
    return {step.name: step.action for step in steps}


def tree(folder: Path) -> dict[str, tuple[int, bytes]]:
    """All files and folders below a folder, with their times and content."""
    assert folder.exists()
    return {
        path.relative_to(folder).as_posix(): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in [folder, *folder.rglob("*")]
    }


def change(config: Path, before: str, after: str) -> None:
    text = config.read_text(encoding="utf-8")
    assert before in text
    config.write_text(text.replace(before, after, 1), encoding="utf-8")


# The steps and their reasons


def _nothing_built(folder: Path) -> None:
    shutil.rmtree(folder / "cache")


def _no_tokenizer(folder: Path) -> None:
    _nothing_built(folder)
    change(folder / "niels_cache.toml", 'model = "spm.model"', 'vocab_size = 380\ntrain_on = ["letters"]')


def _a_damaged_shard(folder: Path) -> None:
    (folder / "cache/sft/chats/train_tokens.bin").write_bytes(b"")


@pytest.mark.parametrize(
    ("prepare", "built_now"),
    [
        (_no_tokenizer, 8),
        (lambda folder: write_jsonl(folder / "letters.jsonl", articles(61, seed=5)), 2),
        (lambda folder: write_jsonl(folder / "notes.jsonl", articles(40, seed=6)), 5),
        (_a_damaged_shard, 1),
    ],
    ids=["no tokenizer", "another file", "another corpus", "a damaged shard"],
)
def test_a_build_does_what_the_dry_run_says(folder: Path, prepare: Callable[[Path], None], built_now: int) -> None:
    prepare(folder)
    before = tree(folder)
    steps = forecast(of(folder))
    assert tree(folder) == before
    assert [step.key for step in steps] == list(dict.fromkeys(of(folder).order()))
    assert sum(step.action == "build" for step in steps) == built_now
    assert all((step.why == "in sync") == (step.action == "cache_hit") for step in steps)
    found = of(folder)
    told = {step.key: step.action for step in steps}
    done = {step.key: "build" if materialize(found[step.key]).state == "built" else "cache_hit" for step in steps}
    assert done == told


def test_the_reasons_are_those_of_status_and_name_an_unfinished_build(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change(folder / "niels_cache.toml", "val_frac = 0.1", "val_frac = 0.2")
    monkeypatch.setattr(steps_module, "build_status", lambda place: BuildStatus(None, place.name == "letters", 0.5, None))
    _a_damaged_shard(folder)
    (folder / "cache/pretrain/notes/meta.json").unlink()
    steps = by_name(forecast(of(folder)))
    states = {name: steps[name].state for name in ("letters", "chats", "notes", "tokenizer")}
    assert states == {"letters": "other settings", "chats": "damaged", "notes": "missing", "tokenizer": "in sync"}
    assert missing(steps["letters"].why, "settings") == []
    assert [name for name, step in steps.items() if "unfinished" in step.why] == ["letters"]


def test_force_builds_everything_that_is_chosen(folder: Path) -> None:
    assert set(actions(forecast(of(folder), force=True)).values()) == {"build"}
    steps = forecast(of(folder), only=["letters"], force=True)
    assert actions(steps) == {"tokenizer": "cache_hit", "letters": "build"}


def test_data_sets_that_are_off_or_not_configured_are_told(folder: Path) -> None:
    change(folder / "niels_cache.toml", "[sft.chats]", '[pretrain.roam]\nsource = "roam"\n[sft.chats]\nenabled = false')
    steps = by_name(forecast(of(folder)))
    assert (steps["chats"].action, steps["roam"].action) == ("disabled", "skip")
    assert missing(steps["roam"].why, "path") == []


def test_a_missing_file_fails_its_data_set_and_no_other(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "letters.jsonl").unlink()
    found = actions(forecast(of(folder)))
    assert found.pop("letters") == "fail"
    assert found.pop("index/mix") == "skip"
    assert set(found.values()) == {"cache_hit"}
    given = ["--config", str(folder / "niels_cache.toml"), "--cache-dir", str(folder / "cache")]
    assert main(["build-all", "--dry-run", *given]) == 1
    [line] = [line for line in capsys.readouterr().out.splitlines() if "letters.jsonl" in line]
    assert missing(line, "letters", "no file") == []


def test_a_missing_file_ends_it_if_a_tokenizer_would_be_trained(folder: Path) -> None:
    _no_tokenizer(folder)
    (folder / "letters.jsonl").unlink()
    with pytest.raises(NielsCacheError, match=r"pretrain\.letters.*letters\.jsonl"):
        forecast(of(folder))


def test_a_missing_model_fails_the_tokenizer_and_skips_its_caches(folder: Path) -> None:
    _nothing_built(folder)
    (folder / "spm.model").unlink()
    steps = by_name(forecast(of(folder)))
    assert steps["tokenizer"].action == "fail"
    assert missing(steps["tokenizer"].why, "spm.model") == []
    assert (steps["letters"].action, steps["corpus/notes"].action) == ("skip", "build")


def test_a_line_that_no_build_can_read_fails(folder: Path) -> None:
    _nothing_built(folder)
    with (folder / "letters.jsonl").open("a", encoding="utf-8") as file:
        file.write("not json\n")
    step = by_name(forecast(of(folder)))["letters"]
    assert (step.action, missing(step.why, "letters.jsonl", "line 61")) == ("fail", [])


def test_a_bad_line_in_the_middle_of_a_file_has_no_number(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece that begins there does not know how many lines are before it."""
    _nothing_built(folder)
    write_jsonl(folder / "letters.jsonl", articles(1_000, seed=4))
    lines = (folder / "letters.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    monkeypatch.setattr(sample, "SAMPLE_BYTES", 20_000)
    materialize(of(folder)["tokenizer"])
    (folder / "letters.jsonl").write_text("".join(lines[:600]) + "not json\n" * 50_000 + "".join(lines[600:]), encoding="utf-8")
    step = by_name(forecast(of(folder)))["letters"]
    assert (step.action, missing(step.why, "letters.jsonl", "a line is not valid JSON")) == ("fail", [])


# How much


def test_a_sample_of_everything_gives_the_numbers_of_the_build(folder: Path) -> None:
    metas = {name: read_meta(str(folder / "cache" / name / "meta.json")) for name in ("pretrain/letters", "sft/chats")}
    _nothing_built(folder)
    steps = forecast(of(folder))
    letters, chats = estimated(steps, "letters"), estimated(steps, "chats")
    for estimate, meta in zip((letters, chats), metas.values(), strict=True):
        assert estimate.tokens == meta["train_tokens"] + meta["val_tokens"]
        assert (estimate.core_seconds or 0) > 0
        assert 2 * (estimate.tokens or 0) < (estimate.disk_bytes or 0) < total_bytes(meta["files"])  # here, headers are most of it
    assert letters.bytes_to_read == (folder / "letters.jsonl").stat().st_size


def test_a_short_sample_is_extrapolated(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _nothing_built(folder)
    write_jsonl(folder / "letters.jsonl", articles(1_000, seed=4))
    found = of(folder)
    materialize(found["tokenizer"])
    meta = materialize(found["pretrain/letters"]).meta
    shutil.rmtree(folder / "cache/pretrain")
    (folder / "letters.jsonl.gz").write_bytes(gzip.compress((folder / "letters.jsonl").read_bytes()))
    monkeypatch.setattr(sample, "SAMPLE_BYTES", 150_000)
    for rel in (0.05, 0.25):
        estimate = estimated(forecast(of(folder)), "letters")
        assert estimate.tokens != meta["train_tokens"] + meta["val_tokens"]  # so it is extrapolated
        assert estimate.tokens == pytest.approx(meta["train_tokens"] + meta["val_tokens"], rel=rel)
        if rel == 0.05:
            change(folder / "niels_cache.toml", '"letters.jsonl"', '"letters.jsonl.gz"')


def test_a_budget_bounds_the_tokens_and_the_bytes(folder: Path) -> None:
    _nothing_built(folder)
    whole = estimated(forecast(of(folder)), "letters")
    change(folder / "niels_cache.toml", "val_frac = 0.1", "train_tokens = 2_000\nval_tokens = 100")
    bounded = estimated(forecast(of(folder)), "letters")
    change(folder / "niels_cache.toml", "train_tokens = 2_000", "train_tokens = 2_000_000_000")
    unreached = estimated(forecast(of(folder)), "letters")
    assert bounded.tokens == 2_100
    assert bounded.bytes_to_read == pytest.approx((whole.bytes_to_read or 0) * 2_100 / (whole.tokens or 1), abs=2)
    assert unreached.tokens == whole.tokens


def test_a_tokenizer_to_train_is_trained_on_less_text_for_the_estimates(folder: Path) -> None:
    _no_tokenizer(folder)
    steps = forecast(of(folder))
    tokens = estimated(steps, "letters").tokens
    trained = estimated(steps, "tokenizer")
    assert (trained.core_seconds or 0) > 0
    assert (trained.memory_bytes or 0) > 0
    materialize(of(folder)["tokenizer"])
    assert materialize(of(folder)["pretrain/letters"]).meta["train_tokens"] == pytest.approx(tokens, rel=0.15)


def test_a_model_that_cannot_be_trained_leaves_four_bytes_for_a_token(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _no_tokenizer(folder)
    monkeypatch.setattr(estimates, "train", lambda *given: (_ for _ in ()).throw(NielsCacheError("no")))
    estimate = estimated(forecast(of(folder)), "letters")
    assert estimate.tokens == round(sum(map(len, articles(60, seed=1))) / 4)
    assert estimate.core_seconds is None
    assert missing(estimate.basis, "4 bytes") == []


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_a_sample_is_taken_from_all_files(tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [["word " * 20] * 2_000, ["another text " * 90] * 2_000, ["word " * 20] * 2_000]  # the first file is not like the rest
    for number, file_texts in enumerate(texts):
        if ending == "jsonl":
            write_jsonl(tmp_path / f"{number}.jsonl", file_texts)
        else:
            path, form = tmp_path / f"{number}.parquet", {"compression": "none", "use_dictionary": False}
            pyarrow.parquet.write_table(pyarrow.table({"text": file_texts}), path, row_group_size=500, **form)
    monkeypatch.setattr(sample, "SAMPLE_BYTES", 200_000)
    monkeypatch.setattr(sample, "_PIECE_BYTES", 100_000)
    (tmp_path / "niels_cache.toml").write_text(f'[pretrain.all]\nsource = "{ending}"\nfiles = ["*.{ending}"]\n', encoding="utf-8")
    source = of(tmp_path).registry.pretrain["all"]
    first, again = (sample._sample(source, source.input_files(), None)[0] for _ in range(2))
    assert (first.items, first.text_bytes) == (again.items, again.text_bytes)
    assert first.items == pytest.approx(6_000, rel=0.1)
    assert first.text_bytes == pytest.approx(sum(len(text) for each in texts for text in each), rel=0.1)


def test_a_mixture_has_only_its_budget(folder: Path) -> None:
    mixture = '[pretrain.both]\nsource = "interleave"\nmembers = {letters = 1.0, notes = 1.0}\ntrain_tokens = 500\nval_tokens = 0\n'
    change(folder / "niels_cache.toml", "[sft.chats]", f"{mixture}[sft.chats]")
    step = by_name(forecast(of(folder)))["both"]
    assert (step.action, step.state) == ("build", "missing")
    assert step.estimate is not None
    assert (step.estimate.bytes_to_read, step.estimate.tokens, step.estimate.core_seconds, step.estimate.disk_bytes) == (
        None,
        500,
        None,
        1_000,
    )
    assert missing(step.estimate.basis, "no sample", "budget") == []


def test_files_of_the_hub_are_listed_and_not_sampled(hub: LoopbackHub, folder: Path) -> None:
    (folder / "niels_cache.toml").write_text('profile = "default"\n[tokenizer]\nmodel = "spm.model"\n', encoding="utf-8")
    given = ("--config", str(folder / "niels_cache.toml"), "--cache-dir", str(folder / "new"))
    done = programs.run("-m", "niels_cache_assets.cli", "build-all", "--dry-run", "--json", *given, env=hub.env)
    assert done.returncode == 0, done.stderr
    steps = {step["name"]: step for step in json.loads(done.stdout)["steps"]}
    assert not (folder / "new").exists()
    for name, dataset, folders, ending in (
        ("fineweb_edu", "HuggingFaceFW/fineweb-edu", "data/", ".parquet"),
        ("dolly15k", "databricks/databricks-dolly-15k", "", ".jsonl"),
        ("oasst1", "OpenAssistant/oasst1", "data/train", ".parquet"),
    ):
        estimate = steps[name]["estimate"]
        files = hub.repositories[dataset].items()
        read = [len(content) for path, content in files if path.startswith(folders) and path.endswith(ending)]
        assert estimate["bytes_to_read"] == sum(read) > 0, name
        assert estimate["tokens"] == int(estimate["bytes_to_read"] * (2.5 if ending == ".parquet" else 1) / 4 + 0.5)
        assert estimate["core_seconds"] is None
        assert missing(estimate["basis"], "no sample") == []


def _hub(folder: Path, settings: str) -> Graph:
    _nothing_built(folder)
    table = f'[pretrain.web]\nsource = "huggingface"\ndataset = "owner/web"\n{settings}\n'
    change(folder / "niels_cache.toml", "[sft.chats]", f"{table}[sft.chats]")
    return of(folder)


def _listed_by_the_hub(source: Huggingface, revision: str | None) -> list[ListedFile]:
    assert revision == "commit"
    return [ListedFile(f"data/{number}.parquet", size, "hash", None) for number, size in enumerate((3_000_000, 1_000_000, 4_000_000))]


def test_parts_of_the_hub_are_divided_by_its_sizes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Huggingface, "revision", lambda self, siblings: "commit")
    monkeypatch.setattr(huggingface, "hub_files", _listed_by_the_hub)
    found = _hub(folder, "parts = 3")
    steps = by_name(forecast(found))
    sizes = [steps[key].estimate.bytes_to_read for key in parts_of(found)]  # type: ignore[union-attr]
    assert sizes == [3_000_000, 1_000_000, 4_000_000]
    first = steps["part/web/part-00000"].estimate
    assert first is not None
    assert (first.tokens, first.core_seconds) == (1_875_000, None)
    assert missing(first.basis, "no sample") == []
    assert steps["web"].estimate is not None
    assert (steps["web"].estimate.tokens, steps["web"].estimate.disk_bytes) == (0, 0)  # links to the parts


def test_without_the_hub_a_data_set_in_parts_is_told_as_a_whole(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(self: Huggingface, siblings: Any) -> str:
        raise SourceUnavailableError("the hub is away")

    monkeypatch.setattr(Huggingface, "revision", away)
    steps = by_name(forecast(_hub(folder, "parts = 3\ntrain_tokens = 900\nval_tokens = 0")))
    assert [steps[f"part/web/part-0000{number}"].estimate for number in range(3)] == [None] * 3
    assert steps["web"].estimate is not None
    assert (steps["web"].estimate.tokens, steps["web"].estimate.bytes_to_read) == (900, None)


# Parts


@pytest.mark.parametrize("settings", ["val_frac = 0.0", "train_tokens = 200\nval_tokens = 30"])
def test_parts_without_a_plan_are_estimated_as_the_plan_would_divide_them(parts: PartsProject, settings: str) -> None:
    found = parts.graph(3, settings)
    before = tree(parts.folder)
    steps = {step.key: step for step in forecast(found)}
    assert tree(parts.folder) == before
    assert not found.root.exists()
    outcomes = build(found)
    assert {step.action for step in steps.values()} == {"build"}
    assert list(steps) == list(outcomes)
    expected = [steps[key].estimate.tokens for key in parts_of(found)]  # type: ignore[union-attr]
    tokens = [outcomes[key].meta["train_tokens"] for key in parts_of(found)]
    assert len(expected) == 3
    assert expected == tokens if "train_tokens" in settings else expected == pytest.approx(tokens, rel=0.15)
    if "val_tokens" in settings:
        assert steps[f"val_part/{NAME}"].estimate.tokens == 30  # type: ignore[union-attr]
    assert set(actions(forecast(found)).values()) == {"cache_hit"}


def test_parts_have_estimates_before_the_tokenizer_is_trained(parts: PartsProject) -> None:
    steps = forecast(parts.graph(3, tokenizer="vocab_size = 380"))
    assert {step.action for step in steps} == {"build"}
    assert sum(step.estimate.tokens for step in steps if step.estimate and step.key.startswith("part/")) > 0


def test_one_missing_part_is_built_alone(parts: PartsProject) -> None:
    found = parts.graph(3)
    build(found)
    key = parts_of(found)[1]
    shutil.rmtree(found[key].directory)
    steps = forecast(found)
    assert [step.key for step in steps if step.action == "build"] == [key]
    estimate = estimated(steps, key)
    planned = found.sealed(NAME).part(1).planned
    assert estimate.bytes_to_read == sum(file.bytes for file in planned.files)


@pytest.mark.parametrize("settings", ["val_frac = 0.0", 'prepare = ["dedup"]'])
def test_the_plan_is_read_as_often_for_many_parts_as_for_few(parts: PartsProject, settings: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read, counts = PartsPlan.read, []
    for count in (2, 5):
        found = parts.graph(count, settings)
        keys = found.order()
        build(found, keys[: keys.index(f"corpus/{NAME}")] if "prepare" in settings else keys)  # without the corpus, its parts matter
        calls: list[object] = []
        monkeypatch.setattr(PartsPlan, "read", lambda plan, calls=calls: calls.append(plan) or read(plan))
        steps = forecast(found)
        assert {step.action for step in steps if "part" in step.key} == {"cache_hit"}
        counts.append(len(calls))
        monkeypatch.setattr(PartsPlan, "read", read)
    assert 0 < counts[0] == counts[1]


def test_a_seal_compares_a_sample_of_train_unless_everything_is_requested(parts: PartsProject) -> None:
    spec = parts.graph(3, "val_frac = 0.1").sealed(NAME).spec
    everything = replace(spec, build=spec.build.model_copy(update={"near_check": "all"}))
    without_val = parts.graph(3, "val_frac = 0.0").sealed(NAME).spec
    seconds = [estimates._check_seconds(each, 10**9) for each in (without_val, spec, everything)]
    assert 0 == seconds[0] < seconds[1] < seconds[2]


def test_counting_for_val_frac_is_a_cost_of_the_plan(parts: PartsProject) -> None:
    found = {settings: by_name(forecast(parts.graph(3, settings))) for settings in ("val_frac = 0.0", "val_frac = 0.5")}
    plans = [steps[f"plan/{NAME}"].estimate for steps in found.values()]
    assert plans[0] is None
    assert plans[1] is not None
    assert (plans[1].core_seconds or 0) > estimates.COSTS["plan"].seconds


@pytest.mark.parametrize("has_corpus", [False, True])
def test_tokens_in_parts_share_the_budget_and_one_sample_of_the_corpus(
    parts: PartsProject, has_corpus: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = parts.graph(3, 'prepare = ["dedup"]\ntrain_tokens = 300\nval_tokens = 40\ntokens_in_parts = true')
    if has_corpus:
        build(found, [key for key in found.order() if key.split("/")[0] in ("tokenizer", "plan", "corpus_part", "corpus")])
    measured: list[object] = []
    monkeypatch.setattr(estimates, "measure", lambda *given, **more: measured.append(given) or sample.measure(*given, **more))
    steps = {step.key: step.estimate for step in forecast(found)}
    assert len(measured) == 1
    assert sum(steps[key].tokens for key in parts_of(found)) == pytest.approx(340, abs=2)  # type: ignore[union-attr]


def test_memory_in_all_counts_the_parts_that_are_built_at_a_time() -> None:
    def step(key: str, memory: int | None) -> Step:
        return Step(key=key, action="build", state="missing", why="", estimate=Estimate(basis="", core_seconds=None, memory_bytes=memory))

    steps = [step("tokenizer", 5), *(step(f"part/a/{number}", number) for number in range(4)), step("pretrain/a", None)]
    assert [peak_memory(steps, at_once=at_once) for at_once in (1, 3, 9)] == [5, 6, 6]


def test_a_part_without_a_share_fails_with_one_line(parts: PartsProject) -> None:
    steps = by_name(forecast(parts.graph(5, "train_tokens = 5")))
    plan = steps[f"plan/{NAME}"]
    assert (plan.action, missing(plan.why, "part-0000", "5 train_tokens")) == ("fail", [])
    assert (steps["part/pages/part-00000"].action, steps[NAME].action) == ("skip", "skip")


# The command


def test_the_command_prints_and_writes_nothing(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(folder / "cache/pretrain/letters")
    monkeypatch.setenv("DAGSTER_HOME", str(folder / "home"))
    given = ["--dry-run", "--config", str(folder / "niels_cache.toml"), "--cache-dir"]
    before = tree(folder)
    assert main(["build-all", *given, str(folder / "cache"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert main(["build-all", *given, str(folder / "cache")]) == 0
    table = capsys.readouterr().out
    assert main(["build-all", *given, str(folder / "new/cache"), "--set", "pretrain.letters.val_frac=0"]) == 0
    assert tree(folder) == before
    steps = {step["name"]: step for step in told["steps"]}
    assert (steps["letters"]["action"], steps["notes"]["action"]) == ("build", "cache_hit")
    tokens = steps["letters"]["estimate"]["tokens"]
    assert told["sums"]["tokens"] == {"known": tokens, "unknown": 0}
    assert missing(table, "letters", f"{tokens:,}", "cache hit") == []
