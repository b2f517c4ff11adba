"""Fuzzed binary files, meta.json and states of loaders. A reader refuses them with the project's error, or reads the true content.

Seeded and small in CI; `make torture` runs 100,000 cases of each. Cases that found mistakes are in tests/product/test_hostile_files.py and
tests/product/test_hostile_states.py.
"""

import io
import json
import struct
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from niels_cache_runtime import DatasetLoader, NielsCacheError, PretrainTokenStreamDataset, SFTExampleDataset, TokenLoader
from niels_cache_runtime.cache.mmap import map_doc_ends, map_example_starts
from niels_cache_runtime.cache.opening import open_split
from niels_cache_runtime.format.layout import DOC_ENDS_DTYPE, IDX_DTYPE, META_NAME
from niels_cache_runtime.format.meta import canonical_json, sha256_text
from niels_cache_runtime.loader import blend
from niels_cache_runtime.loader.packing.rows import PackedExamples
from niels_cache_runtime.megatron import IndexedDataset
from niels_cache_runtime.verify import verify_dataset
from tests.helpers import megatron_core
from tests.helpers.hand_made import EOT, write_cache, write_meta_of, write_pair, write_stream
from tests.helpers.hostile import CASES, Draws, fuzz, mutated_bytes, mutated_json

_SHAPES = ["()", "(5,)", "(4,)", "(6,)", "(5)", "(5, 1)", "(0,)", "(-5,)", "(5.0,)", "(2305843009213693952,)", "(2305843009213693957,)"]
_SHAPES += ["(True,)", "(0, 4611686018427387904, 4)", "(99999999999999999999999,)", "5", "(5,),", "((5,),)", "(5L,)", "(1,)*5", "[5]"]
_DESCRS = ["'<u8'", "'<i8'", "'>u8'", "'|u1'", "'<f8'", "'|O'", "'O'", "'<u4'", "'<U2'", "'|V8'", "'u8'", "'Q'", "'<u8,<u8'", "None"]
_DESCRS += ["[('a', '<u8')]", "'<M8[ns]'", "{'names': []}", "'<u8'*2", "__import__('os')", "'" + "(" * 3000, "-" * 5000 + "1", "'<u16'"]


def npy_file(draws: Draws, array: np.ndarray) -> bytes:
    """Return the file of an array, with mutated bytes, or with a header of any value before its items."""
    buffer = io.BytesIO()
    np.save(buffer, array)
    whole = buffer.getvalue()
    if draws.integer(0, 1):
        return mutated_bytes(draws, whole, [(8, 2), *((128 + 8 * item, 8) for item in range(len(array)))])
    entries = [
        f"'descr': {draws.of([*[repr(array.dtype.str)] * 8, *_DESCRS])}",
        f"'fortran_order': {draws.of([*['False'] * 4, 'True', '0', 'None'])}",
        f"'shape': {draws.of([*[str(array.shape)] * 8, *_SHAPES])}",
    ]
    entries = draws.shuffled(entries)[: draws.of([3, 3, 3, 3, 2, 0])]
    entries += draws.of([[], [], [], ["'more': 1"], ["'shape': (1,)"], ["'descr': '<i4'"]])
    text = "{" + ", ".join(entries) + draws.of([", }", "}", "", ",,}", "} + {}", "}\0"])
    version = draws.of([(1, 0), (1, 0), (2, 0), (3, 0), (4, 0), (0, 0)])
    header = text.encode() + b" " * draws.integer(0, 70) + draws.of([b"\n", b"", b"\n\n"])
    length = (len(header) + draws.of([0, 0, 0, 1, -1, 60_000])) % 65_536
    content = b"\x93NUMPY" + bytes(version) + length.to_bytes(2 if version == (1, 0) else 4, "little") + header
    return content + whole[128:] + draws.of([b"", b"", b"\0", b"\0" * 8])


def as_numpy_reads(content: bytes) -> np.ndarray:
    """Return the array as numpy reads it. The file must have nothing else."""
    buffer = io.BytesIO(content)
    array = np.lib.format.read_array(buffer, allow_pickle=False)
    assert buffer.tell() == len(content)
    return array


@pytest.mark.parametrize("cases", CASES)
@pytest.mark.parametrize(
    ("read", "whole"),
    [(map_doc_ends, np.array([3, 4, 9, 15, 20], DOC_ENDS_DTYPE)), (map_example_starts, np.array([0, 4, 9, 15, 19], IDX_DTYPE))],
    ids=["document ends", "example starts"],
)
def test_offsets_are_refused_or_what_numpy_reads_in_order(tmp_path: Path, read: Any, whole: np.ndarray, cases: int) -> None:
    path, accepted = tmp_path / "train.npy", 0

    def check(content: bytes) -> None:
        nonlocal accepted
        path.write_bytes(content)
        try:
            found = read(path, token_count=20)
        except NielsCacheError:
            return
        accepted += 1
        assert found.dtype == whole.dtype
        assert found.tolist() == as_numpy_reads(content).tolist() == sorted(set(found.tolist()))
        assert (found[0] > 0, found[-1] == 20) == ((True, True) if read is map_doc_ends else (False, False))

    fuzz(cases, lambda draws: npy_file(draws, whole), check)
    assert accepted


