"""A report on a planned run before it starts: shares, epochs and repetitions of every source.

The report is computed from the order of the samples; no tokens are read.
"""

from dataclasses import dataclass
from fractions import Fraction
from math import ceil

from niels_cache_runtime.catalog_text import as_html
from niels_cache_runtime.loader.packing.document_plan import PlanTotals
from niels_cache_runtime.loader.packing.documents import PackedDocuments
from niels_cache_runtime.loader.packing.rows import PackedExamples, PackingReport
from niels_cache_runtime.loader.run_order import RunOrder
from niels_cache_runtime.loader.settings import LoaderSettings
from niels_cache_runtime.loader.source import NamedSources
from niels_cache_runtime.loader.target_weights import MaskReport, TargetWeights


@dataclass(frozen=True, kw_only=True)
class SourceShare:
    """One source in a planned run.

    Attributes:
        name: The name of the source.
        configured: The share that the weights request for the planned samples, as a fraction of tokens (or examples).
        actual: The resulting share.
        samples: The number of rows.
        tokens: The number of inputs that are not padding. For packed rows it is computed from the average row.
        samples_per_epoch: The number of rows in an epoch, as the cache is now.
        epochs: How often the source has been read when the plan ends, including earlier steps of the run. Each epoch counts with the
            samples that it had, even if the cache has grown since.
        repetitions: How often the sample that is read most often is read again after the first time. In the first epoch after a cache has
            grown, this counts as if an old sample had been read already.
        details: How full the rows are, for packed rows. Otherwise None.
        masked: What `goldfish` and `mask_repetitive` have masked so far. None without them.
    """

    name: str
    configured: float
    actual: float
    samples: int
    tokens: int
    samples_per_epoch: int
    epochs: float
    repetitions: int
    details: PackingReport | PlanTotals | None = None
    masked: MaskReport | None = None


@dataclass(frozen=True, kw_only=True)
class MixtureReport:
    """The sources of a planned run. `str` of the report gives a table, and so does a notebook.

    Attributes:
        first: The first sample of the plan.
        last: The sample after the last one of the plan.
        weigh_by: The unit of the shares, "tokens" or "examples".
        sources: One entry for each source, in order.
    """

    first: int
    last: int
    weigh_by: str
    sources: tuple[SourceShare, ...]

    def __str__(self) -> str:
        width = max(len("source"), *(len(source.name) for source in self.sources))
        lines = [
            f"samples {self.first:,} to {self.last:,}, shares of {self.weigh_by}",
            f"{'source':<{width}} {'configured':>10} {'actual':>10} {'rows':>13} {'tokens':>16} {'epochs':>9} {'repeated':>8}",
        ]
        lines += [
            f"{source.name:<{width}} {source.configured:>10.4%} {source.actual:>10.4%} {source.samples:>13,} {source.tokens:>16,} "
            f"{source.epochs:>9.3f} {source.repetitions:>8,}"
            for source in self.sources
        ]
        details = ((source.name, each) for source in self.sources for each in (source.details, source.masked))
        lines += [f"{name}: {each}" for name, each in details if each is not None]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        title, *lines = str(self).splitlines()
        end = 1 + len(self.sources)
        return as_html(title, (line.rsplit(maxsplit=6) for line in lines[:end]), code="\n".join(lines[end:]))


def make_report(
    sources: NamedSources, run_order: RunOrder, *, first: int, last: int, settings: LoaderSettings, target_weights: TargetWeights | None
) -> MixtureReport:
    """Return the report of the samples `first` to `last` - 1 of a run."""
    before, after = run_order.blend.counts(first).tolist(), run_order.blend.counts(last).tolist()
    taken = [end - begin for begin, end in zip(before, after, strict=True)]
    by_examples = settings.sft.weigh_by == "examples"
    amounts = [
        Fraction(count * ((source.examples or 0) if by_examples else source.tokens), source.samples)
        for count, source in zip(taken, sources.values(), strict=True)
    ]
    configured = dict.fromkeys(sources, 0.0)  # each segment of the schedule counts by its part of the samples
    starts = [start for start, _ in settings.weights]
    for (start, weights), end in zip(settings.weights, [*starts[1:], last], strict=True):
        part = max(0, min(end, last) - max(start, first)) / (last - first)
        for name, weight in weights.items():
            configured[name] += part * weight / sum(weights.values())
    shares = [
        SourceShare(
            name=name,
            configured=configured[name],
            actual=float(amount / sum(amounts)),
            samples=count,
            tokens=count * source.tokens // source.samples,
            samples_per_epoch=source.samples,
            epochs=float(read),
            repetitions=max(0, ceil(read) - 1),
            details=source.report() if isinstance(source, PackedExamples | PackedDocuments) else None,
            masked=None if target_weights is None else target_weights.report(name),
        )
        for (name, source), count, amount, read in zip(sources.items(), taken, amounts, run_order.epochs_read(last), strict=True)
    ]
    return MixtureReport(first=first, last=last, weigh_by=settings.sft.weigh_by, sources=tuple(shares))
