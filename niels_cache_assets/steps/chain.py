"""The chain of steps of a data set: the shipped cleaning, the user's steps, and conditions on the columns that these return.

A step sees one document, or a batch whose division must not matter. So the result for a document depends only on this document, and any
process may run the chain. A document that a step drops goes no further. A call costs a microsecond beside the step itself. If the steps run
in worker processes, each call is marked before it begins, so that the parent can name and end a call that hangs.
"""

import re
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from typing import TYPE_CHECKING, Any

from niels_cache_assets.base.beside import load_beside
from niels_cache_assets.base.documents import Document, describe_origin
from niels_cache_assets.base.fingerprint import Identity
from niels_cache_assets.base.strings import Objects, Strings
from niels_cache_assets.base.user_code import describe_error
from niels_cache_assets.cleaning.report import EXCERPT_CHARACTERS, CleaningReport, RejectedDocument
from niels_cache_assets.cleaning.settings import CleaningSettings
from niels_cache_assets.sources.reading.files import valid_unicode
from niels_cache_assets.sources.reading.keep import encode_kept, kept_values
from niels_cache_assets.sources.reading.where import RowCondition, parse_condition
from niels_cache_assets.sources.step_use import CLEANING, StepUse
from niels_cache_assets.sources.types import PretrainSource
from niels_cache_assets.steps.identity import file_settings, is_stateful, load_step, steps_identity
from niels_cache_assets.steps.step import Drop
from niels_cache_assets.streaming.encode import INVALID_UNICODE, has_lone_surrogate
from niels_cache_runtime.errors import NielsCacheError

if TYPE_CHECKING:
    import pyarrow as pa

DROPPED, FAILED, TOO_SLOW = "step", "step_failed", "step_too_slow"  # drop reasons, before the name of the step
_SURROGATE = re.compile("[\ud800-\udfff]")
_REASON = re.compile(r"[\w ,.()/-]{1,80}")
_FIELDS = ("text", "title", "source_id", "file", "row")  # columns of a batch
_NO_SCORES = {*_FIELDS, "drop"}

Outcome = Document | RejectedDocument
SkippedCall = tuple[int, int]  # the numbers of a call, as CallMark has them


@dataclass(kw_only=True)
class ChainRun:
    """The state of one run of a chain over some documents.

    Attributes:
        report: The counts.
        outcomes: The documents, or their rejections. Steps replace them.
        given: The documents before the first step, or none.
        texts: Their texts. If this is an Arrow column, batch steps get views of it.
        columns: The columns that steps have returned, by the index of the document.
        mark: Called before each call of a user's step; see `base.parallel.CallMark`.
        skipped: Calls that took too long when these documents ran before.
        batch: The most documents of a batch.
        is_trial: Whether the documents are a sample, in which each column of a condition must occur.
        if_kept: What to call at the end if the document of this index is kept, such as the count of its masks.
    """

    report: CleaningReport
    outcomes: list[Outcome]
    given: Sequence[Document] = ()
    texts: Strings | Objects | None = None
    columns: dict[int, dict[str, Any]] = field(default_factory=dict)
    mark: Callable[[int, int, float], None] = lambda place, step, seconds: None
    skipped: Sequence[SkippedCall] = ()
    batch: int = 256
    is_trial: bool = False
    if_kept: list[tuple[int, Callable[[], object]]] = field(default_factory=list)

    def arrow_texts(self, group: Sequence[tuple[int, Document]]) -> "pa.Array":
        """Return the texts of some documents: a view, if they are consecutive and no step has changed them."""
        import pyarrow as pa

        first, last = group[0][0], group[-1][0]
        are_given = self.given and last - first < len(group) and all(each.text is self.given[place].text for place, each in group)
        if are_given and isinstance(self.texts, Strings):
            return self.texts[first : last + 1].arrow().cast(pa.string())
        return _arrow_strings([each.text for _, each in group])

    def documents(self) -> Iterator[tuple[int, Document]]:
        """Yield the documents that are left, with their indices."""
        return ((place, each) for place, each in enumerate(self.outcomes) if isinstance(each, Document))


