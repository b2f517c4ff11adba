"""Encoding of documents to tokens on all cores.

Threads encode chunks, while the caller's thread reads the source and takes the results. Results come in input order, so the bytes do not
depend on the number of threads. A few chunks of about a megabyte are in memory at a time, and fewer if documents are long
(base/parallel.py). The ids of the tokenizer are checked: a text whose ids include a special id is dropped and counted.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import compress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from niels_cache_assets.base.documents import BatchDivider, DocumentBatch, DropReport, describe_origin
from niels_cache_assets.base.parallel import map_in_order
from niels_cache_assets.base.strings import Strings
from niels_cache_assets.dedup.signatures import hash_canonical
from niels_cache_assets.streaming.intake import describe_item
from niels_cache_assets.streaming.types import Chunks, EncodedDocuments, PositionedChunk
from niels_cache_assets.tokenizer.encoder import FIRST_BATCHES, EngineMismatchError
from niels_cache_assets.tokenizer.kinds import BuildTokenizer
from niels_cache_runtime.errors import NielsCacheError, PanicError, panics_as_errors
from niels_cache_runtime.format.layout import SPLITS
from niels_cache_runtime.format.reading import available_threads

if TYPE_CHECKING:
    from niels_cache_assets.streaming.feed import Feed

COLLISION = "special_token_collision"
INVALID_UNICODE = "invalid_unicode"
EMPTY = "empty"

_CHUNK_ITEMS = 256
_CHUNK_CHARACTERS = 1_000_000
_CHUNKS_PER_TASK = 8

Batch = TypeVar("Batch", bound=Sized)


def normalize_newlines(text: str) -> str:
    """Convert CRLF and CR to LF. This is the only normalization that every text gets."""
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def in_chunks(
    batches: Iterable[Batch], sizes_of: Callable[[Batch], np.ndarray], joined: Callable[[Sequence[Batch]], Batch]
) -> Iterator[Batch]:
    """Divide a stream of batches into new chunks. A chunk ends after 256 items or about a million characters.

    The chunks do not depend on the sizes of the batches.

    Args:
        batches: The stream.
        sizes_of: Returns the number of characters of each item of a batch, (n,) int64.
        joined: Returns one batch with the items of several batches.
    """
    divider = BatchDivider(most_items=_CHUNK_ITEMS, most_characters=_CHUNK_CHARACTERS)
    parts: list[Batch] = []
    for batch in batches:
        for part, is_full in divider.cuts(sizes_of(batch)):
            parts.append(batch[part])  # type: ignore[index]
            if is_full:
                yield joined(parts)
                parts = []
        del batch  # so that a long text is not kept in memory while the next batch is read
    if parts:
        yield joined(parts)


@dataclass(frozen=True, kw_only=True)
class DocumentEncoder:
    """An encoder of documents. Its methods may be called from several threads.

    Without EOT, a document without tokens would leave no trace in the cache, so it is dropped and counted.

    Attributes:
        tokenizer: The tokenizer.
        dtype: The dtype of the tokens, which must hold every id of the tokenizer.
        threads: The number of threads that encode. None: one for each available core.
        append_eot: Whether each document ends with one EOT.
        raise_on_collision: Whether a text that contains a special token is an error. Otherwise it is dropped and counted.
        edges: Finds the edges of the files of documents (niels_cache_corpora/code/edges.py). None if documents have one file each.
        fim: What makes the copies of train (`CopyMaker` in niels_cache_corpora/fim.py). None: train has no copies.
    """

    tokenizer: BuildTokenizer
    dtype: np.dtype
    threads: int | None
    append_eot: bool = True
    raise_on_collision: bool = False
    edges: Any = None
    fim: Any = None

    def encode(
        self,
        documents: Iterable[DocumentBatch],
        feed: Feed[Any],
        *,
        first: int = 0,
        screen: Callable[[EncodedDocuments], EncodedDocuments] | None = None,
    ) -> Generator[EncodedDocuments]:
        """Encode a stream of documents, and yield them in batches.

        Args:
            documents: The stream of documents.
            feed: The source of the documents.
            first: The number of documents before the first of the stream.
            screen: Called with each encoded batch, on the thread that encoded this batch. It returns the batch to yield.

        Raises:
            NielsCacheError: If a text contains a special token, with `raise_on_collision`.
            EngineMismatchError: If the tokenizer has a fast engine that gives other ids than its reference.
        """

        def encode(task: tuple[int, Chunks]) -> EncodedDocuments:
            batch, chunks = task
            encoded = self._encode(chunks, batch)
            return encoded if screen is None else screen(encoded)

        tasks = enumerate(_tasks(documents, feed, first))
        return map_in_order(encode, tasks, threads=self.threads or available_threads(), size_of=lambda task: task[1].characters)

    def encode_separately(self, chunks: Iterable[PositionedChunk]) -> Iterator[EncodedDocuments]:
        """Encode chunks again, and yield each chunk alone.

        A stream that ends at one of these chunks needs the position after this chunk, and not after the last one.
        """
        for chunk, position in chunks:
            yield self._encode(Chunks.of(chunk, position), None)

    def _encode(self, chunks: Chunks, batch: int | None) -> EncodedDocuments:
        tokenizer, documents = self.tokenizer, chunks.documents
        texts = documents.text.with_line_feeds() if isinstance(documents.text, Strings) else [*map(normalize_newlines, documents.text)]

        def name_of(number: int) -> str:
            return describe_item(documents.document(number), number)

        with name_unencodable_item(name_of, ([text] for text in texts), lambda one: encode_texts(one, tokenizer, None)):
            encoded = encode_texts(texts, tokenizer, batch)
        hashes = hash_canonical(texts)
        special = texts_with_special(encoded, tokenizer)
        if special is not None and self.raise_on_collision:
            raise NielsCacheError(f"{name_of(int(special.argmax()))}: the text contains a special token; remove it")
        ids, lengths, drops = encoded.ids, encoded.lengths, DropReport()
        if self.edges is not None:
            documents = self.edges.with_edges(documents, texts, ids, lengths, first=int(tokenizer.bos is not None))
        empty = None if self.append_eot or lengths.all() else lengths == 0
        keep = np.ones(len(documents), dtype=bool)
        for reason, found in ((INVALID_UNICODE, encoded.invalid), (COLLISION, special), (EMPTY, empty)):
            if found is not None and len(dropped := np.flatnonzero(found & keep)):
                of_val = int(np.count_nonzero(documents.split[dropped] == SPLITS.index("val")))
                drops.drop(reason, describe_origin(documents.document(dropped[0])), count=len(dropped), of_val=of_val)
                keep &= ~found
        if not keep.all():
            documents, ids, lengths, hashes = documents[keep], ids[np.repeat(keep, lengths)], lengths[keep], hashes[keep]
        framed = partial(add_bos_and_eot, dtype=self.dtype, bos=tokenizer.bos, eot=tokenizer.eot if self.append_eot else None)
        copies = [*self.fim.copies(documents, compress(texts, keep), (ids, lengths), tokenizer, batch, framed)] if self.fim else ()
        return EncodedDocuments(documents, *framed(ids, lengths), hashes, drops, chunks, copies=copies)


def _tasks(batches: Iterable[DocumentBatch], feed: Feed[Any], first: int) -> Iterator[Chunks]:
    """Divide a stream of documents into chunks, and group chunks of short documents into tasks.

    Each hand-over between threads costs as much as the encoding of some documents. A task is joined by the thread that encodes it. The
    first tasks have one chunk, because a fast engine is compared with its reference for all of them (tokenizer/encoder.py), on all cores.
    """
    divider = BatchDivider(most_items=_CHUNK_ITEMS, most_characters=_CHUNK_CHARACTERS)
    task, number = Chunks(), 0
    try:
        for batch in batches:
            start = 0
            for part, is_full in divider.cuts(batch.characters):
                if not is_full:
                    continue
                task.add(batch[start : part.stop])
                start = part.stop
                task.end_chunk(feed.position(first + task.size))
                if len(task.positions) >= (1 if number < FIRST_BATCHES else _CHUNKS_PER_TASK) or task.characters >= _CHUNK_CHARACTERS:
                    first += task.size
                    yield task
                    task, number = Chunks(), number + 1
            if start < len(batch):
                task.add(batch[start:])
            del batch  # so that a long text is not kept in memory while the next batch is read
    except Exception:
        task.drop_unfinished_chunk()
        if task.positions:  # read before the source failed: a build that is resumed need not read it again
            yield task
        raise
    if task.size:
        if task.has_unfinished_chunk:
            task.end_chunk(feed.position(first + task.size))
        yield task


class EncodedTexts(NamedTuple):
    """The ids of texts, one text after the other.

    Attributes:
        ids: The ids of all texts.
        lengths: (n,) int64, the number of ids of each text.
        invalid: bool (n,), True for texts that have no ids because they are not valid Unicode. None if all texts are valid.
    """

    ids: np.ndarray
    lengths: np.ndarray
    invalid: np.ndarray | None


def encode_texts(texts: Sequence[str] | Strings, tokenizer: BuildTokenizer, batch: int | None) -> EncodedTexts:
    """Convert the newlines of the texts, and return the ids of the converted texts.

    Args:
        texts: The texts.
        tokenizer: The tokenizer.
        batch: The number of this batch, which decides whether a fast engine is compared with the reference (tokenizer/encoder.py).
    """
    if isinstance(texts, Strings):
        return EncodedTexts(*tokenizer.encode_batch(texts.with_line_feeds(), batch), None)
    everything = "".join(texts)
    if "\r" in everything:
        texts = [normalize_newlines(text) for text in texts]
    if not everything.isascii():
        invalid = np.fromiter(map(has_lone_surrogate, texts), bool, len(texts))
        if invalid.any():
            lengths = np.zeros(len(texts), np.int64)
            ids, lengths[~invalid] = tokenizer.encode_batch(
                [text for text, broken in zip(texts, invalid, strict=True) if not broken], batch
            )
            return EncodedTexts(ids, lengths, invalid)
    return EncodedTexts(*tokenizer.encode_batch(texts, batch), None)


def texts_with_special(encoded: EncodedTexts, tokenizer: BuildTokenizer) -> np.ndarray | None:
    """Return bool (n,): True for texts with a special id. Return None if no text has a special id.

    Raises:
        NielsCacheError: If an id is outside the vocabulary, so that the tokens of an inconsistent tokenizer are never written.
    """
    if not len(encoded.ids):
        return None
    least, most = int(encoded.ids.min()), int(encoded.ids.max())
    if least < 0 or most >= tokenizer.vocab_size:
        size = tokenizer.vocab_size
        raise NielsCacheError(f"encoding: the tokenizer gave an id outside its vocab_size {size}; correct vocab_size")
    if not tokenizer.is_special[least : most + 1].any():  # special ids are usually the first or the last ones of a vocabulary
        return None
    special = tokenizer.is_special.take(encoded.ids)
    if not special.any():
        return None
    found = np.zeros(len(encoded.lengths), dtype=bool)
    found[np.searchsorted(np.cumsum(encoded.lengths), np.flatnonzero(special), side="right")] = True
    return found


@contextmanager
def name_unencodable_item(
    name_of: Callable[[int], str], items: Iterable[Sequence[str]], encode: Callable[[Sequence[str]], object]
) -> Iterator[None]:
    """Name the item that the tokenizer cannot encode, if the block fails to encode all items.

    An item that an engine encodes differently is named too.

    Args:
        name_of: Returns the name of an item by its number.
        items: The texts of each item.
        encode: Encodes the texts of one item.

    Raises:
        NielsCacheError: If an item cannot be encoded.
    """
    try:
        with panics_as_errors():  # of the library in an object of the caller; ours raise NielsCacheError
            yield
    except EngineMismatchError as found:
        with_text = (number for number, texts in enumerate(items) if found.text in map(normalize_newlines, texts))
        raise found.at(name_of(next(with_text))) from None
    except (NielsCacheError, PanicError):
        for number, texts in enumerate(items):
            try:
                with panics_as_errors():
                    encode(texts)
            except (NielsCacheError, PanicError) as error:
                raise NielsCacheError(f"{name_of(number)}: {error}") from error
        raise


def add_bos_and_eot(
    ids: np.ndarray, lengths: np.ndarray, dtype: np.dtype, *, bos: int | np.ndarray | None, eot: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids as `dtype`, with `bos` before and `eot` after the ids of each text (None: without), and the new lengths.

    `bos` may have an id for each text.
    """
    if bos is None and eot is None:
        return ids.astype(dtype), lengths
    added = (bos is not None) + (eot is not None)
    new_lengths = lengths + added
    ends = np.cumsum(new_lengths)
    tokens = np.empty(len(ids) + added * len(lengths), dtype)
    is_text = np.ones(len(tokens), dtype=bool)
    for token, positions in ((bos, ends - new_lengths), (eot, ends - 1)):
        if token is not None:
            is_text[positions] = False
            tokens[positions] = token
    tokens[is_text] = ids
    return tokens, new_lengths


def has_lone_surrogate(text: str) -> bool:
    """Return whether the text cannot be written as UTF-8."""
    if text.isascii():
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False
