"""The places of a text or of tokens in caches: `find_text` and `find_tokens`, which search every split from front to back.

Text is searched as bytes, because the tokens of a phrase differ with what stands around it. There are three ways, and the result says which
one was used for each split:

    scan          every token becomes its bytes, and the bytes are searched
    candidates    the tokens are searched for those that the text has in any context (`certain`), and the bytes around each are compared
    index         like candidates, but an index has the candidates (`index`)

A place never crosses the border of a document, an example, a side of a preference pair, or a special token. Places may overlap: "aa" is
twice in "aaa".
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from niels_cache_inspection.find.caches import SearchableCache
from niels_cache_inspection.find.caches import caches_of as caches_of

Way = Literal["index", "candidates", "scan", "skipped"]
OnTokens = Callable[[str, int, int], None]
"""Called with the name of a data set, and its number of bytes that are done and of all bytes."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """A place where a text or tokens were found.

    Attributes:
        dataset: The name of the data set. For a part of a data set, `NAME/PART`.
        family: "pretrain" or "sft".
        directory: The folder of the cache. For a published cache, a temporary folder with its meta.json, document ends and lineage.
        split: "train" or "val".
        document: The number of the document or example in the split.
        source_id: Its id at the source, or None without lineage.
        file: Its file at the source, or None.
        row: Its row in this file, or None.
        start: The first token of the place, counted from the start of the document.
        end: The token after the last one.
        excerpt: The text of the place, with some text before and after it.
        hit: The characters of the excerpt that were searched for: the first one, and the one after the last.
        role: In an SFT example whose messages begin with sentinels: the role of the message, such as "asst". Otherwise None.
        side: In a preference pair: "chosen" or "rejected". Otherwise None.
        address: The address of a published cache, or None.
    """

    dataset: str
    family: str
    directory: Path
    split: str
    document: int
    source_id: str | None
    file: str | None
    row: int | None
    start: int
    end: int
    excerpt: str
    hit: tuple[int, int] = (0, 0)
    role: str | None = None
    side: str | None = None
    address: str | None = None


@dataclass(frozen=True, kw_only=True)
class SearchedSplit:
    """How a split was searched.

    Attributes:
        dataset: As in Place.
        family: As in Place.
        directory: As in Place.
        split: The split.
        tokens: Its number of tokens.
        way: How it was searched; "skipped" if it was not.
        places: The number of places that were found.
        note: What the reader should know, such as why it was skipped, or None.
    """

    dataset: str
    family: str
    directory: Path
    split: str
    tokens: int
    way: Way
    places: int
    note: str | None = None


class Search:
    """A search, which runs while it is iterated. Its places come split by split, in order.

    Attributes:
        searched: How each split was searched, so far.
        count: The number of places that were found so far, also those beyond the limit.
    """

    searched: list[SearchedSplit]
    count: int

    def __iter__(self) -> Iterator[Place]:
        raise NotImplementedError


def find_text(
    caches: Iterable[SearchableCache],
    text: bytes,
    *,
    exhaustive: bool = False,
    limit: int | None = None,
    progress: OnTokens | None = None,
) -> Search:
    """Search caches for a text.

    Args:
        caches: The caches, from `caches_of`.
        text: The text in UTF-8. It is normalized as the tokenizer of a cache normalizes text.
        exhaustive: Whether to search all bytes of all splits, whatever their tokens are.
        limit: The largest number of places to describe; all places are counted. None means all.
        progress: Called while splits are searched.

    Raises:
        NielsCacheError: If the text is empty or is not UTF-8, or if a cache cannot be read.
    """
    raise NotImplementedError


def find_tokens(
    caches: Iterable[SearchableCache], ids: Sequence[int], *, limit: int | None = None, progress: OnTokens | None = None
) -> Search:
    """Search caches for consecutive tokens.

    Args:
        caches: The caches, from `caches_of`.
        ids: The tokens.
        limit: As in `find_text`.
        progress: As in `find_text`.

    Raises:
        NielsCacheError: If there are no ids, or a cache cannot be read.
    """
    raise NotImplementedError
