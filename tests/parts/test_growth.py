"""Growth of a data set in parts: new files become new parts, and nothing that was there is read or changed."""

import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from niels_cache_assets.artifacts.base import Outcome
from niels_cache_assets.artifacts.graph import Graph
from niels_cache_assets.artifacts.materialize import materialize
from niels_cache_assets.artifacts.parts.prune import prune_parts
from niels_cache_assets.facts.lineage import read_lineage
from niels_cache_assets.sources.val_share import val_mask
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import list_shards
from niels_cache_runtime.format.meta import read_meta
from niels_cache_runtime.verify import verify_cache
from tests.build_cache.test_determinism import digests
from tests.helpers.hub_builds import Build, build_from
from tests.helpers.hub_repositories import card, parquet
from tests.helpers.loopback_hub import LoopbackHub
from tests.helpers.messages import missing
from tests.helpers.parts_project import NAME, PartsProject, build, parts_of, stream_of
from tests.helpers.tiny import sentences

BUDGETS = "train_tokens = 900\nval_tokens = 301\nshuffle_buffer = 20"
SHARE = "val_frac = 0.2\nshuffle_buffer = 10"
ADDED = f'[[pretrain.{NAME}.added]]\nfiles = ["more/*"]\nparts = 2\n'
PLAN, SEALED = f"plan/{NAME}", f"pretrain/{NAME}"


@pytest.fixture
def project(tmp_path: Path, tiny_model: Path) -> PartsProject:
    project = PartsProject(tmp_path, tiny_model)
    project.write([9, 2, 30, 14, 7, 1, 21, 11])
    project.write([12, 8, 15], first=8, folder="more")
    return project


def states(outcomes: dict[str, Outcome]) -> dict[str, str]:
    return {key: outcome.state for key, outcome in outcomes.items()}


def files_of(cache: Path, split: str) -> list[tuple[str, int]]:
    """The file and the row of each document, in the order of the cache."""
    count = read_meta(str(cache / "meta.json"))["documents"][split]
    found = read_lineage(cache / f"{split}_documents.parquet", range(count))
    return [(found[ordinal].file, found[ordinal].row) for ordinal in range(count)]


def grow(project: PartsProject, parts: int, settings: str, *, added: str = ADDED, root: str = "cache") -> Graph:
    return project.graph(parts, f"{settings}\n{added}", root=root)


@pytest.mark.parametrize(("parts", "settings"), [(8, SHARE), (3, BUDGETS), (1, SHARE), (1, BUDGETS)])
def test_a_grown_cache_begins_with_the_old_one_and_is_that_of_a_build_from_nothing(
    project: PartsProject, parts: int, settings: str
) -> None:
    found = project.graph(parts, settings)
    build(found)
    kept = {key: digests(found[key].directory) for key in parts_of(found)}
    old, documents = stream_of(project.cache()), {split: files_of(project.cache(), split) for split in ("train", "val")}
    places = {path.name: path.stat().st_ino for path in list_shards(project.cache() / "train")}
    grown = states(build(grow(project, parts, settings)))
    changed = {key for key, state in grown.items() if state == "built"}
    first = {f"part/{NAME}/part-00000"} if parts == 1 else set()  # its files are links
    assert changed == {PLAN, *first, f"part/{NAME}/part-{parts:05d}", f"part/{NAME}/part-{parts + 1:05d}", SEALED}
    assert {key: digests(found[key].directory) for key in kept} == kept
    new = stream_of(project.cache())
    assert {split: new[split].startswith(old[split]) for split in ("train", "val")} == {"train": True, "val": True}
    assert len(new["train"]) > len(old["train"])
    if "val_frac = 0.2" in settings:
        assert len(new["val"]) > len(old["val"])
    else:
        assert new["val"] == old["val"]
    for split, before in documents.items():
        now = files_of(project.cache(), split)
        assert now[: len(before)] == before
        assert all(file.startswith("more/") for file, _ in now[len(before) :])
    assert {name: (project.cache() / "train" / name).stat().st_ino for name in places} == places
    assert verify_cache(project.folder / "cache") == []
    assert set(states(build(grow(project, parts, settings))).values()) == {"cache_hit"}
    build(grow(project, parts, settings, root="nothing"))
    assert digests(project.cache("nothing")) == digests(project.cache())
    assert list(digests(project.cache()))  # not two empty folders


