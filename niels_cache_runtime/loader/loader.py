"""The loader for training: deterministic order, blends, exact and elastic resume, documents, packing.

    step --Steps--> global samples of this rank --RunOrder--> (source, epoch, number) each --BatchMaker--> Batch

Everything before the last arrow is computed from the position in the run. So a saved state is a few integers, and resuming costs the same
at any step. A batch costs one gather (one indexed numpy read) for each source that it has rows of.
"""

import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NoReturn

import torch
from torch.utils.data import IterableDataset, get_worker_info

from niels_cache_runtime.cache.checks import NamesArguments, check_choice, check_positive, check_whole
from niels_cache_runtime.cache.gather import resolve_device
from niels_cache_runtime.cache.opening import Verify
from niels_cache_runtime.catalog_text import as_html
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import Side, Split
from niels_cache_runtime.format.meta import Meta
from niels_cache_runtime.loader.batch import Batch
from niels_cache_runtime.loader.blocks import BlockVisit
from niels_cache_runtime.loader.document_steps import Documents, DocumentSteps, Wanted, find_steps
from niels_cache_runtime.loader.growth import earlier_epochs, resumed_phases
from niels_cache_runtime.loader.map_style import SampleDataset
from niels_cache_runtime.loader.packing.documents import PackedDocuments
from niels_cache_runtime.loader.packing.fim import FIM
from niels_cache_runtime.loader.preference.batch import make_maker
from niels_cache_runtime.loader.preference.rows import side_of
from niels_cache_runtime.loader.prefetch import prefetched_batches
from niels_cache_runtime.loader.remote.opening import Sources
from niels_cache_runtime.loader.report import MixtureReport, make_report
from niels_cache_runtime.loader.run_order import RunOrder, SampleLocations, plan_batches
from niels_cache_runtime.loader.settings import (
    SFT,
    Averages,
    BestFit,
    Blocks,
    LoaderSettings,
    check_one_tokenizer,
    find_sources,
    have_pairs,
    row_weights,
)
from niels_cache_runtime.loader.source import SourceBlocks, of_epoch
from niels_cache_runtime.loader.state import (
    State,
    arguments_of_state,
    before_tombstones,
    check_form,
    check_in_worker,
    check_order,
    check_settings,
    check_sources,
    check_weights,
    check_worker,
    make_state,
    read_position,
)
from niels_cache_runtime.loader.steps import BatchSizes, Position, Steps
from niels_cache_runtime.loader.trace import BatchTrace, TokenOrigin, trace_samples
from niels_cache_runtime.loader.windows import PretrainWindows
from niels_cache_runtime.remote.split_location import Copy

_MOST_EPOCHS = 2**31


class _NoDataLoaderError(NielsCacheError, AttributeError):
    """An error that is an AttributeError, so that `hasattr(loader, "dataset")` returns False."""


class NotADataLoader:
    """The base class of TokenLoader. Its names exist in a DataLoader, and raise an error here."""

    @property
    def dataset(self) -> NoReturn:
        """A name that raises AttributeError, because a TokenLoader is not a DataLoader.

        The message has advice for those functions of Accelerate that need a DataLoader.
        """
        raise _NoDataLoaderError(
            "a TokenLoader is not a DataLoader: accelerator.prepare takes the TokenLoader itself, skip_first_batches takes "
            "DataLoader(loader, batch_size=None)"
        )

    def set_epoch(self, epoch: int) -> NoReturn:
        """Raise NielsCacheError: a loader begins its next epoch by itself.

        Accelerate calls this method before the first batch of a DataLoader that Accelerate has prepared. Such a DataLoader would divide the
        batches of process 0 among all processes, or would read ahead of the loader's position.
        """
        raise NielsCacheError(
            "set_epoch: a TokenLoader begins its next epoch by itself; if accelerator.prepare was given a DataLoader of it, that would "
            "divide this rank's batches again or read ahead of its position: make the TokenLoader with rank=accelerator.process_index, "
            "world_size=accelerator.num_processes, device=accelerator.device and pass it to prepare itself"
        )


