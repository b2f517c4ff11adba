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
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np

from niels_cache_runtime.cache.opening import PartEnd, part_ends
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
    copies_of,
    doc_ends_name,
    entries_per_example,
    has_pairs,
    has_target_weights,
    idx_name,
    list_shards,
    max_vocab_size,
    name_in_train,
    shard_name,
    span_names,
    token_dtype_of,
    tokens_name,
)
from niels_cache_runtime.format.meta import Meta, foreign_family
from niels_cache_runtime.format.reading import BlockConsumer
from niels_cache_runtime.verify.offset_file import OffsetFile, OffsetKind, check_target_files

Problem = tuple[str, str]
Problems = Iterator[Problem]


ROLES = ("sys", "usr", "asst")


@dataclass(frozen=True, eq=False)
class SplitCheck:
    """A check of a split, or of meta.json alone.

    Attributes:
        problems: Yields the problems. It is called after each function in `consumers` has got all blocks of its file.
        inputs: The relative paths of the files that its problems depend on.
        consumers: For each relative path, a function that gets the blocks of this file, in order.
    """

    problems: Callable[[], Problems]
    inputs: frozenset[str] = frozenset()
    consumers: Mapping[str, BlockConsumer] = field(default_factory=dict)


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
    # Of imported tokens, both may be unknown (null in meta.json). Then the size is the largest that the dtype allows, and no document must
    # end with EOT.
    source, roles = meta.get("source"), meta.get("special_token_ids")
    imported = isinstance(source, dict) and source.get("kind") == "megatron"
    no_size = imported and meta.get("vocab_size", "") is None and meta.get("tokenizer_sha256", "") is None
    no_eot = imported and isinstance(roles, dict) and roles.get("eot", "") is None and meta.get("append_eot") is False
    vocab_size = max_vocab_size(dtype) if no_size else number(meta, "vocab_size")
    eot = None if no_eot else special_id(meta, "eot")
    yield SplitCheck(lambda: _pretrain_meta_problems(meta, vocab_size, dtype))
    known = {role: special_id(meta, role) for role in (*ROLES, "bos") if meta["special_token_ids"].get(role) is not None}
    ids = SpecialIds(vocab_size, eot, [known[role] for role in ROLES if role in known], bos=known.get("bos"))
    for split in (*SPLITS, *copies_of(meta)):
        yield _check_pretrain_split(meta, folder, split, sizes, ids=ids, dtype=dtype)


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


def vocabulary_problems(path: str, largest: int, vocab_size: int) -> Problems:
    """Yield a problem if the largest id of a file is outside the vocabulary."""
    if largest >= vocab_size:
        yield path, f"holds id {largest}, but the vocabulary has {vocab_size}"


