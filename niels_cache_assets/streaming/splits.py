"""A splitter for streams with token budgets, and the head of a stream that a budget of val needs.

The splitter for finite sources is in `sources.val_share`.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np

from niels_cache_assets.base.documents import NO_SPLIT, DocumentBatch
from niels_cache_assets.base.strings import Strings
from niels_cache_assets.disk.table_file import TEXT_HASH
from niels_cache_assets.streaming.types import EncodedDocuments
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import SPLITS, Split

UNLIMITED = 2**62  # a budget that no stream meets
_FRAME = 3  # BOS, EOT, and the blank that some tokenizers put before a text

Encode = Callable[[Iterable[DocumentBatch]], Generator[EncodedDocuments]]


@dataclass(frozen=True, slots=True)
class SplitPart:
    """The documents of a batch that go to one split, in order. A token budget may have cut one of them.

    The texts are not held here, so that their memory can be freed before the documents are written.

    Attributes:
        lineage: The columns of lineage (build_cache/pretrain_writer.py), with the kept values and the edges of files even if lineage does
            not have them.
        tokens: (tokens,) of the cache's dtype, one document after the other.
        lengths: (n,) int64, the number of tokens of each document.
        characters: The length of all texts.
        cut: The position of the document that a budget cut, or None. A budget is exceeded only once, so a split has at most one.
        copies: The documents in each copy of train. The tokens and lengths are then those of the first one.
    """

    lineage: dict[str, Any]
    tokens: np.ndarray
    lengths: np.ndarray
    characters: int
    cut: int | None
    copies: Sequence[Any] = ()


class BudgetSplitter:
    """A splitter by token budgets.

    A document that has a split goes to this split. Every other document goes whole to val until the budget of val is met, and then to
    train. A document that exceeds a budget is cut at the budget. Its last kept token becomes EOT if documents end with EOT. The rest of the
    document is dropped; it never goes to the other split. So a split by budget has exactly as many tokens as its budget, unless the source
    ends earlier. If train has copies, the tokens of the documents as they are count.

    Args:
        max_train_tokens: The budget of train, at least 1.
        max_val_tokens: The budget of val. 0: no val.
        eot: The id of EOT. None if documents do not end with EOT.
        remaining: The rest of each budget, for a resumed build. None: the whole budgets.

    Raises:
        NielsCacheError: If a budget is out of range.
    """

    def __init__(
        self, *, max_train_tokens: int, max_val_tokens: int, eot: int | None, remaining: Mapping[Split, int] | None = None
    ) -> None:
        if max_train_tokens <= 0:
            raise NielsCacheError(f"the train budget is {max_train_tokens} tokens; it must be at least 1")
        if max_val_tokens < 0:
            raise NielsCacheError(f"the val budget is {max_val_tokens} tokens; it must be 0 (no val) or more")
        self.remaining: dict[Split, int] = dict(remaining or {"val": max_val_tokens, "train": max_train_tokens})
        self._budget = max_val_tokens + max_train_tokens
        self._eot = eot

    @property
    def are_budgets_met(self) -> bool:
        return not any(self.remaining.values())

    def may_meet_budgets(self, batch: EncodedDocuments) -> bool:
        """Return whether this batch may have enough tokens to meet both budgets."""
        return len(batch.tokens) >= sum(self.remaining.values())

    @property
    def share(self) -> float | None:
        """The used share of both budgets together, 0 to 1. None if nothing is used yet, or if the budgets are unlimited."""
        if self._budget >= UNLIMITED:
            return None
        return 1 - sum(self.remaining.values()) / self._budget or None

    @property
    def val_is_full(self) -> bool:
        """Whether all further documents without a split go to train."""
        return not self.remaining["val"]

    def val_mask(self, batch: EncodedDocuments) -> np.ndarray:
        """Return bool (documents,): True for the documents that `assign` will put into val. This does not use the budget."""
        chosen = batch.documents.split == SPLITS.index("val")
        if self.remaining["val"]:
            free = np.flatnonzero(batch.documents.split == NO_SPLIT)
            chosen[self._within_budget("val", batch, free)] = True
        return chosen

    def assign(self, batch: EncodedDocuments) -> dict[Split, SplitPart]:
        """Distribute the documents of a batch to the splits. Documents beyond the budgets are left out."""
        if self._all_go_to_train(batch):
            self.remaining["train"] -= len(batch.tokens)
            return {"train": _split_part(batch, "train", slice(None), batch.tokens, batch.lengths, None)}
        kept = batch.lengths.copy()
        target = batch.documents.split.copy()  # index into SPLITS; NO_SPLIT: beyond the budgets
        for split in ("val", "train"):
            candidates = np.flatnonzero(target == NO_SPLIT)
            if not len(candidates) or not self.remaining[split]:
                continue
            taken = self._within_budget(split, batch, candidates)
            target[taken] = SPLITS.index(split)
            overrun = int(batch.lengths[taken].sum()) - self.remaining[split]
            if overrun > 0:
                kept[taken[-1]] -= overrun
            self.remaining[split] -= int(kept[taken].sum())
        return {split: self._part(batch, split, target == index, kept) for index, split in enumerate(SPLITS) if (target == index).any()}

    def _all_go_to_train(self, batch: EncodedDocuments) -> bool:
        """Return whether this is a usual batch: val is full, no document has a split, and the budget of train is not met."""
        return 0 < len(batch.tokens) < self.remaining["train"] and self.val_is_full and bool((batch.documents.split == NO_SPLIT).all())

    def _within_budget(self, split: Split, batch: EncodedDocuments, candidates: np.ndarray) -> np.ndarray:
        """Return the candidates that begin within the budget of the split. The last of them may exceed the budget.

        Args:
            split: The split.
            batch: The documents.
            candidates: The positions of documents in the batch, ascending.
        """
        ends = np.cumsum(batch.lengths[candidates])
        return candidates[: int(np.searchsorted(ends, self.remaining[split], side="left")) + 1]

    def _part(self, batch: EncodedDocuments, split: Split, chosen: np.ndarray, kept: np.ndarray) -> SplitPart:
        if chosen.all() and (kept == batch.lengths).all():
            return _split_part(batch, split, slice(None), batch.tokens, batch.lengths, None)
        tokens, lengths = batch.tokens[np.repeat(chosen, batch.lengths)], kept[chosen]
        missing = batch.lengths[chosen] - lengths
        cut = int(missing.argmax()) if missing.any() else None  # a budget cuts one document
        if cut is not None:
            end = int(lengths[: cut + 1].sum())
            tokens = np.delete(tokens, slice(end, end + int(missing[cut])))
            if self._eot is not None:
                tokens[end - 1] = self._eot
        return _split_part(batch, split, chosen, tokens, lengths, cut)


def _split_part(
    batch: EncodedDocuments, split: Split, chosen: np.ndarray | slice, tokens: np.ndarray, lengths: np.ndarray, cut: int | None
) -> SplitPart:
    documents, characters = batch.documents, int(batch.documents.characters[chosen].sum())
    copies = [copy.part(chosen, tokens, lengths, cut) for copy in batch.copies] if split == "train" else ()
    if copies:
        tokens, lengths, _ = copies[0]
    lineage = {
        "source_id": documents.source_id[chosen],
        "file": documents.file[chosen],
        "row": documents.row[chosen],
        "tokens": lengths,
        TEXT_HASH: batch.hashes[chosen],
        "kept": np.full(len(lengths), None, dtype=object) if documents.kept is None else documents.kept[chosen],
        "edges": documents.edges if documents.edges is None else documents.edges[chosen],
    }
    return SplitPart(lineage=lineage, tokens=tokens, lengths=lengths, characters=characters, cut=cut, copies=copies)


def encoded_head(documents: Iterable[DocumentBatch], encode: Encode, splitter: BudgetSplitter) -> Generator[EncodedDocuments]:
    """Yield encoded documents in order until val of `splitter` is full, or the stream ends. Not much more is encoded than val needs.

    A build encodes far ahead of what it writes. For a small budget, this would be many times the budget. So a head is encoded in rounds. A
    round takes as many documents as the rest of the budget needs, estimated by the bytes per token so far. The first round takes one byte
    for each missing token. No round takes more bytes than the number of tokens of the budget and its rest together. A tokenizer gives at
    most one token for a byte, so at most twice the budget is encoded, and one document. The documents of a round are encoded on all
    threads. A reader reads in batches, so it has read a little more, and this is not encoded.

    Args:
        documents: The stream of documents.
        encode: Encodes a stream of documents in order.
        splitter: The splitter. The caller assigns each batch with it before it requests the next one.
    """
    batches, taken = iter(documents), 0  # `taken` counts bytes
    rest: DocumentBatch | None = None  # of the batch that the last round cut

    def take(most: int) -> Iterator[DocumentBatch]:
        """Yield documents up to this number of bytes. The last one may exceed it."""
        nonlocal rest, taken
        end = taken + most
        while taken < end and (batch := next(batches, None) if rest is None else rest) is not None:
            ends = taken + np.cumsum(_sizes(batch))
            count = min(len(batch), int(np.searchsorted(ends, end, side="left")) + 1)
            rest = batch[count:] if count < len(batch) else None
            if count:
                taken = int(ends[count - 1])
                yield batch[:count]

    budget, tokens = splitter.remaining["val"], 0
    while missing := splitter.remaining["val"]:
        most = missing if not tokens else min(-(-missing * taken // tokens), budget + missing)
        is_over = True
        with closing(encode(take(most))) as encoded:
            for each in encoded:
                tokens, is_over = tokens + len(each.tokens), False
                yield each
                if splitter.val_is_full:
                    return
        if is_over:
            return


def _sizes(batch: DocumentBatch) -> np.ndarray:
    """Return the bytes of each text with its frame, (n,) int64. A document has at most as many tokens."""
    if isinstance(batch.text, Strings):
        return np.diff(batch.text.buffers()[1]) + _FRAME
    return np.fromiter((len(text.encode("utf-8", "surrogatepass")) + _FRAME for text in batch.text), np.int64, len(batch))