@dataclass(frozen=True, kw_only=True)
class DocumentChain:
    """The chain of a data set. It can be pickled; each process loads the steps once.

    Attributes:
        source: The table of the data set.
        cleaning: The settings of cleaning. None: documents are not cleaned.
        identity: `steps_identity` of the build. A process that finds other code stops. None: the code is not compared.
    """

    source: PretrainSource
    cleaning: CleaningSettings | None
    identity: Identity | None = None

    def run(self, documents: Sequence[Document], report: CleaningReport, **state: Any) -> list[Outcome]:
        """Return the final document or the rejection of each document.

        Args:
            documents: The documents.
            report: Counts the results.
            **state: Further fields of ChainRun.

        Raises:
            NielsCacheError: If a step fails. The message names the document and the step.
        """
        run = ChainRun(report=report, outcomes=list(documents), **state)
        for _ in self.each_step(run):
            pass
        return run.outcomes

    def each_step(self, run: ChainRun) -> Iterator[str]:
        """Run the chain, and yield the title of each step after it has run."""
        is_counted, run.report.masks = False, self.masks
        for each in self._steps:
            left = [place for place, _ in run.documents()]
            each.run(run)
            for place in left if is_counted else ():
                outcome = run.outcomes[place]
                if isinstance(outcome, RejectedDocument):
                    run.report.reject(outcome, place=place)
            is_counted = is_counted or isinstance(each, _Cleaning)  # which counts all documents
            yield each.title
        for place, count in run.if_kept:
            if isinstance(run.outcomes[place], Document):
                count()
        keep = [name for use in self.source.steps for name in use.keep]
        for place, document in run.documents() if keep else ():
            values = run.columns.get(place, {})
            kept = {**kept_values(document.kept), **{name: values.get(name) for name in keep}}
            run.outcomes[place] = document._replace(kept=encode_kept(kept, document.file, document.row))

    def skip_call(self, documents: Sequence[Document], place: int, step: int, *, has_ended: bool) -> SkippedCall:
        """Return the call of a step with these numbers, to be skipped. See `base.parallel.WatchedWork`."""
        use, first = self.source.steps[step], place if place >= 0 else -1 - place
        call = f"{describe_origin(documents[first])}{'' if place >= 0 else ' and later documents'}: step {use.title}"
        if has_ended:
            raise NielsCacheError(f"{call}: its process has ended (out of memory?)")
        if use.on_error == "stop" or is_stateful(self.source):
            limit = f"{use.seconds_per_document:g} seconds"
            raise NielsCacheError(f'{call}: took longer than {limit}; raise seconds_per_document, or set on_error = "drop"')
        return place, step

    def readable(self, document: Document) -> Document:
        """Return a document that was dropped before the cleaning, with text and names that can be written."""
        return with_writable_names(document)._replace(text=valid_unicode(document.text))

    @cached_property
    def masks(self) -> tuple[str, ...]:
        """The kinds of masks for examples: those of the cleaning and of all steps."""
        own = [kind for use in self.source.steps for kind in use.masks]
        return (*(self.cleaning.mask if self.cleaning is not None else ()), *own)

    @cached_property
    def _steps(self) -> "list[_Cleaning | _UserStep | _Condition]":
        uses = self.source.steps
        if self.identity is not None and self.identity != steps_identity(self.source):
            raise NielsCacheError("steps: the code of a step has changed since the build began; run it again in a new process")
        steps = [_step_of(number, use, self) for number, use in enumerate(uses)]
        return steps if any(isinstance(each, _Cleaning) for each in steps) else [_Cleaning(self), *steps]


def _step_of(number: int, use: StepUse, chain: DocumentChain) -> "_Cleaning | _UserStep | _Condition":
    if use.is_code:
        return _UserStep(number, use)
    return _Cleaning(chain) if use.where is None else _Condition(parse_condition(use.where))


class _Cleaning:
    """The shipped cleaning. Without settings, it only makes sure that documents can be written."""

    title = CLEANING

    def __init__(self, chain: DocumentChain) -> None:
        self._chain = chain

    def run(self, run: ChainRun) -> None:
        for place, outcome in enumerate(run.outcomes):
            if isinstance(outcome, Document):
                run.outcomes[place] = self._clean(outcome, run)
            else:
                run.report.add(outcome._replace(document=self._chain.readable(outcome.document)))

    def _clean(self, document: Document, run: ChainRun) -> Outcome:
        if self._chain.cleaning is not None:
            cleaner = _cleaner(self._chain.cleaning, self._chain.source.gives_plain_text(document))
            return cleaner.clean(document, run.report, run.if_kept)
        named = with_writable_names(document)
        outcome: Outcome = named
        if has_lone_surrogate(document.text):
            outcome = RejectedDocument(named._replace(text=valid_unicode(document.text[:EXCERPT_CHARACTERS])), INVALID_UNICODE, None)
        run.report.add(outcome)
        return outcome


