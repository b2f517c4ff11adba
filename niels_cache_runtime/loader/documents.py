"""Document boundaries of a batch, and the arrays that models take: ids, positions, cumulative lengths, attention masks.

    doc_ends --find_boundaries--> Boundaries --cu_seqlens--> cu --document_ids, position_ids, max_seqlen--> arrays of a batch
                                            `--cross_document_targets--> targets to exclude from the loss
    document_ids --document_mask, flex_block_mask--> attention inside documents only

No token is read: boundaries come from the offsets that a cache stores, not from a scan for EOT. The arrays are numpy's, made on the CPU
beside the batch. The masks are torch's, made on the device of the ids. Cost at 64 rows of 2048 tokens, with documents of about 600 tokens:
70 us for ids and positions, and about the same or a little more to find the boundaries in 700,000 doc_ends. These figures are for a machine
on which the batch itself takes 100 us. `flex_block_mask` grows with the square of the number of blocks, `document_mask` with the square of
the number of tokens. Which tokens are in a batch is decided by the sources, not here.
"""

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from niels_cache_runtime.cache.checks import check_positive
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.loader.source import Boundaries

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

_INT32_MAX = 2**31 - 1


def find_boundaries(doc_ends: NDArray[np.uint64], positions: NDArray[np.int64], *, T: int) -> Boundaries:
    """Find where documents begin inside the windows [p, p + T] of a stream, for every p of `positions` (n,), in tokens.

    doc_ends: (documents,) uint64, the exclusive end of every document in the stream, increasing. Two binary searches per window.
    Raises NielsCacheError if a window is not inside the stream.
    """
    doc_ends = np.asarray(doc_ends)  # an np.memmap is slower at every step
    # Unsigned like doc_ends: with int64 keys numpy would turn all of doc_ends into float64, slowly and rounded.
    starts = positions.astype(np.uint64)
    tokens = int(doc_ends[-1]) if len(doc_ends) else 0
    if len(starts) and int(starts.max()) >= tokens - T:  # as unsigned, a negative position is far beyond the end
        raise NielsCacheError(
            f"windows of T+1={T + 1} tokens at {positions.min()} to {positions.max()}: not inside the stream of {tokens} tokens"
            " of doc_ends; give the doc_ends of the same split"
        )
    lasts = starts + np.uint64(T)
    first = doc_ends.searchsorted(starts, side="right")
    stop = doc_ends.searchsorted(lasts, side="left")
    counts = stop - first
    rows = np.arange(len(positions)).repeat(counts)
    # Row by row the documents first, first + 1, ..., stop - 1: in each row they differ from a running number by a constant.
    documents = (stop - counts.cumsum()).repeat(counts)
    documents += np.arange(len(documents))
    columns = doc_ends[documents] - starts[rows]
    return Boundaries(rows=rows, columns=columns.astype(np.int64), continues=doc_ends[stop] != lasts)


def cu_seqlens(boundaries: Boundaries, *, rows: int, T: int) -> NDArray[np.int32]:
    """Return the cumulative lengths of the segments of a batch: 0, every start of a document or row in the rows * T flattened inputs, rows
    * T.

    (segments + 1,) int32, the convention of flash-attention's varlen functions. Raises NielsCacheError if int32 cannot count them.
    """
    if rows * T > _INT32_MAX:
        raise NielsCacheError(f"{rows} rows of T={T}: cu_seqlens is int32 and counts up to {_INT32_MAX} tokens; use a smaller batch")
    starts = np.concatenate([np.arange(rows + 1) * T, boundaries.rows * T + boundaries.columns]).astype(np.int32)
    starts.sort()
    return starts


def max_seqlen(cu: NDArray[np.int32]) -> int:
    """Return the tokens of the longest segment, as flash-attention's varlen functions take it; 0 for an empty batch."""
    return int((cu[1:] - cu[:-1]).max(initial=0))


