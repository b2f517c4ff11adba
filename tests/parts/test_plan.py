"""The plan of a data set in parts: it divides files and budgets exactly, and refuses impossible divisions."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from niels_cache_assets.artifacts.materialize import materialize
from niels_cache_assets.parts.plan import (
    MAX_SHARDS,
    Plan,
    contiguous_runs,
    divide_in_proportion,
    plan_parts,
    proposed_shard_bytes,
)
from niels_cache_assets.sources.hub import data
from niels_cache_assets.sources.huggingface import Huggingface
from niels_cache_assets.sources.reading.files import SourceFile
from niels_cache_assets.sources.types import ListedFile
from niels_cache_runtime.errors import NielsCacheError
from tests.helpers.parts_project import NAME, PartsProject, build


def listed(*sizes: int, split: str | None = None) -> list[ListedFile]:
    return [ListedFile(f"f{number}", size, "digest", split) for number, size in enumerate(sizes)]  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(30))
def test_runs_cover_all_files_in_order_and_are_balanced(seed: int) -> None:
    random = np.random.default_rng(seed)
    parts = int(random.integers(1, 9))
    sizes = random.integers(0, 10 ** random.integers(1, 12), parts + int(random.integers(0, 40))).tolist()
    runs = contiguous_runs(sizes, parts)
    assert [index for run in runs for index in run] == list(range(len(sizes)))
    assert len(runs) == parts
    assert all(len(run) for run in runs)
    if len(sizes) > 4 * parts:
        assert max(sum(sizes[index] for index in run) for run in runs) <= sum(sizes) / parts + 2 * max(sizes)


def test_one_large_file_leaves_a_file_for_each_other_part() -> None:
    assert contiguous_runs([1, 1, 1000, 1, 1], 4) == [range(0, 2), range(2, 3), range(3, 4), range(4, 5)]
    assert contiguous_runs([0, 0, 0, 0], 2) == [range(0, 2), range(2, 4)]
    assert divide_in_proportion(5, [1, 1, 1]) == [2, 2, 1], "the first of equal remainders is larger"
    assert divide_in_proportion(1, [0, 0]) == [1, 0]


@pytest.mark.parametrize("seed", range(30))
def test_shares_sum_exactly_and_are_within_one_of_the_proportion(seed: int) -> None:
    random = np.random.default_rng(seed)
    weights = random.integers(0, 10 ** random.integers(1, 16), int(random.integers(1, 70))).tolist()
    weights[0] += 1
    total = int(random.integers(0, 10**15))
    found = divide_in_proportion(total, weights)
    assert sum(found) == total
    assert all(abs(share * sum(weights) - total * weight) < sum(weights) for share, weight in zip(found, weights, strict=True))


def plan_of(files: list[ListedFile], parts: int, *, train_tokens: int | None = None, val_tokens: int | None = None) -> Plan:
    """Divide files, and read the plan as from its file."""
    group = plan_parts(files, parts, train_tokens=train_tokens, val_tokens=val_tokens)
    plan = Plan.of({"fingerprint": "f", "dataset_revision": None, "groups": json.loads(json.dumps([group.entry]))})
    assert plan.groups == (group,)
    return plan


def test_a_plan_keeps_budgets_and_files() -> None:
    files = listed(10, 30, 20, 40)
    plan = plan_of(files, 2, train_tokens=101, val_tokens=11)
    assert [file for part in plan.parts for file in part.files] == files
    assert sum(part.train_tokens or 0 for part in plan.parts) == 101
    assert sum(part.val_tokens or 0 for part in plan.parts) == 11
    assert len({part.seed(7) for part in plan.parts}) == 2
    assert plan.parts[0].seed(7) != plan.parts[0].seed(8)


def test_files_of_upstreams_val_are_divided_apart() -> None:
    files = [*listed(5, 5, split="val"), *listed(1, 2, 3, 4, split="train")]
    plan = plan_of(files, 3)
    assert [file for part in plan.parts for file in part.files if file.split == "val"] == files[:2]
    assert [file for part in plan.parts for file in part.files if file.split == "train"] == files[2:]


def test_only_parts_with_files_get_a_share() -> None:
    assert sorted((len(part.files), part.train_tokens or 0) for part in plan_of(listed(5, 5), 3, train_tokens=100).parts)[0] == (0, 0)
    assert sum(part.train_tokens or 0 for part in plan_of(listed(0, 0), 3, train_tokens=100).parts) == 100
    with pytest.raises(NielsCacheError, match="part-00001"):
        plan_of(listed(10**9, 1), 2, train_tokens=100)


def test_a_file_whose_size_no_server_tells_is_named_if_its_part_gets_no_tokens() -> None:
    with pytest.raises(NielsCacheError, match=r"part-00001.*f1.*size"):
        plan_of(listed(1000, 0), 2, train_tokens=100)
    assert [part.train_tokens for part in plan_of(listed(0, 0), 2, train_tokens=100).parts] == [50, 50]


def test_the_room_for_a_part_is_unknown_if_the_size_of_a_file_is(project: PartsProject) -> None:
    found = project.graph(2)
    build(found, ["tokenizer", f"plan/{NAME}"])
    part = found.sealed(NAME).part(0)
    need = part.need()
    assert need is not None
    assert need.bytes > 0
    files = tuple(file._replace(bytes=0) for file in part.planned.files)
    vars(part).update(planned=replace(part.planned, files=files))
    assert part.need() is None


def test_a_file_that_the_hub_does_not_return_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    file = SourceFile("hf://datasets/owner/pages@c0ffee/data/0.parquet", "data/0.parquet")
    monkeypatch.setattr(data, "_files_of_hub", lambda *args: [[file]])
    monkeypatch.setattr("huggingface_hub.HfApi.get_paths_info", lambda *args, **settings: [])
    with pytest.raises(NielsCacheError, match=r"lists data/0\.parquet"):
        data.hub_files(Huggingface(dataset="owner/pages"), "c0ffee")


def test_shard_bytes_are_proposed_for_too_many_shards() -> None:
    settings = {"train_tokens": None, "val_tokens": None, "token_bytes": 2, "shard_bytes": 1 << 20}
    assert proposed_shard_bytes(listed(1 << 30), **settings) is None  # type: ignore[arg-type]
    files = listed(*[1 << 34] * 16)
    proposed = proposed_shard_bytes(files, **settings)  # type: ignore[arg-type]
    assert proposed is not None
    assert (16 << 34) / 4 * 2 / proposed <= MAX_SHARDS
    assert proposed_shard_bytes(files, **{**settings, "train_tokens": 1 << 20}) is None  # type: ignore[arg-type]


@pytest.fixture
def project(tmp_path: Path, tiny_model: Path) -> PartsProject:
    project = PartsProject(tmp_path, tiny_model)
    project.write([4, 6, 5])
    return project


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ('prepare = ["clean"]\n[[pretrain.pages.added]]\nfiles = ["more/*"]', "prepare"),
        ("train_tokens = 1\nval_tokens = 5", "train_tokens = 1"),
    ],
)
def test_settings_that_do_not_go_with_parts_are_refused(project: PartsProject, settings: str, said: str) -> None:
    with pytest.raises(NielsCacheError, match=said) as caught:
        project.graph(2, settings)
    assert "\n" not in str(caught.value)
    with pytest.raises(NielsCacheError, match=r"parts.*text"):  # it lists no files
        project.graph(2, source="text")


def test_a_plan_is_the_same_bytes_again_and_tells_no_place(project: PartsProject) -> None:
    paths = []
    for root in ("one", "two"):
        found = project.graph(2, root=root)
        build(found, [f"plan/{NAME}"])
        paths.append(found[f"plan/{NAME}"].target)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert str(project.folder) not in paths[0].read_text(encoding="utf-8")
    assert materialize(found[f"plan/{NAME}"]).state == "cache_hit"


def test_a_plan_warns_of_too_many_shards(project: PartsProject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("niels_cache_assets.parts.plan.MAX_SHARDS", 0.1)
    warning = materialize(project.graph(2, build="").sealed(NAME).spec.parts_plan).warning
    assert warning is not None
    assert "shard_bytes = " in warning


def test_a_plan_of_another_dtype_proposes_another_shard_size(project: PartsProject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("niels_cache_assets.parts.plan.MAX_SHARDS", 1)
    monkeypatch.setattr("niels_cache_assets.parts.plan._SHARD_BYTES_STEP", 1)
    build(project.graph(2), ["tokenizer", f"plan/{NAME}"])
    proposed = []
    for dtype in ("uint16-le", "uint32-le"):
        outcome = materialize(project.graph(2, build=f'token_dtype = "{dtype}"', shard_bytes=16)[f"plan/{NAME}"])
        proposed.append(outcome.meta["proposed_shard_bytes"])
    assert proposed[0] == proposed[1] / 2 > 0
