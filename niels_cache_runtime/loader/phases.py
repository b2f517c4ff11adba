"""A run in phases: T, the weights, the packing and B change, and no document is read twice before its source is exhausted.

    phases     | T=2048, B=32       | T=8192, B=8, packing="best_fit"    |
    lots       | 5 0 7 2 9 1 3 8  4 | 6   2 7 0 ...                        (an epoch has ten lots)

After shuffled windows of T = 2,048, the text that is left is in holes of 2,048 tokens. So a phase reads whole lots (`lots`), and the next
one begins at the first lot that no phase has read (`lot_order`). A TokenLoader reads each phase, and has the position in it. Which lots a
phase has follows from the phases before it, so all of them are opened at once. No token is read for that.
"""

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Literal

from torch.utils.data import IterableDataset, get_worker_info

from niels_cache_runtime.cache.checks import NamesArguments, check_positive, check_whole
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.meta import Meta
from niels_cache_runtime.loader.batch import Batch
from niels_cache_runtime.loader.document_steps import DocumentReads, Documents, DocumentSteps
from niels_cache_runtime.loader.loader import NotADataLoader, TokenLoader
from niels_cache_runtime.loader.lot_order import LotRunOrder
from niels_cache_runtime.loader.report import MixtureReport, make_report
from niels_cache_runtime.loader.settings import Averages, BestFit, Lots, check_shares, find_sources, name_sources
from niels_cache_runtime.loader.state import State, check_form, check_in_worker, check_values
from niels_cache_runtime.loader.steps import Position, position_to_state
from niels_cache_runtime.loader.trace import BatchTrace

FORMAT = "niels_cache_runtime.PhasedLoader"
VERSION = 1  # must change whenever the same documents, seed and phases would give other lots
REFUSED = {"T", "B", "weights", "packing", "epochs", "on_exhausted", "order", "stride", "remote", "sft"}


@dataclass(frozen=True, kw_only=True)
class Phase(NamesArguments):
    """One phase of a PhasedLoader.

    Attributes:
        T: Tokens per row.
        B: Rows per batch on each rank.
        tokens: How many inputs the phase has on all ranks, that is rows times T, padding included. Each source ends with a whole lot, so it
            may be half a lot more or less. None means a phase without end, which must be the last one.
        weights: A mapping of names to shares of the tokens. Required for several sources. A source of weight 0 is not read.
        packing: As for TokenLoader.

    Raises:
        NielsCacheError: For a value out of range.
    """

    T: int
    B: int
    tokens: int | None = None
    weights: Mapping[str, float] | None = None
    packing: Literal["best_fit"] | BestFit | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.weights, Mapping | None):
            raise NielsCacheError(f"weights={self.weights!r:.60}: must be {{name: weight}}; other weights need another phase")
        object.__setattr__(self, "weights", self.weights and check_shares(self.weights))
        object.__setattr__(self, "tokens", None if self.tokens is None else check_positive("tokens", self.tokens))


class _PhaseLoader(TokenLoader):
    """The loader of one phase. Its samples and steps are counted from the start of the phase."""

    _run_order: LotRunOrder

    def _blocks(self) -> None:
        return None

    def _order_with(self, averages: Averages) -> LotRunOrder:
        return LotRunOrder(self._sources, self._settings, averages)

    @property
    def left(self) -> int | None:
        """How many batches this rank has left, or None for a phase without end."""
        return self._steps.count(self.position)

    @property
    def end(self) -> Position:
        """The position at the end of the phase."""
        return self._steps.next_pass(self.position)

    def plan(self) -> MixtureReport:
        """Return a report of the phase."""
        order = self._run_order
        return make_report(self._sources, order, first=0, last=order.end or 0, settings=self._settings, target_weights=self._maker.weights)


