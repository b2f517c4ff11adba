"""What must hold inside a built data set, checked while its files are read once.

`Reader` reads and hashes in blocks; the checks below look at the same blocks, so a file is read once and memory stays flat. Each check
yields (path, problem) pairs; what stops a check raises NielsCacheError, which `verify` turns into a finding.
"""

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.formats import (
    DOC_ENDS_DTYPE,
    IDX_DTYPE,
    MAX_VOCAB_SIZE,
    META_NAME,
    SPLITS,
    TOKEN_BYTES,
    TOKEN_DTYPE,
    TOKEN_DTYPE_NAME,
    doc_ends_name,
    idx_name,
    list_shards,
    tokens_name,
)
from niels_cache_runtime.meta import Meta
from niels_cache_runtime.mmap import map_doc_ends, map_example_starts

Problem = tuple[str, str]
BLOCK_BYTES = 1 << 22
_ROLES = ("sys", "usr", "asst")


class Reader:
    """Reads files of one folder in blocks, remembers sha256 and size of each file read whole, and counts bytes for a progress bar."""

    def __init__(self, folder: Path, *, on_bytes: Callable[[int], None]) -> None:
        self.folder = folder
        self.sha256: dict[str, str] = {}
        self._on_bytes = on_bytes

    def blocks(self, path: str) -> Iterator[bytes]:
        digest = hashlib.sha256()
        try:
            with open(self.folder / path, "rb") as file:
                while block := file.read(BLOCK_BYTES):
                    digest.update(block)
                    self._on_bytes(len(block))
                    yield block
        except OSError as error:
            raise NielsCacheError(f"{self.folder / path}: cannot be read: {error.strerror or error}") from error
        self.sha256[path] = digest.hexdigest()

    def tokens(self, path: str) -> Iterator[NDArray[np.uint16]]:
        """The file's whole tokens; what an odd byte at the end is, its size says."""
        for block in self.blocks(path):
            yield np.frombuffer(block, dtype=TOKEN_DTYPE, count=len(block) // TOKEN_BYTES)

    def hash(self, path: str) -> str:
        if path not in self.sha256:
            for _ in self.blocks(path):
                pass
        return self.sha256[path]


def pretrain_problems(meta: Meta, reader: Reader) -> Iterator[Problem]:
    """Shard sizes, totals, ids, and documents of both splits."""
    vocab_size, eot = _known_or_not(meta)
    yield from _meta_problems(meta, vocab_size)
    if not isinstance(meta.get("append_eot"), bool):
        yield META_NAME, f"append_eot is {meta.get('append_eot')!r}, expected true or false"
    roles = [special_id(meta, role) for role in _ROLES if meta["special_token_ids"].get(role) is not None]
    for split in SPLITS:
        shards = [f"{split}/{path.name}" for path in list_shards(reader.folder / split)]
        sizes = [(reader.folder / path).stat().st_size for path in shards]
        yield from _shard_size_problems(shards, sizes, number(meta, "shard_bytes"))
        token_count = sum(sizes) // TOKEN_BYTES
        ends_path = doc_ends_name(split)
        documents = (meta.get("documents") or {}).get(split)
        ends: NDArray[Any] = np.empty(0, dtype=DOC_ENDS_DTYPE)
        if token_count or (reader.folder / ends_path).exists():
            try:
                ends = map_doc_ends(reader.folder / ends_path, token_count=token_count)
                if documents != len(ends):
                    yield ends_path, f"lists {len(ends)} documents, meta.json says {documents}"
            except NielsCacheError as error:
                yield as_problem(error, reader.folder)
        append_eot = meta.get("append_eot") is True
        count_eot = open_documents = position = 0
        for path in shards:
            too_large, sentinels = -1, 0
            for tokens in reader.tokens(path):
                too_large = max(too_large, _largest(tokens, vocab_size))
                sentinels += sum(int(np.count_nonzero(tokens == role)) for role in roles)
                if append_eot:
                    count_eot += int(np.count_nonzero(tokens == eot))
                    open_documents += int(np.count_nonzero(tokens[_within(ends, position + 1, len(tokens))] != eot))
                position += len(tokens)
            if too_large >= 0:
                yield path, f"holds id {too_large}, the vocabulary has {vocab_size}"
            if sentinels:
                yield path, f"holds {sentinels} role sentinels, which belong into SFT data only"
        yield from _total_problems(meta, f"{split}_tokens", token_count)
        if append_eot and count_eot != documents:
            yield f"{split}/", f"holds {count_eot} EOT tokens for {documents} documents"
        if open_documents:
            yield ends_path, f"{open_documents} documents do not end with EOT"


def _known_or_not(meta: Meta) -> tuple[int, int | None]:
    """Vocabulary and EOT. Imported tokens may be of an unknown one, which their meta.json says with null: then any id is inside it, and
    no document is held to an EOT."""
    imported = meta.get("source", {}).get("kind") == "megatron" if isinstance(meta.get("source"), dict) else False
    ids = meta.get("special_token_ids")
    no_size = imported and meta.get("vocab_size", "") is None and meta.get("tokenizer_sha256", "") is None
    no_eot = imported and isinstance(ids, dict) and ids.get("eot", "") is None and meta.get("append_eot") is False
    return MAX_VOCAB_SIZE if no_size else number(meta, "vocab_size"), None if no_eot else special_id(meta, "eot")


def sft_problems(meta: Meta, reader: Reader) -> Iterator[Problem]:
    """Offsets, ids, totals, and that each example is a row of messages, of both splits."""
    vocab_size, eot = number(meta, "vocab_size"), special_id(meta, "eot")
    roles = [special_id(meta, role) for role in _ROLES]
    yield from _meta_problems(meta, vocab_size)
    for split in SPLITS:
        tokens_path, idx_path = tokens_name(split), idx_name(split)
        size = _size(reader.folder / tokens_path)
        token_count = size // TOKEN_BYTES
        if size % TOKEN_BYTES:
            yield tokens_path, f"{size} bytes is no whole number of uint16 tokens"
        starts: NDArray[np.int64] = np.empty(0, dtype=IDX_DTYPE)
        try:
            starts = map_example_starts(reader.folder / idx_path, token_count=token_count)
            yield from _total_problems(meta, f"{split}_examples", len(starts))
        except NielsCacheError as error:
            yield as_problem(error, reader.folder)
        ends = np.append(starts[1:], token_count) if len(starts) else starts
        too_large = -1
        messages, position = _Messages(starts, roles=roles, asst=roles[_ROLES.index("asst")], eot=eot), 0
        unclosed = 0
        for tokens in reader.tokens(tokens_path):
            too_large = max(too_large, _largest(tokens, vocab_size))
            unclosed += int(np.count_nonzero(tokens[_within(ends, position + 1, len(tokens))] != eot))
            if len(starts):  # else there is a finding about the offsets, and nothing says where an example begins
                messages.look_at(tokens, position)
            position += len(tokens)
        if too_large >= 0:
            yield tokens_path, f"holds id {too_large}, the vocabulary has {vocab_size}"
        if unclosed:
            yield tokens_path, f"{unclosed} examples do not end with EOT"
        for problem in messages.problems():
            yield tokens_path, problem
        if f"{split}_tokens" in meta:
            yield from _total_problems(meta, f"{split}_tokens", token_count)


class _Messages:
    """Counts what breaks the form of examples (sentinel, content, EOT for each message) in consecutive blocks of tokens.

    An offset that was moved to another message of its conversation cannot be told from a right one.
    """

    def __init__(self, starts: NDArray[np.int64], *, roles: list[int], asst: int, eot: int) -> None:
        self._starts, self._roles, self._asst, self._eot = starts, roles, asst, eot
        self._last_is_eot = False  # whether the block before this one ended with EOT
        self._last_answered = -1  # the last example in which an assistant was seen
        self._answered = self._roleless = self._inside = self._after_eot = 0

    def look_at(self, tokens: NDArray[np.uint16], position: int) -> None:
        """`tokens`: the first of them at `position`, directly after those of the call before."""
        if not len(tokens):
            return
        begins = np.zeros(len(tokens), dtype=np.bool_)
        begins[_within(self._starts, position, len(tokens))] = True
        is_role = np.zeros(len(tokens), dtype=np.bool_)
        for role in self._roles:
            is_role |= tokens == role
        is_eot = tokens == self._eot
        follows_eot = np.empty(len(tokens), dtype=np.bool_)
        follows_eot[0], follows_eot[1:] = self._last_is_eot, is_eot[:-1]
        self._last_is_eot = bool(is_eot[-1])
        self._roleless += int(np.count_nonzero(begins & ~is_role))
        self._inside += int(np.count_nonzero(is_role & ~begins & ~follows_eot))
        self._after_eot += int(np.count_nonzero(follows_eot & ~begins & ~is_role))
        answers = position + np.flatnonzero(tokens == self._asst)
        answered = np.unique(self._starts.searchsorted(answers, side="right") - 1)
        if len(answered):
            self._answered += len(answered) - int(answered[0] == self._last_answered)
            self._last_answered = int(answered[-1])

    def problems(self) -> Iterator[str]:
        if self._roleless:
            yield f"{self._roleless} examples do not begin with a role sentinel"
        if self._inside:
            yield f"{self._inside} role sentinels stand inside a message, neither first in an example nor after EOT"
        if self._after_eot:
            yield f"{self._after_eot} EOT tokens are followed by neither a role sentinel nor the end of the example"
        if unanswered := len(self._starts) - self._answered:
            yield f"{unanswered} examples have no assistant message"


def _meta_problems(meta: Meta, vocab_size: int) -> Iterator[Problem]:
    """What the metas of both families say about tokens."""
    if meta.get("token_dtype") != TOKEN_DTYPE_NAME:
        yield META_NAME, f"token_dtype is {meta.get('token_dtype')!r}, expected {TOKEN_DTYPE_NAME!r}"
    ids = {role: special_id(meta, role) for role, token in meta["special_token_ids"].items() if token is not None}
    for role, token in ids.items():
        if not 0 <= token < vocab_size:
            yield META_NAME, f"the {role} id is {token}, the vocabulary has {vocab_size}"
    if len(set(ids.values())) < len(ids):
        yield META_NAME, f"special tokens share an id: {', '.join(f'{role} {token}' for role, token in sorted(ids.items()))}"


def number(meta: Meta, key: str) -> int:
    value = meta.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        raise NielsCacheError(f"{key} is {value!r}, expected a whole number")
    return value


def special_id(meta: Meta, key: str) -> int:
    ids = meta.get("special_token_ids")
    return number(ids if isinstance(ids, dict) else {}, key)


def as_problem(error: NielsCacheError, folder: Path) -> Problem:
    """An error about a file of `folder` as that file and the rest of the message; any other is about its meta.json."""
    message = str(error)
    if not message.startswith(f"{folder}{os.sep}"):
        return META_NAME, message
    path, _, problem = message[len(f"{folder}{os.sep}") :].partition(": ")
    return path, problem


def _shard_size_problems(shards: list[str], sizes: list[int], shard_bytes: int) -> Iterator[Problem]:
    for path, size in zip(shards, sizes, strict=True):
        if size % TOKEN_BYTES:
            yield path, f"{size} bytes is no whole number of uint16 tokens"
        elif path != shards[-1] and size != shard_bytes:
            yield path, f"has {size} bytes; all shards but the last have shard_bytes={shard_bytes}"
        elif size > shard_bytes:
            yield path, f"has {size} bytes, more than shard_bytes={shard_bytes}"


def _total_problems(meta: Meta, key: str, found: int) -> Iterator[Problem]:
    if meta.get(key) != found:
        yield META_NAME, f"{key} is {meta.get(key)}, the files hold {found}"


def _largest(tokens: NDArray[np.uint16], vocab_size: int) -> int:
    """The largest id if it is outside the vocabulary, else -1."""
    largest = int(tokens.max()) if len(tokens) else -1
    return largest if largest >= vocab_size else -1


def _within(offsets: NDArray[Any], begin: int, count: int) -> NDArray[np.int64]:
    """Those of the sorted `offsets` in [begin, begin + count), relative to `begin`."""
    first, last = offsets.searchsorted(np.array([begin, begin + count], dtype=offsets.dtype))
    return offsets[first:last].astype(np.int64) - begin


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise NielsCacheError(f"{path}: cannot be read: {error.strerror or error}") from error