class _Condition:
    """A condition on columns."""

    title = "where"

    def __init__(self, condition: RowCondition) -> None:
        self._condition = condition

    def run(self, run: ChainRun) -> None:
        documents = [*run.documents()]
        columns = [{**kept_values(document.kept), **run.columns.get(place, {})} for place, document in documents]
        if run.is_trial and columns and (missing := {*self._condition.columns}.difference(*columns)):
            known = ", ".join(sorted({name for each in columns for name in each})) or "none"
            raise NielsCacheError(
                f"steps: where: no step before returns the column {min(missing)!r} for a document of the sample; columns: {known}"
            )
        for (place, document), values in zip(documents, columns, strict=True):
            if reason := self._condition.problem(values):
                run.outcomes[place] = RejectedDocument(document, reason, None)


class _UserStep:
    """A step of the user, loaded."""

    def __init__(self, number: int, use: StepUse) -> None:
        self.title, self._number, self._use = use.title, number, use
        target = load_step(use)
        self._is_batch, self._is_stateful = getattr(target, "batch", False), getattr(target, "stateful", False)
        try:
            settings = {**use.settings, **file_settings(use, target)}
            self._call = target(**settings) if isinstance(target, type) else partial(target, **settings) if settings else target
        except Exception as error:
            raise NielsCacheError(f"step {self.title}: cannot be created: {describe_error(error, __file__)}") from error
        self._count = getattr(self._call, "count_in_report", None)  # of shipped steps
        if not callable(self._call):
            raise NielsCacheError(f"step {self.title}: the class has no __call__(self, document); add it")

    def run(self, run: ChainRun) -> None:
        documents, size = [*run.documents()], run.batch if self._is_batch else 1
        for start in range(0, len(documents), size):
            self._run_group(documents[start : start + size], run)
        run.mark(0, 0, 0)

    def _run_group(self, group: Sequence[tuple[int, Document]], run: ChainRun) -> None:
        """Run the step for some documents together: for one document, unless the step takes batches."""
        count, (first, document) = len(group), group[0]
        call = (first if count == 1 else -1 - first, self._number)
        if call in run.skipped:
            if count == 1:
                run.outcomes[first] = RejectedDocument(document, f"{TOO_SLOW}:{self.title}", None)
            else:
                self._run_singly(group, run)
            return
        try:
            argument = self._as_batch(group, run) if self._is_batch else document  # loads pyarrow before the time counts
            run.mark(*call, self._use.seconds_per_document * count)
            returned = self._call(argument)
            results = self._results(returned, count) if self._is_batch else (returned,)
            for (place, each), result in zip(group, results, strict=True):
                if result is not each:
                    run.outcomes[place] = self._outcome(each, result, run.columns.setdefault(place, {}))
                if self._count and (if_kept := self._count(run.report, self.title, place, each, result)):
                    run.if_kept.append((place, if_kept))
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            if isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
                raise  # workers ignore Ctrl-C, so there the step has raised it
            if may_repeat := count > 1 and not self._is_stateful:
                self._run_singly(group, run)  # finds the document; state would count twice
            others = "" if count == 1 else " and later documents"
            problem = f"{describe_origin(document)}{others}: step {self.title}: {describe_error(error, __file__)}"
            if self._use.on_error == "stop" or (count > 1 and not may_repeat):
                raise NielsCacheError(problem) from error
            if count == 1:
                run.outcomes[first] = RejectedDocument(document, f"{FAILED}:{self.title}", None)

    def _run_singly(self, group: Sequence[tuple[int, Document]], run: ChainRun) -> None:
        for each in group:
            self._run_group([each], run)

    def _as_batch(self, group: Sequence[tuple[int, Document]], run: ChainRun) -> "pa.RecordBatch":
        import pyarrow as pa

        _, source_id, file, row, title, *_ = zip(*(each for _, each in group), strict=True)
        columns = [run.arrow_texts(group), *map(_arrow_strings, (title, source_id, file)), pa.array(row)]
        return pa.RecordBatch.from_arrays(columns, _FIELDS)

    def _results(self, returned: Any, count: int) -> list[Any]:
        """Return the result for each document of a batch, as a step without batches would return it."""
        if not isinstance(returned, Mapping) and not hasattr(returned, "schema"):
            raise _ResultError(f"it returns a {type(returned).__name__}; return a dict or table of columns")
        names = returned.schema.names if hasattr(returned, "schema") else [*returned]
        values = {name: _python(returned[name]) for name in names}
        if wrong := [name for name, column in values.items() if len(column) != count]:
            raise _ResultError(f"the column {wrong[0]!r} has {len(values[wrong[0]])} values for {count} documents")
        return [{name: values[name][row] for name in values} for row in range(count)]

    def _outcome(self, document: Document, result: Any, columns: dict[str, Any]) -> Outcome:
        """Return what a result means for a document, and add the columns that it has."""
        if isinstance(result, Document):
            if result[1:4] != document[1:4] or result[5:] != document[5:]:
                raise _ResultError("it changes more than text and title; return document._replace(text=...)")
            if type(result.text) is not str or not (result.title is None or type(result.title) is str):
                raise _ResultError("text and title must be str (title may be None)")
            for new, old in (result.text, document.text), (result.title or "", document.title or ""):
                if new is not old and has_lone_surrogate(new) and not has_lone_surrogate(old):  # the cleaning may come later
                    raise _ResultError("the text or title contains a lone surrogate, which cannot be written as UTF-8")
            is_blank = not result.text or result.text.isspace()
            return RejectedDocument(document, "empty", None) if is_blank else result
        if result is None:
            return RejectedDocument(document, f"{DROPPED}:{self.title}", None)
        if isinstance(result, Drop):
            if not isinstance(result.reason, str) or not _REASON.fullmatch(result.reason):
                raise _ResultError(f"the reason {result.reason!r:.80} is not a short text of letters, digits and blanks")
            try:
                value = None if result.value is None else float(result.value)
            except (TypeError, ValueError):
                raise _ResultError(f"the value {result.value!r:.80} of Drop is not a number") from None
            return RejectedDocument(document, f"{DROPPED}:{self.title}:{result.reason}", value)
        if not isinstance(result, Mapping):
            raise _ResultError(f"it returns a {type(result).__name__}; return a Document, None, Drop or a dict of columns")
        if result.get("drop") is not None:
            return self._outcome(document, Drop(result["drop"]), columns)
        changed = {name: value for name, value in result.items() if name in _FIELDS}
        found = {str(name): _python(value) for name, value in result.items() if name not in _NO_SCORES}
        if missing := [name for name in self._use.keep if name not in found]:
            raise _ResultError(f"it returns no column {missing[0]!r}, which keep names, but {', '.join(found) or 'none'}")
        columns.update(found)
        return self._outcome(document, document._replace(**changed), columns) if changed else document