@contextmanager
def opened() -> Iterator[list[str]]:
    """The paths of all files that this process opens."""
    paths: list[str] = []
    is_on = True

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if is_on and event == "open" and isinstance(arguments[0], str | os.PathLike):
            paths.append(os.fspath(arguments[0]))

    sys.addaudithook(hook)
    try:
        yield paths
    finally:
        is_on = False


@pytest.mark.parametrize("parts", [3, 1])
def test_adding_parts_opens_no_shard_of_the_old_ones(project: PartsProject, parts: int) -> None:
    build(project.graph(parts, SHARE))
    old = {os.path.join(folder, name) for folder, _, names in os.walk(project.folder / "cache") for name in names if name.endswith(".bin")}
    assert len(old) > 3
    inodes = {os.stat(path).st_ino for path in old}
    found = grow(project, parts, SHARE)
    with opened() as paths:
        build(found, [key for key in found.order() if key != "tokenizer"])
    shards = [path for path in paths if path.endswith(".bin")]
    assert shards  # those of the new parts
    assert [path for path in shards if os.path.exists(path) and os.stat(path).st_ino in inodes] == []


@pytest.mark.parametrize("parts", [2, 1])
def test_growth_after_prune(project: PartsProject, parts: int) -> None:
    found = project.graph(parts, BUDGETS)
    build(found)
    old = stream_of(project.cache())["train"]
    build(project.graph(4, BUDGETS, root="cache")) if parts == 2 else None
    build(project.graph(parts, BUDGETS))
    prune_parts(found, NAME)
    if parts == 1:
        assert not (found.root / "pretrain/.parts" / NAME).exists()
    build(grow(project, parts, BUDGETS))
    assert stream_of(project.cache())["train"].startswith(old)
    grown = grow(project, parts, BUDGETS)
    assert prune_parts(grown, NAME) == []
    twice = ADDED + ADDED.replace("more/*", "texts/f02*").replace("parts = 2", "parts = 1\ntrain_tokens = 50")
    project.write([20], first=20)  # below the pattern of the first files
    outcomes = build(grow(project, parts, BUDGETS, added=twice))
    assert [key for key, state in states(outcomes).items() if state == "built"] == [PLAN, f"part/{NAME}/part-{parts + 2:05d}", SEALED]
    assert [entry["tokens"]["train"] for entry in read_meta(str(project.cache() / "meta.json"))["parts"]][-1] == 50
    assert verify_cache(found.root) == []


@pytest.mark.parametrize(
    ("parts", "change", "named"),
    [(3, "changed", "f002.jsonl"), (3, "deleted", "f002.jsonl"), (1, "new", "f030.jsonl"), (1, "changed", "")],
)
def test_other_files_of_the_first_parts_are_listed_and_need_force(project: PartsProject, parts: int, change: str, named: str) -> None:
    build(project.graph(parts, SHARE))
    expected = digests(project.cache())
    path = project.folder / "texts" / (named or "f002.jsonl")
    if change == "deleted":
        path.unlink()
    else:
        project.write([5], first=int(path.name[1:4]))
    found = grow(project, parts, SHARE)
    with pytest.raises(NielsCacheError, match="--force") as caught:
        build(found)
    assert "\n" not in str(caught.value)
    assert missing(caught.value, *([named, change] if named else [])) == []
    assert digests(project.cache()) == expected
    for key in found.order():
        materialize(found[key], force=key != "tokenizer")
    assert verify_cache(found.root) == []
    build(grow(project, parts, SHARE, root="nothing"))
    assert digests(project.cache("nothing")) == digests(project.cache())


