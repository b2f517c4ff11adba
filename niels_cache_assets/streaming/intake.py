"""Validation of the builders' arguments: items become documents and conversations, or an error in one clear line.

Errors in items and settings are reported here, before a library deep below fails on them. Nothing is encoded or written.
"""

from collections.abc import Iterable, Iterator, Mapping

from niels_cache_assets.documents import Conversation, Document, Message
from niels_cache_assets.streaming.encode import describe_item
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import SPLITS


def as_documents(texts: Iterable[str | Document], *, first: int = 0) -> Iterator[Document]:
    """Yield every item as a Document. The first one is item `first` of the source. Raises NielsCacheError for an invalid item."""
    if isinstance(texts, str):
        raise NielsCacheError("the builder takes an iterable of texts, not one text; put it into a list")
    for position, item in enumerate(texts, first):
        if isinstance(item, str):
            yield Document(item, source_id=str(position), row=position)
            continue
        if not isinstance(item, Document):
            raise NielsCacheError(f"item {position} of the source is a {type(item).__name__}; the builder takes str or Document")
        if not isinstance(item.text, str):
            raise NielsCacheError(f"{describe_item(item, position)}: the text is a {type(item.text).__name__}, not str")
        _require_lineage(item, position)
        yield item


def as_conversations(examples: Iterable[list[Message] | Conversation], *, first: int = 0) -> Iterator[Conversation]:
    """Yield every item as a Conversation. The first one is item `first` of the source. Raises NielsCacheError for an invalid item.

    This does not check whether it can be trained on.
    """
    for position, item in enumerate(examples, first):
        if not isinstance(item, list | Conversation):
            kind = type(item).__name__
            raise NielsCacheError(f"item {position} of the source is a {kind}; the builder takes a list of messages or a Conversation")
        conversation = item if isinstance(item, Conversation) else Conversation(item, source_id=str(position), row=position)
        if not all(isinstance(message, Mapping) for message in conversation.messages):
            raise NielsCacheError(f"example {conversation.source_id or position}: a message must be a mapping with role and content")
        _require_lineage(conversation, position)
        yield conversation


def _require_lineage(item: Document | Conversation, position: int) -> None:
    if item.split not in (None, *SPLITS):
        raise NielsCacheError(f"{describe_item(item, position)}: split is {item.split!r}; it must be 'train', 'val' or None")
    if not (isinstance(item.source_id, str) and isinstance(item.file, str) and isinstance(item.row, int)):
        raise NielsCacheError(f"{describe_item(item, position)}: source_id and file must be str, and row an int")


def require_whole_numbers(**settings: int | None) -> None:
    """Raise NielsCacheError for settings that are not whole numbers or are out of range, before a library deep below fails on them."""
    for name, value in settings.items():
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            raise NielsCacheError(f"{name} is {value!r}; it must be a whole number")
    seed, threads = settings["seed"], settings["threads"]
    if seed is None or not 0 <= seed < 2**63:
        raise NielsCacheError(f"seed is {seed}; it must be at least 0 and below 2**63")
    if threads is not None and threads < 1:
        raise NielsCacheError(f"threads is {threads}; give at least 1, or None for every core")
