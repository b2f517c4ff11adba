"""The rules inside an SFT data set: offsets, ids, totals, and examples that consist of messages. `invariants` describes the method."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from niels_cache_runtime.format.layout import (
    CHAT_TEMPLATE_NAME,
    META_NAME,
    SIDES,
    SPLITS,
    Ints,
    Split,
    Tokens,
    entries_per_example,
    has_pairs,
    has_spans,
    idx_name,
    target_ends_name,
    targets_name,
    token_dtype_of,
    tokens_name,
)
from niels_cache_runtime.format.meta import Meta
from niels_cache_runtime.format.reading import Look
from niels_cache_runtime.verify.invariants import (
    ROLES,
    MetaPart,
    Part,
    Problem,
    SpecialIds,
    meta_problems,
    number,
    read_offsets,
    size_problem,
    special_id,
    tokens_of,
    total_problems,
)
from niels_cache_runtime.verify.offset_file import OffsetFile, check_target_files


def sft_parts(meta: Meta, folder: Path, sizes: Mapping[str, int]) -> Iterator[Part]:
    """Yield the parts that check meta.json and both splits.

    sizes: the bytes of those files on disk that meta.json lists. Raises NielsCacheError if meta.json lacks a key that the checks need.
    """
    dtype = token_dtype_of(meta)
    roles = [] if "template" in meta else [special_id(meta, role) for role in ROLES]
    ids = SpecialIds(number(meta, "vocab_size"), special_id(meta, "eot"), roles)
    yield MetaPart(lambda: _meta_problems(meta, ids.vocab_size, dtype))
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
        self._of_spans = (targets_name(split), target_ends_name(split)) if has_spans(meta) else ()
        self.inputs = frozenset({self._path, idx_path, *self._of_spans})
        self.looks: dict[str, Look] = {self._path: self._messages.look_at} if self._path in sizes else {}

    def problems(self) -> Iterator[Problem]:
        for name in (self._path, *self._of_spans):
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
        yield from self._ids.too_large_problems(self._path, self._messages.too_large)
        for found in self._messages.problems():
            yield self._path, found
        if f"{self._split}_tokens" in self._meta:
            yield from total_problems(self._meta, f"{self._split}_tokens", self._token_count)
        if self._starts is not None and self._of_spans and all(name in self._sizes for name in self._of_spans):
            spans = check_target_files(self._folder, self._split, self._starts, token_count=self._token_count)
            if self._meta["targets"].get(self._split) != spans:
                yield META_NAME, f"targets.{self._split} is {self._meta['targets'].get(self._split)}, but the files hold {spans}"


def _meta_problems(meta: Meta, vocab_size: int, dtype: np.dtype) -> Iterator[Problem]:
    yield from meta_problems(meta, vocab_size, dtype)
    named = meta["template"].get("sha256") if isinstance(meta.get("template"), dict) else None
    if named != meta["files"].get(CHAT_TEMPLATE_NAME, {}).get("sha256"):
        yield META_NAME, f"the sha256 of its template is not that of {CHAT_TEMPLATE_NAME} in `files`"
    if has_pairs(meta) and meta["sides"] != [*SIDES]:
        yield META_NAME, f"sides is {meta['sides']!r:.80}, expected {', '.join(SIDES)}"


class _Messages:
    """Counts of errors in the form of examples, in consecutive blocks of tokens. A message is a role sentinel, its content, and EOT.

    starts: None if the starts of examples are unknown, or if no sentinels begin messages; then only ids are checked. If an offset was
        moved to a different message of the same conversation, this is not detected.
    """

    def __init__(self, ids: SpecialIds, starts: OffsetFile | None, *, token_count: int, dtype: np.dtype) -> None:
        self._ids, self._starts, self._token_count, self._dtype = ids, starts, token_count, dtype
        self._asst = ids.roles[ROLES.index("asst")] if ids.roles else None
        self._position = 0
        self._last_is_eot = False  # whether the block before this one ended with EOT
        self._last_answered = -1  # the last example in which an assistant's message was seen
        self._answered = self._roleless = self._inside = self._after_eot = self._unclosed = 0
        self.too_large = -1

    def look_at(self, block: memoryview) -> None:
        tokens = tokens_of(block, self._dtype)
        places, ids = self._ids.find(tokens)
        self.too_large = max(self.too_large, self._ids.too_large(ids))
        if self._starts is not None and len(tokens):
            self._look_at_messages(self._starts, tokens, places, ids)
        self._position += len(tokens)

    def _look_at_messages(self, starts: OffsetFile, tokens: Tokens, places: Ints, ids: Tokens) -> None:
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
