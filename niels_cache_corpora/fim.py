"""Copies of train whose documents are rearranged to fill in the middle (FIM), with cuts between any two characters.

    document    p p p | m m | s s s s            cut at two places, which seed, document and copy decide
    PSM         <pre> p p p <suf> s s s s <mid> m m
    SPM         <pre> <suf> s s s s <mid> p p p m m

`FIM` of the runtime (niels_cache_runtime/loader/packing/fim.py) does the same between tokens when rows are read. A cut inside a token
changes the tokens around it, so here a build makes it, and writes several copies. Each epoch reads one of them.

Each part is encoded by itself. Some tokenizers put a blank before every text; the suffix and the middle are encoded without it. A document
of several files (source `code`) has both cuts in one file. A document whose text has one of the three tokens stays as it is in all copies,
and so do documents of val. Cost: each copy encodes the characters of its rearranged documents once more.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from pydantic import PositiveInt, ValidationError, model_validator

from niels_cache_assets.base.documents import DocumentBatch
from niels_cache_assets.base.schema import Share, Table
from niels_cache_assets.build_cache.pretrain_writer import WriterState
from niels_cache_assets.disk.writers import Files, HashedFile, NpyWriter, ShardWriter
from niels_cache_assets.project.problems import explain_problems
from niels_cache_assets.sources.types import PretrainSource
from niels_cache_assets.streaming.encode import EncodedTexts, encode_texts, name_unencodable_item, texts_with_special
from niels_cache_assets.streaming.splits import SplitPart
from niels_cache_assets.tokenizer.base import FlatIds, TextTokenizer
from niels_cache_assets.tokenizer.kinds import BuildTokenizer, find_fim_tokens
from niels_cache_corpora.code.joining import paths_of, places_of_files
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import DOC_ENDS_DTYPE, FIM_KEYS, SPLITS, copy_name, doc_ends_name
from niels_cache_runtime.loader.packing.fim import FIM

_GUARDS = ("\x01", "☺")  # what may stand before a part, so that the tokenizer puts its blank before this and not before the part
_DRAWS = 5  # numbers for each document in each copy: is it rearranged, is it SPM, in which file, two cuts
_BITS = 32

_Framed = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]


class FIMCopies(Table):
    """The keys of `fim` in a table of [pretrain.*]."""

    level: Literal["character"]
    """Where documents are cut: between any two characters"""
    copies: PositiveInt = 4
    """Number of copies of train, with train itself; each epoch reads one of them"""
    rate: Share = 0.5
    """Share of the documents that are rearranged in each copy"""
    spm_rate: Share = 0.5
    """Share of these in the order suffix, prefix, middle; the others have the order prefix, suffix, middle"""
    pre: int | str | None = None
    """Token before the prefix, by its id or its text; by default, the names of StarCoder, Qwen, DeepSeek and CodeLlama are looked up"""
    suf: int | str | None = None
    """Token before the suffix"""
    mid: int | str | None = None
    """Token before the middle"""

    @model_validator(mode="after")
    def _all_sentinels(self) -> Self:
        FIM(pre=self.pre, suf=self.suf, mid=self.mid)
        return self

    @classmethod
    def of(cls, table: Any) -> FIMCopies | None:
        """Return the checked table, or None for None.

        Raises:
            ValueError: For an invalid table.
        """
        if table is None or isinstance(table, cls):
            return table
        if not isinstance(table, Mapping):
            raise ValueError('must be a table; write fim = { level = "character", copies = 4 }')
        try:
            return cls.model_validate(table)
        except ValidationError as error:
            raise ValueError(explain_problems(error, cls, table)[0].removeprefix(":").strip()) from error


class DocumentCopy(NamedTuple):
    """Encoded documents of a batch in one copy of train.

    Attributes:
        tokens: (tokens,), one document after the other.
        lengths: (n,) int64, the number of tokens of each document.
        rearranged: (n,) bool, whether the document is rearranged.
    """

    tokens: np.ndarray
    lengths: np.ndarray
    rearranged: np.ndarray

    def keep(self, kept: np.ndarray) -> DocumentCopy:
        """Return only the documents for which `kept`, bool (n,), is True."""
        return DocumentCopy(self.tokens[np.repeat(kept, self.lengths)], self.lengths[kept], self.rearranged[kept])

    def part(self, chosen: np.ndarray | slice, tokens: np.ndarray, lengths: np.ndarray, cut: int | None) -> DocumentCopy:
        """Return the documents that go to train. One that a budget has cut is the same in all copies, and is not rearranged.

        Args:
            chosen: The documents, or a slice for all of them.
            tokens: The tokens of these documents as they are, of which the budget has cut those of one document.
            lengths: Their numbers of tokens.
            cut: The position of the document that was cut, or None.
        """
        own = self if isinstance(chosen, slice) else self.keep(chosen)
        if cut is None:
            return own
        before, after, begin, end = (int(each[:count].sum()) for each in (own.lengths, lengths) for count in (cut, cut + 1))
        own.lengths[cut], own.rearranged[cut] = lengths[cut], False
        return own._replace(tokens=np.concatenate([own.tokens[:before], tokens[begin:end], own.tokens[after:]]))


class CopyWriter:
    """A writer of the copies of train beyond train itself: their shards and document ends.

    Args:
        root: The folder of the data set.
        settings: As in CopyMaker.
        dtype: The dtype of the tokens.
        shard_bytes: The size of a shard in bytes.
        files: Gets the sizes and hashes of the files.
        state: The checkpoint to resume from.
    """

    def __init__(
        self, root: Path, settings: Mapping[str, Any], dtype: np.dtype, shard_bytes: int, files: Files, state: WriterState
    ) -> None:
        self._settings, copies = settings, settings["copies"]
        tokens, rearranged = state.copies or ([0] * (copies - 1), [0] * copies)
        self._rearranged = np.array(rearranged)
        names, documents = [copy_name(number) for number in range(1, copies)], state.splits["train"].documents
        self._shards = {
            name: ShardWriter(root, name, dtype=dtype, shard_bytes=shard_bytes, files=files, resume_at=count)
            for name, count in zip(names, tokens, strict=True)
        }
        self._ends = [NpyWriter(root, doc_ends_name(name), DOC_ENDS_DTYPE, files, resume_at=documents) for name in names]

    @property
    def bytes(self) -> int:
        """The bytes written so far."""
        return sum(each.bytes for each in self._writers)

    @property
    def _writers(self) -> list[ShardWriter | NpyWriter]:
        return [*self._shards.values(), *self._ends]

    def write(self, part: SplitPart) -> None:
        """Append the documents of a part of train. A part of val is ignored."""
        if not part.copies:
            return
        self._rearranged += [copy.rearranged.sum() for copy in part.copies]
        for shards, ends, copy in zip(self._shards.values(), self._ends, part.copies[1:], strict=True):
            ends.write(np.cumsum(copy.lengths) + shards.tokens)
            shards.write(copy.tokens)

    @property
    def unfinished(self) -> list[HashedFile]:
        """The unfinished files."""
        return [*(file for each in self._shards.values() for file in each.unfinished), *self._ends]

    @property
    def state(self) -> list[list[int]]:
        """The state to resume from: the tokens of each copy, and how many documents are rearranged in train and in each copy."""
        return [[each.tokens for each in self._shards.values()], self._rearranged.tolist()]

    @property
    def totals(self) -> dict[str, Any]:
        """The keys of meta.json about the copies."""
        tokens = {f"{name}_tokens": each.tokens for name, each in self._shards.items()}
        return {**tokens, "fim": {**self._settings, "rearranged": self._rearranged.tolist()}}

    def seal(self) -> None:
        """Finish all files."""
        for each in self._writers:
            each.seal()

    def abandon(self) -> None:
        """Close all files."""
        for file in self.unfinished:
            file.abandon()


class _Cut(NamedTuple):
    number: int
    low: int
    high: int
    is_spm: bool


class CopyMaker:
    """What makes the copies of train of a data set. Its methods may be called from several threads.

    Args:
        source: The table of the data set, with `fim`.
        tokenizer: The tokenizer.
        seed: The seed of the build.

    Attributes:
        settings: What decides the copies, for meta.json.

    Raises:
        NielsCacheError: If the tokenizer lacks the tokens.
    """

    def __init__(self, source: PretrainSource, tokenizer: TextTokenizer, *, seed: int) -> None:
        assert source.fim is not None
        given = source.fim.model_dump()
        sentinels = {name: given.pop(name) for name in FIM_KEYS}
        self._ids = _find_sentinels([*sentinels.values()], tokenizer)
        self.settings: dict[str, Any] = {**given, "sentinels": self._ids}
        self._seed, self._file_start = seed, getattr(source, "file_start", None)
        self._guard, self._head = _find_guard(tokenizer)

    def copies(
        self,
        documents: DocumentBatch,
        texts: Iterable[str],
        plain_ids: FlatIds,
        tokenizer: BuildTokenizer,
        batch: int | None,
        framed: _Framed,
    ) -> Iterator[DocumentCopy]:
        """Yield the documents in each copy.

        Args:
            documents: The documents.
            texts: Their texts, with line feeds.
            plain_ids: The ids of the documents as they are.
            tokenizer: What encodes.
            batch: The number of the batch; see `encode_texts`.
            framed: Adds BOS and EOT to the ids of documents.
        """
        (ids, lengths), every = plain_ids, list(texts)
        ends = np.cumsum(lengths)
        plain = np.split(ids, ends[:-1]) if len(ends) else []
        stays = documents.split == SPLITS.index("val")
        stays[ends.searchsorted(np.flatnonzero(np.isin(ids, self._ids)), side="right")] = True
        may_change = np.flatnonzero(~stays).tolist()
        ranges = self._ranges(documents, every, may_change)
        draws = self._draws(documents)
        for copy in range(self.settings["copies"]):
            cuts = [cut for number in may_change if (cut := self._cut(number, ranges[number], draws[number, copy].tolist()))]
            found, rearranged = self._copy(cuts, every, plain, tokenizer, batch)
            sizes = np.fromiter(map(len, found), np.int64, len(found))
            yield DocumentCopy(*framed(np.concatenate(found) if found else ids, sizes), rearranged)

    def writer(self, root: Path, dtype: np.dtype, shard_bytes: int, files: Files, state: WriterState) -> CopyWriter:
        """Return a writer of the further copies."""
        return CopyWriter(root, self.settings, dtype, shard_bytes, files, state)

    def _ranges(self, documents: DocumentBatch, texts: Sequence[str], numbers: Sequence[int]) -> dict[int, list[tuple[int, int]]]:
        """Return where each document may be cut: anywhere, or in its files as far as these are certain."""
        found = {number: [(0, len(texts[number]))] for number in numbers}
        if self._file_start is not None and documents.kept is not None:
            for number in numbers:
                if paths := paths_of(documents.kept[number]):
                    found[number] = [(start, end) for _, start, end in places_of_files(texts[number], paths, self._file_start)]
        return found

    def _draws(self, documents: DocumentBatch) -> np.ndarray:
        """Return the numbers of 32 bits for each document in each copy, (n, copies, 5)."""
        size = self.settings["copies"] * _DRAWS * 4
        columns = zip(documents.source_id.tolist(), documents.file.tolist(), documents.row.tolist(), strict=True)
        keys = ("\0".join((f"niels-cache fim {self._seed}", *map(str, each))).encode(errors="surrogatepass") for each in columns)
        drawn = b"".join(hashlib.shake_256(key).digest(size) for key in keys)
        return np.frombuffer(drawn, "<u4").reshape(len(documents), -1, _DRAWS)

    def _cut(self, number: int, ranges: Sequence[tuple[int, int]], draws: Sequence[int]) -> _Cut | None:
        """Return where a document is cut in a copy, or None if it stays as it is."""
        is_rearranged, is_spm, file, *places = draws
        characters = sum(end - start for start, end in ranges)
        if not characters or is_rearranged >= self.settings["rate"] * (1 << _BITS):
            return None
        place = file * characters >> _BITS
        for start, end in ranges:
            if place < end - start:
                break
            place -= end - start
        low, high = sorted(start + (each * (end - start + 1) >> _BITS) for each in places)
        return _Cut(number, low, high, is_spm < self.settings["spm_rate"] * (1 << _BITS))

    def _copy(
        self, cuts: Sequence[_Cut], texts: Sequence[str], plain: Sequence[np.ndarray], tokenizer: BuildTokenizer, batch: int | None
    ) -> tuple[list[np.ndarray], np.ndarray]:
        """Return the ids of each document in a copy, and whether it is rearranged."""
        parts = list[str]()
        for number, low, high, _ in cuts:
            prefix, middle, suffix = texts[number][:low], texts[number][low:high], texts[number][high:]
            parts += prefix, middle and self._guard + middle, suffix and self._guard + suffix

        def encode(these: Sequence[str]) -> EncodedTexts:
            return encode_texts(these, tokenizer, batch)

        with name_unencodable_item(
            lambda part: f"a part of document {texts[cuts[part // 3].number][:40]!r}", ([each] for each in parts), encode
        ):
            encoded = encode(parts)
        found, rearranged = [*plain], np.zeros(len(plain), dtype=bool)
        special = texts_with_special(encoded, tokenizer)
        of_parts = np.split(encoded.ids, np.cumsum(encoded.lengths)[:-1]) if parts else []
        pre, suf, mid = np.array(self._ids, dtype=encoded.ids.dtype)[:, None]
        for place, (number, *_, is_spm) in enumerate(cuts):
            own = range(3 * place, 3 * place + 3)
            prefix_ids, *others = (of_parts[each] for each in own)
            count = len(self._head)
            if (special is not None and special[own].any()) or any(len(each) and each[:count].tolist() != self._head for each in others):
                continue
            middle_ids, suffix_ids = (each[count:] for each in others)
            psm = pre, prefix_ids, suf, suffix_ids, mid, middle_ids
            document = np.concatenate([pre, suf, suffix_ids, mid, prefix_ids, middle_ids] if is_spm else psm)
            if np.isin(document, self._ids).sum() == 3:
                found[number], rearranged[number] = document, True
        return found, rearranged


def _find_sentinels(given: Sequence[int | str | None], tokenizer: TextTokenizer) -> list[int]:
    """Return the ids of pre, suf and mid.

    Raises:
        NielsCacheError: If the tokenizer lacks them, or has them for something else.
    """
    found = [*find_fim_tokens(tokenizer).values()] if None in given else [tokenizer.token_id(e) if isinstance(e, str) else e for e in given]
    known = [each for each in found if each is not None]
    if len({*known} - {*tokenizer.special_token_ids().values()}) == 3 and 0 <= min(known) <= max(known) < tokenizer.vocab_size:
        return known
    what = f"the tokens {given}" if None not in given else "tokens of StarCoder, Qwen, DeepSeek or CodeLlama"
    raise NielsCacheError(
        f"fim: the tokenizer does not have {what}; give their ids or their texts: fim = {{ pre = ..., suf = ..., mid = ... }}"
    )


def _find_guard(tokenizer: TextTokenizer) -> tuple[str, list[int]]:
    """Return a text to encode before a part, and its ids. Both are empty if the tokenizer puts nothing before a text."""
    first, *guarded = tokenizer.encode_unchecked(["a", *_GUARDS, *(f"{guard}a b" for guard in _GUARDS)])
    if tokenizer.decode_continued(first.tolist()) != "a":
        for guard, head, probe in zip(_GUARDS, guarded, guarded[len(_GUARDS) :], strict=False):
            ids, after = head.tolist(), probe.tolist()
            if after[: len(ids)] == ids and tokenizer.decode_continued(after[len(ids) :]) == "a b":
                return guard, ids
    return "", []
