"""Fuzzed states and descriptions in JSON, of loaders, indices and unfinished builds. They are refused with the project's error, or good.

Seeded and small in CI; `make torture` runs 100,000 cases of each. Cases that found mistakes are in tests/test_hostile_states.py.
"""

import hashlib
import json
import shutil
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from niels_cache_assets.disk.journal import JOURNAL_NAME, Journal
from niels_cache_runtime import NielsCacheError, TokenLoader
from niels_cache_runtime.format.layout import META_NAME
from niels_cache_runtime.loader import blend
from niels_cache_runtime.megatron import IndexCache, IndexedDataset, MegatronGPTDataset
from niels_cache_runtime.megatron.index_cache import open_arrays
from tests import megatron_core
from tests.faults.test_fuzz_binary import hashed_again, npy_file
from tests.hand_made import write_meta_of, write_pair, write_stream
from tests.hostile import CASES, Draws, fuzz, mutated_bytes, mutated_json


def write_sources(root: Path) -> dict[str, str]:
    write_pair(root / "sft" / "chats", "train", [[2, 10, 4, 3, 11 + number, 4] for number in range(20)])
    write_pair(root / "sft" / "chats", "val", [])
    write_meta_of(root / "sft" / "chats", kind="sft")
    return {"notes": write_stream(root / "pretrain" / "notes", np.arange(10_000, 10_201)), "chats": str(root / "sft" / "chats" / "train")}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("cases", CASES)
def test_a_state_of_the_loader_is_refused_or_gives_the_batch_it_stands_before(
    tmp_path: Path, cases: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nearly all states have the same weights, and to interleave these takes most of the time of opening a loader: it is done once."""
    monkeypatch.setattr(blend, "_interleave", lru_cache(8)(blend._interleave))
    sources, accepted = write_sources(tmp_path), 0
    settings: dict[str, Any] = {"T": 8, "B": 2, "seed": 7, "weights": [(0, {"notes": 1, "chats": 1}), (40, {"notes": 2, "chats": 1})]}
    loader = TokenLoader(sources, **settings)
    iterator = iter(loader)
    for _ in range(30):
        next(iterator)
    state = json.loads(json.dumps(loader.state_dict()))

    def check(drawn: Any) -> None:
        nonlocal accepted
        for resume in (lambda: TokenLoader.from_state(drawn), lambda: loaded(drawn)):
            try:
                resumed = resume()
                batch = next(iter(resumed))
            except (NielsCacheError, StopIteration):
                continue
            accepted += 1
            position = resumed.position
            assert (position.samples, position.step) == (drawn["samples"] + len(batch.x) * resumed.world_size, drawn["step"] + 1)

    def loaded(drawn: Any) -> TokenLoader:
        fresh = TokenLoader(sources, **settings)
        fresh.load_state_dict(drawn)
        return fresh

    fuzz(cases, lambda draws: mutated_json(draws, state), check)
    assert accepted


@pytest.mark.parametrize("cases", CASES)
def test_a_spoiled_index_is_built_again_or_its_samples_are_read_without_a_crash(tmp_path: Path, cases: int) -> None:
    cache, prefix = IndexCache(tmp_path / "index"), tmp_path / "data"
    megatron_core.write_documents(prefix, [20] * 10)
    indexed = IndexedDataset(prefix)

    def dataset() -> MegatronGPTDataset:
        return MegatronGPTDataset(indexed, num_samples=20, sequence_length=16, seed=1, index_cache=cache)

    first = dataset()
    folder = Path(str(first.index_directory))
    files = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
    meta = json.loads(files[META_NAME])
    arrays = {name: np.array(getattr(first, name[:-4])) for name in files if name.endswith(".npy")}
    assert set(arrays) == {"document_index.npy", "sample_index.npy", "shuffle_index.npy"}

    def check(drawn: tuple[str, bytes]) -> None:
        for name, content in {**files, drawn[0]: drawn[1]}.items():
            (folder / name).unlink(missing_ok=True)  # processes that have mapped the old index keep it
            (folder / name).write_bytes(content)
        with suppress(NielsCacheError):
            open_arrays(folder)
        try:
            found = dataset()
        except NielsCacheError:  # files of the right sizes with arrays of other shapes
            (folder / META_NAME).unlink()
            found = dataset()
        assert len(found) == len(first)
        for name, array in arrays.items():
            again = getattr(found, name[:-4])
            assert (again.dtype, again.shape) == (array.dtype, array.shape)
        for number in range(len(found)):
            with suppress(NielsCacheError):
                found.read([number])

    def spoiled(draws: Draws) -> tuple[str, bytes]:
        name = draws.of(sorted(files))
        if draws.integer(0, 1):
            return name, mutated_bytes(draws, files[name])
        return name, npy_file(draws, arrays[name].reshape(-1)) if name in arrays else hashed_again(mutated_json(draws, meta))

    fuzz(cases, spoiled, check)


@pytest.mark.parametrize("cases", CASES)
def test_a_spoiled_journal_starts_afresh_or_is_gone_on_from_with_the_files_it_promises(tmp_path: Path, cases: int) -> None:
    build, outside, accepted = tmp_path / "build", tmp_path / "outside", 0
    outside.write_bytes(b"of another")
    build.mkdir()
    journal = Journal.open(build, fingerprint="f", log=lambda message: None)
    for name in ("tokens.bin", "train/shard_00000.bin"):
        (build / name).parent.mkdir(exist_ok=True)
        (build / name).write_bytes(b"x" * 100)
    shard = {"bytes": 100, "sha256": "0"}
    journal.record({"documents": 7}, files={"tokens.bin": 60}, finished={"train/shard_00000.bin": shard}, share=0.5, documents=7)
    whole = (build / JOURNAL_NAME).read_bytes()
    record = json.loads(whole.split(b"\n")[1])

    def spoiled(draws: Draws) -> bytes:
        if draws.integer(0, 1):
            return mutated_bytes(draws, whole)
        text = json.dumps(mutated_json(draws, record)).encode()
        return hashlib.sha256(text).hexdigest().encode() + b"\n" + text + b"\n"

    def check(content: bytes) -> None:
        nonlocal accepted
        shutil.rmtree(build)
        (build / "train").mkdir(parents=True)
        for name in ("tokens.bin", "train/shard_00000.bin", "left"):
            (build / name).write_bytes(b"x" * 100)
        (build / JOURNAL_NAME).write_bytes(content)
        told: list[str] = []
        opened = Journal.open(build, fingerprint="f", log=told.append)
        sizes = {path.relative_to(build).as_posix(): path.stat().st_size for path in build.rglob("*") if path.is_file()}
        assert outside.read_bytes() == b"of another"
        if opened.state is None:
            is_of_notes = sizes.keys() == {JOURNAL_NAME} and not told
            assert is_of_notes or (sizes, len(told)) == ({}, 1)
            return
        accepted += 1
        promised = json.loads(content.split(b"\n")[1])
        assert opened.state == promised["state"]
        finished = {name: entry["bytes"] for name, entry in promised["finished"].items()}
        assert sizes == {**promised["files"], **finished, JOURNAL_NAME: len(content)}

    fuzz(cases, spoiled, check)
    assert accepted