def _arrow_strings(values: Sequence[str | None]) -> "pa.Array":
    """Return a column of strings, with U+FFFD in place of lone surrogates, which Arrow does not have."""
    import pyarrow as pa

    try:
        return pa.array(values, pa.string())
    except UnicodeEncodeError:
        return pa.array([value and _SURROGATE.sub("\ufffd", value) for value in values], pa.string())


class _ResultError(NielsCacheError):
    """A result that a step must not return."""


def _python(value: Any) -> Any:
    """Return a scalar or a column of Arrow or numpy as a Python value."""
    for name in ("as_py", "to_pylist", "tolist"):
        if hasattr(value, name):
            return getattr(value, name)()
    return value


@lru_cache(maxsize=2)  # one cleaner for plain text, one for markup
def _cleaner(settings: CleaningSettings, plain_text: bool) -> Any:
    return load_beside("cleaning", "chain").Cleaner(settings, plain_text=plain_text)


def with_writable_names(document: Document) -> Document:
    """Return a document whose title, id and file name can be written as UTF-8."""
    if (document.source_id + document.file + (document.title or "")).isascii():
        return document
    title = None if document.title is None else valid_unicode(document.title)
    return document._replace(source_id=valid_unicode(document.source_id), file=valid_unicode(document.file), title=title)
