"""Batches for training, made of rows from one or several sources.

Tokens are read source by source, put into one array of the widest dtype among them, and widened once on the device. This costs one gather
(one indexed read) for each source in the batch. The loader chooses the samples of a batch.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn, Self

import numpy as np
import torch
from torch.utils.data._utils.collate import default_collate_fn_map

from niels_cache_runtime.cache.gather import InputTargetMaker, to_device
from niels_cache_runtime.errors import NielsCacheError, did_you_mean
from niels_cache_runtime.format.layout import IGNORE_INDEX, TOKEN_DTYPE, Array, Int32s, Ints, tombstone_id
from niels_cache_runtime.loader.documents import (
    cross_document_targets,
    cu_seqlens,
    document_ids,
    fill_cu_seqlens,
    max_seqlen,
    places_of_cp_rank,
    position_ids,
)
from niels_cache_runtime.loader.run_order import SampleLocations
from niels_cache_runtime.loader.source import DocumentStarts, Heads, SampleRows, SampleSource, of_epoch
from niels_cache_runtime.loader.target_weights import TargetWeights

FIELDS = ("document_ids", "position_ids", "cu_seqlens", "dataset_ids", "weights")
_OF_INPUTS = ("x", "y", "y_masked", "document_ids", "position_ids", "weights")  # one value for each input
_WITHOUT_DOCUMENTS = {"dataset_ids", "weights"}  # the fields that do not need the boundaries of documents


class TensorFields:
    """A base of dataclasses whose fields are tensors, or again such dataclasses, or other values.

    `batch["x"]` is `batch.x`, and raises KeyError where `batch.x` would be None.
    """

    def to(self, device: str | torch.device, *, non_blocking: bool = False) -> Self:
        """Return the batch with every tensor on another device.

        Args:
            device: The device.
            non_blocking: Whether a copy from pinned memory to CUDA need not wait, as for `torch.Tensor.to`.
        """
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Self:
        """Return the batch in pinned memory. `DataLoader(pin_memory=True)` calls this."""
        return self._map(lambda tensor: tensor.pin_memory())

    def tensors(self) -> Iterator[torch.Tensor]:
        """Yield every tensor of the batch."""
        for value in vars(self).values():
            if isinstance(value, TensorFields):
                yield from value.tensors()
            elif isinstance(value, torch.Tensor):
                yield value

    def _ipython_key_completions_(self) -> list[str]:  # the names that `batch[...]` takes
        present = [name for name, value in vars(self).items() if value is not None]
        return [*present, *(name for name, value in vars(type(self)).items() if isinstance(value, property))]

    def __contains__(self, name: str) -> bool:
        return name in self._ipython_key_completions_()

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name) if name in self else self._raise_missing(name, KeyError)

    def __getattr__(self, name: str) -> NoReturn:  # only for names that do not exist
        if name.startswith("_"):  # pickle, torch and notebooks look such names up, before there are fields too
            raise AttributeError(name)
        self._raise_missing(name, AttributeError)

    def _raise_missing(self, name: str, error: type[Exception]) -> NoReturn:
        names = self._ipython_key_completions_()
        hint = f"request it: TokenLoader(..., fields=[{name!r}])" if name in FIELDS else did_you_mean(name, names, f"it has {names}")
        raise error(f"this {type(self).__name__} has no {name!r}; {hint}")

    def __repr__(self) -> str:
        present = [(name, value) for name, value in vars(self).items() if value is not None]
        fields = [f"{name}: {tuple(value.shape) if isinstance(value, torch.Tensor) else value}" for name, value in present]
        return f"{type(self).__name__}({', '.join(fields)}, on {next(self.tensors()).device})"

    def _map(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Self:
        def changed(value: Any) -> Any:
            if isinstance(value, TensorFields):
                return value._map(change)
            return change(value) if isinstance(value, torch.Tensor) else value

        return type(self)(**{name: changed(value) for name, value in vars(self).items()})


def _refuse_to_collate(batches: Sequence[TensorFields], *, collate_fn_map: object = None) -> NoReturn:
    """Raise NielsCacheError. A DataLoader calls this if it has a batch_size; its default is 1."""
    raise NielsCacheError(
        f"DataLoader(batch_size={len(batches)}): a TokenLoader gives whole batches already; write DataLoader(loader, batch_size=None), "
        "and give TokenLoader the rows of a batch as B"
    )


default_collate_fn_map[TensorFields] = _refuse_to_collate


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Batch(TensorFields):
    """B rows of T tokens on one device. Fields that were not requested are None.

    `x, y = batch` gives the inputs, and the targets for the loss: `y_masked` if it is present, `y` otherwise.

    With context parallelism, the fields (B, T) have the T / cp_size columns of this rank, and `cu_seqlens` and its like are of whole rows.

    Attributes:
        x: The inputs, (B, T) int64, contiguous.
        y: The targets, (B, T) int64, contiguous: `y[:, :-1] == x[:, 1:]`.
        y_masked: (B, T) int64, `y` with -100 at targets to ignore. Present for SFT, with weights, with a mask, and if
            documents of a source were struck (`niels-cache erase --tombstone`).
        document_ids: (B, T) int32, the number of each input's document: 0, 1, 2, ... from the first document of the row. Padding counts as
            a document.
        position_ids: (B, T) int32, the position of each input in its document. If the document began before the row, positions count from
            the start of the row.
        cu_seqlens: (documents + 1,) int32, the start of each document among the B * T flattened inputs, and then B * T. flash-attention's
            varlen functions take `cu_seqlens` and `max_seqlen` in this form. With `max_documents`, the last value is repeated up to the
            shape (B * max_documents + 1,). With `pad_documents_to`, padding is not counted: see `cu_seqlens_padded`.
        max_seqlen: The number of tokens of the longest document in the batch. It comes with `cu_seqlens`. With `max_documents`, it is T.
        cu_seqlens_padded: With `pad_documents_to`, `cu_seqlens` with padding, which is where each document begins. Attention that knows no
            padding takes it in place of `cu_seqlens`. On a rank of context parallelism, documents begin at `cu_seqlens_padded // cp_size`.
        dataset_ids: (B,) int64, the index of each row's source in the loader's `names`.
        weights: (B, T) float32, the weight of each target in the loss. It is 0 exactly where `y_masked` is -100.
    """

    x: torch.Tensor
    y: torch.Tensor
    y_masked: torch.Tensor | None = None
    document_ids: torch.Tensor | None = None
    position_ids: torch.Tensor | None = None
    cu_seqlens: torch.Tensor | None = None
    max_seqlen: int | None = None
    cu_seqlens_padded: torch.Tensor | None = None
    dataset_ids: torch.Tensor | None = None
    weights: torch.Tensor | None = None

    def __iter__(self) -> Iterator[torch.Tensor]:
        yield self.x
        yield self.y if self.y_masked is None else self.y_masked

    @property
    def input_ids(self) -> torch.Tensor:
        """The inputs under their name in transformers: `x`."""
        return self.x

    @property
    def labels(self) -> torch.Tensor:
        """The targets as the models of transformers take them, (B, T) int64: column c belongs to the input of column c, not to the next.

        These models compare the output of column c with the label of column c + 1. So `labels` are `x`, with -100 where the token is no
        target of `y_masked`. The target of the last column has no label: a row of T tokens has T - 1 targets. With `stride=T-1`, the next
        window of a pretrain stream begins with this token, and no target is lost.

        Raises:
            NielsCacheError: With context parallelism, because the next token may be on another rank.
        """
        if self.cu_seqlens_padded is not None and len(self.x) and int(self.cu_seqlens_padded[-1]) != self.x.numel():
            raise NielsCacheError("labels: this rank of context parallelism has a part of each document; pass y_masked as shift_labels")
        if self.y_masked is None:
            return self.x
        return torch.nn.functional.pad(self.y_masked[:, :-1], (1, 0), value=IGNORE_INDEX)


class BatchMaker:
    """A maker of batches: it reads samples from sources and puts their tokens onto a device.

    Args:
        sources: The sources.
        T: Tokens per row.
        device: The device.
        fields: The optional fields to make.
        mask_cross_document_targets: Whether to mask the first target of each document.
        weights: The weights of targets, or None if all that are not masked have weight 1.
        max_documents: The most documents of a row, or None if `cu_seqlens` has any length.
        cp: The rank and the size of context parallelism.
    """

    def __init__(
        self,
        sources: Sequence[SampleSource],
        *,
        T: int,
        device: torch.device,
        fields: Sequence[str],
        mask_cross_document_targets: bool,
        weights: TargetWeights | None = None,
        max_documents: int | None = None,
        cp: tuple[int, int] = (0, 1),
    ) -> None:
        self._sources = sources
        self._T = T
        self._device = device
        self._packs = any(source.packs for source in sources)
        self._max_documents, (self._cp_rank, self._cp_size) = max_documents, cp
        self._fields = frozenset(fields) | ({"document_ids", "position_ids", "cu_seqlens"} if self._packs else set())
        self._fields |= {"cu_seqlens"} if max_documents else set()
        self._mask_cross = mask_cross_document_targets
        self.weights = weights
        of_weights = weights is not None and weights.needs_documents
        self._boundaries = mask_cross_document_targets or of_weights or bool(self._fields - _WITHOUT_DOCUMENTS)
        self._pairs = InputTargetMaker(device)
        ids = [tombstone_id(source.meta) for source in sources]
        self._tombstones = np.array([-1 if id is None else id for id in ids]) if ids != [None] * len(ids) else None

    def check_boundaries(self) -> None:
        """Raise NielsCacheError if documents are requested but a source has no list of documents.

        Without this check, the first batch would raise the error.
        """
        for source in self._sources:
            if self._boundaries and not source.packs:
                source.read(np.zeros(1, dtype=np.int64), epoch=0, boundaries=True)

    def make(self, located: SampleLocations) -> Batch:
        """Return a batch of the samples at `located` (n,): one row for each sample, in the same order."""
        rows = self._read(located)
        n = len(located)
        x, y = self._pairs.pairs(rows.tokens)
        optional: dict[str, Any] = {}
        if rows.ignored is not None and self.weights is None and self._tombstones is None:  # now, while the tokens are in the CPU's cache
            optional["y_masked"] = self._pairs.ignoring(y, rows.tokens, rows.ignored)
        if "dataset_ids" in self._fields:
            optional["dataset_ids"] = self._send(located.sources.copy())
        boundaries, places = rows.boundaries, None
        if boundaries is not None and self._fields - _WITHOUT_DOCUMENTS:
            cu = cu_seqlens(boundaries, rows=n, T=self._T)
            optional |= self._document_fields(cu, boundaries, rows.padding, n)
            if self._cp_size > 1:
                places = places_of_cp_rank(cu, cp_rank=self._cp_rank, cp_size=self._cp_size).reshape(n, self._T // self._cp_size)
        targets = rows.targets
        if rows.ignored is not None:  # first tokens of documents are among them
            if "y_masked" not in optional:
                targets = np.ones((n, self._T), dtype=np.bool_)
                targets.reshape(-1)[rows.ignored] = False
        elif self._mask_cross and boundaries is not None:
            within = ~cross_document_targets(boundaries, rows=n, T=self._T)
            targets = within if targets is None else targets & within
        elif targets is None and self._packs:  # only pretrain rows are here, but some sources are packed: all targets count
            targets = np.ones((n, self._T), dtype=np.bool_)
        if self._tombstones is not None:
            stay = rows.tokens[:, 1:] != self._tombstones[located.sources][:, None]
            targets = stay if targets is None else targets & stay
        if self.weights is not None:
            weights = self.weights.weigh(rows, targets, located.sources)
            targets = weights > 0
            if "weights" in self._fields:
                optional["weights"] = self._send(weights)
        if targets is not None:
            if self._device.type == "cpu":  # numpy on the calling thread: see cache/gather.py
                optional["y_masked"] = torch.from_numpy(np.where(targets, y.numpy(), IGNORE_INDEX))
            else:
                optional["y_masked"] = torch.where(self._send(targets), y, IGNORE_INDEX)
        optional |= {"x": x, "y": y}
        if places is not None:
            own = self._send(places)
            optional |= {name: self._take(optional[name], own) for name in _OF_INPUTS if name in optional}
        return Batch(**optional)

    def _take(self, values: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        if self._device.type == "cpu":  # numpy on the calling thread: see cache/gather.py
            return torch.from_numpy(values.numpy().take(places.numpy()))
        return values.take(places)

    def _document_fields(self, cu: Int32s, boundaries: DocumentStarts, padding: Ints | None, n: int) -> dict[str, Any]:
        tensors: dict[str, Any] = {}
        for name, make in (("document_ids", document_ids), ("position_ids", position_ids)):
            if name in self._fields:
                tensors[name] = self._send(make(cu, rows=n, T=self._T))
        if "cu_seqlens" in self._fields:
            tensors["max_seqlen"] = self._T if self._max_documents else max_seqlen(cu)
            if self._max_documents:
                cu = fill_cu_seqlens(cu, boundaries, rows=n, most=self._max_documents)
            if padding is not None:
                tensors["cu_seqlens_padded"] = self._send(cu)
                cu = cu - padding.searchsorted(cu).astype(np.int32)
            tensors["cu_seqlens"] = self._send(cu)
        return tensors

    def _send(self, array: Array) -> torch.Tensor:
        return to_device(array, self._device)

    def _read(self, located: SampleLocations) -> SampleRows:
        """Read the rows at `located`, with one read for each pair of source and epoch. Return the rows in the order of `located`."""
        if located.same is not None:
            source, epoch = located.same
            return of_epoch(self._sources[source], epoch).read(located.numbers, epoch=epoch, boundaries=self._boundaries)
        n, groups = len(located), list(located.groups())
        parts = [
            (places, of_epoch(self._sources[source], epoch).read(located.numbers[places], epoch=epoch, boundaries=self._boundaries))
            for source, epoch, places in groups
        ]
        tokens = np.empty((n, self._T + 1), dtype=np.result_type(TOKEN_DTYPE, *(rows.tokens.dtype for _, rows in parts)))
        targets = np.ones((n, self._T), dtype=np.bool_) if self._packs else None
        weights = np.ones((n, self._T), dtype=np.float32) if any(rows.weights is not None for _, rows in parts) else None
        filled = np.full(n, self._T + 1) if self._packs else None
        continues = np.zeros(n, dtype=np.bool_)
        starts: list[tuple[Ints, Ints]] = []
        paddings: list[Ints] = []
        heads: list[Heads] = []
        for places, rows in parts:
            tokens[places] = rows.tokens
            for of_all, own in ((targets, rows.targets), (weights, rows.weights), (filled, rows.filled)):
                if of_all is not None and own is not None:
                    of_all[places] = own
            if targets is not None and rows.ignored is not None:
                row, column = np.divmod(rows.ignored, self._T)
                targets[places[row], column] = False
            if rows.padding is not None:
                row, column = np.divmod(rows.padding, self._T)
                paddings.append(places[row] * self._T + column)
            if rows.boundaries is not None:
                continues[places] = rows.boundaries.continues
                starts.append((places[rows.boundaries.rows], rows.boundaries.columns))
            if rows.heads is not None:
                heads.append(replace(rows.heads, rows=places[rows.heads.rows]))
        boundaries = None
        if self._boundaries:
            row, column = (np.concatenate(each) for each in zip(*starts, strict=True))
            order = np.lexsort((column, row))
            boundaries = DocumentStarts(rows=row[order], columns=column[order], continues=continues)
        joined = Heads(**{name: np.concatenate([getattr(each, name) for each in heads]) for name in vars(heads[0])}) if heads else None
        padding = np.sort(np.concatenate(paddings)) if paddings else None
        return SampleRows(
            tokens=tokens, boundaries=boundaries, targets=targets, padding=padding, filled=filled, heads=joined, weights=weights
        )
