"""The method `trace` names the bytes on disk. Every token of a batch is in the file that `trace` names."""

from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from niels_cache_runtime import NielsCacheError, TokenLoader
from niels_cache_runtime.format.layout import TOKEN_DTYPE
from niels_cache_runtime.loader.trace import BatchTrace
from tests.helpers.hand_made import write_meta_of, write_pair, write_stream

T = 12
ENDS = [3, 100, 101, 500, 1001]


@pytest.fixture
def sources(tmp_path: Path) -> dict[str, str]:
    chats = tmp_path / "sft" / "chats"
    write_pair(chats, "train", [[2, 10, 4, 3, *range(100 * i, 100 * i + 1 + i % 7), 4] for i in range(50)])
    write_pair(chats, "val", [])
    write_meta_of(chats, kind="sft")
    return {
        "notes": write_stream(tmp_path / "pretrain" / "notes", np.arange(10_000, 11_001), shard_tokens=130, doc_ends=ENDS),
        "chats": str(chats / "train"),
    }


def loader(sources: dict[str, str], **changes: object) -> TokenLoader:
    return TokenLoader(sources, **{"T": T, "B": 6, "seed": 7, "weights": {"notes": 2, "chats": 1}, **changes})


def test_every_token_is_where_the_trace_says(sources: dict[str, str]) -> None:
    files = {path: np.fromfile(path, dtype=TOKEN_DTYPE) for folder in sources.values() for path in Path(folder).parent.rglob("*.bin")}
    one = loader(sources)
    found = {"notes": 0, "chats": 0, "padding": 0}
    for step, batch in enumerate(islice(one, 20)):
        trace = one.trace(step)
        assert isinstance(trace, BatchTrace)
        assert np.array_equal(trace.tokens[:, :-1], batch.x.numpy())
        assert np.array_equal(trace.tokens[:, 1:], batch.y.numpy())
        assert trace.samples.tolist() == list(range(step * 6, step * 6 + 6))
        for row in range(6):
            for column in range(T + 1):
                origin = trace.token(row, column)
                if origin.file is None:
                    assert (origin.dataset, origin.token) == ("chats", 4)
                    found["padding"] += 1
                    continue
                assert files[Path(origin.file)][origin.offset] == origin.token
                found[origin.dataset] += 1
                if origin.dataset == "notes":
                    place = origin.token - 10_000
                    document = int(np.searchsorted(ENDS, place, side="right"))
                    assert (origin.document, origin.document_offset) == (document, place - [0, *ENDS][document])
    assert min(found.values()) > 10


def test_ranks_can_trace_each_other(sources: dict[str, str]) -> None:
    ranks = [loader(sources, B=3, rank=rank, world_size=2) for rank in range(2)]
    traced = [one.trace(4, rank=1) for one in ranks]
    assert np.array_equal(traced[0].tokens, traced[1].tokens)
    assert traced[0].samples.tolist() == [27, 28, 29]


def test_steps_before_a_change_of_batch_size_are_found_with_theirs(sources: dict[str, str]) -> None:
    one = loader(sources)
    early = [batch.x.numpy() for batch in islice(one, 5)]
    other = TokenLoader.from_state(one.state_dict(), B=4, world_size=2, rank=1)
    late = [batch.x.numpy() for batch in islice(other, 3)]
    assert other.step == 8
    for step, x in enumerate(early):
        assert np.array_equal(other.trace(step, rank=0).tokens[:, :-1], x)
    for step, x in enumerate(late, start=5):
        assert np.array_equal(other.trace(step).tokens[:, :-1], x)
    with pytest.raises(NielsCacheError, match="ran on 1 ranks"):
        other.trace(2)


def test_the_last_batches_of_passes_are_traced_too(sources: dict[str, str]) -> None:
    one = TokenLoader(sources["notes"], T=T, B=10, seed=0, epochs=1)
    taken = [batch.x.numpy() for _ in range(3) for batch in one]
    assert [len(x) for x in taken] == ([10] * 8 + [3]) * 3
    for step, x in enumerate(taken):
        assert np.array_equal(one.trace(step).tokens[:, :-1], x)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((-1,), "step=-1"), (("a",), "step='a'"), ((0, 6), "rows 0 to 5"), ((0, 0, 13), "columns 0 to 12"), ((0, -1), "row=-1")],
)
def test_what_does_not_exist_is_one_clear_line(sources: dict[str, str], arguments: tuple, message: str) -> None:
    with pytest.raises(NielsCacheError, match=message):
        loader(sources).trace(*arguments)


def test_a_step_after_the_end_is_one_clear_line(sources: dict[str, str]) -> None:
    with pytest.raises(NielsCacheError, match="ends before it"):
        TokenLoader(sources["notes"], T=T, B=10, seed=0, epochs=1).trace(9)
