"""The key `exclude` of a data set in parts: only the parts that hold an id are built again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from niels_cache_assets.artifacts.base import Outcome
from niels_cache_assets.artifacts.dataset import DatasetSpec
from niels_cache_assets.artifacts.graph import Graph, graph
from niels_cache_assets.artifacts.materialize import materialize
from niels_cache_assets.artifacts.prepared_corpora import prepared_documents
from niels_cache_assets.base import parallel as in_flight
from niels_cache_assets.base.documents import DocumentBatch
from niels_cache_assets.facts.lineage import read_lineage
from niels_cache_assets.parts.layout import parts_dir
from niels_cache_assets.project.registry import load_registry
from niels_cache_assets.sources.types import StreamContext
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import SPLITS
from niels_cache_runtime.format.meta import read_meta
from niels_cache_runtime.verify import verify_cache
from tests.build_cache.test_determinism import digests
from tests.helpers.builds import find_duplicates
from tests.helpers.corpora import articles, write_jsonl
from tests.helpers.parts_project import NAME, PartsProject, build, parts_of

SIZES = [9, 2, 30, 14, 7, 1, 21, 11]
BUDGETS = "train_tokens = 900\nval_tokens = 301\nshuffle_buffer = 20"
COMPARED = f'{BUDGETS}\ndecontaminate = "exact"'
SHARE = "val_frac = 0.2\nshuffle_buffer = 10"
LIST = 'exclude = "ids.txt"'


@pytest.fixture
def project(tmp_path: Path, tiny_model: Path) -> PartsProject:
    project = PartsProject(tmp_path, tiny_model)
    project.write(SIZES)
    return project


def without(project: PartsProject, *ids: str, settings: str = "val_frac = 0.0", root: str = "cache") -> Graph:
    """The graph of eight parts without the documents that have these ids."""
    (project.folder / "ids.txt").write_text("".join(f"{each}\n" for each in ids))
    return project.graph(8, f"{settings}\n{LIST}" if ids else settings, root=root)


def built(outcomes: dict[str, Outcome]) -> set[str]:
    """The last parts of the keys that were built, without the tokenizer and the plan."""
    return {key.rpartition("/")[2] for key, outcome in outcomes.items() if outcome.state == "built"} - {"tokenizer", "plan"}


def ids_of(cache: Path) -> list[str]:
    """The ids in the lineage of both splits."""
    count = read_meta(str(cache / "meta.json"))["documents"]
    return [each.source_id for split in SPLITS for each in read_lineage(cache / f"{split}_documents.parquet", range(count[split])).values()]


def every_id() -> list[str]:
    return [f"{number}-{row}" for number, size in enumerate(SIZES) for row in range(size)]


def part_bytes(project: PartsProject) -> dict[str, dict[str, str]]:
    return {path.name: digests(path) for path in sorted(parts_dir(project.folder / "cache", NAME).glob("part-*"))}


@pytest.mark.parametrize("settings", ["val_frac = 0.0", BUDGETS])
def test_the_seal_lists_ids_that_match_nothing_in_any_part(project: PartsProject, settings: str) -> None:
    outcomes = build(without(project, "2-3", "nobody", settings=settings))
    warned = {key: [line for line in outcome.drops.warnings if "nobody" in line] for key, outcome in outcomes.items()}
    assert [key for key, lines in warned.items() if lines] == [f"pretrain/{NAME}"]
    assert "2-3" not in warned[f"pretrain/{NAME}"][0]
    with pytest.raises(NielsCacheError, match="nobody"):
        build(without(project, "2-3", "nobody", settings=f"{settings}\nexclude_must_match = true", root="other"))
    assert not project.cache("other").exists()


@pytest.mark.walk  # many builds
def test_only_the_part_that_holds_the_ids_is_built_again(project: PartsProject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("niels_cache_assets.parts.exclusion._ROWS", 4)  # the lineage of a part has several batches
    build(without(project))
    whole, parts = digests(project.cache()), part_bytes(project)
    assert ids_of(project.cache()) == every_id()

    gone = ("2-3", "2-17")
    assert built(build(without(project, *gone))) == {"part-00002", NAME}
    after = part_bytes(project)
    assert [name for name in parts if parts[name] != after[name]] == ["part-00002"]
    meta = read_meta(str(project.cache() / "meta.json"))
    assert meta["dropped"] == {"excluded": 2}
    assert meta["facts"]["excluded"] == dict.fromkeys(gone, 1)
    assert ids_of(project.cache()) == [each for each in every_id() if each not in gone]
    assert verify_cache(project.folder / "cache") == []
    assert built(build(without(project, *gone))) == set()
    build(without(project, *gone, root="afresh"))
    assert digests(project.cache("afresh")) == digests(project.cache())

    assert built(build(without(project))) == {"part-00002", NAME}
    assert digests(project.cache()) == whole


def test_a_first_build_with_the_list_is_kept_while_other_ids_come(project: PartsProject) -> None:
    assert len(built(build(without(project, "0-1", "6-2")))) == 9
    assert built(build(without(project, "0-1", "6-2", "9-9"))) == set()
    assert built(build(without(project, "0-1", "6-2", "3-3"))) == {"part-00003", NAME}
    assert built(build(without(project, "3-3", "6-2"))) == {"part-00000", NAME}
    assert ids_of(project.cache()) == [each for each in every_id() if each not in ("3-3", "6-2")]


@pytest.mark.parametrize("settings", [COMPARED, SHARE])
def test_val_leaves_them_out_too(project: PartsProject, settings: str) -> None:
    build(without(project, settings=settings))
    assert built(build(without(project, "not-there", "2-99", settings=settings))) == set(), "no part has them"
    whole = digests(project.cache())
    meta = read_meta(str(project.cache() / "meta.json"))
    of_val = next(iter(read_lineage(project.cache() / "val_documents.parquet", [meta["documents"]["val"] - 1]).values()))
    part = f"part-{int(of_val.source_id.partition('-')[0]):05d}"
    kept = ids_of(project.cache())

    found = build(without(project, of_val.source_id, settings=settings))
    has_val_part = "val_tokens" in settings or "decontaminate" in settings
    everything = {f"part-{number:05d}" for number in range(8)}
    depends_on_val = everything if "decontaminate" in settings else {part}
    key = f"val_part/{NAME}"
    assert (key in found) == has_val_part
    assert {each.rpartition("/")[2] for each in parts_of(project.graph(8)) if found[each].state == "built"} == depends_on_val
    assert not has_val_part or found[key].state == "built"
    assert of_val.source_id not in ids_of(project.cache())
    assert read_meta(str(project.cache() / "meta.json"))["facts"]["excluded"] == {of_val.source_id: 1}
    assert read_meta(str(project.cache() / "meta.json"))["dropped"]["excluded"] == 1
    assert built(build(without(project, of_val.source_id, settings=settings))) == set()
    build(without(project, of_val.source_id, settings=settings, root="afresh"))
    assert digests(project.cache("afresh")) == digests(project.cache())

    build(without(project, settings=settings))
    assert digests(project.cache()) == whole
    assert ids_of(project.cache()) == kept


def test_documents_that_are_only_read_ahead_do_not_count_for_val(project: PartsProject, monkeypatch: pytest.MonkeyPatch) -> None:
    """A build with more threads reads further ahead. Val ends after fewer than 256 documents of the first part."""
    project.write([2500])
    metas = []
    for ahead in (2, 16):
        monkeypatch.setattr(in_flight, "_IN_FLIGHT_PER_WORKER", ahead)
        settings = "train_tokens = 20000\nval_tokens = 1000\nshuffle_buffer = 20"
        found = without(project, "0-1", "0-2000", settings=settings, root=f"ahead-{ahead}")
        build(found, ["tokenizer", f"plan/{NAME}", f"val_part/{NAME}"])
        metas.append(found[f"val_part/{NAME}"].current())
    assert metas[0]["part"]["taken"][0] < 256
    assert metas[0]["part"]["excluded"] == {"part-00000": ["0-1"]}
    assert metas[0] == metas[1]


def test_a_list_for_added_files_leaves_the_first_parts_as_they_are(project: PartsProject) -> None:
    project.write([4, 6], first=8, folder="more")
    added = f'[[pretrain.{NAME}.added]]\nfiles = ["more/*"]\nparts = 2\n'
    for parts in (1, 3):
        root = f"cache-{parts}"
        for gone, expected in (([], None), (["9-1"], f"part-{parts + 1:05d}"), (["9-1", "3-2"], "part-00000" if parts == 1 else None)):
            (project.folder / "ids.txt").write_text("\n".join(gone) or "none")
            found = build(project.graph(parts, f"val_frac = 0.0\n{LIST}\n{added}", root=root))
            told = built(found) - {NAME}
            assert expected is None or told == {expected}
        assert {"9-1", "3-2"}.isdisjoint(ids_of(project.cache(root)))
        assert len(ids_of(project.cache(root))) == sum(SIZES) + 10 - 2


def test_a_mixture_reads_the_rest_of_a_member_in_parts(project: PartsProject) -> None:
    (project.folder / "ids.txt").write_text("2-3\n6-1\n")
    config = project.folder / "mixed.toml"
    project.graph(4, f"{BUDGETS}\n{LIST}", root="mixed")
    config.write_text(f'{config.read_text()}[pretrain.mix]\nsource = "interleave"\nmembers = {{ {NAME} = 1.0 }}\nval_frac = 0.0\n')
    registry, root = load_registry(config=str(config)), project.folder / "mixed"
    build(graph(registry, root))
    assert {"2-3", "6-1"}.isdisjoint(ids_of(root / "pretrain/mix"))
    mix = registry.pretrain["mix"]
    spec = DatasetSpec(registry=registry, root=root, name="mix", source=mix, build=registry.build)
    context = StreamContext(seed=7, revision=spec.revision(), siblings=spec.siblings)
    read = [document.source_id for batch in mix.kept_documents(context) for document in DocumentBatch.of(batch)]
    assert len(read) > 40
    assert set(read) <= set(every_id()) - {"2-3", "6-1"}


def test_only_the_part_of_a_corpus_that_holds_the_ids_is_built_again(tmp_path: Path) -> None:
    texts = articles(40)
    for number in range(4):
        rows = [{"id": f"{number}-{row}", "text": text} for row, text in enumerate(texts[number * 10 : number * 10 + 10])]
        path = tmp_path / "texts" / f"f{number}.jsonl"
        write_jsonl(path, [])
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = tmp_path / "niels_cache.toml"

    def found(*ids: str, root: str = "cache") -> Graph:
        (tmp_path / "ids.txt").write_text("\n".join(ids))
        config.write_text(
            '[cleaning]\nskip = ["not_english", "language_error"]\n[pretrain.notes]\nsource = "jsonl"\nfiles = ["texts/*.jsonl"]\n'
            f'prepare = ["clean", "dedup"]\nparts = 4\nval_frac = 0.1\n{LIST if ids else ""}\n[build]\nthreads = 1\n'
        )
        return graph(load_registry(profile="quickstart", config=str(config)), tmp_path / root)

    def prepare(of: Graph) -> set[str]:
        keys = [key for key in of.order(["notes"]) if key.partition("/")[0] in ("plan", "corpus_part") or key == "corpus/notes"]
        build_of = {key: of[key] for key in keys}
        outcomes = {key: materialize(artifact) for key, artifact in build_of.items()}
        return {key.rpartition("/")[2] for key, outcome in outcomes.items() if outcome.state == "built"}

    prepare(found())
    whole = read_meta(str(tmp_path / "cache/corpus/notes/meta.json"))
    assert whole["documents"]["kept"] == 40
    assert prepare(found("2-4", "2-5", "9-9")) == {"part-00002", "notes"}
    meta = read_meta(str(tmp_path / "cache/corpus/notes/meta.json"))
    assert meta["documents"]["kept"] == 38
    assert meta["facts"]["excluded"] == {"2-4": 1, "2-5": 1}
    assert prepare(found("2-5", "2-4")) == set()
    materialized = found("2-4", "2-5")
    find_duplicates(materialized.registry, root=materialized.root)
    documents = prepared_documents(materialized.registry, "notes", root=materialized.root)
    assert {document.source_id for batch in documents for document in batch} == {
        f"{number}-{row}" for number in range(4) for row in range(10)
    } - {"2-4", "2-5"}
    assert prepare(found()) == {"part-00002", "notes"}
    assert read_meta(str(tmp_path / "cache/corpus/notes/meta.json")) == whole