@pytest.mark.parametrize("cases", CASES)
def test_token_arrays_of_others_are_refused_ignored_or_read_as_numpy_reads_them(tmp_path: Path, cases: int) -> None:
    path, accepted = tmp_path / "tokens.npy", 0

    def check(content: bytes) -> None:
        nonlocal accepted
        path.write_bytes(content)
        try:
            loader = DatasetLoader(1, 4, 0, 1, str(tmp_path), "cpu")
            x, y = loader.get_batch()
        except NielsCacheError:
            return
        accepted += 1
        whole = as_numpy_reads(content)
        assert (whole.ndim, whole.dtype.kind in "iu") == (1, True)
        assert (x[0].tolist(), y[0].tolist()) == (whole[:4].tolist(), whole[1:5].tolist())

    fuzz(cases, lambda draws: npy_file(draws, np.arange(10, 21, dtype=np.uint16)), check)
    assert accepted


def hashed_again(meta: Any) -> bytes:
    """Return the bytes of a meta.json with a new hash, as an attacker could write it. They are in our form of JSON if this is possible."""
    if not isinstance(meta, dict):
        return json.dumps(meta).encode()
    record = {**meta, "meta_sha256": ""}
    try:
        record["meta_sha256"] = sha256_text(canonical_json(record))
        return canonical_json(record).encode()
    except ValueError:
        return json.dumps(record).encode()


@pytest.mark.filterwarnings("ignore:.*have no")
@pytest.mark.parametrize("cases", CASES)
@pytest.mark.parametrize("family", ["pretrain", "sft"])
def test_a_meta_json_that_was_edited_and_hashed_again_is_refused_or_its_tokens_are_read(tmp_path: Path, family: str, cases: int) -> None:
    folder = write_cache(tmp_path) / family / ("notes" if family == "pretrain" else "chats")
    path, accepted = folder / META_NAME, 0

    def opened() -> None:
        if family == "pretrain":
            split = open_split(folder / "train", doc_ends=True)
            assert np.concatenate(split.tokens.shards).tolist() == [10, 11, 12, 13, EOT, 14, EOT, *[20] * 8, EOT, 30, 31, 32, EOT]
            PretrainTokenStreamDataset(str(folder / "train"), T=3, device="cpu")
            DatasetLoader(1, 3, 0, 1, str(folder / "train"), "cpu")
        else:
            paths = str(folder / "train_tokens.bin"), str(folder / "train_idx.npy")
            SFTExampleDataset(*paths, T=8, device="cpu", eot_id=EOT)
            PackedExamples(str(folder / "train"), T=16, seed=1)

    def check(meta: Any) -> None:
        nonlocal accepted
        path.write_bytes(hashed_again(meta))
        verify_dataset(folder)  # findings, never an exception
        try:
            opened()
        except NielsCacheError:
            return
        accepted += 1

    whole = json.loads(path.read_bytes())
    fuzz(cases, lambda draws: mutated_json(draws, whole), check)
    assert accepted


DOCUMENTS = [5, 3, 1, 7]  # tokens of each


def as_the_format_says(index: bytes, tokens: bytes) -> list[list[int]]:
    """Return the sequences of an .idx and a .bin, read with struct alone. Every field must be right."""
    magic, version, code, sequences, entries = struct.unpack("<9sQBQQ", index[:34])
    assert (magic, version) == (b"MMIDIDX\0\0", 1)
    letter = {1: "B", 2: "b", 3: "h", 4: "i", 5: "q", 8: "H"}[code]
    size = struct.calcsize(f"<{letter}")
    body = struct.unpack(f"<{sequences}i{sequences}q{entries}q", index[34 : 34 + 12 * sequences + 8 * entries])
    assert len(index) - 34 - 12 * sequences - 8 * entries in (0, sequences)
    lengths, pointers, documents = body[:sequences], body[sequences : 2 * sequences], body[2 * sequences :]
    assert min(lengths, default=0) >= 0
    assert pointers == tuple(size * sum(lengths[:number]) for number in range(sequences))
    assert (documents[0], documents[-1], list(documents)) == (0, sequences, sorted(documents))
    assert len(tokens) == size * sum(lengths)
    return [
        list(struct.unpack(f"<{length}{letter}", tokens[pointer : pointer + size * length]))
        for pointer, length in zip(pointers, lengths, strict=True)
    ]


@pytest.mark.parametrize("cases", CASES)
def test_an_index_of_megatrons_is_refused_or_read_as_its_format_says(tmp_path: Path, cases: int) -> None:
    prefix, accepted = tmp_path / "data", 0
    megatron_core.write_documents(prefix, DOCUMENTS)
    index, tokens = (Path(f"{prefix}{ending}").read_bytes() for ending in (".idx", ".bin"))
    count = len(DOCUMENTS)
    fields = [(9, 8), (17, 1), (18, 8), (26, 8), *((34 + 4 * item, 4) for item in range(count))]
    fields += [(34 + 4 * count + 8 * item, 8) for item in range(2 * count + 1)]

    def check(drawn: tuple[bytes, bytes]) -> None:
        nonlocal accepted
        Path(f"{prefix}.idx").write_bytes(drawn[0])
        Path(f"{prefix}.bin").write_bytes(drawn[1])
        try:
            found = IndexedDataset(prefix)
        except NielsCacheError:
            return
        accepted += 1
        assert [sequence.tolist() for sequence in found] == as_the_format_says(*drawn)
        assert len(found.fingerprint) == 64

    def both(draws: Draws) -> tuple[bytes, bytes]:
        return mutated_bytes(draws, index, fields), tokens if draws.integer(0, 1) else mutated_bytes(draws, tokens)

    fuzz(cases, both, check)
    assert accepted


# States of loaders, in JSON


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
