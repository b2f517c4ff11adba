"""The data that pass through a build: documents, conversations, and the counters of dropped ones.

They are named tuples, which are immutable. They cost a third of a frozen data class, which matters at a hundred thousand a second.
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

    `source_id` is the source's own id (or file#row), `file` is relative to the source's root, `row` counts from 0 in that file. A document
    with a `split` keeps it; otherwise val_frac or token budgets decide. `redirect`: upstream marks this page as a redirect to another.
    """

    text: str
    source_id: str = ""
    file: str = ""
    row: int = 0
    title: str | None = None
    split: Split | None = None
    redirect: bool = False


class Conversation(NamedTuple):
    """One SFT example: messages {"role": "system", "user" or "assistant", "content": text} in order, and their origin (see Document).

    `group` keeps examples of one origin together if a data set splits by it (oasst1: the tree).
    """

    messages: list[Message]
    source_id: str = ""
    file: str = ""
    row: int = 0
    group: str | None = None
    category: str | None = None
    split: Split | None = None


Place = dict[str, Any]
"""The place to resume a stream, in JSON values: {"file": name, "row": index of the next row, and other keys of the source}."""


class SourceReport:
    """The report of a source about one pass: `dropped` counts by reason, `facts` are for metadata (for example straddling trees).

    A source that can start in the middle (`StreamContext.start`) sets `place` to a new dictionary immediately before it yields a batch: the
    place where the next batch begins. At that moment `dropped` and `facts` cover all rows before it and no others. Any other source is read
    from the beginning, and the builder skips the items that it has. `share`: the share of the source that was read, 0 to 1, if it is cheap
    to compute. `within`: a prefix for names of files in facts, for a source that is a member of another. `hints`: possible mistakes in the
    configuration if no item of the source is left; for an error message, never for metadata.
    """

    def __init__(self, within: str = "") -> None:
        self.within = within
        self.dropped: Counter[str] = Counter()
        self.facts: dict[str, Any] = {}
        self.place: Place | None = None
        self.share: float | None = None
        self.hints: list[str] = []