def _check_pretrain_split(
    meta: Meta, folder: Path, split: str, sizes: Mapping[str, int], *, ids: SpecialIds, dtype: np.dtype
) -> SplitCheck:
    listed = {path for path in meta["files"] if path.startswith(f"{split}/")}
    numbered = [f"{split}/{shard_name(index)}" for index in range(len(listed))]
    own = {path: sizes[path] for path in numbered if path in sizes}
    token_count, ends_path = sum(own.values()) // dtype.itemsize, doc_ends_name(split)
    ends, ends_problem = read_offsets(folder, ends_path, "doc_ends", meta, sizes, token_count=token_count, needed=token_count > 0)
    parts = part_ends(meta, folder / split)
    append_eot, position, shards = meta.get("append_eot") is True, 0, dict[str, _Shard]()
    for path, size in own.items():
        shards[path] = _Shard(ids, ends, position, dtype, append_eot=append_eot)
        position += size // dtype.itemsize

    def problems() -> Problems:
        documents = (meta.get("documents") or {}).get(name_in_train(split))
        if not (folder / split).is_dir():
            yield f"{split}/", "no such folder; an empty split needs an empty folder"
        if listed != set(numbered):
            yield META_NAME, f"the files that it lists below {split}/ are not {shard_name(0)} and so on"
        shard_bytes = number(meta, "shard_bytes")
        of_part, last_shards = ("", {len(own)}) if parts is None else (" of a part", {part.shards for part in parts})
        for count, (path, size) in enumerate(own.items(), 1):
            if problem := size_problem(size, dtype):
                yield path, problem
            elif count not in last_shards and size != shard_bytes:
                yield path, f"has {size} bytes; all shards except the last{of_part} must have shard_bytes={shard_bytes}"
            elif size > shard_bytes:
                yield path, f"has {size} bytes, more than shard_bytes={shard_bytes}"
        yield from _part_problems(parts or [], split, own, ends, dtype)
        if ends_problem is not None:
            yield ends_problem
        if ends is not None and documents != len(ends):
            yield ends_path, f"lists {len(ends)} documents, but meta.json says {documents}"
        for path, shard in shards.items():
            yield from vocabulary_problems(path, shard.largest, ids.vocab_size)
            if shard.sentinels:
                yield path, f"holds {shard.sentinels} role sentinels, which only SFT data may have"
        yield from total_problems(meta, f"{split}_tokens", token_count)
        if unopened := sum(shard.unopened for shard in shards.values()):
            yield ends_path, f"{unopened} documents do not begin with BOS"
        if found := sum(shard.inner_bos_tokens for shard in shards.values()):
            yield f"{split}/", f"holds {found} BOS tokens inside documents"
        if append_eot and (found := sum(shard.eot_tokens for shard in shards.values())) != documents:
            yield f"{split}/", f"holds {found} EOT tokens for {documents} documents"
        if unclosed := sum(shard.unclosed for shard in shards.values()):
            yield ends_path, f"{unclosed} documents do not end with EOT"

    return SplitCheck(problems, frozenset({*listed, ends_path}), {path: shard.add_block for path, shard in shards.items()})


def _part_problems(parts: Sequence[PartEnd], split: str, sizes: Mapping[str, int], ends: OffsetFile | None, dtype: np.dtype) -> Problems:
    """Yield the parts whose shards or documents differ from `parts` of meta.json.

    Args:
        parts: Where the parts of the split end. Empty for a data set without parts.
        split: The split.
        sizes: The bytes of the shards by path, in order.
        ends: The document ends, or None if they cannot be used.
        dtype: The dtype of the tokens.
    """
    paths, before = list(sizes), PartEnd("", 0, 0, 0)
    for key, found in {"shards": len(paths), "documents": None if ends is None else len(ends)}.items():
        if parts and found is not None and (listed := getattr(parts[-1], key)) != found:
            yield META_NAME, f"parts lists {listed} {key} of {split}, but there are {found}"
            return
    for part in parts:
        size = sum(sizes[path] for path in paths[before.shards : part.shards])
        if size != (expected := (part.tokens - before.tokens) * dtype.itemsize):
            where = paths[part.shards - 1] if part.shards > before.shards else META_NAME
            yield where, f"the shards of {part.name} have {size} bytes, but parts says {expected}"
        elif ends is not None and part.documents and int(ends[part.documents - 1]) != part.tokens:
            yield doc_ends_name(split), f"no document ends at the end of {part.name}"
        before = part


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
            _, starts = self._starts.within(self._position, len(tokens))
            first_tokens = tokens[starts if self._position else np.append(0, starts)]  # no document ends at 0, as `OffsetFile` checks
            opened = int(np.count_nonzero(first_tokens == self._ids.bos))
            cut = int(np.count_nonzero(first_tokens == self._ids.eot))  # a document that a budget cut to its EOT has no BOS
            self.unopened += len(first_tokens) - opened - cut
        self._position += len(tokens)
        if np.count_nonzero(unusual) == closed + opened:  # nearly always, because only EOT and BOS of documents are unusual
            self.eot_tokens += closed
            return
        ids = tokens[unusual]
        self.largest = max(self.largest, int(ids.max(initial=0)))
        self.sentinels += int(np.count_nonzero(np.isin(ids, self._ids.roles)))
        self.eot_tokens += int(np.count_nonzero(ids == self._ids.eot))
        if self._starts is not None:
            self.inner_bos_tokens += int(np.count_nonzero(ids == self._ids.bos)) - opened


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


