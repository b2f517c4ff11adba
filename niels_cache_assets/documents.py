"""What flows through a build: documents, conversations, and the counters of what was left out.

Named tuples: they are immutable and cost a third of a frozen data class to make, which counts at a hundred thousand a second.
"""

from collections import Counter
from typing import Any, Literal, NamedTuple, TypedDict

from niels_cache_runtime.format.layout import Split

Role = Literal["system", "user", "assistant"]


class Message(TypedDict):
    """One turn of a conversation: who speaks ("system", "user" or "assistant"), and the text."""

    role: Role
    content: str


class Document(NamedTuple):
    """One pretraining text and where it came from.

    `source_id` is the source's own id (or file#row), `file` is relative to the source's root, `row` counts from 0 in that file.
    A document that carries `split` keeps it; one that carries none is split by val_frac or by token budgets. `redirect`: upstream says that
    this page only points at another.
    """

    text: str
    source_id: str = ""
    file: str = ""
    row: int = 0
    title: str | None = None
    split: Split | None = None
    redirect: bool = False


class Conversation(NamedTuple):
    """One SFT example: messages {"role": "system", "user" or "assistant", "content": text} in order, and where it came from (see Document).

    `group` keeps examples of one origin together where a data set splits by it (oasst1: the tree).
    """

    messages: list[Message]
    source_id: str = ""
    file: str = ""
    row: int = 0
    group: str | None = None
    category: str | None = None
    split: Split | None = None


Place = dict[str, Any]
"""Where a stream can be taken up again, in JSON values: {"file": name, "row": index of the next row, and what else the source needs}."""


class SourceReport:
    """What a source tells about one pass: `dropped` counts by reason, `facts` for metadata (for example straddling trees).

    A source that can start in the middle (`StreamContext.start`) sets `place` to a new dictionary immediately before it yields a batch:
    where the next batch begins. At that moment `dropped` and `facts` are of all rows before it and of no other. Any other source is read
    from the beginning, and the builder skips what it has. `share`: how much of the source was read, 0 to 1, where that is known cheaply.
    `within`: what names of files in facts begin with, for a source that is a member of another. `hints`: what may be wrong with the
    configuration where nothing is left of the source; for an error message, never for metadata.
    """

    def __init__(self, within: str = "") -> None:
        self.within = within
        self.dropped: Counter[str] = Counter()
        self.facts: dict[str, Any] = {}
        self.place: Place | None = None
        self.share: float | None = None
        self.hints: list[str] = []
