"""The trial of the steps of a data set before a build: whether the same document always gives the same result.

Two processes run the steps over a sample, with other seeds of the hashes of strings, in other order and in batches of another size. It
takes about two seconds, and twice the time of the steps for the sample.
"""

from collections.abc import Generator, Iterable
from contextlib import closing
from dataclasses import dataclass
from typing import NamedTuple

from niels_cache_assets.base.documents import Document, describe_origin
from niels_cache_assets.base.parallel import CallMark, map_in_processes
from niels_cache_assets.cleaning.report import CleaningReport
from niels_cache_assets.steps.chain import ChainRun, DocumentChain, Outcome, SkippedCall
from niels_cache_assets.steps.identity import is_stateful
from niels_cache_runtime.errors import NielsCacheError

SAMPLED = 200  # documents
_CHARACTERS = 20_000_000  # of all of them

Result = tuple[Outcome, str]  # the outcome of a document, and its columns as text, because they may be anything
Results = list[tuple[str, list[Result]]]  # for each step its title, and the result of each document


class TrialRun(NamedTuple):
    """One run over the sample."""

    documents: list[Document]
    is_reversed: bool
    batch: int
    skipped: tuple[SkippedCall, ...] = ()

    @property
    def ordered(self) -> list[Document]:
        return self.documents[::-1] if self.is_reversed else self.documents


@dataclass(frozen=True)
class StepTrial:
    """The work of a process."""

    chain: DocumentChain

    def __call__(self, item: TrialRun, mark: CallMark) -> Results:
        run = ChainRun(report=CleaningReport(0), outcomes=[*item.ordered], mark=mark, skipped=item.skipped, batch=item.batch, is_trial=True)
        order = range(len(run.outcomes))[:: -1 if item.is_reversed else 1]
        steps = self.chain.each_step(run)
        return [(title, [(run.outcomes[place], repr(run.columns.get(place) or "")) for place in order]) for title in steps]

    def skip_call(self, item: TrialRun, place: int, step: int, *, has_ended: bool) -> TrialRun:
        return item._replace(skipped=(*item.skipped, self.chain.skip_call(item.ordered, place, step, has_ended=has_ended)))


def try_steps(name: str, chain: DocumentChain, documents: Iterable[Document]) -> None:
    """Check that the steps give the same results in two runs that differ in what must not matter.

    Args:
        name: The name of the data set, for messages.
        chain: The steps.
        documents: The sample, of which 20 million characters are used.

    Raises:
        NielsCacheError: If a result differs. The message shows the document, the step, and both results.
    """
    sample, characters = list[Document](), 0
    for document in documents:
        characters += len(document.text)
        if characters > _CHARACTERS and sample:
            break
        sample.append(document)
    first = TrialRun(sample, False, SAMPLED)
    runs = [first, first if is_stateful(chain.source) else TrialRun(sample, True, 7)]  # with state, only hashes of strings differ
    work, doing = StepTrial(chain), f"trying the steps of {name}"
    running: Generator[Results] = map_in_processes(work, runs, processes=2, doing=doing, is_watched=True)
    with closing(running) as results:
        for (title, ones), (_, others) in zip(*results, strict=True):
            for document, one, other in zip(sample, ones, others, strict=True):
                if repr(one) != repr(other):  # NaN equals itself
                    what = " and ".join(_difference(one, other))
                    raise NielsCacheError(
                        f"{name}: {describe_origin(document)}: step {title} gave {what} in two runs that differ only in the order "
                        "and number of documents and the hashes of strings; sort sets, seed random numbers by the text, and keep no state"
                    )


def _difference(one: Result, other: Result) -> list[str]:
    """Return what differs in two results, from a few characters before the first difference."""
    texts = [f"{tuple(outcome) if isinstance(outcome, Document) else outcome[1:]} {columns}" for outcome, columns in (one, other)]
    start = next((place for place, (a, b) in enumerate(zip(*texts, strict=False)) if a != b), 0)
    return [f"{'...' if start > 20 else ''}{text[max(0, start - 20) :][:60]}" for text in texts]
