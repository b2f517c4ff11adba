"""The rules inside a built data set, checked while its files are read once.

    meta, folder --> checks --> consumers: get the blocks of their files, of several at once --> problems: (path, clause)

A check covers a split, or meta.json alone. A consumer is a function that gets the blocks of one file in order. If another program wrote
meta.json, only those keys are checked that are about tokens: counts, ids below the vocabulary size, and offsets that fit the tokens.

A consumer searches each block for special ids and for ids outside the vocabulary. This takes two passes over a block that was just hashed.
The other checks are arithmetic on the places of these ids. Memory does not grow with the files, and nothing is mapped. An error that stops
a check is one more problem of this check.

A data set that was joined from parts has them in `parts` of its meta.json, in order. The shards of a split are those of the first part,
then those of the second, and so on. Only the last shard of each part may be short.
"""

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import (
    CHAT_TEMPLATE_NAME,
    META_NAME,
    SIDES,
    SPLITS,
    TOKEN_DTYPES,
    Bools,
    Ints,
    Split,
    Tokens,
    doc_ends_name,
    entries_per_example,
    has_pairs,
    has_spans,
    idx_name,
    list_shards,
    max_vocab_size,
    shard_name,
    target_ends_name,
    targets_name,
    token_dtype_of,
    tokens_name,
)
from niels_cache_runtime.format.meta import Meta, foreign_family
from niels_cache_runtime.format.meta_keys import is_count
from niels_cache_runtime.format.reading import BlockConsumer
from niels_cache_runtime.verify.offset_file import OffsetFile, OffsetKind, check_target_files

Problem = tuple[str, str]
Problems = Iterator[Problem]
_COUNTED = ("shards", "tokens", "documents")


class SplitParts:
    """The parts of one split. Without parts, the split counts as one part.

    Raises:
        NielsCacheError: If an entry of `parts` lacks a name or a number.
    """

    def __init__(self, meta: Meta, split: Split) -> None:
        self._split, self._parts = split, meta.get("parts")
        self._counts: dict[str, list[int]] = {key: [] for key in _COUNTED}
        for entry in self._parts or ():
            for key, counts in self._counts.items():
                count: Any = entry[key].get(split) if isinstance(entry.get(key), dict) else None
                if not is_count(count) or not isinstance(entry.get("name"), str):
                    raise NielsCacheError(f"parts has an entry without a name, or without {key} of {split}; rebuild this data set")
                counts.append(count)

    def may_be_short(self, shards: int) -> set[int]:
        """Return the numbers of the shards that may be short, if the split has so many shards."""
        return {shards - 1} if self._parts is None else {end - 1 for end in self._ends("shards")}

    def problems(self, sizes: dict[str, int], ends: OffsetFile | None, ends_path: str, token_bytes: int) -> Problems:
        """Yield the parts whose shards or documents differ from `parts`.

        Args:
            sizes: The bytes of the shards by path, in order.
            ends: The document ends, or None if they cannot be used.
            ends_path: The path of the document ends.
            token_bytes: The bytes of a token.
        """
        if self._parts is None:
            return
        paths, first, shard_ends = list(sizes), 0, self._ends("shards")
        if (listed := shard_ends[-1] if shard_ends else 0) != len(paths):
            yield META_NAME, f"parts lists {listed} shards of {self._split}, but there are {len(paths)}"
            return
        if ends is not None and (listed := sum(self._counts["documents"])) != len(ends):
            yield META_NAME, f"parts lists {listed} documents of {self._split}, but there are {len(ends)}"
            return
        token_ends, document_ends = self._ends("tokens"), self._ends("documents")
        for number, (entry, stop) in enumerate(zip(self._parts, shard_ends, strict=True)):
            size, expected = sum(sizes[path] for path in paths[first:stop]), self._counts["tokens"][number] * token_bytes
            if size != expected:
                where = paths[stop - 1] if stop > first else META_NAME
                yield where, f"the shards of {entry['name']} have {size} bytes, but parts says {expected}"
            elif ends is not None and document_ends[number] and int(ends[document_ends[number] - 1]) != token_ends[number]:
                yield ends_path, f"no document ends at the end of {entry['name']}"
            first = stop

    def _ends(self, key: str) -> list[int]:
        return list(accumulate(self._counts[key]))


