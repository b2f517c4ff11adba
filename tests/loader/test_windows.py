"""PretrainWindows. The tests check every window of the stream, for any ends of shards, and the origin of its tokens."""

import errno
import os
import pickle
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from niels_cache_runtime import NielsCacheError
from niels_cache_runtime.cache import mmap, opening
from niels_cache_runtime.cache.mmap import MappedTokens
from niels_cache_runtime.format.layout import DOC_ENDS_DTYPE, TOKEN_DTYPE, shard_name
from niels_cache_runtime.loader.windows import PretrainWindows
from tests.helpers import programs
from tests.helpers.hand_made import exchange, exchange_before, rewrite_meta, write_cache, write_meta_of, write_pretrain, write_shards

PAGE_TOKENS = mmap.mmap.PAGESIZE // 2
LAYOUTS = {
    "one shard": [3000],
    "full shards": [PAGE_TOKENS, 2 * PAGE_TOKENS, 77],
    "odd sizes": [1201, 7, 0, 1, 1, 9, 1500, 3],
    "both": [PAGE_TOKENS, 5, 0, PAGE_TOKENS, 2 * PAGE_TOKENS, 12],
    "the last one empty": [PAGE_TOKENS, 41, 0],
}
T = 8


def drawn_stream(tokens: int) -> np.ndarray:
    return torch.randint(65_536, (tokens,), generator=torch.Generator().manual_seed(tokens)).numpy().astype(TOKEN_DTYPE)


def write_stream(data_set: Path, lengths: Sequence[int], *, documents: Sequence[int] | None = None) -> np.ndarray:
    """A bare split `train` of random tokens, cut into shards and documents of these lengths; returns the stream."""
    stream = drawn_stream(sum(lengths))
    write_shards(data_set / "train", np.split(stream, np.cumsum(lengths)[:-1]))
    if documents is not None:
        np.save(data_set / "train_doc_ends.npy", np.cumsum(documents).astype(DOC_ENDS_DTYPE))
    return stream


def windows_of(stream: np.ndarray, *, T: int, stride: int) -> np.ndarray:
    return np.stack([stream[start : start + T + 1] for start in range(0, len(stream) - T, stride)])


def read_all(windows: PretrainWindows) -> np.ndarray:
    return windows.read(np.arange(windows.samples), epoch=0, boundaries=False).tokens


@given(
    lengths=st.lists(st.integers(0, 30) | st.sampled_from([PAGE_TOKENS, PAGE_TOKENS + 1]), min_size=1, max_size=8),
    T=st.integers(1, 40),
    stride=st.integers(1, 45),
    seed=st.integers(0, 1000),
)
def test_any_window_in_any_order_is_right(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], T: int, stride: int, seed: int
) -> None:
    folder = tmp_path_factory.mktemp("any")
    stream = write_stream(folder, lengths)
    if len(stream) <= T:
        with pytest.raises(NielsCacheError):
            PretrainWindows(str(folder / "train"), T=T, stride=stride)
        return
    windows = PretrainWindows(str(folder / "train"), T=T, stride=stride)
    numbers = torch.randint(windows.samples, (17,), generator=torch.Generator().manual_seed(seed)).numpy()
    expected = windows_of(stream, T=T, stride=stride)
    assert (windows.samples, windows.tokens) == (len(expected), len(expected) * T)
    rows = windows.read(numbers, epoch=3, boundaries=False).tokens
    assert rows.dtype == np.uint16
    assert np.array_equal(rows, expected[numbers])


def test_the_stride_is_T_and_makes_every_token_but_the_first_a_target_once(tmp_path: Path) -> None:
    stream = write_stream(tmp_path, [50, 31])
    windows = PretrainWindows(str(tmp_path / "train"), T=T)
    assert windows.samples == 10
    assert np.array_equal(read_all(windows)[:, 1:].ravel(), stream[1:])


