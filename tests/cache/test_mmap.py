"""Shards that are mapped one by one, each at its own place in one range of memory."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from niels_cache_runtime import NielsCacheError
from niels_cache_runtime.cache import mmap as mapping
from niels_cache_runtime.cache.mmap import SlotTokens

TOKENS = np.dtype("<u2")
LENGTHS = (3 * mmap.PAGESIZE // 2, 700, 0, 1)  # in tokens: three pages, a part of a page, nothing, one token


def written(folder: Path, *, plus: int = 0, lengths: Sequence[int] = LENGTHS) -> list[Path]:
    """Write shards whose token i is i + plus + the number of the shard."""
    paths = []
    for number, length in enumerate(lengths):
        paths.append(folder / f"{plus}-{number}.bin")
        ((np.arange(length) + plus + number) % 60_000).astype(TOKENS).tofile(paths[-1])
    return paths


def empty_slots(paths: Sequence[Path]) -> SlotTokens:
    return SlotTokens([path.stat().st_size for path in paths], dtype=TOKENS)


def test_a_mapped_shard_is_read_at_the_same_place_each_time(tmp_path: Path) -> None:
    paths = written(tmp_path)
    slots = empty_slots(paths)
    assert slots.shard_lengths.tolist() == [*LENGTHS]
    assert slots.tokens is not None
    ends = slots.shard_starts + slots.shard_lengths
    assert (ends[:-1] <= slots.shard_starts[1:]).all()
    assert ends[-1] <= len(slots.tokens)
    for number in (1, 0, 3, 0, 2, 1):
        slots.map(number, paths[number])
        assert slots.readable[number] == LENGTHS[number]
        start = int(slots.shard_starts[number])
        assert np.array_equal(slots.tokens[start : start + LENGTHS[number]], np.fromfile(paths[number], dtype=TOKENS))
        assert np.array_equal(slots.shards[number], np.fromfile(paths[number], dtype=TOKENS))
        slots.clear(number)
        assert slots.readable.tolist() == [0] * len(LENGTHS)


def test_a_slot_holds_the_first_tokens_and_then_the_whole_shard(tmp_path: Path) -> None:
    paths = written(tmp_path)
    slots, content = empty_slots(paths), paths[0].read_bytes()
    slots.fill(0, content[:100])
    assert slots.readable.tolist() == [50, 0, 0, 0]
    assert slots.shards[0][:50].tobytes() == content[:100]
    slots.map(0, paths[0])
    assert slots.shards[0].tobytes() == content
    slots.map(1, paths[1])
    slots.map(3, paths[3])
    slots.clear(0)
    slots.fill(0, content[:2])
    slots.clear(3)
    assert slots.readable.tolist() == [1, LENGTHS[1], 0, 0], "its neighbours stay"
    assert slots.shards[1].tobytes() == paths[1].read_bytes()
    assert slots.shards[0][0] == np.frombuffer(content[:2], dtype=TOKENS)[0]


def test_a_removed_file_can_be_read_until_its_slot_is_empty(tmp_path: Path) -> None:
    paths = written(tmp_path)
    slots, content = empty_slots(paths), paths[0].read_bytes()
    slots.map(0, paths[0])
    paths[0].unlink()
    assert slots.shards[0].tobytes() == content
    slots.clear_all()
    assert slots.readable.tolist() == [0] * len(LENGTHS)
    with pytest.raises(NielsCacheError, match=r"0-0\.bin"):
        slots.map(0, paths[0])
    assert slots.readable[0] == 0


def test_a_file_of_another_size_is_refused(tmp_path: Path) -> None:
    paths = written(tmp_path)
    slots = empty_slots(paths)
    paths[1].write_bytes(paths[1].read_bytes()[:-2])
    with pytest.raises(NielsCacheError, match=str(LENGTHS[1] * 2)):
        slots.map(1, paths[1])
    assert slots.readable[1] == 0


def test_a_system_without_such_ranges_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapping, "_libc_mmap", lambda: (lambda *arguments: None, lambda *arguments: 0))
    with pytest.raises(NielsCacheError, match="addresses"):
        empty_slots(written(tmp_path))


def test_a_map_that_the_system_refuses_is_named_and_leaves_the_slot_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = written(tmp_path)
    slots = empty_slots(paths)
    monkeypatch.setattr(mapping, "map_at", lambda *arguments, **settings: False)
    with pytest.raises(NielsCacheError, match="max_map_count"):
        slots.map(0, paths[0])
    with pytest.raises(NielsCacheError, match="shard 1"):
        slots.fill(1, b"\1\0")
    assert slots.readable.tolist() == [0] * len(LENGTHS)