ROLES = ("sys", "usr", "asst")


class SplitCheck(Protocol):
    """A check of a split, or of meta.json alone.

    Attributes:
        inputs: The relative paths of the files that its problems depend on.
        consumers: For each relative path, a function that gets the blocks of this file, in order.
    """

    inputs: frozenset[str]
    consumers: dict[str, BlockConsumer]

    def problems(self) -> Problems:
        """Yield the problems. Call this after each function in `consumers` has got all blocks of its file."""


def pretrain_checks(meta: Meta, folder: Path, sizes: Mapping[str, int]) -> Iterator[SplitCheck]:
    """Yield the checks of a pretrain data set, for shard sizes, totals, ids and documents of both splits.

    Args:
        meta: The meta.json.
        folder: The folder of the data set.
        sizes: The bytes of those files on disk that meta.json lists.

    Raises:
        NielsCacheError: If meta.json lacks a key that the checks need.
    """
    dtype = token_dtype_of(meta)
    vocab_size, eot = _vocab_size_and_eot(meta, dtype)
    yield MetaCheck(lambda: _pretrain_meta_problems(meta, vocab_size, dtype))
    known = {role: special_id(meta, role) for role in (*ROLES, "bos") if meta["special_token_ids"].get(role) is not None}
    ids = SpecialIds(vocab_size, eot, [known[role] for role in ROLES if role in known], bos=known.get("bos"))
    for split in SPLITS:
        yield _PretrainSplit(meta, folder, split, sizes, ids=ids, dtype=dtype)


def _vocab_size_and_eot(meta: Meta, dtype: np.dtype) -> tuple[int, int | None]:
    """Return the vocabulary size and the EOT id (end-of-text token). Both may be unknown (null in meta.json) for imported tokens.

    If the size is unknown, the largest that the dtype allows is returned. If the EOT id is unknown, None is returned, and no document must
    end with EOT.
    """
    imported = meta.get("source", {}).get("kind") == "megatron" if isinstance(meta.get("source"), dict) else False
    ids = meta.get("special_token_ids")
    no_size = imported and meta.get("vocab_size", "") is None and meta.get("tokenizer_sha256", "") is None
    no_eot = imported and isinstance(ids, dict) and ids.get("eot", "") is None and meta.get("append_eot") is False
    return max_vocab_size(dtype) if no_size else number(meta, "vocab_size"), None if no_eot else special_id(meta, "eot")


class MetaCheck:
    """A check of meta.json alone, which reads no other file."""

    def __init__(self, problems: Callable[[], Problems]) -> None:
        self.inputs: frozenset[str] = frozenset()
        self.consumers: dict[str, BlockConsumer] = {}
        self.problems = problems


class SpecialIds:
    """The ids to search for: special tokens, and ids outside the vocabulary.

    Two passes find them, one comparison and one maximum, because special ids lie at one end of nearly every vocabulary. The longest run of
    ids without a special id counts as ordinary. The few ids outside this run are compared one by one.
    """

    def __init__(self, vocab_size: int, eot: int | None, roles: Iterable[int], *, bos: int | None = None) -> None:
        self.vocab_size, self.eot, self.roles, self.bos = vocab_size, eot, tuple(roles), bos
        special = {token for token in (eot, bos, *self.roles) if token is not None}
        runs = pairwise(sorted({-1, vocab_size, *special}))
        self._begin, self._end = max(((before + 1, after) for before, after in runs), key=lambda run: run[1] - run[0], default=(0, 0))
        self._buffers = threading.local()

    def unusual(self, tokens: Tokens) -> Bools:
        """Return which tokens have an id that is not ordinary. The result is valid until the next call in this thread."""
        buffer: Bools | None = getattr(self._buffers, "unusual", None)
        if buffer is None or len(buffer) < len(tokens):  # a new buffer for each block would cost more than the comparison
            buffer = self._buffers.unusual = np.empty(len(tokens), dtype=np.bool_)
        unusual: Bools = np.less(tokens, self._begin, out=buffer[: len(tokens)])
        if len(tokens) and int(tokens.max()) >= self._end:
            unusual |= tokens >= self._end
        return unusual

    def find(self, tokens: Tokens) -> tuple[Ints, Tokens]:
        """Return the places of ids that are not ordinary, in order, and the ids at these places."""
        places = np.flatnonzero(self.unusual(tokens))
        return places, tokens[places]


