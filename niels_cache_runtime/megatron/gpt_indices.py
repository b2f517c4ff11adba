"""Megatron-LM's three GPT indices: the documents, the start of each sample in them, and the order of the samples.

    document_index  (E * D,) int32      E epochs of the documents, shuffled; the last epoch separately if little of it is needed
    sample_index    (n + 1, 2) int32    where each sample begins: the position in document_index, and the offset in that document in tokens
    shuffle_index   (n,) uint32         item k of the data set is sample shuffle_index[k]

The algorithm is that of `megatron/core/datasets/gpt_dataset.py` and `helpers.cpp`, release 0.16.1. The numbers, their dtypes and the number
of epochs are the same. The shuffles use numpy's legacy RandomState, which no other module of this package uses. There is one difference: if
the last partial sample is kept, Megatron counts samples in 32-bit floats, which are inexact beyond 2^24 tokens. Here the count uses
integers.

Shuffling takes most of the time. The sample index takes about 20 ns per document and 6 ns per sample. Besides the output, memory is needed
for one block only. `index_cache` stores the arrays, and `gpt_dataset` uses them to read samples.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from niels_cache_runtime.cache.index_cache import Allocate, new_array
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import Array, Int32s

Documents = range | NDArray[np.integer[Any]]
OnArrayProgress = Callable[[str, int, int], None]

DOCUMENT_DTYPE = np.dtype(np.int32)
_FINAL_EPOCH_THRESHOLD = 0.80
INT32_MAX = 2**31 - 1
_DOCUMENTS_PER_BLOCK = 1 << 16
_SAMPLES_PER_BLOCK = 1 << 20
_SPLITS = 3
_BLOCK = 1 << 20


def check_gpt_indices(arrays: Mapping[str, Array], where: str | Path) -> None:
    """Check that these are the three arrays that the module docstring describes.

    Args:
        arrays: The arrays by name.
        where: The path of the arrays, for messages.

    Raises:
        NielsCacheError: If names, types or shapes are wrong.
    """
    shapes = {name: (array.dtype.kind + str(array.dtype.itemsize), array.ndim) for name, array in sorted(arrays.items())}
    document, sample, shuffle = (shapes.get(f"{name}_index") for name in ("document", "sample", "shuffle"))
    has_forms = document == ("i4", 1) and sample in (("i4", 2), ("i8", 2)) and shuffle in (("u4", 1), ("i8", 1)) and len(shapes) == 3
    if not has_forms or arrays["sample_index"].shape != (len(arrays["shuffle_index"]) + 1, 2):
        raise NielsCacheError(f"{where}: its arrays are not those of a GPT index; remove it to build it again")


@dataclass(frozen=True, kw_only=True)
class EpochPlan:
    """The epochs to read for a number of samples.

    Attributes:
        epochs: The number of epochs.
        samples: The number of samples in all epochs.
        shuffled_apart: The number of samples before the last epoch if the last epoch is shuffled separately, otherwise None.
    """

    epochs: int
    samples: int
    shuffled_apart: int | None


def split_ranges(split: str, sequences: int) -> tuple[range, range, range]:
    """Return the ranges of sequences for train, valid and test.

    The ranges are contiguous and in that order; a weight of 0 gives an empty range. Rounding is the same as Megatron's.

    Args:
        split: Megatron's split string, with the weights of train, valid and test, such as "99,1,0".
        sequences: The number of sequences.

    Raises:
        NielsCacheError: If `split` is not one to three numbers that are not all 0.
    """
    try:
        if re.search(r"[^\d.,/\s\[\]]", split):  # Megatron extracts digits from any text: 1e-3 would be 1 and 3
            raise ValueError
        weights = [float(number) for number in re.findall(r"[.0-9]+", split)]
    except ValueError:
        weights = []
    if not 1 <= len(weights) <= _SPLITS or not any(weights):
        raise NielsCacheError(f'split={split!r}: give the weights of train, valid and test, such as "99,1,0"')
    padded = np.array([*weights, *[0.0] * (_SPLITS - len(weights))])
    bounds = [0.0, *accumulate((padded / np.sum(padded)).tolist())]
    train, valid, test = (range(round(begin * float(sequences)), round(end * float(sequences))) for begin, end in pairwise(bounds))
    return train, valid, test


def plan_epochs(
    tokens_per_epoch: int, *, num_samples: int | None, sequence_length: int, add_extra_token: bool = True, drop_last: bool = True
) -> EpochPlan:
    """Return how many epochs `num_samples` samples need, and how many samples these epochs have: num_samples or more.

    Args:
        tokens_per_epoch: The number of tokens in one epoch.
        num_samples: The least number of samples. None and 0 mean one epoch.
        sequence_length: The number of tokens in a sample.
        add_extra_token: Whether a sample also has the token after its last one, as a label.
        drop_last: Whether to leave out the tokens after the last whole sample.

    Raises:
        NielsCacheError: If there is no token to read.
    """
    extra = int(add_extra_token)
    if tokens_per_epoch < 1:
        raise NielsCacheError(f"the documents have {tokens_per_epoch} tokens in all: no sample can be made of them")
    epochs = 1
    if num_samples is not None:
        epochs = max(1, -(-(num_samples * sequence_length + extra) // tokens_per_epoch))
    usable = epochs * tokens_per_epoch - extra
    samples = usable // sequence_length if drop_last else -(-usable // sequence_length)
    shuffled_apart = None
    if num_samples is not None and epochs > 1:
        before = ((epochs - 1) * tokens_per_epoch - extra) // sequence_length
        per_epoch = (tokens_per_epoch - extra) // sequence_length
        if num_samples - before < int(_FINAL_EPOCH_THRESHOLD * per_epoch):
            shuffled_apart = before
    return EpochPlan(epochs=epochs, samples=samples, shuffled_apart=shuffled_apart)


def build_gpt_indices(
    sequence_lengths: Int32s,
    documents: Documents,
    *,
    num_samples: int | None,
    sequence_length: int,
    seed: int,
    add_extra_token: bool = True,
    drop_last: bool = True,
    allocate: Allocate = new_array,
    progress: OnArrayProgress | None = None,
) -> dict[str, Array]:
    """Return the indices of documents by name, as the module docstring describes them.

    Args:
        sequence_lengths: The number of tokens of every sequence, (S,) int32.
        documents: The numbers of the sequences to use.
        num_samples: The least number of samples. None and 0 mean one epoch.
        sequence_length: The number of tokens in a sample.
        seed: The seed of the shuffles.
        add_extra_token: Whether a sample also has the token after its last one, as a label.
        drop_last: Whether to leave out the last partial sample. Megatron keeps it for valid without drop_last_partial_validation_sequence.
        allocate: Returns the memory for each array, such as a mapped file.
        progress: Called with (name of the array, done, total).

    Raises:
        NielsCacheError: If a document does not exist, or if there is no token to read.
    """
    report = progress or (lambda name, done, total: None)
    plan = plan_epochs(
        tokens_of(sequence_lengths, documents),
        num_samples=num_samples,
        sequence_length=sequence_length,
        add_extra_token=add_extra_token,
        drop_last=drop_last,
    )
    random_state = np.random.RandomState(seed)
    document_index = allocate("document_index", (plan.epochs * len(documents),), DOCUMENT_DTYPE)
    report("document_index", 0, len(document_index))
    own = np.arange(documents.start, documents.stop, dtype=DOCUMENT_DTYPE) if isinstance(documents, range) else documents
    document_index.reshape(plan.epochs, -1)[:] = own
    _shuffle(document_index, len(document_index) - (0 if plan.shuffled_apart is None else len(documents)), random_state)
    report("document_index", len(document_index), len(document_index))
    sample_index = build_sample_index(
        sequence_lengths,
        document_index,
        samples=plan.samples,
        sequence_length=sequence_length,
        add_extra_token=add_extra_token,
        allocate=allocate,
        progress=report,
    )
    dtype = np.dtype(np.int64 if plan.samples >= np.iinfo(np.uint32).max - 1 else np.uint32)
    shuffle_index = allocate("shuffle_index", (plan.samples,), dtype)
    report("shuffle_index", 0, plan.samples)
    for start in range(0, plan.samples, _BLOCK):
        stop = min(start + _BLOCK, plan.samples)
        shuffle_index[start:stop] = np.arange(start, stop, dtype=dtype)
    _shuffle(shuffle_index, plan.samples if plan.shuffled_apart is None else plan.shuffled_apart, random_state)
    report("shuffle_index", plan.samples, plan.samples)
    return {"document_index": document_index, "sample_index": sample_index, "shuffle_index": shuffle_index}


def tokens_of(sequence_lengths: Int32s, documents: Documents) -> int:
    """Return the number of tokens in these documents.

    Raises:
        NielsCacheError: If a document does not exist.
    """
    count = len(documents)
    if count:
        lowest, highest = (documents[0], documents[-1]) if isinstance(documents, range) else (documents.min(), documents.max())
        if isinstance(documents, range) and documents.step != 1:
            raise NielsCacheError(f"documents={documents}: a range must have step 1; give other choices as an array")
        if lowest < 0 or highest >= len(sequence_lengths):
            raise NielsCacheError(f"documents {lowest} to {highest}: there are {len(sequence_lengths)} sequences")
        if highest > INT32_MAX:
            raise NielsCacheError(f"document {highest}: Megatron's document index is int32; split the data set at {INT32_MAX} sequences")
    if isinstance(documents, range):
        return int(sequence_lengths[documents.start : documents.stop].sum(dtype=np.int64))
    return sum(int(sequence_lengths[documents[start : start + _BLOCK]].sum(dtype=np.int64)) for start in range(0, count, _BLOCK))


def _shuffle(index: Array, apart: int, random_state: np.random.RandomState) -> None:
    """Shuffle the items before number `apart`, and then the others."""
    random_state.shuffle(index[:apart])
    random_state.shuffle(index[apart:])


def build_sample_index(
    sequence_lengths: Int32s,
    document_index: Int32s,
    *,
    samples: int,
    sequence_length: int,
    add_extra_token: bool = True,
    allocate: Allocate = new_array,
    progress: OnArrayProgress | None = None,
) -> Array:
    """Return an array of shape (samples + 1, 2). Row i is where sample i begins; the last row is where the last sample ends.

    A row contains a position in `document_index` and an offset in that document, in tokens. Let L be sequence_length, and a be 1 with the
    extra token, otherwise 0. Sample i reads tokens i * L to i * L + L + a - 1 of the documents in their order. Row i + 1 has the document
    of the last token of sample i. An empty document appears only in row 0. If the tokens end before the last sample is complete, the last
    row is the end of the last document minus a.

    This needs no search: k = floor((end - a) / L) + 1 rows are due by the position `end` where a document ends, so the differences of k say
    how many rows point to each document.
    """
    extra, rows = int(add_extra_token), samples + 1
    index = allocate("sample_index", (rows, 2), np.dtype(np.int64 if len(document_index) > INT32_MAX else np.int32))
    done, tokens = 0, 0  # number of rows written, number of tokens before the block
    for start in range(0, len(document_index), _DOCUMENTS_PER_BLOCK):
        lengths = sequence_lengths.take(document_index[start : start + _DOCUMENTS_PER_BLOCK])
        ends = lengths.cumsum(dtype=np.int64) + tokens
        starts, due = ends - lengths, ((ends - extra) // sequence_length + 1).clip(done, rows)
        for first in range(done, int(due[-1]), _SAMPLES_PER_BLOCK):
            stop = min(first + _SAMPLES_PER_BLOCK, int(due[-1]))
            documents = np.arange(len(lengths)).repeat(np.diff(due.clip(first, stop), prepend=first))
            index[first:stop, 0] = documents + start
            index[first:stop, 1] = np.arange(first, stop) * sequence_length - starts[documents]
        done, tokens = int(due[-1]), int(ends[-1])
        if progress is not None:
            progress("sample_index", done, rows)
        if done == rows:
            break
    if done < rows:  # the last sample is partial
        index[done:, 0] = len(document_index) - 1
        index[done:, 1] = sequence_lengths[document_index[-1]] - extra
    index[0] = 0
    return index
