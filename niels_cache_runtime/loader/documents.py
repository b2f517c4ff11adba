"""Document boundaries of a batch, and the arrays that models take (ids, positions, cumulative lengths, attention masks).

    doc_ends --find_boundaries--> DocumentStarts --cu_seqlens--> cu --document_ids, position_ids, max_seqlen--> arrays of a batch
                                                |                `--places_of_cp_rank--> the part of a rank of context parallelism
                                                `--cross_document_targets--> targets to exclude from the loss
    document_ids --document_mask, flex_block_mask--> attention inside documents only

No token is read: boundaries come from the offsets that a cache stores, not from a scan for end-of-text tokens. The arrays are numpy arrays,
made on the CPU. The masks are torch tensors, made on the device of the ids.

With 64 rows of 2048 tokens and documents of about 600 tokens, ids and positions cost 70 us. Finding the boundaries in 700,000 doc_ends
costs about the same or a little more. These figures are for a machine on which the batch itself takes 100 us. The cost of `flex_block_mask`
grows with the square of the number of blocks, and the cost of `document_mask` with the square of the number of tokens. The sources decide
which tokens are in a batch; this module does not.
"""

from typing import TYPE_CHECKING

import numpy as np
import torch

from niels_cache_runtime.cache.checks import check_positive
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import Bools, Int32s, Ints, Uints
from niels_cache_runtime.loader.packing.segments import number_ranges
from niels_cache_runtime.loader.source import DocumentStarts

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

_INT32_MAX = 2**31 - 1


def find_boundaries(doc_ends: Uints, positions: Ints, *, T: int) -> DocumentStarts:
    """Find where documents begin inside windows of a stream. Each window costs two binary searches.

    Args:
        doc_ends: (documents,) uint64, the exclusive end of every document in the stream, increasing, in tokens.
        positions: (n,), the first token of each window. The window of p is [p, p + T], both ends included.
        T: Inputs per window.
    """
    doc_ends = np.asarray(doc_ends)  # every operation on an np.memmap is slower
    # The keys are unsigned like doc_ends. With int64 keys numpy would convert all of doc_ends to float64, which is slow and rounds.
    starts = positions.astype(np.uint64)
    lasts = starts + np.uint64(T)
    first = doc_ends.searchsorted(starts, side="right")
    stop = doc_ends.searchsorted(lasts, side="left")
    counts = stop - first
    rows = np.arange(len(positions)).repeat(counts)
    # Each row has the documents first, first + 1, ..., stop - 1. Within a row, they differ from a count over all rows by a constant.
    documents = (stop - counts.cumsum()).repeat(counts)
    documents += np.arange(len(documents))
    columns = doc_ends[documents] - starts[rows]
    return DocumentStarts(rows=rows, columns=columns.astype(np.int64), continues=doc_ends[stop] != lasts)


def cu_seqlens(boundaries: DocumentStarts, *, rows: int, T: int) -> Int32s:
    """Return the cumulative lengths of the segments of a batch, (segments + 1,) int32, as flash-attention's varlen functions take them.

    The rows of the batch are flattened to rows * T inputs. A segment begins at the start of every row, and wherever a document begins
    inside a row. The result has the start of every segment, in increasing order from 0, and then rows * T.

    Raises:
        NielsCacheError: If rows * T does not fit into int32.
    """
    if rows * T > _INT32_MAX:
        raise NielsCacheError(f"{rows} rows of T={T}: cu_seqlens is int32 and counts up to {_INT32_MAX} tokens; use a smaller batch")
    starts = np.concatenate([np.arange(rows + 1) * T, boundaries.rows * T + boundaries.columns]).astype(np.int32)
    starts.sort()
    return starts


def max_seqlen(cu: Int32s) -> int:
    """Return the number of tokens in the longest segment, or 0 for an empty batch. flash-attention's varlen functions take this number."""
    return int((cu[1:] - cu[:-1]).max(initial=0))


def fill_cu_seqlens(cu: Int32s, boundaries: DocumentStarts, *, rows: int, most: int) -> Int32s:
    """Return cumulative lengths in the shape (rows * most + 1,), which is the same for every batch: the last one is repeated.

    Raises:
        NielsCacheError: If a row has more than `most` documents.
    """
    counts = np.bincount(boundaries.rows, minlength=rows) + 1
    if counts.max(initial=0) > most:
        raise NielsCacheError(
            f"max_documents={most}: row {counts.argmax()} of the batch has {counts.max()} documents; use a larger number, or "
            "packing='best_fit', which packs no more into a row"
        )
    return np.pad(cu, (0, rows * most + 1 - len(cu)), mode="edge")


