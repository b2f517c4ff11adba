"""Everything that reads a cache reads a joined one too: verify, status, exports, mixtures; and data sets of the hub come in parts."""

import ctypes
import errno
import json
import os
from pathlib import Path

import pytest

from niels_cache_assets.artifacts.materialize import materialize
from niels_cache_assets.artifacts.parts.prune import prune_parts
from niels_cache_assets.cli import main
from niels_cache_assets.config.registry import load_registry
from niels_cache_assets.parts.layout import PART_KINDS
from niels_cache_runtime.cache import mmap
from niels_cache_runtime.cache.opening import open_split
from niels_cache_runtime.errors import NielsCacheError, NotWrittenError
from niels_cache_runtime.format.commit import writer_lock
from niels_cache_runtime.format.layout import SPLITS
from niels_cache_runtime.verify import find_folders, notes, verify_cache
from tests.exports import contents, export
from tests.hub_builds import Build, build_from
from tests.hub_repositories import card, json_lines, parquet
from tests.loopback_hub import LoopbackHub
from tests.messages import missing
from tests.parts_project import NAME, PartsProject, build, parts_of
from tests.test_cache_determinism import digests
from tests.test_parts import lineage
from tests.tiny import sentences


@pytest.fixture
def project(tmp_path: Path, tiny_model: Path) -> PartsProject:
    project = PartsProject(tmp_path, tiny_model)
    project.write([9, 2, 30, 14, 7, 1, 21, 11])
    return project


def test_verify_knows_parts_and_reads_each_byte_once(project: PartsProject) -> None:
    found = project.graph(3, "val_tokens = 60")
    build(found)
    root = found.root
    names = [path.name for path in find_folders(root)]
    assert names[-4:] == ["part-00000", "part-00001", "part-00002", "val"]
    totals: list[tuple[int, int]] = []
    assert verify_cache(root, progress=lambda done, total: totals.append((done, total))) == []
    read = [path for path in root.rglob("*") if path.suffix in (".bin", ".parquet", ".npy", ".model")]
    inodes = {path.stat().st_ino: path.stat().st_size for path in read}
    assert totals[-1] == (sum(inodes.values()), sum(inodes.values()))
    assert not [line for line in notes(root) if "parts" in line]


def test_verify_finds_a_damaged_part_and_one_in_the_wrong_place(project: PartsProject) -> None:
    found = project.graph(3)
    build(found)
    folder = found[parts_of(found)[0]].directory
    os.rename(folder, folder.with_name("part-00009"))
    assert "part-00000" in str(verify_cache(found.root)[0])
    os.rename(folder.with_name("part-00009"), folder)
    build(project.graph(3, root="other"), [key for key in found.order() if key != f"pretrain/{NAME}"])
    damaged = project.graph(3, root="other")[parts_of(found)[1]].directory / "train/shard_00000.bin"
    damaged.write_bytes(b"\xff" * damaged.stat().st_size)
    (finding,) = verify_cache(project.folder / "other")
    assert "part-00001" in str(finding)
    assert verify_cache(found.root) == []


