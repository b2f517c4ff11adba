"""The steps of training runs that read places in caches, from the saved states of their loaders.

    places --TokenLoader.steps_of--> rows of each state --union--> rows, each with the states that say so

A loader computes what it has read from its state (`niels_cache_runtime.loader.document_steps`), so a state of any step is enough for all
steps before it. Each state opens its caches once; then an epoch that it has read costs some milliseconds for all places of a split.
"""

import json
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from niels_cache_assets.base.choices import raise_unknown_choice
from niels_cache_inspection.loader_states import read_loader_state
from niels_cache_inspection.loaders import first_phase, open_loader, steps_taken
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import META_NAME, doc_ends_name, idx_name, tokens_name
from niels_cache_runtime.format.meta import Meta, is_foreign, read_meta
from niels_cache_runtime.loader.phases import FORMAT as OF_PHASES

LIMIT = (
    "a state says what its run had read when it was saved; what a run read after its last state here, before it crashed or was stopped, "
    "is not in it"
)


class ReadablePlace(Protocol):
    """Tokens of a document of a cache, as `places.Place` has them."""

    @property
    def directory(self) -> Path:
        """The folder of the data set. For a published cache, one with its meta.json."""

    @property
    def split(self) -> str:
        """The split."""

    @property
    def document(self) -> int:
        """The number of the document, example or pair in the split."""

    @property
    def start(self) -> int:
        """The first token, from the start of the document or example, or of this side of the pair."""

    @property
    def end(self) -> int:
        """The token after the last one."""

    @property
    def side(self) -> str | None:
        """The side of a preference pair."""


class PlaceRead(NamedTuple):
    """A row of a batch that holds a token of a place.

    Attributes:
        place: The index of the place in the request.
        run: The number of the run. States with the same settings are of one run.
        source: The name of the source in this run.
        epoch: The epoch of the source.
        step: The step of the run.
        rank: The rank.
        row: The row in the batch of this rank.
        first: The first column of the row with a token of the document, 0 to T, as `niels-cache trace` counts them.
        end: The column after the last one.
        offset: The first token of the document that the row has, from the start of the document.
        tokens: How many tokens it has from there on.
        sample: The number of the sample in the run.
        is_next: Whether these states have not read the row, and it is the next one if the run goes on from them as it was.
        states: The states that say so, by their index in the request.
    """

    place: int
    run: int
    source: str
    epoch: int
    step: int
    rank: int
    row: int
    first: int
    end: int
    offset: int
    tokens: int
    sample: int
    is_next: bool
    states: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class ReadState:
    """A state.

    Attributes:
        path: Its file.
        run: The number of its run, from 0.
        steps: The number of steps that the run had taken.
        sources: The names of the sources.
    """

    path: Path
    run: int
    steps: int
    sources: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class RunSteps:
    """The steps of runs that read places.

    Attributes:
        rows: The rows of each place: those that were read, by run and step, and then the next ones after the last state of each branch.
            Each comes once, also if several states say so.
        states: The states.
        known: The places whose split is a source of a run. The others have no rows because no run reads them.
        limit: What is not known, for the reader. It is the same for all rows.
    """

    rows: list[PlaceRead]
    states: list[ReadState]
    known: frozenset[int]
    limit: str = LIMIT