def document_ids(cu: NDArray[np.int32], *, rows: int, T: int) -> NDArray[np.int32]:
    """Return (rows, T) int32: the document of every input, counted 0, 1, 2, ... from the start of its row."""
    starts = cu[:-1]
    first_of_row = starts.searchsorted(np.arange(0, rows * T, T, dtype=np.int32)).astype(np.int32)
    ids = np.arange(len(starts), dtype=np.int32) - first_of_row[starts // T]
    return np.repeat(ids, cu[1:] - starts).reshape(rows, T)


def position_ids(cu: NDArray[np.int32], *, rows: int, T: int) -> NDArray[np.int32]:
    """Return (rows, T) int32: the position of every input in its document, from 0 at the start of the document or row."""
    starts = cu[:-1]
    positions = np.repeat(starts % T, cu[1:] - starts).reshape(rows, T)
    # In place, with one ramp for all rows: a ramp over the whole batch is one more pass over memory, a third of the time.
    return np.subtract(np.arange(T, dtype=np.int32), positions, out=positions)


def cross_document_targets(boundaries: Boundaries, *, rows: int, T: int) -> NDArray[np.bool_]:
    """Return (rows, T) bool: whether a target is the first token of the next document, which its input cannot predict."""
    crosses = np.zeros((rows, T), dtype=np.bool_)
    crosses[boundaries.rows, boundaries.columns - 1] = True
    crosses[:, -1] = ~boundaries.continues
    return crosses


def document_mask(document_ids: torch.Tensor, *, causal: bool = True) -> torch.Tensor:
    """Return a bool mask (B, 1, T, T). Element [b, 0, q, k] says whether input q may attend to input k.

    `document_ids` (B, T) are integers, and the mask is on their device. Pass it as `attn_mask` to `scaled_dot_product_attention`. An input
    attends only to its own document, and with `causal` to nothing later. The mask takes B * T * T bytes. For a large T use
    `flex_block_mask`, or `cu_seqlens` with flash-attention. Raises NielsCacheError if the ids are not two-dimensional.
    """
    _check_two_dimensional(document_ids)
    mask = document_ids[:, None, :, None] == document_ids[:, None, None, :]
    return mask.tril_() if causal else mask


def flex_block_mask(document_ids: torch.Tensor, *, causal: bool = True, block_size: int = 128) -> "BlockMask":
    """Return the `block_mask` of `flex_attention` from `document_ids` (B, T), integers: the rule of `document_mask`, for any head.

    It is found from the lowest and highest id of every block of `block_size` tokens, without the (B, T, T) mask that `create_block_mask`
    fills first. Blocks without a common document are skipped, blocks inside one document need no mask. Any ids give the right attention.
    Ids that never decrease in a row, as those of `document_ids`, skip every block that can be skipped. Needs torch 2.7
    or later. Raises NielsCacheError if the ids are not two-dimensional or `block_size` is not a positive number.
    """
    from torch.nn.attention.flex_attention import BlockMask  # this import loads torch's compiler, more than a second

    _check_two_dimensional(document_ids)
    check_positive("block_size", block_size)
    batch, T = document_ids.shape
    blocks = -(-T // block_size)
    # Fill the last block with its last id, which changes neither its lowest nor its highest.
    filled = torch.nn.functional.pad(document_ids, (0, blocks * block_size - T))
    filled[:, T:] = document_ids[:, -1:]
    by_block = filled.reshape(batch, blocks, block_size)
    lowest, highest = by_block.amin(dim=2), by_block.amax(dim=2)
    lowest_q, highest_q, lowest_k, highest_k = lowest[:, :, None], highest[:, :, None], lowest[:, None, :], highest[:, None, :]
    needed = (lowest_q <= highest_k) & (lowest_k <= highest_q)
    full = (lowest_q == highest_k) & (lowest_k == highest_q)
    if causal:
        needed, full = needed.tril(), full.tril(-1)
    if T % block_size:  # flex_attention checks the end of a sequence in masked blocks only
        full[:, -1, :] = full[:, :, -1] = False

    def may_attend(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        same = document_ids[b, q] == document_ids[b, k]
        return same & (q >= k) if causal else same

    counts, indices = _ordered(needed & ~full)
    full_counts, full_indices = _ordered(full)
    return BlockMask.from_kv_blocks(
        counts, indices, full_counts, full_indices, BLOCK_SIZE=block_size, mask_mod=may_attend, seq_lengths=(T, T)
    )


def _ordered(chosen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return from (B, q, k) bool how many k each q has, (B, 1, q), and which, these first, (B, 1, q, k): int32, as BlockMask keeps them."""
    indices = chosen.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
    return chosen.sum(dim=-1, dtype=torch.int32)[:, None], indices.to(torch.int32)[:, None]


def _check_two_dimensional(document_ids: torch.Tensor) -> None:
    if document_ids.dim() != 2:
        raise NielsCacheError(f"document_ids of shape {tuple(document_ids.shape)}: must be (B, T); give a batch's document_ids unchanged")
