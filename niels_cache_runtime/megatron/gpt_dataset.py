"""Megatron-LM's GPTDataset: samples of a fixed length from the documents of an IndexedDataset or a cache, in Megatron's order.

    k --shuffle_index--> sample --sample_index--> first and last document, offsets --document_index--> sequences --map--> tokens

`[k]` equals sample k of megatron-core's GPTDataset without an attention mask: the tokens, labels, loss mask and position ids are the same.
(`create_attention_mask=False` is the recommended setting if the kernel makes its own mask.) There is one difference. If no mask depends on
the sample, megatron-core keeps the loss mask of the first sample that it reads, and applies it to all later samples, although it covers the
padding of the first sample. Here each sample has its own loss mask.

A sample costs a few microseconds, and more if it has many documents. A DataLoader reads whole batches (`__getitems__`). `gpt_indices`
describes the order.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from niels_cache_runtime.cache.checks import MAX_COUNT, check_index, check_whole
from niels_cache_runtime.cache.index_cache import Allocate, Arrays, IndexCache, new_array, open_arrays
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import Array, Bools, Int32s, Ints
from niels_cache_runtime.megatron.cache_split import Indexed
from niels_cache_runtime.megatron.gpt_indices import (
    INT32_MAX,
    Documents,
    OnArrayProgress,
    build_gpt_indices,
    check_gpt_indices,
)

Sample = dict[str, torch.Tensor]
NO_PAD = -1  # not a token id: Megatron pads with it if the tokenizer has no pad token


class IndexedSamples(Dataset[dict[str, Any]]):
    """Samples in the order of an index, which is built in memory or opened in an IndexCache.

    Attributes:
        index_names: The attributes of the subclass that are the arrays of the index. Arrays from a cache are opened again instead of
            pickled.
        index_directory: The folder of the index in the cache, or None if the index is in memory.
    """

    index_names: tuple[str, ...]
    index_directory: str | None = None

    def _open_index(
        self, kind: str, parameters: dict[str, Any], build: Callable[[Allocate], object], index_cache: IndexCache | None
    ) -> None:
        if index_cache is None:
            arrays: Arrays = {}
            build(lambda name, shape, dtype: arrays.setdefault(name, new_array(name, shape, dtype)))
        else:
            arrays = index_cache.open(kind, parameters, build)
            self.index_directory = str(index_cache.directory(kind, parameters))
        self._use(arrays)

    def _use(self, arrays: Arrays) -> None:
        for name in self.index_names:
            setattr(self, name, arrays[name])

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return sample `index`.

        Raises:
            IndexError: If the index is not between 0 and len - 1.
        """
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return the samples at `indices`. This is faster than one at a time."""
        raise NotImplementedError

    def __getstate__(self) -> dict[str, Any]:
        is_cached = self.index_directory is not None
        return {name: value for name, value in self.__dict__.items() if not (is_cached and name in self.index_names)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.index_directory is not None:
            self._use(open_arrays(self.index_directory))


class MegatronGPTDataset(IndexedSamples):
    """Samples of `sequence_length` tokens, in the order of Megatron-LM's GPTDataset.

    `[k]` is a dict of tensors of shape (sequence_length,): `tokens` and `labels` are int64, `loss_mask` is float32, `position_ids` is
    int64. Tokens and labels may share memory, and all samples share position_ids; a collated batch is a copy.

    Args:
        indexed: The sequences, an IndexedDataset or a MegatronCacheSplit.
        indices: The numbers of the sequences to use, for example from `split_ranges`. By default all sequences.
        num_samples: The least number of samples, over as many epochs as needed. None and 0 mean one epoch.
        sequence_length: The number of tokens in a sample.
        seed: The same as Megatron's `random_seed`.
        add_extra_token: The same as Megatron's `add_extra_token_to_sequence`.
        drop_last: Whether to leave out the last partial sample. For valid, the same as Megatron's `drop_last_partial_validation_sequence`.
        pad_token: The id that fills the last partial sample. Every token with this id, padding or not, becomes 0 in tokens and labels and
            is not in the loss. By default it is -1, which is no token's id.
        eod_token: The id of the token that ends a document. It is required for eod_mask_loss and reset_position_ids.
        eod_mask_loss: Whether to leave inputs that end a document out of the loss.
        reset_position_ids: Whether positions start again after an input that ends a document.
        index_cache: Where the indices are stored. With None, the default, they are built in memory and pickled together with the data set.
        progress: Called with (name of the array, done, total) while indices are built.

    Attributes:
        document_index: The documents of all epochs, (epochs * documents,) int32.
        sample_index: Where each sample begins, (n + 1, 2), as a position in document_index and an offset in tokens.
        shuffle_index: The order of the samples, (n,).

    Raises:
        NielsCacheError: If a setting is out of range, or if there are not enough tokens for a sample.
    """

    index_names = ("document_index", "sample_index", "shuffle_index")
    document_index: Int32s
    sample_index: Array
    shuffle_index: Array

    def __init__(
        self,
        indexed: Indexed,
        indices: Documents | None = None,
        *,
        num_samples: int | None,
        sequence_length: int,
        seed: int,
        add_extra_token: bool = True,
        drop_last: bool = True,
        pad_token: int = NO_PAD,
        eod_token: int | None = None,
        eod_mask_loss: bool = False,
        reset_position_ids: bool = False,
        index_cache: IndexCache | None = None,
        progress: OnArrayProgress | None = None,
    ) -> None:
        if eod_token is None and (eod_mask_loss or reset_position_ids):
            raise NielsCacheError("eod_mask_loss and reset_position_ids need eod_token, the id of the token at a document's end")
        # Convert to Python ints: numpy's integers are not JSON-able, and their products overflow.
        num_samples = None if num_samples is None else check_whole("num_samples", num_samples, most=MAX_COUNT) or None  # 0 means None
        sequence_length = check_whole("sequence_length", sequence_length, least=1, most=INT32_MAX - 1)  # Megatron's are int32
        seed = check_whole("seed", seed, most=2**32 - 1)  # of numpy's RandomState
        self.indexed = indexed
        self.sequence_length, self.add_extra_token = sequence_length, add_extra_token
        self.pad_token, self.eod_token = pad_token, eod_token
        self.eod_mask_loss, self.reset_position_ids = eod_mask_loss, reset_position_ids
        documents = range(len(indexed)) if indices is None else _checked_documents(indices)
        settings: dict[str, Any] = {
            "num_samples": num_samples,
            "sequence_length": sequence_length,
            "seed": seed,
            "add_extra_token": bool(add_extra_token),
            "drop_last": bool(drop_last),
        }
        parameters = {"data": indexed.fingerprint, "documents": _describe(documents), **settings}

        def build(allocate: Allocate) -> Arrays:
            return build_gpt_indices(indexed.sequence_lengths, documents, allocate=allocate, progress=progress, **settings)

        self._open_index("gpt", parameters, build, index_cache)

    def _use(self, arrays: Arrays) -> None:
        check_gpt_indices(arrays, self.index_directory or "the index")
        super()._use(arrays)
        self._position_ids = torch.arange(self.sequence_length)

    def __len__(self) -> int:
        """Return the number of samples, which is num_samples or more."""
        return len(self.shuffle_index)

    def __getitems__(self, indices: Sequence[int]) -> list[Sample]:
        """Return the samples at `indices`, in the order of `indices`. A DataLoader calls this method."""
        batch = self.read(indices)
        columns = [rows.unbind() for rows in batch.values()]
        return [dict(zip(batch, sample, strict=True)) for sample in zip(*columns, strict=True)]

    def read(self, indices: Sequence[int]) -> Sample:
        """Return the samples at `indices` as one dict of tensors, (len(indices), sequence_length). No collate function is needed."""
        rows, filled = self.read_tokens(indices)
        length = self.sequence_length
        if self.add_extra_token:
            tokens, labels = rows[:, :-1], rows[:, 1:]
        else:
            tokens, labels = rows, np.empty_like(rows)
            labels[:, :-1], labels[:, -1] = rows[:, 1:], self.pad_token
        loss_mask = np.ones((len(rows), length), dtype=np.float32)
        position_ids = self._position_ids.expand(len(rows), length)
        if self.eod_mask_loss:
            loss_mask[tokens == self.eod_token] = 0
        if self.reset_position_ids:
            position_ids = torch.from_numpy(positions_after(tokens == self.eod_token))
        if self.pad_token >= 0 or not self.add_extra_token or min(filled, default=rows.shape[1]) < rows.shape[1]:
            padded = labels == self.pad_token
            loss_mask[padded] = 0
            labels[padded] = 0  # padding needs an id with an embedding
            tokens[tokens == self.pad_token] = 0
        return {
            "tokens": torch.from_numpy(tokens),
            "labels": torch.from_numpy(labels),
            "loss_mask": torch.from_numpy(loss_mask),
            "position_ids": position_ids,
        }

    def read_tokens(self, indices: Sequence[int]) -> tuple[Ints, list[int]]:
        """Return the tokens of the samples at `indices`, and the length of each row without padding.

        The tokens are int64 of shape (len(indices), sequence_length + a), where a is 1 with the extra token, otherwise 0.
        """
        # Bound methods that return Python ints: with about 3 documents per sample, numpy's scalars would take most of the time.
        sample_of, place = self.shuffle_index.item, self.sample_index.item
        document, length_of, pointer_of = self.document_index.item, self.indexed.sequence_lengths.item, self.indexed.sequence_pointers.item
        tokens, itemsize, extra, samples = self.indexed.tokens, self.indexed.dtype.itemsize, int(self.add_extra_token), len(self)
        rows = np.empty((len(indices), self.sequence_length + extra), dtype=np.int64)
        filled = []
        for row, index in zip(rows, indices, strict=True):
            sample, done = sample_of(check_index(index, samples, what="sample")), 0
            try:
                first, offset, last, end = place(sample, 0), place(sample, 1), place(sample + 1, 0), place(sample + 1, 1) + extra
                if min(first, offset, end) < 0:
                    raise IndexError
                for at in range(first, last + 1):
                    sequence = document(at)
                    start = pointer_of(sequence) // itemsize
                    piece = tokens[start + offset : start + (end if at == last else length_of(sequence))]
                    row[done : done + len(piece)] = piece
                    done += len(piece)
                    offset = 0
                if done < len(row) and sample < samples - 1:  # only the last sample may be partial
                    raise IndexError
            except (IndexError, ValueError) as error:  # missing places, or more tokens than a sample has
                where = self.index_directory or "the index"
                raise NielsCacheError(f"{where}: sample {sample} does not match its documents; the index is damaged, remove it") from error
            row[done:] = self.pad_token
            filled.append(done)
        return rows, filled


def positions_after(ends: Bools) -> Ints:
    """Return the position of each token, counted from the start of its row or document: (rows, T) int64.

    Args:
        ends: Whether each token ends a document, (rows, T) bool.
    """
    places = np.arange(ends.shape[1])
    begins = np.zeros(ends.shape, dtype=np.int64)
    begins[:, 1:] = np.where(ends[:, :-1], places[1:], 0)
    return places - np.maximum.accumulate(begins, axis=1)


def _checked_documents(indices: Any) -> Documents:
    if isinstance(indices, range) or (isinstance(indices, np.ndarray) and indices.ndim == 1 and np.issubdtype(indices.dtype, np.integer)):
        return indices
    shown = f"{indices!r:.60}"
    raise NielsCacheError(f"indices={shown}: give a range, or a numpy array (n,) of integers, such as numpy.array([0, 1, 2])")


def _describe(documents: Documents) -> list[int] | str:
    """Return a description of the documents that can be hashed as JSON: [start, stop], or a string with the sha256 of the numbers.

    A range and an array that counts up by one are described by [start, stop].
    """
    if isinstance(documents, range) and documents.step == 1:
        return [documents.start, documents.stop]
    numbers = np.ascontiguousarray(documents, dtype="<i8")
    if len(numbers) and (np.diff(numbers) == 1).all():
        return [int(numbers[0]), int(numbers[-1]) + 1]
    return f"{len(numbers)} {hashlib.sha256(numbers.data).hexdigest()}"