def steps_of_documents(
    states: Sequence[str | Path], places: Sequence[ReadablePlace], moved: Mapping[str, str] = MappingProxyType({})
) -> RunSteps:
    """Return the steps at which runs read places, up to any of their states, and the next ones.

    A branch or a restart of a run reads more than the last state of the run says. So give a state of each branch, saved as late as
    possible: the rows of all of them are joined. A source of a run and a place belong together if meta.json lists the same token files for
    both, wherever they are, or if they are the same folder. A cache may have grown since then.

    Args:
        states: The files of the states, JSON or torch checkpoints, of TokenLoader or PhasedLoader.
        places: The places.
        moved: The folders of splits that are not where the states say, by the name of the source.

    Raises:
        NielsCacheError: If a file has no state, if a cache of a run is missing or has changed, or if the state is invalid.
    """
    wanted = defaultdict[Any, list[int]](list)
    metas = dict[Path, Meta | None]()
    for index, place in enumerate(places):
        if place.directory not in metas:
            metas[place.directory] = _read_meta(place.directory)
        wanted[_content(metas[place.directory], place.directory / place.split)].append(index)
    read = [*map(read_loader_state, states)]
    first = [first_phase(path, state) for path, state in zip(states, read, strict=True)]
    names = {name for begun in first for name in begun["names"]}
    for name in moved:
        if name not in names:
            raise_unknown_choice("--source", "no data set", name, sorted(names))
    found = defaultdict[tuple[Any, ...], list[int]](list)
    runs = dict[str, int]()
    opened: list[ReadState] = []
    known = set[int]()
    for number, (path, state) in enumerate(zip(states, read, strict=True)):
        begun = first[number]
        folders = {name: moved.get(name, begun["sources"][name]["folder"]) for name in begun["names"]}
        with _opened(path, state, {name: folder for name, folder in moved.items() if name in folders}) as loader:
            steps = steps_taken(state, loader)
            run = runs.setdefault(json.dumps([begun["settings"], begun["names"]], sort_keys=True), len(runs))
            opened.append(ReadState(path=Path(path), run=run, steps=steps, sources=loader.names))
            for name, meta in loader.metas.items():
                indices = wanted.get(_content(meta, Path(folders[name])), [])
                known.update(indices)
                for row in _rows_of(loader, name, [(index, places[index]) for index in indices], steps):
                    found[row[0], run, name, *row[1:]].append(number)
    ended = {
        number
        for number, own in enumerate(opened)
        if any(
            own.run == other.run and own.steps < other.steps and _leads_to(read[number], later)
            for other, later in zip(opened, read, strict=True)
        )
    }
    rows = [PlaceRead._make((*key, tuple(dict.fromkeys(said)))) for key, said in found.items()]
    rows = [row if not row.is_next else row._replace(states=tuple(each for each in row.states if each not in ended)) for row in rows]
    rows = sorted((row for row in rows if row.states), key=lambda row: (row.place, row.is_next, row.run, row.step, row.rank, row.row))
    return RunSteps(rows=rows, states=opened, known=frozenset(known))


@contextmanager
def _opened(path: str | Path, state: dict[str, Any], moved: Mapping[str, str]) -> Iterator[Any]:
    """Open the loader of a state, and a folder for its local copy. An error names the state."""
    with TemporaryDirectory(prefix="niels-cache-", ignore_cleanup_errors=True) as copy, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # training has shown them
        try:
            yield open_loader(path, state, moved, copy=copy, grown=True)
        except NielsCacheError as error:
            raise NielsCacheError(str(error) if str(error).startswith(str(path)) else f"{path}: {error}") from error


def _phases_of(state: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the states of the phases of a state, or the state itself if it has none."""
    return state["phases"] if state["format"] == OF_PHASES else [dict(state)]


def _leads_to(state: Mapping[str, Any], later: Mapping[str, Any]) -> bool:
    """Return whether a run went on from a state to a later one of the same run: the batches and weights before the state are the same."""
    begun, of_later = _phases_of(state), _phases_of(later)
    if len(begun) > len(of_later):
        return False
    step, samples = begun[-1]["step"], begun[-1]["samples"]
    before, after = (each["batches"] for each in (begun[-1], of_later[len(begun) - 1]))
    changed_here = [sizes[1] for sizes in after if sizes[0] == step]
    is_same = [sizes for sizes in before if sizes[0] < step] == [sizes for sizes in after if sizes[0] < step]
    weights, of_later_weights = (
        [each for each in phase["weights"] if each[0] < samples] for phase in (begun[-1], of_later[len(begun) - 1])
    )
    return is_same and weights == of_later_weights and (not changed_here or samples in changed_here)


def _rows_of(loader: Any, name: str, places: list[tuple[int, ReadablePlace]], taken: int) -> Iterator[tuple[Any, ...]]:
    """Yield the fields of PlaceRead without `run`, `source` and `states` for each row that holds a token of these places."""
    for side in {place.side for _, place in places}:
        own = [(index, (place.document, place.start, place.end)) for index, place in places if place.side == side]
        of_side = {} if side is None else {"side": side}
        steps = loader.steps_of([tokens for _, tokens in own], source=name, until=taken, **of_side)
        for reads, is_next in ((steps.read, False), (steps.next, True)):
            for read in reads:
                yield own[read.query][0], *read[2:-1], is_next


def _read_meta(folder: Path) -> Meta | None:
    path = folder / META_NAME
    return read_meta(path) if path.exists() else None


def _content(meta: Meta | None, split: Path) -> Any:
    """Return what identifies a split: the hashes of its token files in meta.json, or else its folder."""
    if meta is None or is_foreign(meta):
        return split.resolve()
    name: Any = split.name
    names = {tokens_name(name), idx_name(name), doc_ends_name(name)}
    files = {path: entry["sha256"] for path, entry in meta["files"].items() if path in names or path.startswith(f"{name}/")}
    return frozenset(files.items())
