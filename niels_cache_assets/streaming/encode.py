"""Encoding of documents to tokens on all cores: threads encode chunks, and the caller's thread reads the source and writes shards.

Results come in input order, so the bytes do not depend on the number of threads. In flight are a few chunks of about a megabyte, fewer if
documents are long (in_flight.py). The output of the tokenizer is checked: a text that yields a special id is dropped and counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from niels_cache_assets.documents import Document
from niels_cache_assets.streaming.in_flight import map_in_order
from niels_cache_assets.streaming.types import EncodedDocuments
from niels_cache_assets.tokenizer.kinds import BuildTokenizer
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import TOKEN_DTYPE

if TYPE_CHECKING:
    from niels_cache_assets.streaming.feed import Feed
    from niels_cache_assets.streaming.types import Position

COLLISION = "special_token_collision"
INVALID_UNICODE = "invalid_unicode"
EMPTY = "empty"

_CHUNK_ITEMS = 256
_CHUNK_CHARACTERS = 1_000_000

Item = TypeVar("Item")
Result = TypeVar("Result")


def normalize_newlines(text: str) -> str:
    """Convert CRLF and CR to LF. This is the only normalization that every text gets."""
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def in_chunks(items: Iterable[Item], size_of: Callable[[Item], int]) -> Iterator[list[Item]]:
    """Group a stream into lists of up to 256 items or about a million characters."""
    chunk: list[Item] = []
    characters = 0
    for item in items:
        chunk.append(item)
        characters += size_of(item)
        if len(chunk) == _CHUNK_ITEMS or characters >= _CHUNK_CHARACTERS:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


def encode_documents(
    documents: Iterable[Document],
    tokenizer: BuildTokenizer,
    feed: Feed[Any],
    *,
    threads: int,
    first: int = 0,
    append_eot: bool,
    raise_on_collision: bool,
    screen: Callable[[EncodedDocuments], EncodedDocuments] | None = None,
) -> Generator[EncodedDocuments]:
    """Encode a stream of documents; see EncodedDocuments. `feed`: their source. `first`: the number of documents before them.

    Without EOT, a document without tokens would be lost, so it is dropped and counted. `screen` is called with each encoded chunk on the
    thread that encoded it. Raises NielsCacheError on a collision if `raise_on_collision` is set.
    """

    def encode(task: tuple[list[Document], Position]) -> EncodedDocuments:
        encoded = _encode_chunk(*task, tokenizer, append_eot=append_eot, raise_on_collision=raise_on_collision)
        return screen(encoded) if screen is not None else encoded

    chunks = feed.positioned(in_chunks(documents, lambda document: len(document.text)), first=first)
    return map_in_order(encode, chunks, threads=threads, size_of=lambda task: sum(len(document.text) for document in task[0]))


def encode_texts(texts: Sequence[str], tokenizer: BuildTokenizer) -> list[np.ndarray | str]:
    """Return the ids of each text as an int64 or int32 array, or the reason why it has no ids."""
    normal = [normalize_newlines(text) for text in texts]
    problems = [INVALID_UNICODE if has_lone_surrogate(text) else None for text in normal]
    encoded = iter(tokenizer.encode_texts([text for text, problem in zip(normal, problems, strict=True) if problem is None]))
    return [np.asarray(next(encoded)) if problem is None else problem for problem in problems]


def has_special(ids: np.ndarray, tokenizer: BuildTokenizer) -> bool:
    """Return whether any of `ids` is a special id."""
    forbidden = tokenizer.forbidden_ids
    return bool(np.any(_forbidden(ids, forbidden)))


def require_ids_fit(ids: np.ndarray, tokenizer: BuildTokenizer, where: str) -> None:
    """Raise NielsCacheError for ids outside the vocabulary, so that the tokens of an inconsistent tokenizer are not written."""
    if len(ids) and (int(ids.max()) >= tokenizer.vocab_size or int(ids.min()) < 0):
        raise NielsCacheError(f"{where}: the tokenizer gave an id outside its vocab_size {tokenizer.vocab_size}; correct vocab_size")


def describe_item(item: Any, position: int) -> str:
    """Return the origin of an item for messages: file and row if it has them, else its position in this chunk."""
    if item.file:
        return f"{item.file} row {item.row}"
    return f"document {item.source_id or position}"


def _encode_chunk(
    chunk: list[Document], position: Position, tokenizer: BuildTokenizer, *, append_eot: bool, raise_on_collision: bool
) -> EncodedDocuments:
    dropped: Counter[str] = Counter()
    encoded = encode_texts([document.text for document in chunk], tokenizer)
    arrays = [ids for ids in encoded if not isinstance(ids, str)]
    documents = chunk
    if len(arrays) < len(chunk):
        dropped.update(reason for reason in encoded if isinstance(reason, str))
        documents = [document for document, ids in zip(chunk, encoded, strict=True) if not isinstance(ids, str)]
    tokens = np.concatenate(arrays) if arrays else np.empty(0, np.int32)
    require_ids_fit(tokens, tokenizer, "encoding")
    if _forbidden(tokens, tokenizer.forbidden_ids).any():
        clean = [not has_special(ids, tokenizer) for ids in arrays]
        if raise_on_collision:
            first = clean.index(False)
            raise NielsCacheError(f"{describe_item(documents[first], first)}: the text contains a special token; remove it")
        dropped[COLLISION] += clean.count(False)
        documents = [document for document, keep in zip(documents, clean, strict=True) if keep]
        arrays = [ids for ids, keep in zip(arrays, clean, strict=True) if keep]
        tokens = np.concatenate(arrays) if arrays else np.empty(0, np.int32)
    lengths = np.fromiter(map(len, arrays), np.int64, len(arrays))
    if not append_eot and not lengths.all():
        dropped[EMPTY] += int((lengths == 0).sum())
        documents = [document for document, length in zip(documents, lengths.tolist(), strict=True) if length]
        lengths = lengths[lengths > 0]
    tokens = tokens.astype(TOKEN_DTYPE)
    if append_eot:
        tokens = np.insert(tokens, np.cumsum(lengths), TOKEN_DTYPE.type(tokenizer.eot)) if len(lengths) else tokens
        lengths = lengths + 1
    characters = np.fromiter((len(document.text) for document in documents), np.int64, len(documents))
    return EncodedDocuments(documents, tokens, lengths, characters, dropped, position)


def _forbidden(ids: np.ndarray, forbidden: np.ndarray) -> np.ndarray:
    """Return a mask of special ids: two comparisons if the ids are consecutive (our own tokenizers), else `isin`."""
    if forbidden[-1] - forbidden[0] == len(forbidden) - 1:
        return (ids >= forbidden[0]) & (ids <= forbidden[-1])
    return np.isin(ids, forbidden)


def has_lone_surrogate(text: str) -> bool:
    """Return whether the text cannot be written as UTF-8."""
    if text.isascii():
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False