def places_of_cp_rank(cu: Int32s, *, cp_rank: int, cp_size: int) -> Ints:
    """Return the places among the flattened inputs that a rank of context parallelism has, in ascending order.

    Each segment is cut into 2 * cp_size equal parts, and rank r has the parts r and 2 * cp_size - 1 - r. With a causal mask, all ranks then
    have the same work. This is the division of Megatron-Core and TransformerEngine.

    Args:
        cu: Cumulative lengths of segments, each a multiple of 2 * cp_size.
        cp_rank: The number of the rank, from 0.
        cp_size: The number of ranks.
    """
    parts = np.diff(cu).astype(np.int64) // (2 * cp_size)
    firsts = (cu[:-1] + np.outer([cp_rank, 2 * cp_size - 1 - cp_rank], parts)).T.ravel()
    return number_ranges(firsts, firsts + parts.repeat(2))[1]


def document_ids(cu: Int32s, *, rows: int, T: int) -> Int32s:
    """Return the number of every input's document, (rows, T) int32. Documents are numbered 0, 1, 2, ... from the start of each row."""
    starts = cu[:-1]
    first_of_row = starts.searchsorted(np.arange(0, rows * T, T, dtype=np.int32)).astype(np.int32)
    ids = np.arange(len(starts), dtype=np.int32) - first_of_row[starts // T]
    return np.repeat(ids, cu[1:] - starts).reshape(rows, T)


def position_ids(cu: Int32s, *, rows: int, T: int) -> Int32s:
    """Return the position of every input in its document, (rows, T) int32. Positions begin at 0 where the document or the row begins."""
    starts = cu[:-1]
    positions = np.repeat(starts % T, cu[1:] - starts).reshape(rows, T)
    # One ramp serves all rows, in place. A ramp over the whole batch would be one more pass over memory, a third of the time.
    return np.subtract(np.arange(T, dtype=np.int32), positions, out=positions)


def cross_document_targets(boundaries: DocumentStarts, *, rows: int, T: int) -> Bools:
    """Return whether each target is the first token of a new document, (rows, T) bool. The input of such a target cannot predict it."""
    crosses = np.zeros((rows, T), dtype=np.bool_)
    crosses[boundaries.rows, boundaries.columns - 1] = True
    crosses[:, -1] = ~boundaries.continues
    return crosses


def document_mask(document_ids: torch.Tensor, *, causal: bool = True) -> torch.Tensor:
    """Return a bool mask, (B, 1, T, T): element `[b, 0, q, k]` says whether input q may attend to input k.

    Pass it as `attn_mask` to `scaled_dot_product_attention`. An input attends only to inputs of its own document. The mask takes B * T * T
    bytes. For a large T use `flex_block_mask`, or `cu_seqlens` with flash-attention.

    Args:
        document_ids: (B, T), integers. The mask is on the same device.
        causal: Whether an input attends to no later input.

    Returns:
        The mask.

    Raises:
        NielsCacheError: If the ids are not two-dimensional.
    """
    _check_two_dimensional(document_ids)
    mask = document_ids[:, None, :, None] == document_ids[:, None, None, :]
    return mask.tril_() if causal else mask


def flex_block_mask(document_ids: torch.Tensor, *, causal: bool = True, block_size: int = 128) -> "BlockMask":
    """Return a `block_mask` for `flex_attention`. It follows the rule of `document_mask`, for any head.

    It is computed from the lowest and the highest id of every block of `block_size` tokens, without the (B, T, T) mask that
    `create_block_mask` fills first. Blocks without a common document are skipped, and blocks inside one document need no mask. The
    attention is right for any ids. If the ids never decrease within a row, as those of a Batch, every block that can be skipped is skipped.
    Needs torch 2.7 or later.

    Args:
        document_ids: (B, T), integers. The mask is on the same device.
        causal: Whether an input attends to no later input.
        block_size: The number of tokens of a block.

    Returns:
        The mask.

    Raises:
        NielsCacheError: If the ids are not two-dimensional, or if `block_size` is not a positive number.
    """
    from torch.nn.attention.flex_attention import BlockMask  # this import loads torch's compiler, which takes more than a second

    _check_two_dimensional(document_ids)
    check_positive("block_size", block_size)
    batch, T = document_ids.shape
    blocks = -(-T // block_size)
    # Fill the last block by repeating its last id. This changes neither the lowest nor the highest id of the block.
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
    """Return, for every q, how many k are chosen, and all k with the chosen ones first. BlockMask keeps both in this form.

    Args:
        chosen: (B, q, k) bool.

    Returns:
        The counts, (B, 1, q) int32, and the ordered k, (B, 1, q, k) int32.
    """
    indices = chosen.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
    return chosen.sum(dim=-1, dtype=torch.int32)[:, None], indices.to(torch.int32)[:, None]


def _check_two_dimensional(document_ids: torch.Tensor) -> None:
    if document_ids.dim() != 2:
        raise NielsCacheError(f"document_ids of shape {tuple(document_ids.shape)}: must be (B, T); give a batch's document_ids unchanged")