def test_status_tells_how_many_parts_are_built(
    project: PartsProject, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = project.graph(3)
    build(found, found.order()[:3])
    assert "1 of 3 parts" in found.dataset_state(NAME).advice
    monkeypatch.chdir(project.folder)
    main(["status", "--config", "cache.toml", "--cache-dir", "cache"])
    assert "1 of 3 parts" in " ".join(capsys.readouterr().out.split())
    build(found)
    assert found.dataset_state(NAME).state == "in sync"
    assert project.graph(4).dataset_state(NAME).state == "other settings"


def test_the_plan_and_the_parts_have_states_of_their_own(project: PartsProject) -> None:
    found = project.graph(3, "val_tokens = 60")
    keys = [key for key in found.order() if key.partition("/")[0] in PART_KINDS]
    assert len(keys) == 5
    assert {found.state(key).state for key in keys} == {"missing"}
    build(found)
    assert {found.state(key).state for key in keys} == {"in sync"}
    assert [found.state(key).name for key in keys] == keys
    other = project.graph(3, "val_tokens = 61")
    assert {other.state(key).state for key in keys} == {"other settings"}
    build(other, keys[:3])
    assert [other.state(key).state for key in keys] == ["in sync"] * 3 + ["other settings"] * 2
    advice = other.dataset_state(NAME).advice
    assert "1 of 3 parts" in advice
    assert "2 have other settings" in advice
    os.truncate(other[keys[1]].directory / "val/shard_00000.bin", 2)
    assert other.state(keys[1]).state == "damaged"


@pytest.mark.parametrize("format", ["megatron", "npy"])
def test_an_export_of_a_joined_cache_is_that_of_one_build(project: PartsProject, format: str, tmp_path: Path) -> None:
    exported = []
    for parts, root in ((1, "one"), (3, "joined")):
        build(project.graph(parts, root=root))
        export(project.cache(root), format, tmp_path / f"of {root}" / "out")
        files = contents(tmp_path / f"of {root}")
        exported.append({name: each for name, each in files.items() if not name.endswith((".json", ".py", ".md", ".lock"))})
    assert exported[0]
    assert exported[0] == exported[1]


def test_a_mixture_reads_a_member_of_the_hub_as_its_parts_do(project: PartsProject) -> None:
    for path in (project.folder / "texts").iterdir():
        path.write_text(path.read_text().replace("\n", "\n\n"))  # the hub's library does not count blank lines, and the parts do
    member = 'dataset = "local/pages"\nval_frac = 0.3\nshuffle_buffer = 20\n'
    mixture = '[pretrain.mix]\nsource = "interleave"\nmembers = { pages = 1 }\nval_frac = 0.2\n'
    build(project.graph(3, member + mixture, source="huggingface"))
    val, train = ({(each.file, each.row) for each in lineage(project.cache(), split)} for split in ("val", "train"))
    mixed = project.cache().with_name("mix")
    read = {(each.file.removeprefix(f"{NAME}/"), each.row) for split in SPLITS for each in lineage(mixed, split)}
    assert len(val) > 10
    assert read == train


@pytest.mark.parametrize("rule", ['decontaminate = "exact"\n', "shuffle_buffer = 30\n"])
def test_a_mixture_keeps_out_the_val_that_the_parts_of_a_member_give_whatever_is_built_first(project: PartsProject, rule: str) -> None:
    mixture = '[pretrain.mix]\nsource = "interleave"\nmembers = { pages = 1 }\nval_frac = 0.2\n'
    found = project.graph(3, f"val_tokens = 120\n{rule}{mixture}")
    mixed = project.cache().with_name("mix")
    build(found, ["tokenizer", "pretrain/mix"])
    before = digests(mixed)
    build(found)
    materialize(found["pretrain/mix"], force=True)
    assert digests(mixed) == before
    val, train = ({(each.file, each.row) for each in lineage(project.cache(), split)} for split in ("val", "train"))
    read = {(each.file.removeprefix(f"{NAME}/"), each.row) for split in SPLITS for each in lineage(mixed, split)}
    assert len({file for file, _ in val}) == 3
    assert read == train


def test_sft_data_sets_have_no_parts(tmp_path: Path) -> None:
    config = tmp_path / "niels_cache.toml"
    config.write_text('[sft.chats]\nsource = "chat_jsonl"\nfiles = ["a.jsonl"]\nparts = 2\n')
    with pytest.raises(NielsCacheError, match=r"chats.*parts"):
        load_registry(config=str(config))


def rows(count: int, seed: int) -> list[dict[str, object]]:
    return [{"id": f"{seed}-{row}", "text": text} for row, text in enumerate(sentences(count, seed=seed))]


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_a_data_set_of_the_hub_comes_in_parts(hub: LoopbackHub, tmp_path: Path, tiny_model: Path, kind: str) -> None:
    write = {"parquet": parquet, "jsonl": json_lines}[kind]
    odd: list[dict[str, object]] = [{"id": "odd", "text": "b\0c"}]  # files of the hub are not judged, whatever they hold
    files = {f"data/{number}.{kind}": write(odd + rows(10 + 7 * number, number)) for number in range(5)}
    hub.repositories["owner/pages"] = {"README.md": card({"default": {"train": "data/*"}}), **files}
    root = tmp_path / "root"
    root.mkdir()
    (root / "tokenizer").symlink_to(tiny_model.parent)
    table = {"source": "huggingface", "dataset": "owner/pages", "val_frac": 0.0, "shuffle_buffer": 0}
    whole, parts, nothing = Build(table, name="one"), Build({**table, "parts": 3}, name="joined"), Build({**table, "dataset": "owner/none"})
    (one, joined, _, again, _), _ = build_from(hub, root, [whole, parts, nothing, parts, nothing])
    assert "error" not in joined, joined
    assert again == {**joined, "log": again["log"]}
    same = ("train_doc_ends.npy", "val_doc_ends.npy")
    assert {name: joined["files"][name] for name in same} == {name: one["files"][name] for name in same}
    keys = ("train_tokens", "documents", "dataset_revision", "characters")
    metas = [json.loads(each["meta"]) for each in (joined, one)]
    assert metas[1]["documents"]["train"] == sum(11 + 7 * number for number in range(5))
    assert {key: metas[0][key] for key in keys} == {key: metas[1][key] for key in keys}
    plan = json.loads((root / "pretrain/.parts/joined/plan.json").read_text())
    assert [file["name"] for file in plan["groups"][0]["listed"]] == sorted(files)
    assert [file["bytes"] for file in plan["groups"][0]["listed"]] == [len(files[name]) for name in sorted(files)]
    assert plan["dataset_revision"] == hub.commit("owner/pages")
    paths = [path for _, path, _ in hub.requests]
    assert any("paths-info" in path or "/tree/" in path for path in paths)
    after = paths[next(number for number, path in enumerate(paths) if "owner/none" in path) :]
    assert not [path for path in after if "owner/pages" in path], "a second build reads the plan and asks the hub for nothing"


def test_upstreams_own_splits_stay(hub: LoopbackHub, tmp_path: Path, tiny_model: Path) -> None:
    files = {f"data/{split}-{number}.parquet": parquet(rows(9 + number, number)) for split in ("train", "val") for number in range(3)}
    splits = {"train": "data/train-*", "validation": "data/val-*"}
    hub.repositories["owner/pages"] = {"README.md": card({"default": splits}), **files}
    root = tmp_path / "root"
    root.mkdir()
    (root / "tokenizer").symlink_to(tiny_model.parent)
    table = {"source": "huggingface", "dataset": "owner/pages", "val_split": "validation", "shuffle_buffer": 0}
    (one, joined), _ = build_from(hub, root, [Build(table, name="one"), Build({**table, "parts": 2}, name="joined")])
    assert "error" not in one, one
    assert "error" not in joined, joined
    for name in ("train_doc_ends.npy", "val_doc_ends.npy"):
        assert joined["files"][name] == one["files"][name]


def test_too_many_shards_for_the_kernel_are_named(project: PartsProject, monkeypatch: pytest.MonkeyPatch) -> None:
    build(project.graph(3))
    folder = project.cache() / "train"
    open_split(folder)
    monkeypatch.setattr("niels_cache_runtime.cache.mmap._most_maps", lambda: 2)
    with pytest.raises(NielsCacheError, match=r"vm.max_map_count") as caught:
        open_split(folder)
    assert "shard_bytes" in str(caught.value)
    monkeypatch.setattr("niels_cache_runtime.cache.mmap._most_maps", lambda: None)
    open_split(folder)


def test_the_limit_of_the_kernel_is_named_if_it_refuses_a_map(project: PartsProject, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several data sets, none of which is large, can reach the limit together."""
    build(project.graph(3))
    folder = project.cache() / "train"
    most = 2 * len(list(folder.iterdir()))
    map_pages, unmap_pages = mmap._libc_mmap()

    def refuse(address: int | None, *others: int) -> int | None:
        if address is None:
            return map_pages(address, *others)
        ctypes.set_errno(errno.ENOMEM)
        return None

    monkeypatch.setattr(mmap, "_most_maps", lambda: most)
    open_split(folder)
    monkeypatch.setattr(mmap, "_libc_mmap", lambda: (refuse, unmap_pages))
    with pytest.raises(NielsCacheError, match=r"vm.max_map_count"):
        open_split(folder)


def test_prune_removes_parts_of_earlier_plans_only(
    project: PartsProject, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    build(project.graph(4, "val_tokens = 60"))
    found = project.graph(3)
    with pytest.raises(NielsCacheError, match=NAME):
        prune_parts(found, NAME)
    build(found)
    assert [part.directory.name for part in prune_parts(found, NAME)] == ["part-00003", "val"]
    assert prune_parts(found, NAME) == []
    assert {outcome.state for outcome in build(found).values()} == {"cache_hit"}
    assert verify_cache(found.root) == []
    one = project.graph(1)
    build(one)
    monkeypatch.chdir(project.folder)
    assert main(["part", NAME, "--prune", "--config", "cache.toml", "--cache-dir", "cache", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["removed"]) == 3
    assert not (found.root / f"pretrain/.parts/{NAME}").exists()
    assert {outcome.state for outcome in build(one).values()} == {"cache_hit"}


def test_prune_removes_what_killed_builds_left_beside_earlier_parts(
    project: PartsProject, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = project.graph(3)
    build(found)
    folder = found.root / f"pretrain/.parts/{NAME}"
    for name in (".part-00050.partial", ".part-00001.partial"):
        (folder / name).mkdir()
        (folder / name / "journal").write_bytes(b"12345")
    (folder / ".part-00060.lock").touch()
    assert [tuple(part) for part in prune_parts(found, NAME)] == [(folder / ".part-00050.partial", 5)]
    left = {path.name for path in folder.iterdir()}
    assert ".part-00001.partial" in left
    assert "plan.json" in left
    assert not {name for name in left if "50" in name or "60" in name}
    monkeypatch.chdir(project.folder)
    assert main(["part", NAME, "--prune", "--config", "cache.toml", "--cache-dir", "cache"]) == 0
    assert "current plan" in capsys.readouterr().out
    with writer_lock(folder / "part-00050"), pytest.raises(NielsCacheError, match="another build"):
        prune_parts(found, NAME)
    assert (folder / ".part-00050.lock").exists()


def test_a_part_that_is_being_built_or_cannot_be_removed_is_one_line(project: PartsProject, monkeypatch: pytest.MonkeyPatch) -> None:
    build(project.graph(4))
    found = project.graph(3)
    build(found)
    leftover = found.root / f"pretrain/.parts/{NAME}/part-00003"

    def refused(path: Path) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr("niels_cache_runtime.format.commit.shutil.rmtree", refused)
    with writer_lock(leftover), pytest.raises(NielsCacheError, match="another build"):
        prune_parts(found, NAME)
    assert leftover.exists()
    with pytest.raises(NotWrittenError) as caught:
        prune_parts(found, NAME)
    assert missing(caught.value, str(leftover), "cannot be removed", "Permission denied") == []