class PhasedLoader(NotADataLoader, NamesArguments, IterableDataset[Batch]):
    """Batches of a run whose T, weights, packing and B change from phase to phase.

    Iteration starts at the loader's position, and ends with the last phase. No document is read twice before its source is exhausted. The
    sources are pretrain splits in folders, and they must not grow during the run.

    Under a DataLoader (`batch_size=None`), the order is the same for any number of workers. It may be iterated once, and only
    `state_dict(steps=...)` of the main process gives its state.

    Args:
        sources: As for TokenLoader.
        *names: As for TokenLoader.
        phases: The phases, each a Phase.
        seed: The seed of every order, 0 to 2**64 - 1.
        lot_tokens: The tokens of a lot. A phase begins and ends between lots.
        lanes: How many lots of a source are read at the same time. More lots mix more distant documents.
        **settings: Other keyword arguments of TokenLoader: split, shuffle, rank, world_size, device, fields, drop_last (at the end of each
            phase), mask_cross_document_targets, max_documents, cp_rank, cp_size, fim, loss_weights, goldfish, mask_repetitive,
            prefetch, verify.

    Attributes:
        phases: The phases.
        phase: The number of the current phase, counted from 0. It changes with the first batch of a phase.
        names: The names of the sources, in order.

    Raises:
        NielsCacheError: For the reasons that TokenLoader lists, and if a source has less than half a lot in a phase.
    """

    def __init__(
        self,
        sources: str | Mapping[str, str],
        *names: str,
        phases: Sequence[Phase],
        seed: int,
        lot_tokens: int = 1 << 24,
        lanes: int = 8,
        **settings: Any,
    ) -> None:
        if not isinstance(phases, Sequence) or {*map(type, phases)} != {Phase}:
            raise NielsCacheError(f"phases={phases!r:.60}: must be a list of phases, such as Phase(tokens=2_000_000_000, T=2048, B=32)")
        self.phases = tuple(phases)
        for name in settings.keys() & REFUSED:
            raise NielsCacheError(
                f"{name}: is not for a PhasedLoader; leave it out, or give T, B, tokens, weights and packing to each Phase"
            )
        folders = name_sources(find_sources(sources, names), settings.get("split", "train"))
        self._loaders: list[_PhaseLoader] = []
        following = {name: [0, 0] for name in folders}
        for number, phase in enumerate(self.phases):
            try:
                if phase.tokens is None and number + 1 < len(self.phases):
                    raise NielsCacheError("tokens=None: only the last phase may have no end; give Phase(tokens=...)")
                order = Lots(
                    lanes=lanes,
                    machines=1,
                    tokens=check_positive("lot_tokens", lot_tokens),
                    phase={"tokens": phase.tokens, "weights": phase.weights, "sources": following},
                )
                loader = _PhaseLoader(
                    folders,
                    T=phase.T,
                    B=phase.B,
                    seed=seed,
                    weights=phase.weights,
                    packing=phase.packing,
                    order=order,
                    epochs=phase.tokens and 1,
                    **settings,
                )
            except NielsCacheError as error:
                raise NielsCacheError(f"phases[{number}]: {error}") from error
            self._loaders.append(loader)
            following = loader._run_order.after
        self.phase, self.names = 0, loader.names
        self._starts = [loader.state_dict() for loader in self._loaders]
        self._shared = False  # whether a DataLoader's worker has begun

    @property
    def step(self) -> int:
        """The number of batches taken so far."""
        return sum(loader.step for loader in self._loaders)

    @property
    def tokens(self) -> int:
        """The number of inputs taken so far, on all ranks, padding included."""
        return sum(loader.samples * loader.T for loader in self._loaders)

    @property
    def metas(self) -> dict[str, Meta | None]:
        """The content of meta.json of each source, by name."""
        return self._loaders[0].metas

    def __len__(self) -> int:
        """Return how many batches this rank has left.

        Raises:
            TypeError: If the last phase has no end.
        """
        if self.phases[-1].tokens is None:
            raise TypeError("a PhasedLoader has no length if its last phase has no end; give that Phase tokens")
        return sum(loader.left or 0 for loader in self._loaders[self.phase :])

    def __iter__(self) -> Iterator[Batch]:
        worker = get_worker_info()
        if worker is None:
            return self._iterate()
        is_again, self._shared = self._shared, True
        return self._share_of_worker(worker.id, worker.num_workers, is_again=is_again)

    def _iterate(self) -> Iterator[Batch]:
        for phase in range(self.phase, len(self._loaders)):
            self.phase = phase
            yield from self._loaders[phase]

    def _share_of_worker(self, worker: int, workers: int, *, is_again: bool) -> Iterator[Batch]:
        check_in_worker(self._loaders[0].device, is_again=is_again)
        for loader in self._loaders[self.phase :]:
            yield from loader._batches(loader.position, worker=worker, workers=workers)
            worker = (worker - (loader.left or 0)) % workers  # a DataLoader asks its workers in turn, across the phases

    def state_dict(self, *, steps: int | None = None) -> State:
        """Return the position, and the settings and sources that it depends on, as JSON-able values; see `TokenLoader.state_dict`.

        Args:
            steps: The number of batches to add to the loader's own position, across the phases. Needed under a DataLoader with workers.

        Raises:
            NielsCacheError: If `steps` is not a whole number of at least 0 or beyond the last phase, and in a worker of a DataLoader.
        """
        if self._shared:
            raise NielsCacheError("state_dict: a worker has no state of the run; save loader.state_dict(steps=...) in the main process")
        left = check_whole("steps", steps or 0)
        states = [loader.state_dict() for loader in self._loaders[: self.phase]]
        for loader in self._loaders[self.phase :]:
            count = loader.left
            if count is None or left <= count:
                return {"format": FORMAT, "version": VERSION, "phases": [*states, loader.state_dict(steps=left)]}
            states.append(loader.state_dict() | position_to_state(loader.end))
            left -= count
        raise NielsCacheError(f"steps={steps}: the last phase ends {left} batches earlier")

    def load_state_dict(self, state: State) -> None:
        """Continue where `state` was saved: the next batches are those of an uninterrupted run.

        The phases that have not begun may be other ones, and every B may differ. Otherwise, what may differ for TokenLoader may differ
        here, but the caches must be those of the saved run.

        Args:
            state: A state of `state_dict`.

        Raises:
            NielsCacheError: For the reasons that `TokenLoader.load_state_dict` lists, and if a phase that has begun differs.
        """
        states = _states_of(state)
        if len(states) > len(self.phases):
            raise NielsCacheError(f"phases: the state is in phases[{len(states) - 1}]; give all phases up to it")
        loaders = [*map(copy, self._loaders)]  # a refused state changes nothing
        for number, (loader, start) in enumerate(zip(loaders, self._starts, strict=True)):
            try:
                loader.load_state_dict(states[number] if number < len(states) else start)
            except NielsCacheError as error:
                raise NielsCacheError(f"phases[{number}]: {error}") from error
            if loader._run_order is not self._loaders[number]._run_order:
                raise NielsCacheError(f"state: phases[{number}] has other averages than its sources; it was edited")
            if number + 1 < len(states) and loader.left:
                raise NielsCacheError(f"state: phases[{number}] has {loader.left} batches left, and a later phase has begun; it was edited")
        for loader in self._loaders:
            loader._iteration += 1  # so that iterators in use are stale
        self._loaders, self.phase = loaders, len(states) - 1

    def trace(self, step: int, *, rank: int | None = None) -> BatchTrace:
        """Return the origin of every token in a batch of this run; see `TokenLoader.trace`. `token` of the result gives those of one."""
        own, samples, number = check_whole("step", step), 0, 0
        while number + 1 < len(self._loaders) and own >= (end := self._loaders[number].end).step:
            own, samples, number = own - end.step, samples + end.samples, number + 1
        found: Any = self._loaders[number].trace(own, rank=rank)
        return replace(found, step=step, samples=found.samples + samples)

    def steps_of(self, documents: Documents, *, source: str | None = None, until: int | None = None) -> DocumentSteps:
        """Return the steps, ranks and rows that hold tokens of documents, in all phases so far, and where each comes next.

        See `TokenLoader.steps_of`. Steps and samples are counted over all phases, and `numbers` in each phase by itself.
        """
        given, found = [*documents], list[DocumentSteps]()
        until, step, samples = self.step if until is None else check_whole("until", until), 0, 0
        for loader in self._loaders:
            end = loader.end
            own = until - step if loader is self._loaders[-1] else min(until - step, end.step)
            steps = loader.steps_of(given, source=source, until=max(0, own))
            found.append(DocumentSteps(until=until, read=steps.read.moved(step, samples), next=steps.next.moved(step, samples)))
            step, samples = step + end.step, samples + end.samples
        read, following = ([getattr(each, name) for each in found] for name in ("read", "next"))
        return DocumentSteps(until=until, read=DocumentReads.joined(read), next=DocumentReads.joined(following, only_first=True))

    def report(self) -> list[MixtureReport]:
        """Return a printable report of each phase that has an end, with its exact first and last sample of the run. No token is read."""
        found = [loader.plan() for loader in self._loaders if loader._run_order.end]
        lasts = accumulate(own.last for own in found)
        return [replace(own, first=last - own.last, last=last) for own, last in zip(found, lasts, strict=True)]


def _states_of(state: Any) -> list[State]:
    """Return the states of the phases that have begun.

    Raises:
        NielsCacheError: If it is no state of a PhasedLoader.
    """
    check_values(state)
    known = isinstance(state, Mapping) and (state.get("format"), state.get("version")) == (FORMAT, VERSION)
    states = state.get("phases") if known else None
    if not isinstance(states, list) or not states:
        raise NielsCacheError(f"state: not the state of a PhasedLoader of version {VERSION}; give the result of loader.state_dict()")
    for each in states:
        check_form(each)
        if any("phases" in source for source in each["sources"].values()):
            raise NielsCacheError("state: has a source that has grown, which phases do not read; it was edited")
    return states
