"""Attention inside documents: both masks against the rule said pair by pair, and a tiny attention that they keep apart."""

import re
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from niels_cache_runtime import NielsCacheError
from niels_cache_runtime.loader.documents import document_mask, flex_block_mask


@st.composite
def ids_of_rows(draw: st.DrawFn) -> torch.Tensor:
    """(B, T) int32 as `documents.document_ids` makes them: 0, 1, 2, ... in every row."""
    B, T = draw(st.integers(1, 3)), draw(st.integers(1, 24))
    starts = torch.zeros(B, T, dtype=torch.int32)
    for row in range(B):
        for column in draw(st.lists(st.integers(1, T - 1), max_size=6)) if T > 1 else []:
            starts[row, column] = 1
    return starts.cumsum(dim=1, dtype=torch.int32)


def pair_by_pair(ids: torch.Tensor, *, causal: bool) -> torch.Tensor:
    """The rule, for every query and key."""
    B, T = ids.shape
    rows = ids.tolist()
    allowed = [[[rows[b][q] == rows[b][k] and (k <= q or not causal) for k in range(T)] for q in range(T)] for b in range(B)]
    return torch.tensor(allowed)[:, None]


@pytest.mark.parametrize("causal", [True, False])
@given(ids=ids_of_rows())
def test_the_dense_mask_is_the_rule_pair_by_pair(ids: torch.Tensor, causal: bool) -> None:
    mask = document_mask(ids, causal=causal)
    assert mask.dtype == torch.bool
    assert torch.equal(mask, pair_by_pair(ids, causal=causal))


@pytest.mark.parametrize("causal", [True, False])
@given(ids=ids_of_rows(), block_size=st.sampled_from([2, 4, 8, 64]))
def test_the_block_mask_is_the_one_that_torch_finds_in_the_whole_mask(ids: torch.Tensor, causal: bool, block_size: int) -> None:
    B, T = ids.shape
    ours = flex_block_mask(ids, causal=causal, block_size=block_size)
    rule = document_mask(ids, causal=causal)
    theirs = create_block_mask(lambda b, h, q, k: rule[b, 0, q, k], B, 1, T, T, device="cpu", BLOCK_SIZE=block_size)
    assert (ours.shape, ours.BLOCK_SIZE, ours.seq_lengths) == (theirs.shape, theirs.BLOCK_SIZE, theirs.seq_lengths)
    for blocks in ("kv", "full_kv", "q", "full_q"):
        for name in (f"{blocks}_num_blocks", f"{blocks}_indices"):
            mine, expected = getattr(ours, name), getattr(theirs, name)
            assert mine.dtype == expected.dtype, name
            assert torch.equal(mine, expected), name


@pytest.mark.parametrize("causal", [True, False])
@given(ids=ids_of_rows())
def test_the_rule_inside_a_block_is_the_rule_pair_by_pair(ids: torch.Tensor, causal: bool) -> None:
    B, T = ids.shape
    rule = flex_block_mask(ids, causal=causal, block_size=8).mask_mod
    b, q, k = torch.meshgrid(torch.arange(B), torch.arange(T), torch.arange(T), indexing="ij")
    assert torch.equal(rule(b, torch.zeros_like(b), q, k)[:, None], pair_by_pair(ids, causal=causal))


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("T", [37, 48])  # with and without a block cut short at the end
def test_flex_attention_and_the_dense_mask_agree(T: int) -> None:
    generator = torch.Generator().manual_seed(T)
    ids = (torch.rand(2, T, generator=generator) < 0.1).cumsum(dim=1, dtype=torch.int32)
    assert (ids[:, -1] > ids[:, 0]).all()
    q, k, v = torch.randn(3, 2, 2, T, 16, generator=generator)
    dense = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=document_mask(ids))
    flex = flex_attention(q, k, v, block_mask=flex_block_mask(ids, block_size=16))
    torch.testing.assert_close(flex, dense)


@pytest.mark.parametrize("mask", [document_mask, flex_block_mask])
@pytest.mark.parametrize("shape", [(8,), (1, 1, 8)])
def test_ids_that_are_not_of_a_batch_are_refused(mask: Callable[[torch.Tensor], object], shape: tuple[int, ...]) -> None:
    with pytest.raises(NielsCacheError, match=rf"document_ids of shape {re.escape(str(shape))}: must be \(B, T\)"):
        mask(torch.zeros(shape, dtype=torch.int32))


def test_a_block_of_no_tokens_is_refused() -> None:
    with pytest.raises(NielsCacheError, match="block_size=0"):
        flex_block_mask(torch.zeros(1, 8, dtype=torch.int32), block_size=0)


def test_ids_need_not_lie_row_by_row_in_memory() -> None:
    ids = torch.arange(3, dtype=torch.int32).repeat_interleave(torch.tensor([5, 4, 3]))[None]
    column_by_column = ids.expand(2, 12).t().contiguous().t()
    assert not column_by_column.is_contiguous()
    blocks = flex_block_mask(column_by_column, block_size=4).to_dense()
    assert torch.equal(blocks, flex_block_mask(ids, block_size=4).to_dense().expand_as(blocks))