class TokenLoader(NotADataLoader, NamesArguments, IterableDataset[Batch]):
    """Batches of rows of T tokens, from one split or a blend of several splits, with each sample exactly once per epoch.

    Iteration starts at the loader's position, which moves with every batch. Whole SFT examples are packed into rows. Preference pairs come
    as a PreferenceBatch.

    Under a DataLoader (`batch_size=None`), each worker prepares whole batches in turn, and the order is the same for any number of workers.
    There, the position moves only in the workers: see `state_dict`. A DataLoader that is iterated once per epoch needs
    `persistent_workers=True`, because new workers would start at the main process's position again.

    Args:
        sources: The folder of a data set, such as `cache/pretrain/wikitext`, or of a split, such as `cache/pretrain/wikitext/train`, or a
            mapping of names to such folders. An address, such as `s3://bucket/prefix`, needs `remote`. If names follow, the cache root.
        *names: The names of data sets in the cache root, pretrain or SFT: `TokenLoader("cache", "wikitext", ...)`.
        T: Tokens per row.
        B: Rows per batch on each rank.
        seed: The seed of every order, 0 to 2**64 - 1.
        split: The split to read where a data set's folder is given, "train" or "val".
        epochs: The number of epochs in one iteration. After a source has been read `epochs` times, the iteration ends as soon as the next
            sample would come from this source. The next iteration continues from there. None means that iteration never ends.
        weights: A mapping of names to shares of the tokens (any positive numbers), or a schedule `[(first sample, weights), ...]` in which
            a weight may be 0. Required for several sources. After any number of samples, each source is less than one sample away from its
            share.
        shuffle: With False, each source is read in its own order.
        rank: The number of this process, 0 to world_size - 1.
        world_size: The number of processes that the global batch of B * world_size rows is divided among.
        device: The device of batches. Tokens travel to CUDA in the width of the shards, two or four bytes each, and are widened there.
        fields: Any of "document_ids", "position_ids", "cu_seqlens", "dataset_ids" and "weights"; see Batch. SFT batches always have the
            first three.
        sft: How to read SFT data sets, such as `SFT(loss_on="all", overflow="drop")`.
        order: "split" shuffles the windows of the whole split. `Blocks(shards=64, lanes=1)` shuffles those of a few shards at a time.
        remote: The local copy for sources that are addresses, such as `Copy(dir="/local/tokens", limit=200e9)`. Pretrain splits then need
            `order=Blocks(...)`. With `Copy(fetch="windows")`, a pretrain split needs no folder and any order is possible, but each row
            costs a request.
        stride: Tokens from the start of one window of a pretrain stream to the start of the next. None means T. Windows cross shards.
        drop_last: Whether to drop the smaller batch that a pass may end with. If this batch is kept, its rows are divided evenly, and a
            rank may get no row. Set `drop_last` if all ranks must take equally many steps.
        on_exhausted: With "raise", a pass ends with an error, for a run that must not read a source more than `epochs` times.
        mask_cross_document_targets: Whether `y_masked` hides every target that belongs to a different document than its input.
        packing: With "best_fit" or `BestFit(...)`, rows of pretrain splits hold whole documents instead of windows of the stream. Documents
            of more than T+1 tokens are cut into as few pieces as possible. Batches have the fields that SFT batches have.
        max_documents: The most documents of a row, so that `cu_seqlens` has the same shape in every batch. Packed rows get no more. A
            window of a stream with more is an error. Not for SFT.
        cp_rank: The number of this process among those that share each row (context parallelism), 0 to cp_size - 1. Those of a group have
            the same `rank`.
        cp_size: How many processes share each row. Each has the parts `cp_rank` and 2 * cp_size - 1 - cp_rank of the 2 * cp_size parts of
            each document. Needs `BestFit(pad_documents_to=p)` with a multiple p of 2 * cp_size. A run may change it.
        fim: With `FIM(...)`, a share of the documents in packed rows is rearranged to fill in the middle. Needs `packing`. It changes the
            rows, and a run cannot change it.
        loss_weights: The weights of the targets of sources, such as `{"code": 0.5}`: 0, or 0.000001 to 1000000. The others have weight 1.
        goldfish: (k, h): leave out about one target in k, chosen by the h tokens before it in its document. So the same token after the
            same tokens is left out in every row, epoch and run, with any seed, T and number of ranks.
        mask_repetitive: (period, times): give weight 0 to each row that repeats the same 1 to `period` tokens `times` times or more in
            succession. OLMo-core uses (13, 32).
        prefetch: The number of batches that a thread prepares ahead. None means 1 for CUDA and 0 otherwise. DataLoader workers do not use
            it.
        verify: "size" compares file sizes with meta.json. "sha256" also reads every file of these splits once and compares its content.

    Attributes:
        names: The names of the sources, in order.
        device: The device of batches, a torch.device.

    Raises:
        NielsCacheError: For a missing or damaged cache, a T larger than a split, unknown or missing names in the weights, caches of
            different tokenizers, and settings out of range.
    """

    def __init__(
        self,
        sources: str | Mapping[str, str],
        *names: str,
        T: int,
        B: int,
        seed: int,
        split: Split = "train",
        epochs: int | None = None,
        weights: Mapping[str, float] | Sequence[tuple[int, Mapping[str, float]]] | None = None,
        shuffle: bool = True,
        rank: int = 0,
        world_size: int = 1,
        device: str | torch.device = "cpu",
        fields: Collection[str] = (),
        sft: SFT = SFT(),  # noqa: B008  it is frozen
        order: Literal["split"] | Blocks = "split",
        remote: Copy | None = None,
        stride: int | None = None,
        drop_last: bool = False,
        on_exhausted: Literal["stop", "raise"] = "stop",
        mask_cross_document_targets: bool = False,
        packing: Literal["best_fit"] | BestFit | None = None,
        max_documents: int | None = None,
        cp_rank: int = 0,
        cp_size: int = 1,
        fim: FIM | None = None,
        loss_weights: Mapping[str, float] | None = None,
        goldfish: tuple[int, int] | None = None,
        mask_repetitive: tuple[int, int] | None = None,
        prefetch: int | None = None,
        verify: Verify = "size",
    ) -> None:
        arguments = locals()  # so that only this signature lists them
        opener = Sources(find_sources(sources, names), split=split, remote=remote, order=order)
        settings = LoaderSettings.checked(opener.folders, arguments)
        self.names = tuple(opener.folders)
        self.T, self.B, self.rank, self.world_size = settings.T, settings.B, settings.rank, settings.world_size
        self.device = resolve_device(device)
        self._prefetch = check_whole("prefetch", int(self.device.type == "cuda") if prefetch is None else prefetch)
        self._sources = opener.open(settings, verify=verify)
        check_one_tokenizer(self._sources)
        pairs = have_pairs(self._sources, packing=settings.sft.packing)
        self._settings = settings = replace(settings, pairs=pairs)
        if settings.packing and not self._packed:
            raise NielsCacheError("packing='best_fit': is for pretrain splits, and examples of SFT are always packed whole; leave it out")
        limits = [name for name in settings.plan_settings() if name not in ("bos_on_pieces", "fim")]
        if limits and (chats := [name for name, source in self._sources.items() if source.examples is not None]):
            raise NielsCacheError(f"{limits[0]}: is for pretrain splits, and {chats[0]} is SFT; leave one of them out")
        self._averages = {name: [source.tokens, source.samples] for name, source in self._packed.items()}
        self._run_order = self._order_with(self._averages)
        self._sizes = BatchSizes(0, 0, self.B, self.world_size, settings.machines)
        self._start = Position(samples=0, step=0, pass_start=0, batches=(self._sizes,))
        self._taken = 0  # batches since `_start`
        self._iteration = 0  # number of the newest iterator; older iterators are stale
        self._worker: tuple[int, int, int] | None = None  # in a DataLoader's worker: worker id, number of workers, batches made
        self._resumed = False  # whether `_worker` was loaded from a state
        self._maker = make_maker(self._sources, settings, self.device)
        self._maker.check_boundaries()

    @classmethod
    def from_state(
        cls, state: State, sources: str | Mapping[str, str] | None = None, *, grown: bool = False, **changes: Any
    ) -> "TokenLoader":
        """Return a loader with the settings of a saved state, which continues at the saved position.

        Args:
            state: A state of `state_dict`.
            sources: The new folders of the caches, if they have moved. None means the folders of the state.
            grown: Whether pretrain caches may have grown; see `load_state_dict`.
            **changes: Keyword arguments of the constructor that are added to the saved settings or replace them, such as `rank`,
                `world_size`, `B`, `device` and `weights`. Blocks(...), BestFit(...) or SFT(...) replaces all saved settings of that group.

        Returns:
            The loader.

        Raises:
            NielsCacheError: For the reasons that the constructor and `load_state_dict` list.
        """
        folders, settings = arguments_of_state(state, sources, changes)
        loader = cls(folders, **settings)
        loader.load_state_dict(state, grown=grown)
        return loader

    @property
    def position(self) -> Position:
        """The progress of the run."""
        return self._steps.advance(self._start, self._taken)

    @property
    def samples(self) -> int:
        """The number of samples taken so far, on all ranks."""
        return self.position.samples

    @property
    def step(self) -> int:
        """The number of batches taken so far, including those before a resume."""
        return self.position.step

    @property
    def samples_per_epoch(self) -> dict[str, int]:
        """The number of samples (rows) per epoch, for each source name."""
        return {name: source.samples for name, source in self._sources.items()}

    @property
    def metas(self) -> dict[str, Meta | None]:
        """The content of meta.json of each source, by name. None for a folder without one."""
        return {name: source.meta for name, source in self._sources.items()}

    @property
    def _title(self) -> str:
        sizes = f"T={self.T}, B={self.B}, rank {self.rank} of {self.world_size}, {self.device}"
        return f"{sizes}; step {self.step:,}, {self.samples:,} samples taken"

    @property
    def _contents(self) -> list[tuple[str, str]]:
        return [(name, f"{source.tokens:,} tokens in {source.samples:,} rows") for name, source in self._sources.items()]

    def __repr__(self) -> str:
        return f"TokenLoader({', '.join(map(': '.join, self._contents))}; {self._title})"

    def _repr_html_(self) -> str:
        return as_html(f"TokenLoader: {self._title}", self._contents)

    def __len__(self) -> int:
        """Return how many batches this rank has left in the pass.

        Raises:
            TypeError: For an endless loader.
        """
        count = self._steps.count(self.position)
        if count is None:
            raise TypeError("an endless TokenLoader has no length; give epochs=n for one that ends")
        return count

    def __length_hint__(self) -> int:
        """Warn of `list` and `tuple` of an endless loader, which fill the memory. Python asks for this hint if there is no length."""
        warnings.warn(
            "an endless TokenLoader fills the memory as a list; give epochs=1, or take some batches with itertools.islice", stacklevel=2
        )
        return 0

    def __getitem__(self, index: Any) -> NoReturn:
        """Refuse an index: batches come in order."""
        raise TypeError(f"a TokenLoader has no batch {index!r}; iterate over it, or take samples by number from as_dataset()")

    def begin_pass(self) -> bool:
        """Move to the start of the next pass if this pass has no batch left. Iterating to the end of a pass has the same effect.

        Returns:
            Whether the position moved.

        Raises:
            NielsCacheError: At the end of a pass, if `on_exhausted` is "raise".
        """
        if self._steps.count(self.position) != 0:
            return False
        self._end_pass()
        return True

    def __iter__(self) -> Iterator[Batch]:
        worker = get_worker_info()
        self._iteration += 1
        return self._iterate(self._iteration) if worker is None else self._iterate_in_worker(worker.id, worker.num_workers)

    def state_dict(self, *, steps: int | None = None) -> State:
        """Return the position, and the settings and sources that it depends on, as JSON-able values.

        Args:
            steps: The number of batches to add to the loader's own position; None adds nothing. Under a DataLoader with workers, the loader
                of the main process does not move, and only the training loop knows how many batches it took. Give that number, and include
                the batches of finished passes.

        Returns:
            A small dict, for `from_state` and `load_state_dict`.

        Raises:
            NielsCacheError: If `steps` is not a whole number of at least 0.
        """
        position = self.position
        if steps is not None:
            position = self._steps.advance(position, check_whole("steps", steps))
        state = make_state(
            position, settings=self._settings.state_settings(), weights=self._settings.weights, sources=self._source_states()
        )
        return state if self._worker is None else state | {"worker": list(self._worker)}

    def load_state_dict(self, state: State, *, allow_changed: Collection[str] = (), grown: bool = False) -> None:
        """Continue where `state` was saved: the next batches are those of an uninterrupted run.

        B, world_size, machines, rank, cp_rank, cp_size, device, fields, the folders of the caches, and the weights and masks of targets may
        differ from the saved run. The weights of a blend may differ from the saved position on.

        Args:
            state: A state of `state_dict`.
            allow_changed: Names of sources whose files may have changed since the state was saved.
            grown: Whether pretrain caches may have grown by added files since then. The epoch that had begun ends with the samples of the
                old cache, in their order, and the next epoch has all samples. This reads the document ends of a grown cache once.

        Raises:
            NielsCacheError: If the state is invalid, or if a cache is missing or changed.
            NielsCacheError: If a setting that decides the samples differs, or if the sources come in a different order.
        """
        check_form(state)
        state = before_tombstones(state, self._sources)
        position = read_position(state)
        check_settings(state, self._settings.sample_settings())
        allowed = (allow_changed,) if isinstance(allow_changed, str) else tuple(allow_changed)
        for name in allowed:
            check_choice("allow_changed", name, self.names)
        averages = self._averages | {name: [*map(int, saved["average"])] for name, saved in state["sources"].items() if "average" in saved}
        run_order = self._run_order.grown({}) if averages == self._averages else self._order_with(averages)
        phases = resumed_phases(state, self._sources, run_order.blend.counts(position.samples).tolist(), grown=grown)
        check_sources(state, self._source_states(), allow_changed={*allowed, *phases})
        check_order(state, self.names)
        check_weights(state, self._sources, run_order, self._settings, averages, allow_changed=bool(allowed))
        worker, here = state.get("worker"), get_worker_info()
        check_worker(state, position, here=None if here is None else (here.id, here.num_workers), sizes=self._sizes)
        found = []
        for name, source in self._packed.items():
            own, saved = phases.get(name, ((0, source.samples),)), state["sources"].get(name, {})
            earlier = earlier_epochs(own, saved.get("documents", ()))
            found.append((source, earlier, source.earlier_plans(earlier, [samples for _, samples in own[:-1]])))
        for source, earlier, plans in found:  # from here on, nothing raises
            source.use_earlier(earlier, plans)
        self._averages, self._run_order = averages, run_order.grown(phases, self._blocks())
        position = position.resized(self._sizes)
        end = self._steps.end(position)
        if end is not None and end < position.samples:  # `epochs` or a source's length has changed: a new pass begins here
            position = replace(position, pass_start=position.samples)
        self._start, self._taken = position, 0
        self._worker = None if worker is None else (int(worker[0]), int(worker[1]), int(worker[2]))
        self._resumed = worker is not None
        self._iteration += 1

    def trace(
        self, step: int, row: int | None = None, column: int | None = None, *, rank: int | None = None, side: Side | None = None
    ) -> BatchTrace | TokenOrigin:
        """Return the origin of every token in a batch of this run, or of one token.

        Column c of a row is `x[:, c]` and `y[:, c - 1]`. With context parallelism, these are the columns of whole rows.

        Args:
            step: Any step of the run, counted as in `self.step`, with the batch size of that step.
            row: The row of one token. None means 0 if `column` is given, and all rows otherwise.
            column: The column of one token, 0 to T. None means 0 if `row` is given, and all columns otherwise.
            rank: The rank whose batch is traced. None means this rank.
            side: For preference pairs, the side, "chosen" or "rejected". None means the chosen side.

        Returns:
            A BatchTrace, or with `row` or `column` the TokenOrigin of that one token.

        Raises:
            NielsCacheError: For a step, row, column or rank that does not exist.
        """
        number = check_whole("step", step)
        rank = self.rank if rank is None else check_whole("rank", rank)
        samples = self._steps.find(self.position, number, rank=rank)
        if not len(samples):
            raise NielsCacheError(f"step={number}: the last batch of a pass, with no row for rank {rank}")
        located = self._run_order.locate(samples)
        found = trace_samples(self._sources, step=number, samples=samples, located=located, side=side)
        return found if row is None and column is None else found.token(row or 0, column or 0)

    def find(self, document: int, *, source: str | None = None, epoch: int = 0) -> list[tuple[int | None, int]]:
        """Return the rows of an epoch that hold tokens of a document.

        Args:
            document: The number of the document, example or pair in its split, counted from 0.
            source: The name of the source. It may be left out if there is only one.
            epoch: The epoch of the source, counted from 0.

        Returns:
            For each row, the number of the sample in the run, and the first column that the document has. The number is None if the weights
            exclude the source before it comes there. In packed rows, a document of one token has no row.

        Raises:
            NielsCacheError: For an unknown source, and for a document that it does not have.
        """
        name, wanted = self._wanted(source, [document])
        epoch = check_whole("epoch", epoch, most=_MOST_EPOCHS)
        found = of_epoch(self._sources[name], epoch).samples_of(wanted.documents, epoch=epoch)
        samples = self._run_order.samples_of(name, epoch, found.numbers).tolist()
        return [(None if sample < 0 else sample, column) for sample, column in zip(samples, found.firsts.tolist(), strict=True)]

    def steps_of(
        self, documents: Documents, *, source: str | None = None, until: int | None = None, side: Side | None = None
    ) -> DocumentSteps:
        """Return the steps, ranks and rows that hold tokens of documents, in all epochs so far, and where each comes next.

        This is `trace` backwards: an entry for each row of which `trace` says that it has a token of the document, be it only as a target.
        No token is read, so entries are exact also for a cache whose shards are elsewhere, but for one thing: a document that `fim` does
        not rearrange because its text has a sentinel ends three columns earlier than said here.

        Args:
            documents: The numbers of documents, examples or pairs in their split, counted from 0. With (number, start, end), only the
                tokens start to end - 1 count, from the start of the document, example or side.
            source: The name of the source. It may be left out if there is only one.
            until: The number of steps that count as read, which may be later than the loader's. None means `step`.
            side: For preference pairs, the side whose columns are given; see `trace`.

        Returns:
            The rows before `until`, and the next one of each document.

        Raises:
            NielsCacheError: For an unknown source, a document that it does not have, a split without document ends, and for a step after
                the end of the run.
        """
        name, wanted = self._wanted(source, documents)
        return find_steps(
            name,
            side_of(self._sources[name], side),
            wanted,
            run_order=self._run_order,
            steps=self._steps,
            position=self.position,
            until=self.step if until is None else check_whole("until", until),
        )

    def _wanted(self, source: str | None, documents: Documents) -> tuple[str, Wanted]:
        """Return the name of the source, and the tokens of documents that are wanted."""
        name = source or (self.names[0] if len(self.names) == 1 else "")
        if name not in self._sources:
            raise NielsCacheError(f"source={source!r}: must be one of {', '.join(self.names)}")
        return name, Wanted.checked(documents)

    def report(self, steps: int) -> MixtureReport:
        """Return a printable report of the next steps: configured and actual shares, epochs and repetitions of every source.

        Args:
            steps: The number of steps, at least 1.

        Returns:
            The report. No token is read. What `goldfish` and `mask_repetitive` mask is counted as batches are made, in this process.

        Raises:
            NielsCacheError: If `steps` is not a positive whole number.
        """
        first = self.samples
        last = first + check_positive("steps", steps) * self.B * self.world_size
        weights = self._maker.weights
        return make_report(self._sources, self._run_order, first=first, last=last, settings=self._settings, target_weights=weights)

    def block_visits(self) -> Iterator[BlockVisit]:
        """Yield the blocks that this rank's machine reads from the loader's position on, in the order in which it first needs them.

        Yields:
            The visits, without end. Those with `first` <= `samples` are needed now.

        Raises:
            NielsCacheError: Unless the order is in blocks.
        """
        return self._visits_of(self.names)

    @property
    def _packed(self) -> dict[str, PackedDocuments]:
        return {name: source for name, source in self._sources.items() if isinstance(source, PackedDocuments)}

    def _blocks(self) -> list[SourceBlocks] | None:
        order = self._settings.order
        return [source.blocks(order.shards) for source in self._sources.values()] if order else None

    def _order_with(self, averages: Averages) -> RunOrder:
        settings = self._settings
        return RunOrder(
            self.samples_per_epoch,
            schedule=row_weights(self._sources, settings, averages),
            seed=settings.seed,
            shuffle=settings.shuffle,
            blocks=self._blocks(),
            lanes=settings.lanes,
            copies={name: [each.samples for each in (own, *own.copies)] for name, own in self._sources.items() if own.copies},
        )

    def _visits_of(self, names: Collection[str]) -> Iterator[BlockVisit]:
        machines = self._settings.machines
        return self._run_order.visits(names, self.samples, machine=self.rank // (self.world_size // machines), machines=machines)

    def as_dataset(self, samples: int | None = None) -> SampleDataset:
        """Return a map-style Dataset of single rows: item k is sample k of this run, counted from 0 over all ranks.

        Args:
            samples: The length of the dataset. If it is None and there is one source, the length is one epoch. If it is None and there are
                several sources, the dataset ends when the first source has been read once.

        Returns:
            The dataset.

        Raises:
            NielsCacheError: If `samples` is not a positive whole number.
        """
        length = self._run_order.end_of_pass(0, epochs=1)[0] if samples is None else check_positive("samples", samples)
        return SampleDataset(make_maker(self._sources, self._settings, torch.device("cpu")), self._run_order, length)

    def _iterate(self, iteration: int) -> Iterator[Batch]:
        self._check_newest(iteration)
        batches = self._batches(self.position)
        for batch in prefetched_batches(batches, device=self.device, ahead=self._prefetch) if self._prefetch else batches:
            self._taken += 1
            yield batch
            self._check_newest(iteration)
        self._end_pass()

    def _check_newest(self, iteration: int) -> None:
        if iteration != self._iteration:
            raise NielsCacheError("this iterator is stale: the loader was iterated again or given another state; use the newest iterator")

    def _iterate_in_worker(self, worker: int, workers: int) -> Iterator[Batch]:
        """Begin the pass now and not at the first batch, because torchdata saves the state of a worker before that batch too."""
        is_new_pass = self._worker is not None and not self._resumed
        if is_new_pass:  # a persistent worker's next pass, even if its last pass was not read to the end
            self._start = self._steps.next_pass(self._start)
            self._worker = None
        done = self._worker[2] if self._worker else 0
        self._worker, self._resumed = (worker, workers, done), False
        return self._share_of_worker(worker, workers, done, is_again=is_new_pass)

    def _share_of_worker(self, worker: int, workers: int, done: int, *, is_again: bool) -> Iterator[Batch]:
        check_in_worker(self.device, is_again=is_again and not self._settings.epochs)
        for batch in self._batches(self._start, worker=worker, workers=workers, done=done):
            done += 1
            self._worker = (worker, workers, done)
            yield batch
        self._raise_if_exhausted()

    def _batches(self, position: Position, *, worker: int = 0, workers: int = 1, done: int = 0) -> Iterator[Batch]:
        """Return the batches of one worker from a position to the end of the pass, with a feed if any source is in a local copy.

        Args:
            position: The position.
            worker: The number of the worker; see `plan_batches`.
            workers: The number of workers.
            done: The number of batches that the worker has made.
        """
        plan = plan_batches(self._run_order, self._steps, position, worker=worker, workers=workers, done=done, prepare=self._prepare)
        copied = [name for name, source in self._sources.items() if isinstance(source, PretrainWindows) and source.is_copied]
        if not copied:
            return map(self._maker.make, plan)
        from niels_cache_runtime.loader.remote.feed import BlockFeed

        rows = position.sizes.rows
        first, end = position.samples + (worker + done * workers) * rows, self._steps.end(position)
        visits = self._visits_of(copied)
        feed = BlockFeed(self._sources, visits, self._maker.make, self._settings, end=end, first=first, step=workers * rows)
        return feed.batches(plan)

    def _prepare(self, located: SampleLocations) -> None:
        for source, epoch, places in located.groups() if self._packed else ():
            if (packed := self._packed.get(self.names[source])) is not None:
                of_epoch(packed, epoch).prepare(located.numbers[places], epoch=epoch)

    @property
    def _steps(self) -> Steps:
        """The steps of this rank, in the present order of the run."""
        run_order, epochs = self._run_order, self._settings.epochs
        end = (lambda start: run_order.end_of_pass(start, epochs=epochs)[0]) if epochs else None
        once = self._settings.on_exhausted == "raise"
        return Steps(rank=self.rank, drop_last=self._settings.drop_last, end_of_pass=end, once=once)

    def _end_pass(self) -> None:
        self._raise_if_exhausted()
        self._start, self._taken = self._steps.next_pass(self.position), 0

    def _raise_if_exhausted(self) -> None:
        if self._settings.on_exhausted == "raise":
            end, name = self._run_order.end_of_pass(self._start.pass_start, epochs=self._settings.epochs or 1)
            raise NielsCacheError(
                f"{name}: read {self._settings.epochs} times, exhausted at sample {end} of the run (on_exhausted='raise')"
            )

    def _source_states(self) -> dict[str, State]:
        return {
            name: {"folder": source.folder, "fingerprint": source.fingerprint, "samples": source.samples}
            | self._run_order.state_entry(name)
            | ({"documents": self._packed[name].documents, "average": self._averages[name]} if name in self._packed else {})
            for name, source in self._sources.items()
        }

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_maker"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._maker = make_maker(self._sources, self._settings, self.device)