def vocabulary_problems(path: str, largest: int, vocab_size: int) -> Problems:
    """Yield a problem if the largest id of a file is outside the vocabulary."""
    if largest >= vocab_size:
        yield path, f"holds id {largest}, but the vocabulary has {vocab_size}"


class _PretrainSplit:
    def __init__(self, meta: Meta, folder: Path, split: Split, sizes: Mapping[str, int], *, ids: SpecialIds, dtype: np.dtype) -> None:
        self._meta, self._split, self._ids, self._dtype = meta, split, ids, dtype
        self._folder_exists = (folder / split).is_dir()
        self._listed = {path for path in meta["files"] if path.startswith(f"{split}/")}
        self._numbered = [f"{split}/{shard_name(index)}" for index in range(len(self._listed))]
        self._sizes = {path: sizes[path] for path in self._numbered if path in sizes}
        self._token_count = sum(self._sizes.values()) // dtype.itemsize
        self._ends_path = doc_ends_name(split)
        self._ends, self._ends_problem = read_offsets(
            folder, self._ends_path, "doc_ends", meta, sizes, token_count=self._token_count, needed=self._token_count > 0
        )
        self._parts = SplitParts(meta, split)
        position, self._shards = 0, {}
        for path, size in self._sizes.items():
            self._shards[path] = _Shard(ids, self._ends, position, dtype, append_eot=meta.get("append_eot") is True)
            position += size // dtype.itemsize
        self.inputs = frozenset({*self._listed, self._ends_path})
        self.consumers: dict[str, BlockConsumer] = {path: shard.add_block for path, shard in self._shards.items()}

    def problems(self) -> Problems:
        meta, split, shards = self._meta, self._split, self._shards.values()
        documents = (meta.get("documents") or {}).get(split)
        if not self._folder_exists:
            yield f"{split}/", "no such folder; an empty split needs an empty folder"
        if self._listed != set(self._numbered):
            yield META_NAME, f"the files that it lists below {split}/ are not {shard_name(0)} and so on"
        may_be_short = self._parts.may_be_short(len(self._sizes))
        yield from _shard_size_problems(self._sizes, number(meta, "shard_bytes"), self._dtype, may_be_short)
        yield from self._parts.problems(self._sizes, self._ends, self._ends_path, self._dtype.itemsize)
        if self._ends_problem is not None:
            yield self._ends_problem
        if self._ends is not None and documents != len(self._ends):
            yield self._ends_path, f"lists {len(self._ends)} documents, but meta.json says {documents}"
        for path, shard in self._shards.items():
            yield from vocabulary_problems(path, shard.largest, self._ids.vocab_size)
            if shard.sentinels:
                yield path, f"holds {shard.sentinels} role sentinels, which only SFT data may have"
        yield from total_problems(meta, f"{split}_tokens", self._token_count)
        if unopened := sum(shard.unopened for shard in shards):
            yield self._ends_path, f"{unopened} documents do not begin with BOS"
        if found := sum(shard.inner_bos_tokens for shard in shards):
            yield f"{split}/", f"holds {found} BOS tokens inside documents"
        if meta.get("append_eot") is not True:
            return
        if (found := sum(shard.eot_tokens for shard in shards)) != documents:
            yield f"{split}/", f"holds {found} EOT tokens for {documents} documents"
        if unclosed := sum(shard.unclosed for shard in shards):
            yield self._ends_path, f"{unclosed} documents do not end with EOT"