@pytest.mark.parametrize("layout", ["full shards", "odd sizes"])
def test_origins_say_which_bytes_on_disk_and_which_document(tmp_path: Path, layout: str) -> None:
    lengths = LAYOUTS[layout]
    documents = [1, 1, 700, T, T + 1, 2]
    documents.append(sum(lengths) - sum(documents))
    write_stream(tmp_path, lengths, documents=documents)
    windows = PretrainWindows(str(tmp_path / "train"), T=T, stride=3)
    numbers = np.arange(windows.samples)
    tokens, origins = read_all(windows), windows.origins(numbers, epoch=0)
    on_disk = [np.fromfile(path, TOKEN_DTYPE) for path in windows.files]
    document_of = np.repeat(np.arange(len(documents)), documents)
    place_in_document = np.concatenate([np.arange(length) for length in documents])
    for field in (origins.files, origins.offsets, origins.documents, origins.document_offsets):
        assert field.dtype == np.int64
        assert field.shape == tokens.shape == (windows.samples, T + 1)
    for number in numbers:
        places = slice(number * 3, number * 3 + T + 1)
        found = [on_disk[file][offset] for file, offset in zip(origins.files[number], origins.offsets[number], strict=True)]
        assert found == tokens[number].tolist()
        assert np.array_equal(origins.documents[number], document_of[places])
        assert np.array_equal(origins.document_offsets[number], place_in_document[places])


def test_boundaries_are_where_documents_begin_inside_the_inputs(tmp_path: Path) -> None:
    write_stream(tmp_path, [PAGE_TOKENS, 9], documents=[3, 1, 4, 9, PAGE_TOKENS - 8])
    rows = PretrainWindows(str(tmp_path / "train"), T=T).read(np.array([1, 0, 2]), epoch=0, boundaries=True)
    assert rows.boundaries is not None
    # Documents begin at 0, 3, 4, 8 and 17; the windows at 8, 0 and 16; a window's target T is the next one's input 0.
    assert rows.boundaries.rows.tolist() == [1, 1, 2]
    assert rows.boundaries.columns.tolist() == [3, 4, 1]
    assert rows.boundaries.continues.tolist() == [True, False, True]
    assert rows.targets is None


def test_without_a_doc_ends_file_boundaries_are_refused_and_documents_unknown(tmp_path: Path) -> None:
    write_stream(tmp_path, [40])
    windows = PretrainWindows(str(tmp_path / "train"), T=T)
    origins = windows.origins(np.array([0, 3]), epoch=0)
    assert (origins.documents == -1).all()
    assert (origins.document_offsets == -1).all()
    assert origins.offsets[:, 0].tolist() == [0, 3 * T]
    with pytest.raises(NielsCacheError, match=r"train_doc_ends\.npy .*rebuild"):
        windows.read(np.array([0]), epoch=0, boundaries=True)


@pytest.mark.parametrize("number", [-1, 6, 2**62, -(2**62)])
def test_a_sample_that_is_none_is_refused(tmp_path: Path, number: int) -> None:
    windows = PretrainWindows(str(write_pretrain(tmp_path / "notes") / "train"), T=3)
    for ask in (lambda asked: windows.read(asked, epoch=0, boundaries=False), lambda asked: windows.origins(asked, epoch=0)):
        with pytest.raises(NielsCacheError, match="it has 0 to 5"):
            ask(np.array([2, number]))