def foreign_checks(meta: Meta, folder: Path, sizes: Mapping[str, int], *, quick: bool = False) -> Iterator[SplitCheck]:
    """Yield the checks of both splits, if another program wrote meta.json.

    Args:
        meta: The meta.json.
        folder: The folder of the data set.
        sizes: The bytes of all files on disk.
        quick: Whether to find only the problems that follow from sizes.

    Raises:
        NielsCacheError: If a shard in the middle is missing.
    """
    for split in SPLITS:
        yield _check_foreign_split(meta, folder, split, sizes, quick=quick)


def _check_foreign_split(meta: Meta, folder: Path, split: Split, sizes: Mapping[str, int], *, quick: bool) -> SplitCheck:
    is_sft, dtype = foreign_family(meta) == "sft", token_dtype_of(meta)
    shards = [folder / tokens_name(split)] if is_sft else list_shards(folder / split)
    files = [name for name in (path.relative_to(folder).as_posix() for path in shards) if name in sizes]
    token_count = sum(sizes[name] for name in files) // dtype.itemsize
    needed = (tokens_name(split), idx_name(split)) if is_sft else ()
    missing = [name for name in needed if name not in sizes]
    largest = dict.fromkeys(files, -1)

    def consumer(name: str) -> BlockConsumer:
        def consume(block: memoryview) -> None:
            largest[name] = max(largest[name], int(tokens_of(block, dtype).max(initial=0)))

        return consume

    def problems() -> Problems:
        for name in files:
            if problem := size_problem(sizes[name], dtype):
                yield name, problem
        if f"{split}_tokens" in meta:
            yield from total_problems(meta, f"{split}_tokens", token_count)
        # An empty SFT split may lack both files, as an empty pretrain split has no shards.
        if missing and len(missing) == len(needed):
            yield from total_problems(meta, f"{split}_examples", 0)
        else:
            yield from ((name, "missing, or not a regular file; an SFT split needs it") for name in missing)
        if quick:
            return
        for name in files:
            yield from vocabulary_problems(name, largest[name], meta["vocab_size"])
        try:
            if is_sft and not missing:
                found = len(OffsetFile(folder / idx_name(split), "example_starts", token_count=token_count))
                yield from total_problems(meta, f"{split}_examples", found)
            elif not is_sft and doc_ends_name(split) in sizes:
                OffsetFile(folder / doc_ends_name(split), "doc_ends", token_count=token_count)
        except NielsCacheError as error:
            yield problem_of_error(error, folder)

    return SplitCheck(problems, frozenset(files), {name: consumer(name) for name in files})


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
    yield SplitCheck(lambda: _sft_meta_problems(meta, ids.vocab_size, dtype))
    for split in SPLITS:
        yield _check_sft_split(meta, folder, split, sizes, ids=ids, dtype=dtype)


def _check_sft_split(meta: Meta, folder: Path, split: Split, sizes: Mapping[str, int], *, ids: SpecialIds, dtype: np.dtype) -> SplitCheck:
    """Check ids in the vocabulary, totals, messages if sentinels begin them, and spans of targets that lie in their examples."""
    path, idx_path = tokens_name(split), idx_name(split)
    size = sizes.get(path, 0)
    token_count = size // dtype.itemsize
    starts, starts_problem = read_offsets(folder, idx_path, "example_starts", meta, sizes, token_count=token_count, needed=True)
    messages = _Messages(ids, starts if ids.roles else None, token_count=token_count, dtype=dtype)
    span_files = span_names(meta, split)

    def problems() -> Problems:
        for name in (path, *span_files):
            if name not in meta["files"]:
                yield META_NAME, f"lists no {name}"
        if problem := size_problem(size, dtype):
            yield path, problem
        if starts_problem is not None:
            yield starts_problem
        if starts is not None:
            examples, half = divmod(len(starts), entries_per_example(meta))
            if half:
                yield idx_path, f"has {len(starts)} entries, an odd number, so one side of a pair is missing"
            yield from total_problems(meta, f"{split}_examples", examples)
        yield from vocabulary_problems(path, messages.largest, ids.vocab_size)
        yield from ((path, problem) for problem in messages.problems())
        if f"{split}_tokens" in meta:
            yield from total_problems(meta, f"{split}_tokens", token_count)
        if starts is not None and span_files and all(name in sizes for name in span_files):
            spans = check_target_files(folder, split, starts, token_count=token_count, with_weights=has_target_weights(meta))
            recorded = meta["targets"].get(split)
            if recorded != spans:
                yield META_NAME, f"targets.{split} is {recorded}, but the files hold {spans}"

    return SplitCheck(problems, frozenset({path, idx_path, *span_files}), {path: messages.add_block} if path in sizes else {})


