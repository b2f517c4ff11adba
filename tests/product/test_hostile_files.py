"""Files with false content, from fuzzing or from thought. They are refused with one line that names the file."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from niels_cache_assets.disk.staging import finished_meta
from niels_cache_runtime import NielsCacheError, PretrainTokenStreamDataset, SFTExampleDataset, read_meta, write_meta
from niels_cache_runtime.cache.mmap import map_doc_ends
from niels_cache_runtime.cache.opening import open_split
from niels_cache_runtime.format.layout import DOC_ENDS_DTYPE, META_NAME
from niels_cache_runtime.format.meta import MAX_META_BYTES, sha256_text
from niels_cache_runtime.format.npy_files import map_npy
from niels_cache_runtime.megatron import IndexedDataset
from niels_cache_runtime.verify import verify_dataset
from tests.helpers import megatron_core
from tests.helpers.hand_made import EOT, rewrite_meta, write_cache, write_pretrain

ENDS = np.array([3, 4, 9, 15, 20], dtype=DOC_ENDS_DTYPE)


def npy(header: str, items: bytes = ENDS.tobytes(), *, version: bytes = b"\1\0") -> bytes:
    return b"\x93NUMPY" + version + len(header).to_bytes(2 if version == b"\1\0" else 4, "little") + header.encode("latin-1") + items


@pytest.mark.parametrize(
    "content",
    [
        npy("{'descr': '<u8', 'fortran_order': False, 'shape': (5,)"),  # numpy 2.4: tokenize.TokenError
        npy("{'descr': '<u8', 'fortran_order': False, 'shape': (5,), }") + b"\0",  # numpy ignores what lies behind
        npy("{'descr': '<u8', 'fortran_order': False, 'shape': (6,), }"),
        npy("{'descr': '<u8', 'fortran_order': False, 'shape': (5), }"),
        npy("{'descr': '<u8', 'fortran_order': False, 'shape': (-5,), }"),
        npy("{'descr': '<u8', 'fortran_order': False, 'shape': (2305843009213693957,), }"),  # 2**61 + 5: as 64 bits, 40 bytes
        npy("{'descr': '<u8', 'fortran_order': False, 'shape': (0, 4611686018427387904, 4), }", b""),
        npy("{'descr': '|O', 'fortran_order': False, 'shape': (5,), }"),
        npy("{'descr': '>u8', 'fortran_order': False, 'shape': (5,), }"),
        npy("{'descr': '<u8', 'fortran_order': False, 'shape': (5, 1), }"),
        npy("{'descr': '<u8', 'fortran_order': False, 'shape': (5,), 'more': 1}"),
        npy("{'descr': __import__('os').abort(), 'fortran_order': False, 'shape': (5,), }"),
        npy("{'descr': " + "-" * 5000 + "1, 'fortran_order': False, 'shape': (5,), }"),  # RecursionError, where it is evaluated
        npy("{'descr': " + "(" * 300 + ", 'fortran_order': False, 'shape': (5,), }"),
        npy("{'descr': '<u8', 'fortran_order': False, 'shape': (5,), }", version=b"\4\0"),
        b"\x93NUMPY\2\0\xff\xff\xff\xff{",
        b"\x93NUMPY\1\0",
        b"",
    ],
)
def test_an_array_file_that_is_none_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "train_doc_ends.npy"
    path.write_bytes(content)
    with pytest.raises(NielsCacheError, match=r"train_doc_ends\.npy: ") as caught:
        map_doc_ends(path, token_count=20)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
@pytest.mark.parametrize("array", [ENDS, ENDS[:0], np.asfortranarray(np.arange(6, dtype=">i4").reshape(2, 3)), np.array(7)])
def test_what_numpy_writes_is_read_as_numpy_reads_it(tmp_path: Path, array: np.ndarray, version: tuple[int, int]) -> None:
    with open(tmp_path / "array.npy", "wb") as file:
        np.lib.format.write_array(file, array, version=version, allow_pickle=False)
    found = map_npy(tmp_path / "array.npy")
    assert (found.dtype, found.shape, found.tolist()) == (array.dtype, array.shape, array.tolist())
    assert not found.flags.writeable


def write_signed(path: Path, text: str) -> None:
    """A meta.json of that text, in which "HASH" becomes the hash that it has without it."""
    path.write_text(text.replace("HASH", sha256_text(text.replace("HASH", ""))), encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"schema_version": 1, "a": 1, "a": 2, "meta_sha256": "HASH"}', "the key .a. twice"),
        ('{"schema_version": 1, "a": NaN, "meta_sha256": "HASH"}', "not allowed"),
        ('{"schema_version": 1, "a": 1e999, "meta_sha256": "HASH"}', "1e999 is too large"),
        ('{"schema_version": 1, "a": "\\ud800", "meta_sha256": "HASH"}', "not allowed"),
        ('{"schema_version": true, "meta_sha256": "HASH"}', "no schema_version"),
        ('{"schema_version": 1, "a": ' + "9" * 5000 + ', "meta_sha256": "HASH"}', "not valid JSON"),
    ],
)
def test_a_meta_of_several_meanings_is_refused_though_its_hash_is_right(tmp_path: Path, text: str, message: str) -> None:
    write_signed(tmp_path / META_NAME, text)
    with pytest.raises(NielsCacheError, match=message):
        read_meta(str(tmp_path / META_NAME))


def test_a_meta_of_any_size_is_neither_read_nor_written(tmp_path: Path) -> None:
    path = tmp_path / META_NAME
    with open(path, "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(NielsCacheError, match=f"has more than {MAX_META_BYTES} bytes"):
        read_meta(str(path))
    path.unlink()
    with pytest.raises(NielsCacheError, match="make fewer files"):
        write_meta(str(path), {"files": "x" * MAX_META_BYTES})
    assert list(tmp_path.iterdir()) == []


FORMS: list[tuple[str, Any]] = [
    ("special_token_ids", True),
    ("special_token_ids", [1, 2, 3, 4]),
    ("files", None),
    ("files", {"train/shard_00000.bin": {"bytes": True, "sha256": ""}}),
    ("files", {"train/shard_00000.bin": {"bytes": 2**70, "sha256": ""}}),
    ("built", 0),
    ("tokenizer_sha256", {"a": 1}),
    ("documents", True),
    ("append_eot", "yes"),
    ("train_tokens", "20"),
]


@pytest.mark.parametrize(("key", "value"), FORMS)
def test_a_value_of_another_form_is_refused_by_those_who_open_and_found_by_verify(tmp_path: Path, key: str, value: Any) -> None:
    root = write_cache(tmp_path)
    notes, chats = root / "pretrain" / "notes", root / "sft" / "chats"
    rewrite_meta(notes, **{key: value})
    rewrite_meta(chats, **{key: value})
    with pytest.raises(NielsCacheError, match=key):
        PretrainTokenStreamDataset(str(notes / "train"), T=3, device="cpu")
    with pytest.raises(NielsCacheError, match=key):
        SFTExampleDataset(str(chats / "train_tokens.bin"), str(chats / "train_idx.npy"), T=8, device="cpu", eot_id=EOT)
    assert finished_meta(notes) is None
    assert verify_dataset(notes)


@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize("name", ["meta.json", "train/shard_00000.bin", "train_doc_ends.npy"])
def test_a_pipe_or_a_device_in_a_files_place_is_refused_at_once(tmp_path: Path, name: str, kind: str) -> None:
    folder = write_pretrain(tmp_path / "notes")
    (folder / name).unlink()
    if kind == "pipe":
        os.mkfifo(folder / name)
    else:
        (folder / name).symlink_to("/dev/zero")
    with pytest.raises(NielsCacheError, match=name):
        open_split(folder / "train", doc_ends=True)
    assert verify_dataset(folder)


@pytest.mark.parametrize("ending", [".bin", ".idx"])
def test_a_pipe_in_the_place_of_a_megatron_file_is_refused_at_once(tmp_path: Path, ending: str) -> None:
    megatron_core.write_documents(tmp_path / "data", [5, 3])
    (tmp_path / f"data{ending}").unlink()
    os.mkfifo(tmp_path / f"data{ending}")
    with pytest.raises(NielsCacheError, match=rf"data\{ending}: .*regular file"):
        IndexedDataset(tmp_path / "data")