def refuse(path: object) -> None:
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def test_short_and_empty_splits_and_bad_settings_are_refused(tmp_path: Path) -> None:
    def opened(folder: Path, T: object = 3, stride: object = None) -> PretrainWindows:
        return PretrainWindows(str(folder), T=T, stride=stride)  # type: ignore[arg-type]

    write_stream(tmp_path, [5, 4])
    assert opened(tmp_path / "train", T=8).samples == 1
    with pytest.raises(NielsCacheError, match=r"T=9 needs 10 .* has 9; use T <= 8"):
        opened(tmp_path / "train", T=9)
    with pytest.raises(NielsCacheError, match=r"T=3 needs 4 .* has 1$"):
        opened(write_shards(tmp_path / "single", [[1]]))
    with pytest.raises(NielsCacheError, match="empty"):
        opened(write_shards(tmp_path / "empty", [[], []]))
    (tmp_path / "none" / "val").mkdir(parents=True)
    write_meta_of(tmp_path / "none", kind="pretrain")
    with pytest.raises(NielsCacheError, match="empty"):
        opened(tmp_path / "none" / "val")
    with pytest.raises(NielsCacheError, match="no such folder"):
        opened(tmp_path / "nowhere")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "listdir", refuse)
        with pytest.raises(NielsCacheError, match="Permission denied"):
            opened(tmp_path / "train")
    for bad in (0, -1, True, 2.5):
        with pytest.raises(NielsCacheError, match=r"T=.*at least 1"):
            opened(tmp_path / "train", T=bad)
        with pytest.raises(NielsCacheError, match=r"stride=.*at least 1"):
            opened(tmp_path / "train", stride=bad)


def test_document_ends_of_another_stream_or_another_build_are_refused(tmp_path: Path) -> None:
    write_stream(tmp_path, [40], documents=[39])
    with pytest.raises(NielsCacheError, match=r"ends at 39, .* 40 tokens"):
        PretrainWindows(str(tmp_path / "train"), T=T)
    folder = write_pretrain(tmp_path / "notes")
    np.save(folder / "train_doc_ends.npy", np.array([20], dtype=DOC_ENDS_DTYPE))
    with pytest.raises(NielsCacheError, match=r"train_doc_ends\.npy: .*136.* 160"):
        PretrainWindows(str(folder / "train"), T=3)
    (folder / "train_doc_ends.npy").unlink()
    with pytest.raises(NielsCacheError, match=r"train_doc_ends\.npy: missing"):
        PretrainWindows(str(folder / "train"), T=3)


def test_the_fingerprint_follows_this_splits_files_and_nothing_else(tmp_path: Path) -> None:
    folder = write_cache(tmp_path / "cache") / "pretrain" / "notes"

    def fingerprint() -> str:
        return PretrainWindows(str(folder / "train"), T=3).fingerprint

    first = fingerprint()
    assert len(first) == 64
    write_shards(folder / "val", [[41, 40, 4]])
    write_meta_of(folder, kind="pretrain", seed=43)
    assert fingerprint() == first
    seen = {first}
    np.save(folder / "train_doc_ends.npy", np.array([19, 20], dtype=DOC_ENDS_DTYPE))
    write_meta_of(folder, kind="pretrain")
    seen.add(fingerprint())
    write_shards(folder / "train", [[9] * 8])
    write_meta_of(folder, kind="pretrain")
    seen.add(fingerprint())
    assert len(seen) == 3


def test_the_fingerprint_of_a_bare_folder_follows_both_ends_of_its_files(tmp_path: Path) -> None:
    def fingerprint(**changes: int) -> str:
        stream = np.zeros(10_000, dtype=TOKEN_DTYPE)
        stream[list(changes.values())] = 1
        write_shards(tmp_path / "train", [stream[:4000], stream[4000:]])
        return PretrainWindows(str(tmp_path / "train"), T=3).fingerprint

    plain = fingerprint()
    assert plain == fingerprint()
    assert len({plain, fingerprint(first=0), fingerprint(last=9999), fingerprint(seam=4000)}) == 4
    fingerprint()
    np.save(tmp_path / "train_doc_ends.npy", np.array([10_000], dtype=DOC_ENDS_DTYPE))
    assert fingerprint() != plain


def test_a_pickled_copy_opens_the_files_again_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_pretrain(tmp_path / "notes")
    monkeypatch.chdir(tmp_path)
    windows = PretrainWindows("notes/train", T=3, stride=2)
    stored = pickle.dumps(windows)
    assert len(stored) < 5_000
    monkeypatch.chdir("/")
    copy = pickle.loads(stored)
    assert (copy.folder, copy.files, copy.fingerprint) == (windows.folder, windows.files, windows.fingerprint)
    assert windows.samples == copy.samples == 9
    assert np.array_equal(read_all(copy), read_all(windows))