def _sft_meta_problems(meta: Meta, vocab_size: int, dtype: np.dtype) -> Problems:
    yield from meta_problems(meta, vocab_size, dtype)
    recorded = meta["template"].get("sha256") if isinstance(meta.get("template"), dict) else None
    if recorded != meta["files"].get(CHAT_TEMPLATE_NAME, {}).get("sha256"):
        yield META_NAME, f"the sha256 of its template is not that of {CHAT_TEMPLATE_NAME} in `files`"
    if has_pairs(meta) and meta["sides"] != [*SIDES]:
        yield META_NAME, f"sides is {meta['sides']!r:.80}, expected {', '.join(SIDES)}"


_UNCLOSED = "examples do not end with EOT"
_ROLELESS = "examples do not begin with a role sentinel"
_INSIDE = "role sentinels are inside a message, neither first in an example nor after EOT"
_AFTER_EOT = "EOT tokens are followed by neither a role sentinel nor the end of the example"
_UNANSWERED = "examples have no assistant message"
_RULES = (_UNCLOSED, _ROLELESS, _INSIDE, _AFTER_EOT, _UNANSWERED)


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
        self._answered = 0
        self._counts: Counter[str] = Counter()  # of the broken rules
        self.largest = -1  # of the ids that are not ordinary

    def add_block(self, block: memoryview) -> None:
        tokens = tokens_of(block, self._dtype)
        places = np.flatnonzero(self._ids.unusual(tokens))
        ids = tokens[places]
        self.largest = max(self.largest, int(ids.max(initial=0)))
        if self._starts is not None and len(tokens):
            self._check_messages(self._starts, tokens, places, ids)
        self._position += len(tokens)

    def _check_messages(self, starts: OffsetFile, tokens: Tokens, places: Ints, ids: Tokens) -> None:
        first, begins = starts.within(self._position, len(tokens))
        _, last_tokens = starts.within(self._position + 1, len(tokens))
        if self._position + len(tokens) == self._token_count and len(starts):
            last_tokens = np.append(last_tokens, len(tokens) - 1)
        self._counts[_UNCLOSED] += int(np.count_nonzero(tokens[last_tokens] != self._ids.eot))

        roles = places[np.isin(ids, self._ids.roles)]
        after_eot = places[ids == self._ids.eot] + 1
        if self._last_is_eot:
            after_eot = np.append(0, after_eot)
        self._last_is_eot = bool(tokens[-1] == self._ids.eot)
        after_eot = after_eot[after_eot < len(tokens)]
        self._counts[_ROLELESS] += len(_without(begins, roles))
        self._counts[_INSIDE] += len(_without(_without(roles, begins), after_eot))
        self._counts[_AFTER_EOT] += len(_without(_without(after_eot, begins), roles))
        answered = np.unique(first + begins.searchsorted(places[ids == self._asst], side="right") - 1)
        if len(answered):
            self._answered += len(answered) - int(answered[0] == self._last_answered)
            self._last_answered = int(answered[-1])

    def problems(self) -> Iterator[str]:
        if self._starts is not None:
            self._counts[_UNANSWERED] = len(self._starts) - self._answered
        return (f"{self._counts[rule]} {rule}" for rule in _RULES if self._counts[rule])


def _without(places: Ints, others: Ints) -> Ints:
    """Return the sorted `places` that are not in `others`."""
    return np.setdiff1d(places, others, assume_unique=True)