def test_each_addition_has_a_choice_of_its_own(project: PartsProject) -> None:
    build(project.graph(2, SHARE))
    documents = [(f"more/f{file:03d}.jsonl", row) for file, size in ((8, 12), (9, 8), (10, 15)) for row in range(size)]
    val = sorted(files_of(project.cache(), "val") + [documents[at] for at in np.flatnonzero(val_mask(35, val_frac=0.2, seed=7 + 1))])
    for parts in (1, 3):
        build(grow(project, 2, SHARE, added=ADDED.replace("parts = 2", f"parts = {parts}")))
        assert sorted(files_of(project.cache(), "val")) == val
    folder = project.folder / f"cache/pretrain/.parts/{NAME}"
    rules = [json.loads((each / "meta.json").read_text())["split_rule"] for each in (folder / "part-00001", folder / "part-00002")]
    assert ["seed 7" in rules[0], "seed 8" in rules[1]] == [True, True]
    assert len([*folder.glob("val-*.npy")]) == 2
    build(project.graph(1, SHARE))
    prune_parts(project.graph(1, SHARE), NAME)
    assert not folder.exists()


def test_a_new_file_beside_those_of_a_plan_is_named_and_left_out(project: PartsProject) -> None:
    build(project.graph(3, SHARE))
    project.write([5], first=30)
    said: list[str] = []
    build(grow(project, 3, SHARE), log=said.append)
    assert any("f030.jsonl" in line for line in said)
    assert "f030.jsonl" not in {file for split in ("train", "val") for file, _ in files_of(project.cache(), split)}


@pytest.mark.parametrize(
    ("settings", "added", "said"),
    [
        ("val_frac = 0.1", "train_tokens = 100\n", "train_tokens"),
        ("val_tokens = 10", "train_tokens = 1\n", "train_tokens = 1"),
        ("val_tokens = 10", 'revision = "main"\n', "revision"),
        ('val_tokens = 10\nprepare = ["clean"]', "", "prepare"),
    ],
)
def test_tables_that_do_not_go_with_their_data_set_are_refused(project: PartsProject, settings: str, added: str, said: str) -> None:
    with pytest.raises(NielsCacheError, match=said) as caught:
        grow(project, 2, settings, added=ADDED + added)
    assert "\n" not in str(caught.value)
    with pytest.raises(NielsCacheError, match=r"f008.*two tables"):
        build(grow(project, 2, SHARE, added=ADDED + ADDED))


def test_decontaminate_compares_new_parts_with_the_val_that_is_there(project: PartsProject) -> None:
    settings = 'val_tokens = 120\ndecontaminate = "exact"'
    text = json.loads((project.folder / "texts/f000.jsonl").read_text().splitlines()[0])["text"]
    with open(project.folder / "more/f009.jsonl", "a") as file:
        file.write(json.dumps({"id": "copy", "text": text}) + "\n")
    build(project.graph(3, settings))
    build(grow(project, 3, settings))
    assert read_meta(str(project.cache() / "meta.json"))["dropped"] == {"in_val": 1}
    with pytest.raises(NielsCacheError, match="decontaminate"):
        grow(project, 1, settings)


MIX = f'\n[pretrain.mix]\nsource = "interleave"\nmembers = {{ {NAME} = 1 }}\nval_frac = 0.0\n'


@pytest.mark.parametrize("settings", [SHARE, 'val_tokens = 301\ndecontaminate = "exact"'])
def test_a_mixture_reads_the_added_files_of_a_member_without_its_val(project: PartsProject, settings: str) -> None:
    """The order of builds changes nothing. With decontaminate, copies of val in the added files are left out too."""
    first = (project.folder / "texts/f000.jsonl").read_text().splitlines()[0]  # with val_tokens, the head of a part
    with open(project.folder / "more/f010.jsonl", "a") as last:
        last.write(first.replace('"0-0"', '"copy"') + "\n")
    mixed = project.cache().with_name("mix")
    build(project.graph(3, settings + MIX), ["tokenizer", "pretrain/mix"])
    small = digests(mixed)
    found = grow(project, 3, settings, added=ADDED + MIX)
    assert build(found, ["pretrain/mix"])["pretrain/mix"].state == "built"
    before = digests(mixed)
    assert before != small
    build(found)
    materialize(found["pretrain/mix"], force=True)
    assert digests(mixed) == before
    val, train = (set(files_of(project.cache(), split)) for split in ("val", "train"))
    read = {(file.removeprefix(f"{NAME}/"), row) for split in ("val", "train") for file, row in files_of(mixed, split)}
    assert len(val) > 10
    assert len({file for file, _ in read if file.startswith("more/")}) == 3
    assert read == train
    assert (("more/f010.jsonl", 15) in read) == ("decontaminate" not in settings)
    if settings == SHARE:
        with pytest.raises(NielsCacheError, match=f"{NAME}.*added"):
            build(grow(project, 1, SHARE, added=ADDED + MIX, root="no parts"), ["tokenizer", "pretrain/mix"])