def test_a_pickled_copy_refuses_another_build(tmp_path: Path) -> None:
    folder = write_pretrain(tmp_path / "notes")
    stored = pickle.dumps(PretrainWindows(str(folder / "train"), T=3))
    rewrite_meta(folder, seed=43)
    with pytest.raises(NielsCacheError, match="rebuilt since"):
        pickle.loads(stored)
    write_stream(tmp_path, [40])
    stored = pickle.dumps(PretrainWindows(str(tmp_path / "train"), T=T))
    write_shards(tmp_path / "train", [[1] * 40])
    with pytest.raises(NielsCacheError, match="changed since"):
        pickle.loads(stored)


def two_builds(tmp_path: Path) -> tuple[Path, Path]:
    """Data sets of 20 tokens that are all 11 and all 22, with one document and with two."""
    folders = tmp_path / "notes", tmp_path / ".notes.partial"
    for folder, token, ends in zip(folders, (11, 22), ([20], [3, 20]), strict=True):
        write_shards(folder / "train", [[token] * 7, [token] * 13])
        np.save(folder / "train_doc_ends.npy", np.array(ends, dtype=DOC_ENDS_DTYPE))
        write_meta_of(folder, kind="pretrain", token=token)
    return folders


def test_a_swap_while_open_keeps_the_old_files(tmp_path: Path) -> None:
    folder, other = two_builds(tmp_path)
    windows = PretrainWindows(str(folder / "train"), T=3)
    fingerprint = PretrainWindows(str(folder / "train"), T=3).fingerprint
    exchange(folder, other)
    assert np.unique(read_all(windows)).tolist() == [11]
    assert np.unique(windows.origins(np.arange(windows.samples), epoch=0).documents).tolist() == [0]
    assert windows.fingerprint == fingerprint
    assert np.unique(read_all(PretrainWindows(str(folder / "train"), T=3))).tolist() == [22]


@pytest.mark.parametrize("step", ["open_meta", "shard_names", "MappedTokens", "check_sizes", "map_doc_ends"])
def test_a_rebuild_while_opening_leaves_one_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    folder, other = two_builds(tmp_path)
    exchange_before(opening, step, folder, other, monkeypatch)
    windows = PretrainWindows(str(folder / "train"), T=3)
    assert windows.meta is not None
    assert windows.meta["token"] == 22
    assert np.unique(read_all(windows)).tolist() == [22]
    assert np.unique(windows.origins(np.arange(windows.samples), epoch=0).documents).tolist() == [0, 1]


def test_a_file_replaced_by_another_size_while_it_is_opened_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_shards(tmp_path, [[1] * 9, [2] * 9])
    plain_open = os.open

    def open_after_replacing(path: str | Path, *args: int) -> int:
        if Path(path).name == shard_name(1):
            Path(path).write_bytes(b"12345678")
        return plain_open(path, *args)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", open_after_replacing)
        with pytest.raises(NielsCacheError, match=r"shard_00001\.bin: .* 18 to 8 bytes"):
            MappedTokens([tmp_path / shard_name(0), tmp_path / shard_name(1)], dtype=TOKEN_DTYPE)


def test_six_hundred_shards_open_where_a_process_may_have_256_files(tmp_path: Path) -> None:
    if sys.platform != "linux":
        pytest.skip("needs a limit on open files")
    folder = tmp_path / "train"
    folder.mkdir()
    for index in range(600):
        with open(folder / shard_name(index), "wb") as file:
            file.truncate(mmap.mmap.PAGESIZE)
    script = f"""
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
import numpy as np
from niels_cache_runtime.loader.windows import PretrainWindows
windows = PretrainWindows({str(folder)!r}, T={PAGE_TOKENS - 1})
print(len(windows.files), windows.read(np.array([0, windows.samples - 1]), epoch=0, boundaries=False).tokens.sum())
"""
    done = programs.run("-c", script, cwd=Path(__file__).parents[2])
    assert done.stdout.split() == ["600", "0"], done.stderr
