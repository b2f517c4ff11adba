"""Measures of the filters: a histogram for each rule, of documents that pass and documents that do not, and documents near its limit.

A rule is a limit of [cleaning], such as `min_words`. A filter stops at the first reason, and quick checks replace most measures. So here a
sample of the documents is measured in full: the first FIRST documents, and one in EVERY after them, which a seeded hash of the position in
the input chooses. Each of these counts for EVERY documents. The result depends on no process and on no chunk, and reports of consecutive
chunks merge. Measuring a document in full costs about 0.1 ms per kilobyte, so a large input takes a few percent longer.

A histogram has 81 steps around the limit, and two counts for each step: documents that no other rule drops, and all others. So the sums on
one side of the limit are the documents that a new limit would keep or drop. The memory is that of 20 excerpts on each side of each limit.
"""

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, Self

from niels_cache_assets.base.documents import Document

FIRST = 2_000
EVERY = 128
STEPS = 40  # on each side of a limit
STEPS_TO_LIMIT = 20  # from 0 to the limit
SAMPLES = 20  # documents on each side of a limit
NEAR = 10  # steps from the limit to a sample
EXCERPT_CHARACTERS = 400
UNKNOWN_LANGUAGE = "und"  # ISO 639-2: undetermined

Side = Literal["below", "above"]
_Sample = tuple[int, int, dict[str, Any]]  # (steps from the limit, hash, row)


def example_row(document: Document, value: float | None, most: int) -> dict[str, Any]:
    """Return a document as an example, with the measured value and the first `most` characters."""
    origin = {"title": document.title, "source_id": document.source_id, "file": document.file, "row": document.row}
    return {**origin, "value": value, "excerpt": document.text[:most]}


class DocumentMeasures(NamedTuple):
    """The measures of one document.

    Attributes:
        values: Values by the key of the rule.
        others: How many reasons without a limit drop the document.
        language: Code of its language, or None.
        pair: Its most frequent pair of words, or None.
    """

    values: dict[str, float]
    others: int
    language: str | None
    pair: str | None


class RuleLimit(NamedTuple):
    """The limit of a rule, and the width of a step of its histogram.

    Attributes:
        limit: The limit.
        step: Width of a step.
        side: On which side of the limit documents are dropped.
    """

    limit: float
    step: float
    side: Side

    def step_of(self, value: float) -> int:
        """Return the number of the step of a value.

        A rule that drops above its limit keeps steps up to 0; any other rule keeps steps from 0 on.
        """
        sign = 1 if self.side == "above" else -1
        beyond = sign * (value - self.limit)  # above 0 on the side where documents are dropped
        found = math.ceil(beyond / self.step)
        return sign * max(-STEPS, min(STEPS, max(found, 1) if beyond > 0 else min(found, 0)))

    def is_dropped(self, step: int) -> bool:
        """Return whether the rule drops the documents of a step."""
        return step > 0 if self.side == "above" else step < 0


def weight_of(ordinal: int, bits: int) -> int:
    """Return for how many documents this one counts, or 0 if it is not measured.

    Args:
        ordinal: Index of the document in the input.
        bits: 64 random bits of the document.
    """
    return 1 if ordinal < FIRST else EVERY if bits % EVERY == 0 else 0


class MeasureHistograms:
    """Histograms and samples of a chunk of the input, or of consecutive chunks.

    Args:
        limits: Limits of the rules by key.

    Attributes:
        measured: Number of documents that were measured.
        documents: Number of documents that they count for.
        languages: The same number by language ("und": unknown).
        steps: For each rule, the documents in each step that no other rule drops ("alone"), and all others ("anyway").
    """

    def __init__(self, limits: Mapping[str, RuleLimit]) -> None:
        self.limits = dict(limits)
        self.measured = self.documents = 0
        self.languages: Counter[str] = Counter()
        self.steps: dict[str, dict[str, Counter[int]]] = {key: {"alone": Counter(), "anyway": Counter()} for key in self.limits}
        self._samples: dict[str, dict[Side, list[_Sample]]] = {key: {"below": [], "above": []} for key in self.limits}

    def add(self, found: DocumentMeasures, document: Document, *, weight: int, bits: int) -> None:
        """Count a document.

        Args:
            found: Its measures.
            document: The document.
            weight: How many documents it stands for.
            bits: 64 random bits, which decide whether it becomes a sample.
        """
        self.measured += 1
        self.documents += weight
        if found.language is not None:
            self.languages[found.language] += weight
        steps = {key: self.limits[key].step_of(value) for key, value in found.values.items()}
        dropping = [key for key, step in steps.items() if self.limits[key].is_dropped(step)]
        for key, step in steps.items():
            alone = not found.others and all(other == key for other in dropping)
            self.steps[key]["alone" if alone else "anyway"][step] += weight
            if alone:
                self._add_sample(key, step, found, document, bits)

    def _add_sample(self, key: str, step: int, found: DocumentMeasures, document: Document, bits: int) -> None:
        limit = self.limits[key]
        is_above = limit.is_dropped(step) == (limit.side == "above")
        samples = self._samples[key]["above" if is_above else "below"]
        distance = abs(step) if limit.is_dropped(step) else abs(step) + 1
        if distance > NEAR or (len(samples) == SAMPLES and (distance, bits) >= samples[-1][:2]):
            return
        row = example_row(document, found.values[key], EXCERPT_CHARACTERS)
        samples.append((distance, bits, row | ({"pair": found.pair} if key == "max_bigram_share" else {})))
        _shorten(samples)

    def merge(self, later: Self) -> None:
        """Add the measures of a chunk or a part that comes later and has the same limits."""
        if later.limits != self.limits:
            raise ValueError("measures with different limits do not merge")
        self.measured += later.measured
        self.documents += later.documents
        self.languages += later.languages
        for key in self.limits:
            for group, counts in later.steps[key].items():
                self.steps[key][group] += counts
            for side, samples in later._samples[key].items():
                self._samples[key][side] += samples
                _shorten(self._samples[key][side])

    def samples(self, key: str, side: Side) -> list[dict[str, Any]]:
        """Return documents on one side of a limit that no other rule drops, the nearest to the limit first."""
        return [row for _, _, row in self._samples[key][side]]

    def state(self) -> dict[str, Any]:
        """Return the measures as JSON-able values."""
        return {
            "first": FIRST,
            "every": EVERY,
            "measured": self.measured,
            "documents": self.documents,
            "languages": dict(sorted(self.languages.items())),
            "rules": {
                key: {
                    **limit._asdict(),
                    **{group: {str(step): counts[step] for step in sorted(counts)} for group, counts in self.steps[key].items()},
                    "samples": self._samples[key],
                }
                for key, limit in self.limits.items()
            },
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Return the measures of a `state`."""
        rules = state["rules"]
        found = cls({key: RuleLimit(rule["limit"], rule["step"], rule["side"]) for key, rule in rules.items()})
        found.measured, found.documents = state["measured"], state["documents"]
        found.languages = Counter(state["languages"])
        for key, rule in rules.items():
            for group in ("alone", "anyway"):
                found.steps[key][group] = Counter({int(step): count for step, count in rule[group].items()})
            for side, samples in rule["samples"].items():
                found._samples[key][side] = [(distance, bits, row) for distance, bits, row in samples]
        return found


def _shorten(samples: list[_Sample]) -> None:
    samples.sort(key=lambda each: (each[0], each[1], each[2]["file"], each[2]["row"], each[2]["source_id"]))
    del samples[SAMPLES:]
