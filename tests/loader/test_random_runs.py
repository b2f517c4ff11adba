"""Runs of random settings stop at random steps and go on with other ranks and batches, and read what one run without a stop reads.

A run is drawn from its number. A new setting of the loader is a line of `SETTINGS`, or of `CHANGES` if it may change when a run resumes.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from niels_cache_runtime import Blocks, TokenLoader
from niels_cache_runtime.format.layout import doc_ends_name
from tests.helpers.hand_made import ASST, EOT, USR, write_meta_of, write_pair, write_shards, write_stream

# What a run keeps, and the values that it may have.
SETTINGS: dict[str, tuple[Any, ...]] = {
    "T": (6, 8, 17, 40),
    "seed": (0, 7, 2**64 - 1),
    "shuffle": (True, True, True, False),
    "order": ("split", "split", Blocks(shards=1), Blocks(shards=2, lanes=2), Blocks(shards=3, lanes=6)),
    "packing": (None, "best_fit"),
    "weights": ({"notes": 1}, {"notes": 1}, {"notes": 3, "chats": 1}, {"more": 1, "notes": 1}, {"notes": 2, "more": 1, "chats": 1}),
    "epochs": (None, None, 1, 2),
    "mask_cross_document_targets": (False, True),
    "loss_weights": (None, {"notes": 0.5}, {"notes": 0.0}),
    "goldfish": (None, (3, 2), (2, 30)),
    "mask_repetitive": (None, (2, 3)),
}
# What each leg of a run, from one stop to the next, has of its own.
CHANGES: dict[str, tuple[Any, ...]] = {"B": (1, 2, 5), "world_size": (1, 2, 3, 4)}
FIELDS = ("document_ids", "position_ids", "cu_seqlens", "weights", "dataset_ids")
ROW_FIELDS = ("x", "y", "y_masked", "document_ids", "position_ids", "weights", "dataset_ids")
Row = dict[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Leg:
    """A part of a run between two stops.

    Attributes:
        changes: The values of CHANGES.
        steps: The number of steps.
        stage: How often the data set `notes` has grown before.
    """

    changes: dict[str, Any]
    steps: int
    stage: int


def draw_run(number: int) -> tuple[dict[str, Any], list[Leg]]:
    generator = torch.Generator().manual_seed((number + 1) * 0x9E3779B97F4A7C15 % 2**63)

    def below(count: int) -> int:
        return int(torch.randint(count, (), generator=generator))

    def draw(choices: dict[str, tuple[Any, ...]]) -> dict[str, Any]:
        return {name: values[below(len(values))] for name, values in choices.items()}

    settings, grows = draw(SETTINGS), below(2)
    stages = np.cumsum([0, *(grows * below(2) for _ in range(2))]).tolist()
    return settings, [Leg(changes=draw(CHANGES), steps=1 + below(14), stage=stage) for stage in stages]


def write_notes(folder: Path, parts: int) -> str:
    """Write a data set that was joined from so many parts of documents, as `niels-cache` does when it grows."""
    shards: list[np.ndarray] = []
    entries, ends = [], np.zeros(0, dtype=np.int64)
    for part in range(parts):
        generator = torch.Generator().manual_seed(part)
        lengths = torch.randint(1, 50, (14 - 3 * part,), generator=generator).numpy()
        stream = torch.randint(5, 8, (int(lengths.sum()),), generator=generator).numpy()
        stream[lengths.cumsum() - 1] = EOT
        own = [stream[first : first + 64] for first in range(0, len(stream), 64)]
        counts = {"shards": len(own), "tokens": len(stream), "documents": len(lengths)}
        entries.append({"name": f"part-{part}", **{key: {"train": count} for key, count in counts.items()}})
        ends = np.append(ends, (ends[-1] if len(ends) else 0) + lengths.cumsum())
        shards += own
    write_shards(folder / "train", [shard.tolist() for shard in shards])
    np.save(folder / doc_ends_name("train"), ends.astype(np.uint64))
    write_meta_of(folder, kind="pretrain", append_eot=True, shard_bytes=128, train_tokens=int(ends[-1]), parts=entries)
    return str(folder / "train")


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """The folders of the data sets, when `notes` has not grown, has grown once, and twice."""
    root = tmp_path_factory.mktemp("runs")
    generator = torch.Generator().manual_seed(9)
    lengths = torch.randint(2, 70, (12,), generator=generator).numpy()
    more = write_stream(
        root / "cache" / "pretrain" / "more",
        torch.randint(5, 90, (int(lengths.sum()),), generator=generator).numpy(),
        shard_tokens=100,
        doc_ends=lengths.cumsum().tolist(),
    )
    chats = root / "cache" / "sft" / "chats"
    write_pair(chats, "train", [[USR, 20, EOT, ASST, *range(10, 12 + 3 * number), EOT] for number in range(9)])
    write_pair(chats, "val", [])
    write_meta_of(chats, kind="sft")
    fixed = {"more": more, "chats": str(chats / "train")}
    return [fixed | {"notes": write_notes(root / f"stage {stage}" / "pretrain" / "notes", stage + 1)} for stage in range(3)]


def take(loader: TokenLoader, steps: int) -> Iterator[tuple[int, Row]]:
    """Yield the samples of the next steps, with their numbers. A pass that ends is followed by the next one."""
    end = loader.step + steps
    while loader.step < end:
        for batch in loader:
            numbers = loader._steps.find(loader.position, loader.step - 1, rank=loader.rank).tolist()
            check_fields(batch)
            present = [name for name in ROW_FIELDS if name in batch]
            yield from ((number, {name: batch[name][row] for name in present}) for row, number in enumerate(numbers))
            if loader.step >= end:
                break


def check_fields(batch: Any) -> None:
    starts = (batch.position_ids.flatten() == 0).nonzero().flatten().tolist()
    assert batch.cu_seqlens.tolist() == [*starts, batch.x.numel()]
    assert batch.max_seqlen == batch.cu_seqlens.diff().max()
    assert torch.equal(batch.weights == 0, batch.y_masked == -100)
    assert torch.equal(torch.where(batch.y_masked == -100, batch.y, batch.y_masked), batch.y)


def same(rows: Iterable[Row], others: Iterable[Row]) -> bool:
    pairs = list(zip(rows, others, strict=True))
    return bool(pairs) and all(torch.equal(row[name], other[name]) for row, other in pairs for name in row)


@pytest.mark.parametrize("numbers", [range(6), pytest.param(range(6, 306), marks=pytest.mark.torture)], ids=["6 runs", "300 runs"])
def test_a_run_that_stops_and_goes_on_reads_what_one_without_a_stop_reads(stages: list[dict[str, str]], numbers: range) -> None:
    for number in numbers:
        settings, legs = draw_run(number)
        sources = [{name: folders[name] for name in settings["weights"]} for folders in stages]
        seen: dict[int, Row] = {}
        open_rank: Any = partial(TokenLoader, **settings, fields=FIELDS)
        for leg in legs:
            ranks = [open_rank(sources[leg.stage], **leg.changes, rank=rank) for rank in range(leg.changes["world_size"])]
            before = len(seen)
            for loader in ranks:
                for sample, row in take(loader, leg.steps):
                    assert sample not in seen, number
                    seen[sample] = row
            assert sorted(seen) == list(range(ranks[0].samples)), (number, settings, legs)
            assert len(seen) > before
            state = json.loads(json.dumps(ranks[number % len(ranks)].state_dict()))
            open_rank = partial(TokenLoader.from_state, state, grown=True)
        rows = [seen[sample] for sample in range(len(seen))]
        whole_run = ranks[0].as_dataset(len(rows))
        assert same(rows, whole_run.__getitems__([*range(len(rows))])), (number, settings, legs)
        if legs[-1].stage == legs[0].stage:
            whole = TokenLoader(sources[0], **settings, B=7, fields=FIELDS)
            assert same(rows, (row for _, row in islice(take(whole, len(rows)), len(rows)))), (number, settings, legs)
