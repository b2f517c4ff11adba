"""Tiny caches that are written with numpy, without the code that normally writes caches. Tests of the runtime read them."""

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from niels_cache_runtime.format.layout import (
    DOC_ENDS_DTYPE,
    IDX_DTYPE,
    META_NAME,
    SPLITS,
    TOKEN_DTYPE,
    TOKEN_DTYPE_NAME,
    TOKEN_DTYPES,
    doc_ends_name,
    idx_name,
    shard_name,
    tokens_name,
)
from niels_cache_runtime.format.meta import content_sha256, read_meta, sha256_file, sha256_text, write_meta

SYS, USR, ASST, EOT = 1, 2, 3, 4
VOCAB_SIZE = 50
IDS = {"sys": SYS, "usr": USR, "asst": ASST, "eot": EOT}
TOKENIZER_SHA256 = sha256_text("a tokenizer")
WIDE = 100_000  # what `widened` adds to an id, so that it does not fit uint16


def write_tokens(path: Path, tokens: Sequence[int] | np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.asarray(tokens, dtype=TOKEN_DTYPE).tofile(path)


def write_shards(folder: Path, shards: Sequence[Sequence[int] | np.ndarray]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for index, tokens in enumerate(shards):
        write_tokens(folder / shard_name(index), tokens)
    return folder


def write_meta_of(folder: Path, **fields: Any) -> None:
    """Write a meta.json for the present files of the folder."""
    files = {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": sha256_file(str(path))}
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != META_NAME
    }
    common = {
        "built": True,
        "dataset_name": folder.name,
        "token_dtype": TOKEN_DTYPE_NAME,
        "tokenizer_sha256": TOKENIZER_SHA256,
        "vocab_size": VOCAB_SIZE,
        "special_token_ids": IDS,
        "files": files,
        "content_sha256": content_sha256(files),
    }
    write_meta(str(folder / META_NAME), {**common, **fields})


def write_pretrain(folder: Path, *, shard_tokens: int = 8, **fields: Any) -> Path:
    """Write a pretrain data set. Train has 4 documents, 20 tokens and 3 shards. Val has 1 document and 3 tokens. Every document ends with
    EOT.
    """
    documents = {"train": [[10, 11, 12, 13], [14], [20] * 8, [30, 31, 32]], "val": [[40, 41]]}
    totals = {}
    for split in SPLITS:
        closed = [[*document, EOT] for document in documents[split]]
        stream = [token for document in closed for token in document]
        write_shards(folder / split, [stream[i : i + shard_tokens] for i in range(0, len(stream), shard_tokens)])
        np.save(folder / doc_ends_name(split), np.cumsum([len(document) for document in closed]).astype(DOC_ENDS_DTYPE))
        totals[f"{split}_tokens"] = len(stream)
    counts = {split: len(documents[split]) for split in SPLITS}
    write_meta_of(
        folder,
        **{
            "kind": "pretrain",
            "append_eot": True,
            "documents": counts,
            "shard_bytes": shard_tokens * TOKEN_DTYPE.itemsize,
            **totals,
            **fields,
        },
    )
    return folder


def write_stream(
    folder: Path, tokens: Sequence[int] | np.ndarray, *, shard_tokens: int | None = None, doc_ends: Sequence[int] | None = None
) -> str:
    """Write a train split of these tokens with meta.json, and with these ends of documents (one document by default). Return the split's
    folder.
    """
    tokens = np.asarray(tokens, dtype=TOKEN_DTYPE)
    size = shard_tokens or len(tokens)
    write_shards(folder / "train", [tokens[i : i + size] for i in range(0, len(tokens), size)])
    np.save(folder / doc_ends_name("train"), np.array(doc_ends or [len(tokens)], dtype=DOC_ENDS_DTYPE))
    write_meta_of(folder, kind="pretrain", append_eot=True, shard_bytes=size * TOKEN_DTYPE.itemsize, train_tokens=len(tokens))
    return str(folder / "train")


def write_pair(folder: Path, split: str, examples: Sequence[Sequence[int]]) -> tuple[str, str]:
    """Write the two files of this SFT split. Return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    tokens_path, idx_path = folder / tokens_name(split), folder / idx_name(split)  # type: ignore[arg-type]
    write_tokens(tokens_path, [token for example in examples for token in example])
    starts = np.cumsum([0, *map(len, examples)])[:-1]
    np.save(idx_path, starts.astype(IDX_DTYPE))
    return str(tokens_path), str(idx_path)


def write_sft(folder: Path, **fields: Any) -> Path:
    """Write an SFT data set. Train has 2 examples, and val is empty."""
    train = [[USR, 10, 11, EOT, ASST, 12, EOT], [SYS, 20, EOT, USR, 21, EOT, ASST, 22, 23, EOT]]
    write_pair(folder, "train", train)
    write_pair(folder, "val", [])
    totals = {"train_examples": 2, "val_examples": 0, "train_tokens": sum(map(len, train)), "val_tokens": 0}
    write_meta_of(folder, **{"kind": "sft", **totals, **fields})
    return folder


def widened(tokens: Any) -> np.ndarray:
    """Return the ids that `write_wide` writes for these ids. Special ids stay, and all others are beyond uint16."""
    ids = np.asarray(tokens).astype(np.int64)
    return np.where(ids > EOT, ids + WIDE, ids)


def write_wide(folder: Path, into: Path) -> Path:
    """Write the data set of `folder` to `into` with uint32 tokens, and with `widened` ids."""
    shutil.copytree(folder, into)
    for path in into.rglob("*.bin"):
        widened(np.fromfile(path, TOKEN_DTYPE)).astype(TOKEN_DTYPES["uint32-le"]).tofile(path)
    of_files = ("files", "content_sha256", "meta_sha256", "forms", "dataset_name")
    meta = {key: value for key, value in read_meta(str(folder / META_NAME)).items() if key not in of_files}
    if "shard_bytes" in meta:
        meta["shard_bytes"] *= 2
    write_meta_of(into, **{**meta, "token_dtype": "uint32-le", "vocab_size": meta["vocab_size"] + WIDE})
    return into


def write_cache(root: Path) -> Path:
    """Write a whole cache root with a tokenizer, a pretrain data set, an SFT data set, and a data set that was never built."""
    tokenizer = root / "tokenizer"
    tokenizer.mkdir(parents=True)
    (tokenizer / "spm.model").write_text("a tokenizer")
    write_meta_of(tokenizer, kind="tokenizer", sha256=TOKENIZER_SHA256)
    write_pretrain(root / "pretrain" / "notes")
    write_sft(root / "sft" / "chats")
    (root / "pretrain" / "off" / "train").mkdir(parents=True)
    write_meta_of(root / "pretrain" / "off", kind="pretrain", built=False)
    return root


def exchange(first: Path, second: Path) -> None:
    """Exchange the folder of a data set, as the end of a rebuild does."""
    aside = first.with_name("aside")
    first.rename(aside)
    second.rename(first)
    aside.rename(second)


def exchange_before(module: Any, step: str, first: Path, second: Path, monkeypatch: pytest.MonkeyPatch, *, times: int = 1) -> None:
    """Exchange the folders before each of the first `times` calls of a function of `module`."""
    original, left = getattr(module, step), [None] * times

    def after_exchange(*args: Any, **keywords: Any) -> Any:
        if left:
            left.pop()
            exchange(first, second)
        return original(*args, **keywords)

    monkeypatch.setattr(module, step, after_exchange)


def rewrite_meta(folder: Path, **fields: Any) -> None:
    """Change fields of a meta.json, as a build with a mistake would do it, with a valid meta_sha256, and with the `forms` that fit."""
    write_meta(
        str(folder / META_NAME), {**{key: value for key, value in read_meta(str(folder / META_NAME)).items() if key != "forms"}, **fields}
    )


def learned_tokens(examples: Iterable[tuple[Sequence[int], Sequence[bool]]], T: int, *, loss_on: str, overflow: str) -> list[list[int]]:
    """Return the tokens that a row learns of each example (its ids, and whether each is a target), read token by token."""
    wanted = []
    for ids, targets in examples:
        if len(ids) > T + 1 and overflow == "drop":
            continue
        first = max(0, len(ids) - T - 1) if overflow == "truncate_left" else 0
        kept = range(first, min(len(ids), first + T + 1))
        learn = [place for place in kept if place > first and (targets[place] or loss_on == "all")]
        if loss_on == "last_assistant" and learn:
            last = learn[-1]
            while last - 1 in learn:
                last -= 1
            learn = [place for place in learn if place >= last]
        if learn:
            wanted.append([ids[place] for place in learn])
    return wanted
