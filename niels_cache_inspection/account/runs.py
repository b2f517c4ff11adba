"""The samples of a run that training has read, from the states of its loader.

A state says how many samples the run has taken, on all ranks, and where the smaller last batch of a pass was dropped. Of several states of
one run, the furthest counts. If the weights of two states differ from some sample on (a branch of the run), the samples before it count
once, and those after it for each branch. States with other settings, such as a second stage of training, are runs of their own.

A state knows nothing of steps that were thrown away: if training went on after the last state was saved, or was restarted from an earlier
one, what it read in between is in no state.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from niels_cache_assets.base.choices import raise_unknown_choice
from niels_cache_inspection.loader_states import read_loader_state
from niels_cache_inspection.loaders import first_phase, open_loader, steps_taken
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.loader.loader import TokenLoader
from niels_cache_runtime.loader.phases import PhasedLoader
from niels_cache_runtime.loader.steps import Position
from niels_cache_runtime.remote.store import is_address

Ranges = list[tuple[int, int]]


@dataclass(frozen=True, kw_only=True)
class ReadRun:
    """A run, or a part of it.

    Attributes:
        name: The file of its state. A run with phases has one entry for each: `FILE, phase 1`.
        loader: The loader of the state, at its position.
        ranges: The samples that were read: the first one of each range, and the one after its last one.
        steps: The number of steps of the run.
    """

    name: str
    loader: TokenLoader
    ranges: Ranges
    steps: int

    @property
    def samples(self) -> int:
        """The number of samples that were read."""
        return sum(end - first for first, end in self.ranges)


def runs_of(paths: Sequence[str | Path], moved: Mapping[str, str]) -> list[ReadRun]:
    """Return what training has read, in the order of the files. The states of one run are united.

    Args:
        paths: The files of the states.
        moved: The new folders of sources, by name.

    Raises:
        NielsCacheError: If a file has no state, or if a cache is missing or has changed.
    """
    found: list[tuple[str, TokenLoader, Position]] = []
    names: set[str] = set()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # training has seen them
        for path in paths:
            found += _loaders_of(path, moved)
    for _, loader, _ in found:
        names.update(loader.names)
    for name in moved:
        if name not in names:
            raise_unknown_choice("command line: --source", "no data set", name, sorted(names))
    runs: list[ReadRun] = []
    furthest = sorted(range(len(found)), key=lambda number: -found[number][2].samples)
    for place, number in enumerate(furthest):
        name, loader, position = found[number]
        earlier = (found[each] for each in furthest[:place])
        shared = max((_shared_samples(loader, position, other, end) for _, other, end in earlier), default=0)
        if ranges := _after(shared, samples_read(position)):
            runs.append(ReadRun(name=name, loader=loader, ranges=ranges, steps=position.step))
    return sorted(runs, key=lambda run: next(number for number, (_, loader, _) in enumerate(found) if loader is run.loader))


def samples_read(position: Position) -> Ranges:
    """Return the samples that a run has read up to a position, without those of smaller batches that were dropped."""
    ends = [(later.step, later.samples) for later in position.batches[1:]] + [(position.step, position.samples)]
    ranges: Ranges = []
    for sizes, (step, samples) in zip(position.batches, ends, strict=True):
        end = min(samples, sizes.samples + (step - sizes.step) * sizes.rows)
        if ranges and ranges[-1][1] == sizes.samples:
            ranges[-1] = (ranges[-1][0], end)
        elif end > sizes.samples:
            ranges.append((sizes.samples, end))
    return ranges


def _after(shared: int, ranges: Ranges) -> Ranges:
    return [(max(first, shared), end) for first, end in ranges if end > shared]


def _shared_samples(one: TokenLoader, position: Position, other: TokenLoader, end: Position) -> int:
    """Return how many samples two states have in common: those before the weights differ, if all other settings are equal."""
    if _identity(one) != _identity(other):
        return 0
    shared = min(position.samples, end.samples)
    weights = [loader._run_order.blend.weights for loader in (one, other)]
    if weights[0] != weights[1]:
        for first in sorted({segment[0] for each in weights for segment in each}):
            if _weights_at(weights[0], first) != _weights_at(weights[1], first):
                return min(shared, first)
    return shared


def _weights_at(weights: Sequence[tuple[int, Any]], sample: int) -> Any:
    return next(shares for first, shares in reversed(weights) if first <= sample)


def _identity(loader: TokenLoader) -> Any:
    """Return what decides the samples of a run. The batch size and the number of ranks do not."""
    sources = {name: (Path(source.folder).absolute(), source.fingerprint) for name, source in loader._sources.items()}
    return loader._settings.sample_settings(), [*sources.items()]


def _loaders_of(path: str | Path, moved: Mapping[str, str]) -> Iterator[tuple[str, TokenLoader, Position]]:
    """Yield the loaders of a file's state, and their positions: one, or one for each phase that has begun.

    Raises:
        NielsCacheError: If a source is an address, because its lineage is not here.
    """
    state = read_loader_state(path)
    begun = first_phase(path, state)
    names, sources = begun["names"], begun["sources"]
    own = {name: folder for name, folder in moved.items() if name in names}
    for name in names:
        folder = own.get(name, sources[name]["folder"])
        if is_address(folder):
            advice = f"niels-cache pull {folder} --out DIR, then --source {name}=DIR/{'/'.join(Path(folder).parts[-3:])}"
            raise NielsCacheError(f"{path}: {name} was read from {folder}, and its lineage is needed here: {advice}")
    loader = open_loader(path, state, own, copy="", grown="worker" not in state)
    if isinstance(loader, PhasedLoader):
        for number, phase in enumerate(loader._loaders[: loader.phase + 1]):
            yield f"{path}, phase {number + 1}", phase, phase.position
    else:
        yield str(path), loader, loader._steps.advance(loader.position, steps_taken(state, loader) - loader.step)
