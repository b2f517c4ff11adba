"""The account itself: tables of tokens by source, domain, licence, language and year, as planned and as read.

    planned/train, planned/val   what the caches of a root have, each document once
    read                         what runs have read, each token as often as it was read

The lineage of each split is read once for all tables. Then the sums of every table are compared with each other, with meta.json and with
the number of rows that the states say. A difference is an error: a damaged cache, or a mistake of this program.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from niels_cache_inspection.account.dimensions import DIMENSIONS, UNKNOWN, Dimensions
from niels_cache_inspection.account.domains import list_date
from niels_cache_inspection.account.readings import SplitReadings, count_run
from niels_cache_inspection.account.runs import ReadRun
from niels_cache_inspection.account.splits import AccountedCache, PlannedSplit
from niels_cache_inspection.account.tables import NO_DOCUMENT, Table, no_figures, positions_of, targets_of
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import SPLITS, Ints, Split
from niels_cache_runtime.loader.preference.rows import PackedPairs

TABLES = ("source", *DIMENSIONS)
SECTIONS = ("train", "val", "read")
_Key = tuple[Path, Split]


@dataclass(frozen=True, kw_only=True)
class SplitFacts:
    """A split of the account.

    Attributes:
        name: The data set.
        family: Its family.
        split: The split.
        documents: The number of its documents or examples.
        tokens: The number of its tokens.
        knows_repeats: Whether texts that occur again are counted in `repeats`.
        read: Whether runs have read it.
    """

    name: str
    family: str
    split: str
    documents: int
    tokens: int
    knows_repeats: bool
    read: bool


@dataclass(frozen=True, kw_only=True)
class EpochFacts:
    """What a run has read of a source in one epoch.

    Attributes:
        run: The name of the run.
        source: The name of the source in the run.
        dataset: The data set.
        split: The split.
        epoch: The epoch, counted from 0.
        rows: The number of rows that were read.
        rows_of_epoch: The number of rows of a whole epoch.
        tokens: The inputs of these rows, with padding.
    """

    run: str
    source: str
    dataset: str
    split: str
    epoch: int
    rows: int
    rows_of_epoch: int
    tokens: int


@dataclass(kw_only=True)
class Ledger:
    """All tables.

    Attributes:
        tables: Tables by section (SECTIONS) and dimension (TABLES).
        splits: The splits.
        epochs: The epochs of runs.
        runs: The runs, with the number of samples and steps of each.
        list_date: The date of the list of public suffixes.
        columns: The kept columns that each dimension was read from.
        licenses: The known licences of each planned cache, by its content_sha256, those with the most tokens first.
    """

    tables: dict[str, dict[str, Table]] = field(
        default_factory=lambda: {section: {name: Table() for name in TABLES} for section in SECTIONS}
    )
    splits: list[SplitFacts] = field(default_factory=list)
    epochs: list[EpochFacts] = field(default_factory=list)
    runs: list[dict[str, Any]] = field(default_factory=list)
    list_date: str = field(default_factory=list_date)
    columns: Mapping[str, Sequence[str]] = field(default_factory=dict)
    licenses: dict[str, list[str]] = field(default_factory=dict)

    def add(self, section: str, sources: Sequence[str], values: Mapping[str, Sequence[str]], figures: Ints) -> None:
        """Add the figures of documents, (documents, columns), to the tables of a section."""
        for name, table in self.tables[section].items():
            table.add(sources if name == "source" else values[name], figures)

    def add_outside(self, source: str, figures: Ints) -> None:
        """Add figures (columns,) that belong to no document."""
        for name, table in self.tables["read"].items():
            table.add_all(source if name == "source" else NO_DOCUMENT, figures)


def make_ledger(
    caches: Iterable[AccountedCache],
    runs: Sequence[ReadRun],
    dimensions: Dimensions,
    *,
    progress: Callable[[str], None] = lambda name: None,
) -> Ledger:
    """Return the account of caches and runs.

    Args:
        caches: The caches. Those that only runs name are counted as read, and not as planned.
        runs: The runs.
        dimensions: The values of documents.
        progress: Called with what is counted next.

    Raises:
        NielsCacheError: If a cache cannot be read, or if sums differ.
    """
    ledger = Ledger(columns=dimensions.columns)
    planned = {
        (cache.directory.resolve(), split): PlannedSplit(cache, split) for cache in caches for split in SPLITS if cache.tokens(split)
    }
    opened, readings = dict(planned), dict[_Key, SplitReadings]()
    for run in runs:
        progress(run.name)
        _count(ledger, run, opened, readings)
    for key, split in opened.items():
        progress(f"{split.cache.name} {split.split}")
        _add_split(ledger, dimensions, split, readings.get(key), is_planned=key in planned)
    _check_sums(ledger)
    return ledger


def _count(ledger: Ledger, run: ReadRun, opened: dict[_Key, PlannedSplit], readings: dict[_Key, SplitReadings]) -> None:
    sources, keys = run.loader._sources, list[_Key]()
    for source in sources.values():
        path = Path(source.folder).resolve()
        split: Split = "val" if path.name == "val" else "train"
        if path.name != split:
            raise NielsCacheError(f"{source.folder}: is no split of a data set, so its lineage is unknown; give NAME/train or NAME/val")
        keys.append(key := (path.parent, split))
        if key not in opened:
            opened[key] = PlannedSplit(AccountedCache.open(path.parent), split)
        split_of = opened[key]
        readings.setdefault(key, SplitReadings(split_of.cache, documents=split_of.documents, tokens=split_of.cache.tokens(split)))
    counted = count_run(run, [readings[key] for key in keys])
    if counted.total() != run.samples:
        raise NielsCacheError(f"{run.name}: {counted.total():,} rows were counted, but the state says {run.samples:,}; please report this")
    ledger.runs.append({"name": run.name, "steps": run.steps, "rows": run.samples, "T": run.loader.T})
    for (number, epoch), rows in sorted(counted.items()):
        name, source = list(sources.items())[number]
        inputs = rows * run.loader.T * (2 if isinstance(source, PackedPairs) else 1)
        facts: dict[str, Any] = {"dataset": opened[keys[number]].cache.name, "split": keys[number][1], "rows_of_epoch": source.samples}
        ledger.epochs.append(EpochFacts(run=run.name, source=name, epoch=epoch, rows=rows, tokens=inputs, **facts))


def _add_split(ledger: Ledger, dimensions: Dimensions, split: PlannedSplit, readings: SplitReadings | None, *, is_planned: bool) -> None:
    cache = split.cache
    licenses = Table()
    planned, read = no_figures()[0], no_figures()[0] if readings is None else readings.outside().copy()
    for chunk in split.chunks(dimensions):
        planned += chunk.figures.sum(axis=0)
        if is_planned:
            ledger.add(split.split, chunk.sources, chunk.values, chunk.figures)
            licenses.add(chunk.values["license"], chunk.figures)
        if readings is not None:
            found = readings.of_documents(chunk.first, chunk.starts, chunk.ends)
            ledger.add("read", chunk.sources, chunk.values, found)
            read += found.sum(axis=0)
    of_cache = ledger.licenses.setdefault(str(cache.meta.get("content_sha256")), [])
    of_cache += [value for value, _ in licenses.rows() if value != UNKNOWN and value not in of_cache]
    what = f"{cache.directory}: {split.split}"
    _require(what, "tokens as planned", int(positions_of(planned)), cache.tokens(split.split))
    _require(what, "targets as planned", int(targets_of(planned)), cache.tokens(split.split))
    if readings is not None:
        ledger.add_outside(cache.name, readings.outside())
        _require(what, "tokens as read", int(positions_of(read)), readings.inputs)
        _require(what, "targets as read", int(targets_of(read)), readings.inputs)
    ledger.splits.append(
        SplitFacts(
            name=cache.name,
            family=cache.family,
            split=split.split,
            documents=split.documents,
            tokens=cache.tokens(split.split),
            knows_repeats=split.knows_repeats,
            read=readings is not None and readings.inputs > 0,
        )
    )


def _check_sums(ledger: Ledger) -> None:
    """Raise NielsCacheError unless all tables of a section have the same sums."""
    for section, tables in ledger.tables.items():
        totals = {name: table.total.tolist() for name, table in tables.items()}
        for name, total in totals.items():
            if total != totals["source"]:
                raise NielsCacheError(f"{section}: the sums by {name} are {total}, and by source {totals['source']}; please report this")
    read = int(positions_of(ledger.tables["read"]["source"].total))
    _require("read", "tokens", read, sum(epoch.tokens for epoch in ledger.epochs))


def _require(what: str, kind: str, found: int, expected: int) -> None:
    if found != expected:
        raise NielsCacheError(
            f"{what}: the account has {found:,} {kind}, but there are {expected:,}; run `niels-cache verify`, or report this"
        )
