"""Validation of the builders' arguments.

Valid items become batches of documents or conversations. An invalid item raises a one-line error, before a lower-level library fails on it.
This module encodes and writes nothing.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from niels_cache_assets.base.documents import Conversation, Document, DocumentBatch, Message
from niels_cache_assets.sources.reading.rows import batched
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import SPLITS


def in_lists(items: Iterable[Any]) -> Iterator[list[Any]]:
    """Yield the items of an iterable in lists, which end as the batches of a source do (`rows.batched`).

    Raises:
        NielsCacheError: If `items` is a single text.
    """
    if isinstance(items, str):
        raise NielsCacheError("the builder takes an iterable of texts, not one text; put it into a list")
    yield from batched(items, length=lambda item: len(text) if isinstance(text := getattr(item, "text", item), str) else 0)


def as_documents(batches: Iterable[Sequence[str | Document] | DocumentBatch], *, first: int = 0) -> Iterator[DocumentBatch]:
    """Yield every batch as columns.

    A DocumentBatch is not checked, because the sources make its columns with the right types.

    Args:
        batches: Lists of texts or Documents, or DocumentBatches.
        first: The number of the first item in the source.

    Raises:
        NielsCacheError: If an item of a list is invalid.
    """
    for batch in batches:
        if isinstance(batch, DocumentBatch):
            yield batch
        else:
            yield DocumentBatch.of([_as_document(item, position) for position, item in enumerate(batch, first)])
        first += len(batch)
        del batch  # so that a long text is not kept in memory while the next batch is read


def _as_document(item: Any, position: int) -> Document:
    if isinstance(item, str):
        return Document(item, source_id=str(position), row=position)
    if not isinstance(item, Document):
        raise NielsCacheError(f"item {position} of the source is a {type(item).__name__}; the builder takes str or Document")
    if not isinstance(item.text, str):
        raise NielsCacheError(f"{describe_item(item, position)}: the text is a {type(item.text).__name__}, not str")
    _require_lineage(item, position)
    return item


def as_conversations(batches: Iterable[Sequence[list[Message] | Conversation]], *, first: int) -> Iterator[list[Conversation]]:
    """Yield every batch as a list of Conversations.

    This function does not check whether a conversation can be used for training.

    Args:
        batches: Lists of conversations.
        first: The number of the first item in the source.

    Raises:
        NielsCacheError: If an item is invalid.
    """
    for batch in batches:
        yield [_as_conversation(item, position) for position, item in enumerate(batch, first)]
        first += len(batch)
        del batch


def _as_conversation(item: Any, position: int) -> Conversation:
    if not isinstance(item, list | Conversation):
        kind = type(item).__name__
        raise NielsCacheError(f"item {position} of the source is a {kind}; the builder takes a list of messages or a Conversation")
    conversation = item if isinstance(item, Conversation) else Conversation(item, source_id=str(position), row=position)
    if not all(isinstance(message, Mapping) for message in [*conversation.messages, *(conversation.rejected or [])]):
        raise NielsCacheError(f"example {conversation.source_id or position}: a message must be a mapping with role and content")
    _require_lineage(conversation, position)
    return conversation


def describe_item(item: Document | Conversation, position: int) -> str:
    """Return the origin of an item for messages: file and row if the item has them, otherwise `position`."""
    if item.file:
        return f"{item.file} row {item.row}"
    return f"document {item.source_id or position}"


def _require_lineage(item: Document | Conversation, position: int) -> None:
    if item.split not in (None, *SPLITS):
        raise NielsCacheError(f"{describe_item(item, position)}: split is {item.split!r}; it must be 'train', 'val' or None")
    if not (isinstance(item.source_id, str) and isinstance(item.file, str) and isinstance(item.row, int)):
        raise NielsCacheError(f"{describe_item(item, position)}: source_id and file must be str, and row an int")


def require_whole_numbers(**settings: int | None) -> None:
    """Raise NielsCacheError if a setting is not a whole number or is out of range.

    Without this check, a lower-level library would fail on the setting later.
    """
    for name, value in settings.items():
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            raise NielsCacheError(f"{name} is {value!r}; it must be a whole number")
    seed, threads = settings["seed"], settings["threads"]
    if seed is None or not 0 <= seed < 2**63:
        raise NielsCacheError(f"seed is {seed}; it must be at least 0 and below 2**63")
    if threads is not None and threads < 1:
        raise NielsCacheError(f"threads is {threads}; give at least 1, or None for every core")
