"""The chunks of a source, the work on a chunk of documents (convert, run the steps, sign, count), and the sums of the counts of chunks.

The work is a pure function of the chunk and the settings, so the result does not depend on the number of processes. The work uses no file,
and takes twice the memory of the chunk.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache, cached_property
from operator import add
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from niels_cache_assets.base.beside import load_beside
from niels_cache_assets.base.documents import Document, DocumentBatch, Documents, DropReport, describe_origin
from niels_cache_assets.base.fingerprint import Identity
from niels_cache_assets.base.parallel import CallMark
from niels_cache_assets.base.strings import Strings
from niels_cache_assets.build_cache.resume import resume_stream
from niels_cache_assets.cleaning.settings import CleaningSettings
from niels_cache_assets.corpus.store import DocumentRow, document_hash
from niels_cache_assets.dedup.signatures import Signatures, Signer
from niels_cache_assets.sources.types import CONVERT, PretrainSource, StreamContext
from niels_cache_assets.streaming.encode import in_chunks
from niels_cache_assets.streaming.feed import Feed
from niels_cache_assets.streaming.types import BuildPosition, ResumePoint
from niels_cache_runtime.errors import NielsCacheError

if TYPE_CHECKING:
    from niels_cache_assets.cleaning.report import CleaningReport
    from niels_cache_assets.steps.chain import DocumentChain

_MOST_REASONS = 100  # of a step
_ASCII_BLANKS = bytes(chr(code).isspace() for code in range(256))
LENGTH_BINS = 40  # bin b of a histogram holds texts with 2**(b-1) <= characters < 2**b; bin 0 holds empty texts


@dataclass(frozen=True, kw_only=True)
class TextTotals:
    """Sums over texts.

    Attributes:
        documents: The number of texts.
        characters: The number of characters.
        bytes: The number of bytes of UTF-8.
        lengths: The number of texts in each of LENGTH_BINS ranges of lengths.
    """

    documents: int
    characters: int
    bytes: int
    lengths: list[int]

    @classmethod
    def of(cls, characters: Iterable[int] = (), sizes: Iterable[int] = ()) -> TextTotals:
        """Return the sums over texts with these numbers of characters and bytes."""
        counts = list(characters)
        bins = np.bincount([min(count.bit_length(), LENGTH_BINS - 1) for count in counts], minlength=LENGTH_BINS)
        return cls(documents=len(counts), characters=sum(counts), bytes=sum(sizes), lengths=bins.tolist())

    def __add__(self, other: TextTotals) -> TextTotals:
        return TextTotals(
            documents=self.documents + other.documents,
            characters=self.characters + other.characters,
            bytes=self.bytes + other.bytes,
            lengths=[*map(add, self.lengths, other.lengths)],
        )


class CorpusChunk(NamedTuple):
    """Documents of a source before `convert`.

    Attributes:
        first: The position in the source of the first document of the chunk.
        documents: The documents. Their texts reach a worker as an Arrow column.
        skipped: Calls of steps and of `convert` that took too long in an earlier attempt.
    """

    first: int
    documents: DocumentBatch
    skipped: tuple[tuple[int, int], ...] = ()

    @property
    def characters(self) -> int:
        return int(self.documents.characters.sum())


def source_chunks(
    unconverted: Callable[[StreamContext], Iterator[Documents]],
    context: StreamContext,
    reached: BuildPosition,
    ends: deque[tuple[BuildPosition, CorpusChunk]],
) -> Iterator[CorpusChunk]:
    """Yield the unconverted documents of a source after `reached`, in chunks of 256 documents or about a megabyte.

    Each chunk is appended to `ends` with the position in the stream after it, because new chunks are made before earlier chunks are
    finished.
    Chunks do not depend on the batches of the source. A stream that resumes at a position gives the same chunks as a pass from the
    beginning. At the end, `context.report` is the same as after such a pass.
    """
    feed: Feed[Documents] = Feed(unconverted, context)

    def opened(mark: ResumePoint | None) -> Iterator[DocumentBatch]:
        return map(DocumentBatch.of, feed.open(mark))

    documents, first = opened(None), 0
    if reached.items:
        documents, first = resume_stream(opened, reached, log=context.log), reached.items
    for chunk, position in feed.positioned(in_chunks(documents, lambda batch: batch.characters, DocumentBatch.joined), first=first):
        ends.append((position.reached, CorpusChunk(position.reached.items - len(chunk), chunk)))
        yield ends[-1][1]


@dataclass(frozen=True, kw_only=True)
class PreparedChunk:
    """The result for a chunk, without the texts that have not changed, which the caller has.

    Attributes:
        counts: The counts of the chunk.
        places: For each kept document, the index of its text in the chunk, or -1 for another text.
        texts: The other texts.
        columns: The other columns of DocumentRow.
        hashes: The hashes of the kept documents, back to back. See CorpusWriter.write for this and the signatures.
        signatures: Their signatures. None without dedup.
    """

    counts: CorpusCounts
    places: list[int]
    texts: Strings | list[str]
    columns: list[tuple[Any, ...]]
    hashes: bytes
    signatures: Signatures | None

    def rows(self, chunk: CorpusChunk) -> list[DocumentRow]:
        """Return the kept documents of the chunk that this is the result for."""
        given, others = chunk.documents.text.tolist(), iter(self.texts)
        texts = [given[place] if place >= 0 else next(others) for place in self.places]
        return [*map(DocumentRow, texts, *self.columns)]


@dataclass(frozen=True, kw_only=True)
class ChunkWork:
    """The work on a chunk, as a picklable function, which each worker gets once.

    Attributes:
        source: The table of the data set.
        seed: The seed of [build].
        cleaning: The settings of cleaning. None: documents are not cleaned.
        signer: The settings of signatures. None: documents are not signed.
        steps: What identifies the steps of the data set (see DocumentChain).
    """

    source: PretrainSource
    seed: int
    cleaning: CleaningSettings | None
    signer: Signer | None
    steps: Identity | None = None

    @cached_property
    def chain(self) -> DocumentChain:
        from niels_cache_assets.steps.chain import DocumentChain

        return DocumentChain(source=self.source, cleaning=self.cleaning, identity=self.steps)

    def __call__(self, chunk: CorpusChunk, mark: CallMark | None = None) -> PreparedChunk:
        from niels_cache_assets.cleaning.report import RejectedDocument

        report = new_report(self.seed, chunk.first, cleaning=self.cleaning)
        documents = list(chunk.documents)
        converted, dropped_by_source, examples = self.source.convert_watched(documents, chunk.skipped, mark)
        marks = {} if mark is None else {"mark": mark}
        same = documents if converted is documents else []
        results = self.chain.run(converted, report, skipped=chunk.skipped, given=same, texts=chunk.documents.text, **marks)
        # the examples are numbered after the converted documents, so each place is unique
        for place, (reason, document) in enumerate(examples, start=len(converted)):
            report.add_example(RejectedDocument(self.chain.readable(document), reason, None), place=place)
        kept = [document for document in results if isinstance(document, Document)]
        rows = [_row(document) for document in kept]
        places = [
            place if same and each.text is same[place].text else -1 for place, each in enumerate(results) if isinstance(each, Document)
        ]
        others = [row.text for place, row in zip(places, rows, strict=True) if place < 0]
        counts = CorpusCounts(
            report=report,
            before=TextTotals.of((len(document.text) for document in converted), (_size(document.text) for document in converted)),
            after=TextTotals.of((row.characters for row in rows), (row.bytes for row in rows)),
            words=_count_words([document.text for document in kept]),
            dropped_by_source=dropped_by_source,
            splits=Counter(row.split or "unknown" for row in rows),
        )
        return PreparedChunk(
            counts=counts,
            places=places,
            texts=Strings.of(others) or others,
            columns=[*zip(*rows, strict=True)][1:],
            hashes=b"".join(document_hash(row) for row in rows),
            signatures=None if self.signer is None else self.signer.sign([document.text for document in kept]),
        )

    def skip_call(self, chunk: CorpusChunk, place: int, step: int, *, has_ended: bool) -> CorpusChunk:
        """See `base.parallel.WatchedWork`."""
        documents, call = list(chunk.documents), (place, step)
        if step != CONVERT:
            converted, _, _ = self.source.convert_watched(documents, chunk.skipped)
            call = self.chain.skip_call(converted, place, step, has_ended=has_ended)
        elif has_ended:
            raise NielsCacheError(
                f"{describe_origin(documents[place])}: the process that extracted its text has ended (out of memory?); run it again with "
                "fewer threads, or leave the page out with where"
            )
        return chunk._replace(skipped=(*chunk.skipped, call))


@dataclass(kw_only=True)
class CorpusCounts:
    """Sums over the documents of a chunk, of all chunks so far, or of a part.

    Attributes:
        report: The counts of cleaning.
        before: The totals of the texts before cleaning.
        after: The totals of the kept texts.
        words: The number of words of the kept texts.
        dropped_by_source: The documents that `convert` dropped. The report of the stream counts documents that the source dropped earlier.
        splits: The numbers of kept documents, by the split that upstream gives to them ("unknown": upstream gives no split).
    """

    report: CleaningReport
    before: TextTotals = field(default_factory=TextTotals.of)
    after: TextTotals = field(default_factory=TextTotals.of)
    words: int = 0
    dropped_by_source: DropReport = field(default_factory=DropReport)
    splits: Counter[str] = field(default_factory=Counter)

    def add(self, later: CorpusCounts, *, is_part: bool = False) -> None:
        """Add the counts of documents that come later.

        Args:
            later: The counts.
            is_part: Whether their positions were counted from the beginning of their part.

        Raises:
            NielsCacheError: If a step has too many reasons.
        """
        (self.report.join if is_part else self.report.merge)(later.report)
        self.before, self.after, self.words = self.before + later.before, self.after + later.after, self.words + later.words
        self.dropped_by_source.join(later.dropped_by_source)
        self.splits.update(later.splits)
        titles = Counter(reason.rpartition(":")[0] for reason in self.report.dropped if reason.count(":") == 2)  # step:TITLE:REASON
        for title, reasons in titles.items():
            if reasons > _MOST_REASONS and not is_part:  # each is counted, and has examples
                some = min(reason for reason in self.report.dropped if reason.startswith(f"{title}:"))
                raise NielsCacheError(f"{title}: has over {_MOST_REASONS} reasons, such as {some!r}; give numbers as the value of Drop")

    def meta(self) -> dict[str, Any]:
        """Return the keys of meta.json."""
        before, after, report = self.before, self.after, self.report
        masked = {"documents": report.masked_documents, "places": dict(report.masked), "examples": report.mask_examples()}
        return {
            "documents": {"read": before.documents, "kept": after.documents},
            "characters": {"before": before.characters, "after": after.characters},
            "bytes": {"before": before.bytes, "after": after.bytes},
            "words": self.words,
            "lengths": {"before": before.lengths, "after": after.lengths},
            "splits": dict(self.splits),
            "languages": dict(self.report.languages),
            **({"masked": masked} if report.masked else {}),
        }

    def state(self) -> dict[str, Any]:
        """Return all values for `from_state`."""
        return {
            "report": self.report.state(),
            "before": asdict(self.before),
            "after": asdict(self.after),
            "words": self.words,
            "dropped_by_source": self.dropped_by_source.state(),
            "splits": dict(self.splits),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Return the counts that `state` describes, to continue them."""
        from niels_cache_assets.cleaning.report import CleaningReport

        return cls(
            report=CleaningReport.from_state(state["report"]),
            before=TextTotals(**state["before"]),
            after=TextTotals(**state["after"]),
            words=state["words"],
            dropped_by_source=DropReport(**state["dropped_by_source"]),
            splits=Counter(state["splits"]),
        )