class _Shard:
    """Counts in the blocks of one shard.

    Args:
        ids: The ids to search for.
        ends: The document ends, or None if they cannot be used.
        position: The place of the shard's first token in the stream.
        dtype: The dtype of the tokens.
        append_eot: Whether documents must end with EOT.
    """

    def __init__(self, ids: SpecialIds, ends: OffsetFile | None, position: int, dtype: np.dtype, *, append_eot: bool) -> None:
        self._ids, self._position, self._dtype = ids, position, dtype
        self._ends = ends if append_eot else None
        self._starts = ends if ids.bos is not None else None
        self.largest = -1  # of the ids that are not ordinary
        self.sentinels = self.eot_tokens = self.unclosed = self.unopened = self.inner_bos_tokens = 0

    def add_block(self, block: memoryview) -> None:
        tokens = tokens_of(block, self._dtype)
        unusual, closed, opened = self._ids.unusual(tokens), 0, 0
        if self._ends is not None:
            _, last_tokens = self._ends.within(self._position + 1, len(tokens))
            closed = int(np.count_nonzero(tokens[last_tokens] == self._ids.eot))
            self.unclosed += len(last_tokens) - closed
        if self._starts is not None and len(tokens):
            opened = self._count_opened(tokens)
        self._position += len(tokens)
        if np.count_nonzero(unusual) == closed + opened:  # nearly always, because only EOT and BOS of documents are unusual
            self.eot_tokens += closed
            return
        ids = tokens[unusual]
        self.largest = max(self.largest, int(ids.max(initial=0)))
        self.sentinels += sum(int(np.count_nonzero(ids == role)) for role in self._ids.roles)
        self.eot_tokens += int(np.count_nonzero(ids == self._ids.eot))
        if self._starts is not None:
            self.inner_bos_tokens += int(np.count_nonzero(ids == self._ids.bos)) - opened

    def _count_opened(self, tokens: Tokens) -> int:
        """Return the number of documents that begin here with BOS. A document that a budget cut to its EOT has no BOS."""
        assert self._starts is not None
        _, starts = self._starts.within(max(self._position, 1), len(tokens) - (self._position == 0))
        first_tokens = tokens[starts + 1] if self._position == 0 else tokens[starts]
        if self._position == 0:
            first_tokens = np.concatenate([tokens[:1], first_tokens])
        opened = int(np.count_nonzero(first_tokens == self._ids.bos))
        self.unopened += len(first_tokens) - opened - int(np.count_nonzero(first_tokens == self._ids.eot))
        return opened


