"""What is counted while a corpus is made, chunk by chunk; in JSON values where a journal keeps it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from niels_cache_assets.cleaning.counting import CleaningReport
from niels_cache_assets.corpus.chunks import PreparedChunk, TextTotals


@dataclass(kw_only=True)
class CorpusCounts:
    """Sums over the chunks that came so far. `dropped_by_source`: by `convert`; what the stream itself left out is in its report.

    `splits`: upstream's own, of the documents that stay ("unknown": it has none).
    """

    report: CleaningReport
    before: TextTotals = field(default_factory=TextTotals.of)
    after: TextTotals = field(default_factory=TextTotals.of)
    words: int = 0
    dropped_by_source: Counter[str] = field(default_factory=Counter)
    splits: Counter[str] = field(default_factory=Counter)

    def add(self, chunk: PreparedChunk) -> None:
        """Take in the next chunk of the input."""
        self.report.merge(chunk.report)
        self.before, self.after, self.words = self.before + chunk.before, self.after + chunk.after, self.words + chunk.words
        self.dropped_by_source += chunk.dropped_by_source
        self.splits.update(row.split or "unknown" for row in chunk.rows)

    def meta(self) -> dict[str, Any]:
        """What meta.json says of them."""
        before, after = self.before, self.after
        return {
            "documents": {"read": before.documents, "kept": after.documents},
            "characters": {"before": before.characters, "after": after.characters},
            "bytes": {"before": before.bytes, "after": after.bytes},
            "words": self.words,
            "lengths": {"before": before.lengths.tolist(), "after": after.lengths.tolist()},
            "splits": dict(self.splits),
            "languages": dict(self.report.languages),
        }

    def state(self) -> dict[str, Any]:
        """All of it, for `from_state`."""
        return {
            "report": self.report.state(),
            "before": self.before.state(),
            "after": self.after.state(),
            "words": self.words,
            "dropped_by_source": dict(self.dropped_by_source),
            "splits": dict(self.splits),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Counts that go on where those were."""
        return cls(
            report=CleaningReport.from_state(state["report"]),
            before=TextTotals.from_state(state["before"]),
            after=TextTotals.from_state(state["after"]),
            words=state["words"],
            dropped_by_source=Counter(state["dropped_by_source"]),
            splits=Counter(state["splits"]),
        )