def new_report(seed: int, first: int = 0, *, cleaning: CleaningSettings | None) -> CleaningReport:
    """Return an empty report of the documents from number `first` on. With `cleaning`, it has measures."""
    from niels_cache_assets.cleaning.measures import MeasureHistograms
    from niels_cache_assets.cleaning.report import CleaningReport

    measures = None if cleaning is None else MeasureHistograms(load_beside("cleaning", "measuring").limits_of(cleaning))
    return CleaningReport(seed, first, measures=measures)


def _row(document: Document) -> DocumentRow:
    text, source_id, file, row, title, split, kept = document
    return DocumentRow(text, title, source_id, file, row, split, len(text), _size(text), kept)


def _count_words(texts: Iterable[str]) -> int:
    """Return the number of words, separated by white space, without a Python object for each, which would take three times as long."""
    joined = "\n".join(["", *texts, ""])
    if joined.isascii():
        blank = np.frombuffer(joined.encode().translate(_ASCII_BLANKS), np.uint8)  # a third of the time
    else:
        blank = _blanks()[np.frombuffer(joined.encode("utf-16-le", errors="surrogatepass"), dtype=np.uint16)]
    return int(np.count_nonzero(blank[:-1] > blank[1:]))


@cache
def _blanks() -> np.ndarray:
    """Return which units of UTF-16 are white space, (65536,) bool. There is none above the first plane."""
    return np.array([chr(unit).isspace() for unit in range(1 << 16)])


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))