def test_a_first_part_that_is_built_again_reads_the_files_of_the_plan(project: PartsProject) -> None:
    found = grow(project, 1, SHARE)
    build(found)
    expected = digests(project.cache())
    shutil.rmtree(project.cache())
    shutil.rmtree(found.root / "pretrain/.parts" / NAME / "part-00000")
    project.write([6], first=30)
    build(found, [f"part/{NAME}/part-00000", SEALED])
    assert digests(project.cache()) == expected
    shutil.rmtree(found.root / "pretrain/.parts" / NAME / "part-00000")
    shutil.rmtree(project.cache())
    project.write([40], first=2)
    with pytest.raises(NielsCacheError, match=r"f002.*changed"):
        build(found, [f"part/{NAME}/part-00000"])


def rows(count: int, seed: int) -> list[dict[str, object]]:
    return [{"id": f"{seed}-{row}", "text": text} for row, text in enumerate(sentences(count, seed=seed))]


def test_a_data_set_of_the_hub_grows_by_files_of_a_later_commit(hub: LoopbackHub, tmp_path: Path, tiny_model: Path) -> None:
    old = {f"data/2025/{number}.parquet": parquet(rows(10 + 7 * number, number)) for number in range(3)}
    old["README.md"] = card({"default": {"train": "data/*/*"}})
    hub.repositories["owner/pages"] = old
    first = hub.commit("owner/pages")
    root = tmp_path / "root"
    root.mkdir()
    (root / "tokenizer").symlink_to(tiny_model.parent)
    table: dict[str, Any] = {"source": "huggingface", "dataset": "owner/pages", "val_frac": 0.2, "shuffle_buffer": 0}
    parts = {**table, "parts": 2}
    before, _ = build_from(hub, root, [Build(parts, name="parts"), Build(table, name="one")])
    hub.repositories["owner/pages"] = old | {f"data/2026/{number}.parquet": parquet(rows(9, number)) for number in (8, 9)}
    added = {"added": [{"files": ["2026/*"], "parts": 2, "revision": hub.commit("owner/pages")}]}
    whole = {**table, "pinned_revision": first, **added}
    builds = [Build({**parts, **added}, name="parts"), Build({**parts, **added}, name="nothing"), Build(whole, name="one")]
    grown, _ = build_from(hub, root, builds)
    assert [each.get("error") for each in (*before, *grown)] == [None] * 5
    tokens = [{name: sha256 for name, sha256 in each["files"].items() if name.endswith((".bin", ".npy"))} for each in grown]
    assert tokens[0] == tokens[1]
    for then, now in ((before[0], grown[0]), (before[1], grown[2])):
        documents, more = json.loads(then["meta"])["documents"], json.loads(now["meta"])["documents"]
        assert more["train"] > documents["train"]
        shards = {name: sha256 for name, sha256 in then["files"].items() if name.endswith(".bin")}
        assert shards.items() <= now["files"].items()
        assert sum(more.values()) == sum(documents.values()) + 18
    plan = json.loads((root / "pretrain/.parts/parts/plan.json").read_text())
    assert [group["dataset_revision"] for group in plan["groups"]] == [first, hub.commit("owner/pages")]
    assert json.loads(grown[0]["meta"])["parts"][0] == json.loads(before[0]["meta"])["parts"][0]
