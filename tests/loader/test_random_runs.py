"""Runs of random settings stop at random steps and go on with other ranks and batches, and read what one run without a stop reads.

A run is drawn from its number. A new setting of the loader is a line of `SETTINGS`, or of `CHANGES` if it may change when a run resumes.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from niels_cache_runtime import FIM, BestFit, Blocks, Phase, PhasedLoader, TokenLoader
from niels_cache_runtime.format.layout import doc_ends_name
from niels_cache_runtime.loader.documents import places_of_cp_rank
from tests.helpers.hand_made import ASST, EOT, USR, rewrite_meta, write_meta_of, write_pair, write_shards, write_stream
from tests.helpers.traced_steps import check_steps

# What a run keeps, and the values that it may have.
SETTINGS: dict[str, tuple[Any, ...]] = {
    "T": (6, 8, 17, 40),
    "seed": (0, 7, 2**64 - 1),
    "shuffle": (True, True, True, False),
    "order": ("split", "split", Blocks(shards=1), Blocks(shards=2, lanes=2), Blocks(shards=3, lanes=6)),
    "packing": (None, "best_fit", BestFit(bos_on_pieces=True), BestFit(pad_documents_to=8)),
    "weights": ({"notes": 1}, {"notes": 1}, {"notes": 3, "chats": 1}, {"more": 1, "notes": 1}, {"notes": 2, "more": 1, "chats": 1}),
    "epochs": (None, None, 1, 2),
    "mask_cross_document_targets": (False, True),
    "loss_weights": (None, {"notes": 0.5}, {"notes": 0.0}),
    "goldfish": (None, (3, 2), (2, 30)),
    "mask_repetitive": (None, (2, 3)),
    "fim": (None, FIM(pre=40, suf=41, mid=42), FIM(rate=0.8, spm_rate=0.2, level="row", pre=42, suf=40, mid=41)),  # some texts have them
}
# What each leg of a run, from one stop to the next, has of its own.
CHANGES: dict[str, tuple[Any, ...]] = {"B": (1, 2, 5), "world_size": (1, 2, 3, 4), "cp_size": (1, 2, 4)}
# What each phase of a run in phases has of its own.
PHASES: dict[str, tuple[Any, ...]] = {
    "T": (5, 8, 24),
    "packing": (None, "best_fit", BestFit(bos_on_pieces=True)),
    "weights": ({"notes": 2, "more": 1}, {"notes": 1, "more": 1}),
    "tokens": (300, 500),
}
OF_PHASES = ("seed", "shuffle", "mask_cross_document_targets", "loss_weights", "goldfish", "mask_repetitive")  # of SETTINGS
FIELDS = ("document_ids", "position_ids", "cu_seqlens", "weights", "dataset_ids")
ROW_FIELDS = ("x", "y", "y_masked", "document_ids", "position_ids", "weights")
IDS = {"sys": None, "usr": None, "asst": None, "eot": EOT, "bos": 4}
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


def draw_run(number: int) -> tuple[dict[str, Any], list[Leg], list[dict[str, Any]]]:
    """Return the settings, legs and phases of a run."""
    generator = torch.Generator().manual_seed((number + 1) * 0x9E3779B97F4A7C15 % 2**63)

    def below(count: int) -> int:
        return int(torch.randint(count, (), generator=generator))

    def draw(choices: dict[str, tuple[Any, ...]]) -> dict[str, Any]:
        return {name: values[below(len(values))] for name, values in choices.items()}

    settings, grows = draw(SETTINGS), below(2)
    pads = isinstance(settings["packing"], BestFit) and settings["packing"].pad_documents_to
    if pads:
        settings |= {"T": (8, 40)[below(2)], "weights": {"notes": 2, "more": 1}}
    settings["fim"] = settings["fim"] if settings["packing"] else None
    settings["max_documents"] = below(2) * 3 or None if settings["packing"] and "chats" not in settings["weights"] else None
    stages = np.cumsum([0, *(grows * below(2) for _ in range(2))]).tolist()
    legs = [Leg(changes=draw(CHANGES) | ({} if pads else {"cp_size": 1}), steps=1 + below(14), stage=stage) for stage in stages]
    return settings, legs, [draw(PHASES) for _ in range(1 + below(3))]


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
    counts = {"train_tokens": int(ends[-1]), "shard_bytes": 128}
    write_meta_of(folder, kind="pretrain", append_eot=True, parts=entries, special_token_ids=IDS, **counts)
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
    rewrite_meta(Path(more).parent, special_token_ids=IDS)
    chats = root / "cache" / "sft" / "chats"
    write_pair(chats, "train", [[USR, 20, EOT, ASST, *range(10, 12 + 3 * number), EOT] for number in range(9)])
    write_pair(chats, "val", [])
    write_meta_of(chats, kind="sft")
    fixed = {"more": more, "chats": str(chats / "train")}
    return [fixed | {"notes": write_notes(root / f"stage {stage}" / "pretrain" / "notes", stage + 1)} for stage in range(3)]


def take(loaders: Sequence[Any], steps: int) -> Iterator[tuple[int, Row]]:
    """Yield the samples of the next steps, with their numbers. A pass that ends is followed by the next one.

    Args:
        loaders: One loader, or those of all ranks of context parallelism.
        steps: The number of steps.
    """
    loader = loaders[0]
    end = loader.step + steps
    while loader.step < end:
        for batches in zip(*loaders, strict=True):
            if loader.step > end:  # the last batch of a phase had no row for this rank
                break
            if isinstance(loader, PhasedLoader):
                numbers = loader.trace(loader.step - 1, rank=loader._loaders[0].rank).samples.tolist()
            else:
                numbers = loader._steps.find(loader.position, loader.step - 1, rank=loader.rank).tolist()
            found = join(batches)
            yield from ((number, {name: rows[row] for name, rows in found.items()}) for row, number in enumerate(numbers))
            if loader.step >= end:
                break


def join(batches: Sequence[Any]) -> Row:
    """Return the fields of a batch that the ranks of context parallelism share, and check that they fit together."""
    batch, T = batches[0], sum(own.x.shape[1] for own in batches)
    cu = np.unique(batch.cu_seqlens if batch.cu_seqlens_padded is None else batch.cu_seqlens_padded)
    rows = {"dataset_ids": batch.dataset_ids} if "dataset_ids" in batch else {}
    for name in ROW_FIELDS:
        rows[name] = torch.empty(len(batch.x), T, dtype=batch[name].dtype)
        for cp_rank, own in enumerate(batches):
            places = slice(None) if len(batches) == 1 else places_of_cp_rank(cu, cp_rank=cp_rank, cp_size=len(batches))
            rows[name].view(-1)[places] = own[name].flatten()
    starts = (rows["position_ids"].flatten() == 0).nonzero().flatten().tolist()
    assert cu.tolist() == [*starts, rows["x"].numel()]
    assert batch.max_seqlen in (T, np.diff(cu).max())
    assert torch.equal(rows["weights"] == 0, rows["y_masked"] == -100)
    assert torch.equal(torch.where(rows["y_masked"] == -100, rows["y"], rows["y_masked"]), rows["y"])
    return rows


def same(rows: Iterable[Row], others: Iterable[Row]) -> bool:
    pairs = list(zip(rows, others, strict=True))
    return bool(pairs) and all(torch.equal(row[name], other[name]) for row, other in pairs for name in row)


@pytest.mark.parametrize("numbers", [range(4), pytest.param(range(4, 304), marks=pytest.mark.torture)], ids=["4 runs", "300 runs"])
def test_a_run_that_stops_and_goes_on_reads_what_one_without_a_stop_reads(stages: list[dict[str, str]], numbers: range) -> None:
    for number in numbers:
        settings, legs, _ = draw_run(number)
        sources = [{name: folders[name] for name in settings["weights"]} for folders in stages]
        seen: dict[int, Row] = {}
        open_rank: Any = partial(TokenLoader, **settings, fields=FIELDS)
        for leg in legs:
            open_leg = partial(open_rank, sources[leg.stage], **leg.changes)
            ranks = [
                [open_leg(rank=rank, cp_rank=cp_rank) for cp_rank in range(leg.changes["cp_size"])]
                for rank in range(leg.changes["world_size"])
            ]
            read_leg(ranks, leg, seen, number)
            state = json.loads(json.dumps(ranks[number % len(ranks)][-1].state_dict()))
            open_rank = partial(TokenLoader.from_state, state, grown=True)
        check_steps(ranks[0][0], may_be_shorter=3 if settings["fim"] else 0)
        rows = [seen[sample] for sample in range(len(seen))]
        if legs[-1].changes["cp_size"] == 1:
            whole_run = ranks[0][0].as_dataset(len(rows))
            assert same(rows, whole_run.__getitems__([*range(len(rows))])), (number, settings, legs)
        if legs[-1].stage == legs[0].stage:
            whole = TokenLoader(sources[0], **settings, B=7, fields=FIELDS)
            assert same(rows, (row for _, row in islice(take([whole], len(rows)), len(rows)))), (number, settings, legs)


def read_leg(ranks: list[list[Any]], leg: Leg, seen: dict[int, Row], number: int) -> None:
    """Read a leg on all ranks, and add its samples to those that were seen. All samples up to here must be there, each once."""
    before = len(seen)
    for loaders in ranks:
        for sample, row in take(loaders, leg.steps):
            assert sample not in seen, number
            seen[sample] = row
    loader = ranks[0][0]
    of_phases = loader._loaders if isinstance(loader, PhasedLoader) else [loader]
    assert sorted(seen) == list(range(sum(each.samples for each in of_phases))), number
    assert len(seen) > before


@pytest.mark.parametrize("numbers", [range(1), pytest.param(range(1, 101), marks=pytest.mark.torture)], ids=["1 run", "100 runs"])
def test_a_run_in_phases_that_stops_and_goes_on_reads_what_one_without_a_stop_reads(stages: list[dict[str, str]], numbers: range) -> None:
    sources = {name: stages[2][name] for name in ("notes", "more")}
    for number in numbers:
        settings, legs, phases = draw_run(number)
        phases[-1]["tokens"] = None
        common = {name: settings[name] for name in OF_PHASES} | {"fields": FIELDS, "lot_tokens": 80, "lanes": 1 + number % 3}
        has_room = all(phase["packing"] and phase["T"] > 5 for phase in phases)
        common["fim"] = SETTINGS["fim"][number % 3] if has_room else None
        seen: dict[int, Row] = {}
        state = None
        for leg in legs:
            own, world_size = [Phase(**phase, B=leg.changes["B"]) for phase in phases], leg.changes["world_size"]
            ranks = [PhasedLoader(sources, phases=own, rank=rank, world_size=world_size, **common) for rank in range(world_size)]
            for loader in ranks if state else []:
                loader.load_state_dict(state)
            read_leg([[loader] for loader in ranks], leg, seen, number)
            state = json.loads(json.dumps(ranks[0].state_dict()))
        check_steps(ranks[0], may_be_shorter=3 if common["fim"] else 0)
        whole = PhasedLoader(sources, phases=[Phase(**phase, B=7) for phase in phases], **common)
        rows = (row for _, row in islice(take([whole], len(seen)), len(seen)))
        assert same((seen[sample] for sample in range(len(seen))), rows), number
