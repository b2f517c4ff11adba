"""The data that pass through a build: documents, conversations, and the counters of dropped items.

Documents and conversations are named tuples, which are immutable. A named tuple costs a third as much as a frozen data class, which matters
at a hundred thousand documents a second.
"""

from collections import Counter
from typing import Any, Literal, NamedTuple, TypedDict

from niels_cache_runtime.format.layout import Split

Role = Literal["system", "user", "assistant"]


class Message(TypedDict):
    """One turn of a conversation: the speaker ("system", "user" or "assistant"), and the text."""

    role: Role
    content: str


class Document(NamedTuple):
    """One pretraining text and its origin.

    `source_id` is the id that the source gives the text, or `file#row`. `file` is relative to the source's root, and `row` counts from 0 in
    that file. A document with a `split` stays in this split. If `split` is None, val_frac or the token budgets decide the split. `redirect`
    is True if upstream marks this page as a redirect to another page.
    """

    text: str
    source_id: str = ""
    file: str = ""
    row: int = 0
    title: str | None = None
    split: Split | None = None
    redirect: bool = False


class Conversation(NamedTuple):
    """One SFT example: its messages, and its origin (see Document).

    Each message is {"role": "system", "user" or "assistant", "content": text}. The messages are in order. If a data set splits by group,
    all examples with the same `group` get the same split (in oasst1, a group is a tree of messages).
    """

    messages: list[Message]
    source_id: str = ""
    file: str = ""
    row: int = 0
    group: str | None = None
    category: str | None = None
    split: Split | None = None


Place = dict[str, Any]
"""The place where a stream resumes, as JSON values: "file" (a name), "row" (the index of the next row), and further keys of the source."""


class SourceReport:
    """The report of a source about one pass over its items.

    `dropped` counts dropped items by reason. `facts` are for meta.json (for example the number of straddling trees). A source that can
    start in the middle (`StreamContext.start`) sets `place` immediately before it yields a batch. `place` is then a new dictionary, which
    says where the next batch begins. At that moment `dropped` and `facts` cover all rows before `place`, and no later rows. A source that
    cannot start in the middle is read from the beginning, and the builder skips the items that it already has.

    `share` is the share of the source that was read (0 to 1), or None if it is not cheap to compute. `within` is a prefix for file names in
    `facts`, for a source that is a member of another source. `hints` are possible mistakes in the configuration. If no item of the source
    is left, the error message shows the hints. Hints are never stored in metadata.
    """

    def __init__(self, within: str = "") -> None:
        self.within = within
        self.dropped: Counter[str] = Counter()
        self.facts: dict[str, Any] = {}
        self.place: Place | None = None
        self.share: float | None = None
        self.hints: list[str] = []
