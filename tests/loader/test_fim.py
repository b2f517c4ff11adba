"""Fill-in-the-middle in packed rows: every rearranged document is found again in the row, and the rate is exact in every epoch."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from niels_cache_runtime import FIM, BestFit, Blocks, NielsCacheError, TokenLoader
from tests.helpers.hand_made import EOT, rewrite_meta, write_stream

PRE, SUF, MID, BOS = 5, 6, 7, 8
IDS: dict[str, Any] = {"pre": PRE, "suf": SUF, "mid": MID}
T = 24
SETTINGS: dict[str, Any] = {"T": T, "B": 3, "seed": 5, "packing": "best_fit", "fim": FIM(**IDS)}
SHARD = 50


def write_split(folder: Path, lengths: list[int], *, bos: bool = False) -> tuple[str, np.ndarray, np.ndarray]:
    """Write documents of tokens that tell their place in the stream, each of which ends with EOT."""
    stream, ends = 100 + np.arange(sum(lengths)), np.cumsum(lengths)
    if bos:
        stream[ends - lengths] = BOS
    stream[ends - 1] = EOT
    split = write_stream(folder, stream, shard_tokens=SHARD, doc_ends=ends.tolist())
    if bos:
        rewrite_meta(folder, special_token_ids={"sys": None, "usr": None, "asst": None, "eot": EOT, "bos": BOS})
    return split, stream, ends


def lengths_of(n: int, low: int, high: int, seed: int = 0) -> list[int]:
    return torch.randint(low, high + 1, (n,), generator=torch.Generator().manual_seed(seed)).tolist()


@pytest.fixture
def split(tmp_path: Path) -> tuple[str, np.ndarray, np.ndarray]:
    return write_split(tmp_path / "pretrain" / "notes", lengths_of(150, 1, 70))


def restored(tokens: list[int]) -> tuple[str, list[int]]:
    """Return the order of the tokens of a piece, and the tokens as they are in the document."""
    if PRE not in tokens:
        return "plain", tokens
    assert [tokens.count(each) for each in (PRE, SUF, MID)] == [1, 1, 1]
    pre, suf, mid = (tokens.index(each) for each in (PRE, SUF, MID))
    assert pre < suf < mid
    before, prefix, suffix, middle = tokens[:pre], tokens[pre + 1 : suf], tokens[suf + 1 : mid], tokens[mid + 1 :]
    end = [middle.pop()] if middle and middle[-1] == EOT else []
    assert all(each in ([], [BOS]) for each in (before,))
    assert EOT not in prefix + suffix + middle
    return "psm" if prefix else "spm", before + prefix + middle + suffix + end


def read(loader: TokenLoader, stream: np.ndarray, ends: np.ndarray) -> tuple[Counter[tuple[str, int, int]], Counter[int]]:
    """Read an epoch, check every row, and return the pieces (order, first token, length) and the places that are targets."""
    pieces: Counter[tuple[str, int, int]] = Counter()
    learned: Counter[int] = Counter()
    for step, batch in enumerate(loader, loader.step):
        trace: Any = loader.trace(step)
        assert np.array_equal(trace.tokens[:, :-1], batch.x.numpy())
        assert np.array_equal(trace.tokens[:, 1:], batch.y.numpy())
        is_known, is_sentinel = trace.files >= 0, (trace.files < 0) & (trace.documents >= 0)
        assert np.array_equal(is_sentinel, np.isin(trace.tokens, [PRE, SUF, MID]))
        places = np.where(is_known, trace.files * SHARD + trace.offsets, -1)
        assert np.array_equal(trace.tokens[is_known], stream[places[is_known]])
        assert np.array_equal(trace.documents[is_known], ends.searchsorted(places[is_known], side="right"))
        is_target = (batch.y_masked != -100).numpy()
        assert not is_target[(trace.documents[:, 1:] < 0)].any()
        learned.update(places[:, 1:][is_target & is_known[:, 1:]].tolist())
        ids = np.concatenate([batch["document_ids"].numpy(), np.full((len(batch.x), 1), -1)], axis=1)
        for row in range(len(batch.x)):
            last = trace.documents[row, T] >= 0 and trace.documents[row, T] == trace.documents[row, T - 1]
            ids[row, T] = ids[row, T - 1] + (0 if last else 1)
            for number in range(ids[row].max() + 1):
                own = (ids[row] == number) & (trace.documents[row] >= 0)
                if not own.any():
                    continue
                assert len({*trace.documents[row, own].tolist()}) == 1
                order, tokens = restored(trace.tokens[row, own].tolist())
                known = np.sort(places[row, own & is_known[row]])
                assert np.array_equal(np.diff(known), np.ones(len(known) - 1))
                assert tokens == stream[known].tolist()
                pieces[order, int(known[0]), len(known)] += 1
    return pieces, learned


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"fim": FIM(rate=1, spm_rate=0, **IDS)},
        {"fim": FIM(rate=0.3, level="row", **IDS)},
        {"packing": BestFit(pad_documents_to=8), "max_documents": 2},
        {"packing": BestFit(pad_documents_to=4), "fim": FIM(level="row", **IDS)},
        {"order": Blocks(shards=4, lanes=2), "max_documents": 3},
        {"shuffle": False},
    ],
)
def test_every_piece_is_found_again_and_every_token_is_a_target_once(split: Any, settings: dict[str, Any]) -> None:
    folder, stream, ends = split
    loader = TokenLoader(folder, **SETTINGS | settings, epochs=1)
    epochs = [read(loader, stream, ends) for _ in range(2)]
    begins = {0, *ends[:-1].tolist()}
    lengths = np.diff(ends, prepend=0)
    for pieces, learned in epochs:
        assert {*pieces.values()} == {1}
        rearranged = {first for order, first, _ in pieces if order != "plain"}
        expected = Counter(place for place in range(len(stream)) if place not in begins or place in rearranged)
        for first, length in zip(ends - lengths, lengths, strict=True):
            if length == 1:
                del expected[int(first)]
        assert learned == expected
        unfit = int(((lengths >= T - 1) & (lengths <= T + 1)).sum())
        fits = sum(length <= T - 2 for _, _, length in pieces)
        report: Any = loader.report(1).sources[0].details
        count = sum(order != "plain" for order, *_ in pieces)
        fim: Any = (SETTINGS | settings)["fim"]
        assert (count, unfit) == (report.fim, report.fim_unfit)
        assert len(pieces) == fits + unfit == report.pieces
        assert abs(count - fim.rate * fits) <= 1
    assert epochs[0][0] != epochs[1][0]