def tokens_of(block: memoryview, dtype: np.dtype) -> Tokens:
    """Return the whole tokens of a block. If a part of a token is left at the end of a file, the check of its size reports it."""
    return np.frombuffer(block, dtype=dtype, count=len(block) // dtype.itemsize)


def size_problem(size: int, dtype: np.dtype) -> str | None:
    """Return one clause if a file of `size` bytes is not a whole number of tokens, otherwise None."""
    return f"{size} bytes are not a whole number of {dtype} tokens" if size % dtype.itemsize else None


def _pretrain_meta_problems(meta: Meta, vocab_size: int, dtype: np.dtype) -> Problems:
    yield from meta_problems(meta, vocab_size, dtype)
    if not isinstance(meta.get("append_eot"), bool):
        yield META_NAME, f"append_eot is {meta.get('append_eot')!r}, expected true or false"


def meta_problems(meta: Meta, vocab_size: int, dtype: np.dtype) -> Problems:
    """Yield problems of meta.json about tokens. The rules are the same for pretrain and SFT data sets."""
    if meta.get("token_dtype") not in TOKEN_DTYPES:
        yield META_NAME, f"token_dtype is {meta.get('token_dtype')!r}, expected {' or '.join(map(repr, TOKEN_DTYPES))}"
    if vocab_size > (most := max_vocab_size(dtype)):
        yield META_NAME, f"vocab_size is {vocab_size}, but {dtype} tokens hold ids below {most}"
    ids = {role: special_id(meta, role) for role, token in meta["special_token_ids"].items() if token is not None}
    for role, token in ids.items():
        if not 0 <= token < vocab_size:
            yield META_NAME, f"the {role} id is {token}, but the vocabulary has {vocab_size}"
    if len(set(ids.values())) < len(ids):
        yield META_NAME, f"special tokens share an id: {', '.join(f'{role} {token}' for role, token in sorted(ids.items()))}"


def number(meta: Meta, key: str) -> int:
    """Return the whole number under a key of meta.json.

    Raises:
        NielsCacheError: If it is missing or no whole number.
    """
    value = meta.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        raise NielsCacheError(f"{key} is {value!r}, expected a whole number")
    return value


def special_id(meta: Meta, key: str) -> int:
    """Return the id of a special token, by its key in meta.json.

    Raises:
        NielsCacheError: If it is missing or no whole number.
    """
    ids = meta.get("special_token_ids")
    return number(ids if isinstance(ids, dict) else {}, key)


def problem_of_error(error: NielsCacheError, folder: Path) -> Problem:
    """Return an error as a problem, which is a pair (path, clause).

    If its message begins with a file of `folder`, the path is that file and the clause is the rest of the message. Any other error is about
    the folder's meta.json.
    """
    message = str(error)
    if not message.startswith(f"{folder}{os.sep}"):
        return META_NAME, message
    path, _, problem = message[len(f"{folder}{os.sep}") :].partition(": ")
    return path, problem


def _shard_size_problems(sizes: dict[str, int], shard_bytes: int, dtype: np.dtype, may_be_short: set[int]) -> Problems:
    of_part = " of a part" if len(may_be_short) > 1 else ""
    for index, (path, size) in enumerate(sizes.items()):
        if problem := size_problem(size, dtype):
            yield path, problem
        elif index not in may_be_short and size != shard_bytes:
            yield (path, f"has {size} bytes; all shards except the last{of_part} must have shard_bytes={shard_bytes}")
        elif size > shard_bytes:
            yield path, f"has {size} bytes, more than shard_bytes={shard_bytes}"


def total_problems(meta: Meta, key: str, found: int) -> Problems:
    """Yield a problem if a total in meta.json differs from the files."""
    if meta.get(key) != found:
        yield META_NAME, f"{key} is {meta.get(key)}, but the files hold {found}"


def read_offsets(
    folder: Path, path: str, kind: OffsetKind, meta: Meta, sizes: Mapping[str, int], *, token_count: int, needed: bool
) -> tuple[OffsetFile | None, Problem | None]:
    """Return (offsets, None), or (None, problem) if the offsets have a problem.

    Return (None, None) for a missing file that is not needed, and for a missing file in the list of meta.json, because the comparison of
    files reports it.
    """
    if path not in sizes:
        return None, (META_NAME, f"lists no {path}") if needed and path not in meta["files"] else None
    try:
        return OffsetFile(folder / path, kind, token_count=token_count), None
    except NielsCacheError as error:
        return None, problem_of_error(error, folder)


def foreign_checks(meta: Meta, folder: Path, sizes: Mapping[str, int]) -> Iterator["ForeignSplit"]:
    """Yield the checks of both splits, if another program wrote meta.json.

    Args:
        meta: The meta.json.
        folder: The folder of the data set.
        sizes: The bytes of all files on disk.

    Raises:
        NielsCacheError: If a shard in the middle is missing.
    """
    for split in SPLITS:
        yield ForeignSplit(meta, folder, split, sizes)


class ForeignSplit:
    """A split of a cache whose meta.json another program wrote."""

    def __init__(self, meta: Meta, folder: Path, split: Split, sizes: Mapping[str, int]) -> None:
        self._meta, self._folder, self._split, self._sizes = meta, folder, split, sizes
        self._family = foreign_family(meta)
        found = list_shards(folder / split) if self._family == "pretrain" else [folder / tokens_name(split)]
        self._files = [name for name in (path.relative_to(folder).as_posix() for path in found) if name in sizes]
        self._dtype = token_dtype_of(meta)
        self._tokens = sum(sizes[name] for name in self._files) // self._dtype.itemsize
        self._needed = (tokens_name(split), idx_name(split)) if self._family == "sft" else ()
        self._missing = [name for name in self._needed if name not in sizes]
        self._largest = dict.fromkeys(self._files, -1)
        self.inputs = frozenset(self._files)
        self.consumers = {name: self._consumer(name) for name in self._files}

    def _consumer(self, name: str) -> BlockConsumer:
        def consume(block: memoryview) -> None:
            self._largest[name] = max(self._largest[name], int(tokens_of(block, self._dtype).max(initial=0)))

        return consume

    def size_problems(self) -> Problems:
        """Yield the problems that can be found from sizes alone."""
        for name in self._files:
            if problem := size_problem(self._sizes[name], self._dtype):
                yield name, problem
        if f"{self._split}_tokens" in self._meta:
            yield from total_problems(self._meta, f"{self._split}_tokens", self._tokens)
        # An empty SFT split may lack both files, as an empty pretrain split has no shards.
        if self._missing and len(self._missing) == len(self._needed):
            yield from total_problems(self._meta, f"{self._split}_examples", 0)
        else:
            yield from ((name, "missing, or not a regular file; an SFT split needs it") for name in self._missing)

    def problems(self) -> Problems:
        yield from self.size_problems()
        for name, largest in self._largest.items():
            yield from vocabulary_problems(name, largest, self._meta["vocab_size"])
        ends, starts = doc_ends_name(self._split), idx_name(self._split)
        try:
            if self._family == "pretrain" and ends in self._sizes:
                OffsetFile(self._folder / ends, "doc_ends", token_count=self._tokens)
            elif self._needed and not self._missing:
                found = len(OffsetFile(self._folder / starts, "example_starts", token_count=self._tokens))
                yield from total_problems(self._meta, f"{self._split}_examples", found)
        except NielsCacheError as error:
            yield problem_of_error(error, self._folder)


def sft_checks(meta: Meta, folder: Path, sizes: Mapping[str, int]) -> Iterator[SplitCheck]:
    """Yield the checks of meta.json and of both splits of an SFT data set.

    Args:
        meta: The meta.json.
        folder: The folder of the data set.
        sizes: The bytes of those files on disk that meta.json lists.

    Raises:
        NielsCacheError: If meta.json lacks a key that the checks need.
    """
    dtype = token_dtype_of(meta)
    roles = [] if "template" in meta else [special_id(meta, role) for role in ROLES]
    ids = SpecialIds(number(meta, "vocab_size"), special_id(meta, "eot"), roles)
    yield MetaCheck(lambda: _sft_meta_problems(meta, ids.vocab_size, dtype))
    for split in SPLITS:
        yield _SftSplit(meta, folder, split, sizes, ids=ids, dtype=dtype)


class _SftSplit:
    """A split: ids in the vocabulary, totals, messages if sentinels begin them, and spans of targets that lie in their examples."""

    def __init__(self, meta: Meta, folder: Path, split: Split, sizes: Mapping[str, int], *, ids: SpecialIds, dtype: np.dtype) -> None:
        self._meta, self._folder, self._split, self._ids, self._dtype = meta, folder, split, ids, dtype
        self._path, idx_path = tokens_name(split), idx_name(split)
        self._sizes, self._size = sizes, sizes.get(self._path, 0)
        self._token_count = self._size // dtype.itemsize
        self._starts, self._starts_problem = read_offsets(
            folder, idx_path, "example_starts", meta, sizes, token_count=self._token_count, needed=True
        )
        self._messages = _Messages(ids, self._starts if ids.roles else None, token_count=self._token_count, dtype=dtype)
        self._span_files = (targets_name(split), target_ends_name(split)) if has_spans(meta) else ()
        self.inputs = frozenset({self._path, idx_path, *self._span_files})
        self.consumers: dict[str, BlockConsumer] = {self._path: self._messages.add_block} if self._path in sizes else {}

    def problems(self) -> Problems:
        for name in (self._path, *self._span_files):
            if name not in self._meta["files"]:
                yield META_NAME, f"lists no {name}"
        if problem := size_problem(self._size, self._dtype):
            yield self._path, problem
        if self._starts_problem is not None:
            yield self._starts_problem
        if self._starts is not None:
            examples, half = divmod(len(self._starts), entries_per_example(self._meta))
            if half:
                yield idx_name(self._split), f"has {len(self._starts)} entries, an odd number, so one side of a pair is missing"
            yield from total_problems(self._meta, f"{self._split}_examples", examples)
        yield from vocabulary_problems(self._path, self._messages.largest, self._ids.vocab_size)
        for found in self._messages.problems():
            yield self._path, found
        if f"{self._split}_tokens" in self._meta:
            yield from total_problems(self._meta, f"{self._split}_tokens", self._token_count)
        if self._starts is not None and self._span_files and all(name in self._sizes for name in self._span_files):
            spans = check_target_files(self._folder, self._split, self._starts, token_count=self._token_count)
            if self._meta["targets"].get(self._split) != spans:
                yield META_NAME, f"targets.{self._split} is {self._meta['targets'].get(self._split)}, but the files hold {spans}"


def _sft_meta_problems(meta: Meta, vocab_size: int, dtype: np.dtype) -> Problems:
    yield from meta_problems(meta, vocab_size, dtype)
    recorded = meta["template"].get("sha256") if isinstance(meta.get("template"), dict) else None
    if recorded != meta["files"].get(CHAT_TEMPLATE_NAME, {}).get("sha256"):
        yield META_NAME, f"the sha256 of its template is not that of {CHAT_TEMPLATE_NAME} in `files`"
    if has_pairs(meta) and meta["sides"] != [*SIDES]:
        yield META_NAME, f"sides is {meta['sides']!r:.80}, expected {', '.join(SIDES)}"


class _Messages:
    """Counts of errors in the form of examples, in consecutive blocks of tokens. A message is a role sentinel, its content, and EOT.

    If an offset was moved to a different message of the same conversation, this is not detected.

    Args:
        ids: The ids to search for.
        starts: The starts of examples. None if they are unknown, or if no sentinels begin messages; then only ids are checked.
        token_count: The number of tokens of the split.
        dtype: The dtype of the tokens.
    """

    def __init__(self, ids: SpecialIds, starts: OffsetFile | None, *, token_count: int, dtype: np.dtype) -> None:
        self._ids, self._starts, self._token_count, self._dtype = ids, starts, token_count, dtype
        self._asst = ids.roles[ROLES.index("asst")] if ids.roles else None
        self._position = 0
        self._last_is_eot = False  # whether the block before this one ended with EOT
        self._last_answered = -1  # the last example in which an assistant's message was seen
        self._answered = self._roleless = self._inside = self._after_eot = self._unclosed = 0
        self.largest = -1  # of the ids that are not ordinary

    def add_block(self, block: memoryview) -> None:
        tokens = tokens_of(block, self._dtype)
        places, ids = self._ids.find(tokens)
        self.largest = max(self.largest, int(ids.max(initial=0)))
        if self._starts is not None and len(tokens):
            self._check_messages(self._starts, tokens, places, ids)
        self._position += len(tokens)

    def _check_messages(self, starts: OffsetFile, tokens: Tokens, places: Ints, ids: Tokens) -> None:
        first, begins = starts.within(self._position, len(tokens))
        _, last_tokens = starts.within(self._position + 1, len(tokens))
        if self._position + len(tokens) == self._token_count and len(starts):
            last_tokens = np.append(last_tokens, len(tokens) - 1)
        self._unclosed += int(np.count_nonzero(tokens[last_tokens] != self._ids.eot))

        roles = places[np.isin(ids, self._ids.roles)]
        after_eot = places[ids == self._ids.eot] + 1
        if self._last_is_eot:
            after_eot = np.append(0, after_eot)
        self._last_is_eot = bool(tokens[-1] == self._ids.eot)
        after_eot = after_eot[after_eot < len(tokens)]
        self._roleless += len(_without(begins, roles))
        self._inside += len(_without(_without(roles, begins), after_eot))
        self._after_eot += len(_without(_without(after_eot, begins), roles))
        answered = np.unique(first + begins.searchsorted(places[ids == self._asst], side="right") - 1)
        if len(answered):
            self._answered += len(answered) - int(answered[0] == self._last_answered)
            self._last_answered = int(answered[-1])

    def problems(self) -> Iterator[str]:
        if self._unclosed:
            yield f"{self._unclosed} examples do not end with EOT"
        if self._starts is None:
            return
        if self._roleless:
            yield f"{self._roleless} examples do not begin with a role sentinel"
        if self._inside:
            yield f"{self._inside} role sentinels are inside a message, neither first in an example nor after EOT"
        if self._after_eot:
            yield f"{self._after_eot} EOT tokens are followed by neither a role sentinel nor the end of the example"
        if unanswered := len(self._starts) - self._answered:
            yield f"{unanswered} examples have no assistant message"


def _without(places: Ints, others: Ints) -> Ints:
    """Return the sorted `places` that are not in `others`."""
    return np.setdiff1d(places, others, assume_unique=True)
