"""The report of cleaning: the number of rejected documents for each reason, and a seeded sample of them.

The reports of consecutive chunks merge into the report of the whole input. A hash of the document's position in the input, with the seed as
key, decides whether a document becomes an example. So the result depends neither on the number of processes nor on the size of chunks. A
report can be stored in a journal (the record of an unfinished build) and restored. It takes the memory of 50 excerpts per reason.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from heapq import heappush, heappushpop
from operator import iadd
from typing import Any, NamedTuple, Self

from niels_cache_assets.base.beside import load_beside
from niels_cache_assets.base.documents import Document
from niels_cache_assets.base.reasons import DropCounts, require_known
from niels_cache_assets.cleaning.measures import MeasureHistograms, RuleLimit, example_row, weight_of
from niels_cache_assets.cleaning.settings import REASONS

EXAMPLES = 50
MASK_EXAMPLES = 10  # of each kind
EXCERPT_CHARACTERS = 500

_COUNTS = (
    "documents",
    "kept",
    "dropped",
    "languages",
    "masked",
    "masked_documents",
    "cut_lines",
)  # attributes that are sums over documents

_Example = tuple[int, int, dict[str, Any]]  # (negative hash, negative position in the input, row); the largest hash is on top of a heap
_Heaps = dict[str, list[_Example]]


class RejectedDocument(NamedTuple):
    """A rejected document.

    Attributes:
        document: The document after normalization.
        reason: Name of the filter.
        value: Value that the filter measured, or None.
    """

    document: Document
    reason: str
    value: float | None


class CleaningReport:
    """Counts and examples of a chunk of the input. It can be pickled.

    Args:
        seed: Seed of the sample.
        first: Number of documents before this chunk in the whole input; by default 0.
        measures: Histograms of what the filters measure; by default nothing is measured.

    Attributes:
        documents: Number of documents that were read.
        kept: Number of documents that are kept.
        dropped: Number of dropped documents by reason.
        languages: Number of results of the language identifier by language, for the documents that were passed to it ("und": not
            identified).
        masked: Number of matches of masks in documents that are kept, by kind.
        masked_documents: Number of documents with such matches.
        measures: Histograms of what the filters measure, or None.
        step_measures: The same of steps that are a single filter or a profile, by their names.
        cut_lines: Number of lines that a step has cut from documents that are kept, by its name.
        masks: Kinds of masks with which all examples are masked.
    """

    def __init__(self, seed: int, first: int = 0, *, measures: MeasureHistograms | None = None) -> None:
        self.seed = seed
        self.documents = 0
        self.kept = 0
        self.dropped = DropCounts()
        self.languages: Counter[str] = Counter()
        self.masked: Counter[str] = Counter()
        self.masked_documents = 0
        self.measures = measures
        self.step_measures: dict[str, MeasureHistograms] = {}
        self.cut_lines: Counter[str] = Counter()
        self.masks: Sequence[str] = ()
        self._first = first
        self._examples: _Heaps = {}  # by reason
        self._mask_examples: _Heaps = {}  # by kind
        self._masked = set[int]()  # the masked documents of the chunk, which several steps may mask

    def measured_weight(self, place: int | None = None) -> tuple[int, int]:
        """Return for how many documents the next one counts in `measures` (0: it is not measured), and its random bits.

        With `place`, return this for the document of this index in the chunk, and for `step_measures`.
        """
        ordinal = self._first + (self.documents if place is None else place)
        bits = _keyed_hash(self.seed, ordinal)
        return weight_of(ordinal, bits), bits

    def measures_of(self, step: str, limits: Mapping[str, RuleLimit]) -> MeasureHistograms:
        """Return the histograms of a step."""
        return self.step_measures.setdefault(step, MeasureHistograms(limits))

    def shown(self, document: Document) -> Document:
        """Return a document as an example shows it: masked, also if a later step would mask it."""
        if not self.masks:
            return document
        mask = load_beside("cleaning", "masks").mask
        return document._replace(text=mask(document.text, self.masks)[0], title=document.title and mask(document.title, self.masks)[0])

    def add(self, result: Document | RejectedDocument, language: str | None = None) -> None:
        """Count the next document of the input.

        Args:
            result: The document, or its rejection.
            language: Result of the identifier, or None if it did not run.
        """
        self.documents += 1
        if language is not None:
            self.languages[language] += 1
        self.kept += 1
        if not isinstance(result, Document):
            self.reject(result, place=self.documents - 1)

    def reject(self, dropped: RejectedDocument, *, place: int) -> None:
        """Count a document of the chunk, which was added as kept, as dropped instead.

        Args:
            dropped: The rejection.
            place: Index of the document in the chunk.
        """
        self.kept -= 1
        self.dropped[dropped.reason] += 1
        self.add_example(dropped, place=place)

    def add_example(self, dropped: RejectedDocument, *, place: int) -> None:
        """Make a dropped document, which is already counted, an example.

        Args:
            dropped: The rejection.
            place: Index of the document in the chunk.

        Raises:
            ValueError: For a reason that is not in the table of reasons.
        """
        require_known(dropped.reason)
        ordinal = self._first + place
        row = {"reason": dropped.reason, **example_row(self.shown(dropped.document), dropped.value, EXCERPT_CHARACTERS)}
        _keep(self._examples, dropped.reason, (-_keyed_hash(self.seed, ordinal), -ordinal, row), most=EXAMPLES)

    def add_masked(self, matches: Counter[str], examples: Sequence[dict[str, str]], place: int | None = None) -> None:
        """Count the matches of masks in a document that is kept.

        Args:
            matches: Number of matches by kind.
            examples: One example for each kind.
            place: Index of the document in the chunk; by default, it is the one that was added last.
        """
        ordinal = self._first + (self.documents - 1 if place is None else place)
        self.masked_documents += ordinal not in self._masked
        self._masked.add(ordinal)
        self.masked += matches
        key = -_keyed_hash(self.seed, ordinal)
        for each in examples:
            if all(-ordinal != other for _, other, _ in self._mask_examples.get(each["kind"], ())):
                _keep(self._mask_examples, each["kind"], (key, -ordinal, each), most=MASK_EXAMPLES)

    def mask_examples(self) -> list[dict[str, Any]]:
        """Return examples of masked text, by kind, in the order of the input; each is the first match of its kind in a document."""
        return _in_order(self._mask_examples, sorted(self._mask_examples))

    def merge(self, later: Self) -> None:
        """Add the report of a chunk that comes later in the input and has the same seed."""
        if later.seed != self.seed:
            raise ValueError(f"reports of two seeds do not merge: {self.seed}, {later.seed}")
        for name in _COUNTS:
            setattr(self, name, iadd(getattr(self, name), getattr(later, name)))
        if self.measures is not None and later.measures is not None:
            self.measures.merge(later.measures)
        for step, measures in later.step_measures.items():
            self.measures_of(step, measures.limits).merge(measures)
        for heaps, others, most in (
            (self._examples, later._examples, EXAMPLES),
            (self._mask_examples, later._mask_examples, MASK_EXAMPLES),
        ):
            for name, heap in others.items():
                for example in heap:
                    _keep(heaps, name, example, most=most)

    def join(self, later: Self) -> None:
        """Add the report of a part that comes later, whose documents were numbered from its own beginning."""
        for examples in (*later._examples.values(), *later._mask_examples.values()):
            examples[:] = [(key, ordinal - self.documents, row) for key, ordinal, row in examples]
        self.merge(later)

    def rows(self) -> list[dict[str, Any]]:
        """Return the examples as rows of corpus.layout.REJECTED.

        Rows are sorted by reason, in the order of the filters, and then by position in the input.
        """
        known = [reason for reason in REASONS if reason in self._examples]
        others = sorted(self._examples.keys() - set(REASONS))  # of documents that the source or the writer of the corpus dropped
        return _in_order(self._examples, [*known, *others])

    def state(self) -> dict[str, Any]:
        """Return the report as JSON-able values, for a journal."""
        counts = {"documents": self.documents, "kept": self.kept, "dropped": dict(self.dropped), "languages": dict(self.languages)}
        masked = {"masked": dict(self.masked), "masked_documents": self.masked_documents, "mask_examples": self._mask_examples}
        return {
            "seed": self.seed,
            "first": self._first,
            **counts,
            "examples": self._examples,
            **(masked if self.masked else {}),
            **({} if self.measures is None else {"measures": self.measures.state()}),
            **self.step_state(),
        }

    def step_state(self) -> dict[str, Any]:
        """Return what steps have measured and cut, as JSON-able values. Without any, return an empty dict."""
        measures = {step: each.state() for step, each in self.step_measures.items()}
        return {**({"steps": measures} if measures else {}), **({"cut_lines": dict(self.cut_lines)} if self.cut_lines else {})}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Return the report of a `state`."""
        measures = MeasureHistograms.from_state(state["measures"]) if "measures" in state else None
        report = cls(state["seed"], state["first"], measures=measures)
        report.step_measures = {step: MeasureHistograms.from_state(each) for step, each in state.get("steps", {}).items()}
        for name in _COUNTS:
            empty = getattr(report, name)
            setattr(report, name, type(empty)(state.get(name, empty)))
        report._examples, report._mask_examples = (
            {name: [(key, ordinal, row) for key, ordinal, row in heap] for name, heap in heaps.items()}
            for heaps in (state["examples"], state.get("mask_examples", {}))
        )
        return report


def _keep(heaps: _Heaps, name: str, example: _Example, *, most: int) -> None:
    heap = heaps.setdefault(name, [])
    if len(heap) < most:
        heappush(heap, example)
    else:
        heappushpop(heap, example)


def _in_order(heaps: _Heaps, names: Iterable[str]) -> list[dict[str, Any]]:
    """Return the rows of these heaps, one after the other, each in the order of the input."""
    return [row for name in names for _, _, row in sorted(heaps[name], key=lambda example: -example[1])]


def _keyed_hash(seed: int, ordinal: int) -> int:
    """Return 64 evenly distributed bits for a position in the input."""
    return int.from_bytes(hashlib.blake2b(ordinal.to_bytes(8, "little"), digest_size=8, key=seed.to_bytes(8, "little")).digest(), "little")
