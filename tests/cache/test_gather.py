"""From rows of tokens to batches: which numbers are drawn, and who owns the memory of a batch."""

import gc

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from niels_cache_runtime import NielsCacheError
from niels_cache_runtime.cache.gather import InputTargetMaker, _RecycledMemory, draw_uniform, gather_pieces

SMALL, LARGE = (3, 5), (16, 1024)  # fresh memory and recycled memory
CPU = torch.device("cpu")


def rows_of(shape: tuple[int, int], first: int, dtype: type = np.uint16) -> np.ndarray:
    rows, columns = shape
    return (first + np.arange(rows * (columns + 1)) % 50_000).astype(dtype).reshape(rows, columns + 1)


def test_one_shape_is_recycled_and_the_other_is_not() -> None:
    assert 8 * SMALL[0] * SMALL[1] < _RecycledMemory._FROM_BYTES <= 8 * LARGE[0] * LARGE[1]


@pytest.mark.parametrize("count", [1, 2, 1000, 2**31, 2**32 - 1, 2**32, 2**62])
def test_numbers_are_those_of_torch_randint_and_so_is_the_generator_after(count: int) -> None:
    ours, plain = torch.Generator().manual_seed(5), torch.Generator().manual_seed(5)
    for B in (1, 8, 17, 1000):
        drawn = draw_uniform(count, B=B, generator=ours)
        assert drawn.dtype == np.int64
        assert drawn.tolist() == torch.randint(count, (B,), generator=plain).tolist()
    assert torch.equal(ours.get_state(), plain.get_state())
    with pytest.raises(NielsCacheError, match="B=0"):
        draw_uniform(count, B=0, generator=ours)


@pytest.mark.parametrize("shape", [SMALL, LARGE])
@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.int64])
def test_x_and_y_are_the_rows_without_their_last_and_first_token(shape: tuple[int, int], dtype: type) -> None:
    rows = rows_of(shape, 7, dtype)
    x, y = InputTargetMaker(CPU).pairs(rows)
    for batch, expected in ((x, rows[:, :-1]), (y, rows[:, 1:])):
        assert batch.dtype == torch.int64
        assert batch.is_contiguous()
        assert np.array_equal(batch.numpy(), expected)


@pytest.mark.parametrize("shape", [SMALL, LARGE])
def test_a_batch_is_never_written_again_while_anything_of_it_is_kept(shape: tuple[int, int]) -> None:
    maker, kept = InputTargetMaker(CPU), []
    for index in range(24):
        x, y = maker.pairs(rows_of(shape, index))
        whole = (x, y)[index % 2]
        part = [
            whole[1],
            whole[:, 2:].unsqueeze(0),
            torch.from_numpy(whole[-1].numpy()),
            whole.view(-1)[1:3],
            whole.detach(),
            torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(whole)),
        ][index // 2 % 6]
        kept.append((part, part.clone()))
    del x, y, whole, part
    gc.collect()
    for index in range(24):
        maker.pairs(rows_of(shape, 1_000 + index))
    assert len(kept) == 24
    for part, copy in kept:
        assert torch.equal(part, copy)


def test_memory_of_dropped_batches_is_lent_again_and_only_to_its_shape() -> None:
    maker, addresses = InputTargetMaker(CPU), set()
    for index in range(20):
        x, y = maker.pairs(rows_of(LARGE, index))  # the one before is held until now, as in a training loop
        addresses |= {x.data_ptr(), y.data_ptr()}
    assert len(addresses) == 4
    del x, y
    x, _ = maker.pairs(rows_of((LARGE[0] + 1, LARGE[1]), 0))
    assert x.shape == (LARGE[0] + 1, LARGE[1])
    assert x.data_ptr() not in addresses


@given(st.lists(st.tuples(st.integers(0, 250), st.integers(1, 150), st.integers(0, 3)), max_size=12), st.integers(300, 400))
def test_pieces_lie_one_after_the_other_with_their_padding(pieces: list[tuple[int, int, int]], count: int) -> None:
    tokens = np.arange(100, 100 + count, dtype=np.uint16)
    pieces = [(start, min(length, count - start), pad) for start, length, pad in pieces]
    starts, lengths, pads = np.array(pieces, dtype=np.int64).reshape(-1, 3).T
    expected = [token for start, length, pad in pieces for token in [*tokens[start : start + length].tolist(), *[7] * pad]]
    for limits in (count, starts + lengths):  # a chunk that reaches beyond the limit is never read
        assert gather_pieces(tokens, starts, lengths, pads, limits=limits, pad_id=7).tolist() == expected
