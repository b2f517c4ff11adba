"""Opening a cache hashes nothing by default. With verification, changed files are refused, and a copy of an open cache is not hashed
again.
"""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from niels_cache_runtime import DatasetLoader, NielsCacheError, PretrainTokenStreamDataset, SFTExampleDataset, TokenLoader
from niels_cache_runtime.cache import opening
from niels_cache_runtime.format.layout import META_NAME
from tests.hand_made import EOT, write_cache


def random_windows(root: Path, **verify: Any) -> object:
    return PretrainTokenStreamDataset(str(root / "pretrain/notes/train"), T=3, device="cpu", **verify)


def in_order(root: Path, **verify: Any) -> object:
    return DatasetLoader(1, 3, 0, 1, str(root / "pretrain/notes/train"), "cpu", **verify)


def loader(root: Path, **verify: Any) -> object:
    return TokenLoader(str(root / "pretrain/notes/train"), T=3, B=1, seed=0, **verify)


def examples(root: Path, **verify: Any) -> object:
    folder = root / "sft/chats"
    return SFTExampleDataset(str(folder / "train_tokens.bin"), str(folder / "train_idx.npy"), T=8, device="cpu", eot_id=EOT, **verify)


def packed(root: Path, **verify: Any) -> object:
    return TokenLoader(str(root / "sft/chats/train"), T=8, B=1, seed=0, **verify)


OPENED: dict[Callable[..., object], list[str]] = {
    random_windows: ["pretrain/notes/train/shard_00001.bin"],
    in_order: ["pretrain/notes/train/shard_00001.bin"],
    loader: ["pretrain/notes/train/shard_00001.bin", "pretrain/notes/train_doc_ends.npy"],
    examples: ["sft/chats/train_tokens.bin"],
    packed: ["sft/chats/train_tokens.bin"],
}


def change(path: Path) -> None:
    """Another content that is as valid: only a hash can tell."""
    if path.suffix == ".npy":
        ends = np.load(path)
        ends[0] += 1
        np.save(path, ends)
        return
    tokens = np.fromfile(path, dtype=np.uint16)
    tokens[np.flatnonzero(tokens > 9)[0]] += 1
    tokens.tofile(path)


@pytest.mark.parametrize("open_it", OPENED)
def test_changed_content_is_refused_where_hashes_are_asked_for(tmp_path: Path, open_it: Callable[..., object]) -> None:
    root = write_cache(tmp_path / "cache")
    open_it(root, verify="sha256")
    for path in OPENED[open_it]:
        kept = (root / path).read_bytes()
        change(root / path)
        open_it(root)
        open_it(root, verify="size")
        with pytest.raises(NielsCacheError, match=f"{Path(path).name}: .*sha256"):
            open_it(root, verify="sha256")
        (root / path).write_bytes(kept)
    with pytest.raises(NielsCacheError, match=r"verify='md5': "):
        open_it(root, verify="md5")
    for family in ("pretrain/notes", "sft/chats"):
        (root / family / META_NAME).unlink()
    with pytest.raises(NielsCacheError, match=r"meta\.json: no such"):
        open_it(root, verify="sha256")


@pytest.mark.parametrize("open_it", OPENED)
def test_nothing_is_hashed_unless_asked_and_a_copy_is_not_hashed_again(
    tmp_path: Path, open_it: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write_cache(tmp_path / "cache")
    opened = pickle.dumps(open_it(root, verify="sha256"))
    monkeypatch.setattr(opening, "hash_files", lambda files: pytest.fail("hashed"))
    open_it(root)
    pickle.loads(opened)
