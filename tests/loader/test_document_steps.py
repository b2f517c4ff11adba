"""`steps_of` is `trace` backwards: it finds the rows that hold a document, exactly. `test_random_runs` compares many more settings."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from niels_cache_runtime import FIM, SFT, Blocks, NielsCacheError, Phase, PhasedLoader, TokenLoader
from tests.helpers.hand_made import ASST, EOT, USR, write_meta_of, write_pair, write_stream
from tests.helpers.traced_steps import check_steps, take_steps


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("cache")
    found = {}
    for seed, name in enumerate(("notes", "web")):
        lengths = torch.randint(1, 60, (24,), generator=torch.Generator().manual_seed(seed)).numpy()
        stream = 5 + np.arange(lengths.sum()) % 40
        found[name] = write_stream(root / "pretrain" / name, stream, shard_tokens=100, doc_ends=lengths.cumsum().tolist())
    examples = [[USR, 20, EOT, ASST, *range(10, 11 + 2 * number), EOT] for number in range(14)]
    chats = root / "sft" / "chats"
    write_pair(chats, "train", examples)
    write_meta_of(chats, kind="sft")
    return found | {"chats": str(chats / "train")}


@pytest.mark.parametrize(
    ("names", "settings", "second"),
    [
        (["notes"], {"stride": 3, "epochs": 1, "drop_last": True}, {"B": 5}),
        (["notes"], {"stride": 40, "epochs": 2}, {"world_size": 3}),
        (["notes", "web"], {"order": Blocks(shards=2, lanes=4, machines=2), "world_size": 2, "epochs": 1}, {"world_size": 4}),
        (["notes", "web", "chats"], {"packing": "best_fit"}, {"B": 1}),
        (["web"], {"packing": "best_fit", "fim": FIM(pre=1, suf=2, mid=3), "shuffle": False}, {"B": 7}),
        (["chats"], {"sft": SFT(overflow="truncate_left"), "epochs": 1}, {"world_size": 2}),
    ],
    ids=["overlapping windows", "windows with gaps", "blocks on machines", "packed", "fill in the middle", "examples"],
)
def test_it_finds_what_was_read_and_what_comes_next(
    folders: dict[str, str], names: list[str], settings: dict[str, Any], second: dict[str, Any]
) -> None:
    weights = None if len(names) == 1 else [(0, dict.fromkeys(names, 2) | {names[0]: 3}), (30, dict.fromkeys(names, 1) | {names[0]: 0})]
    loader: Any = TokenLoader({name: folders[name] for name in names}, T=12, B=3, seed=1, weights=weights, **settings)
    take_steps(loader, 12)
    assert check_steps(loader) > 20
    resumed: Any = TokenLoader.from_state(json.loads(json.dumps(loader.state_dict())), **second)
    take_steps(resumed, 4)
    assert check_steps(resumed) > 30


def test_only_some_tokens_of_a_document_count(folders: dict[str, str]) -> None:
    loader = TokenLoader(folders["notes"], T=12, B=3, seed=1)
    long = int(np.diff(np.load(Path(folders["notes"]).parent / "train_doc_ends.npy"), prepend=0).argmax())
    places = [long, (long, 0, 1), (long, 30, 34), (long, 1000, 1001)]
    found = loader.steps_of(places, until=100)
    every = [read for read in found.read if read.query == 0]
    for index, (_, start, end) in enumerate(places[1:], start=1):
        own = [read._replace(query=0) for read in found.read if read.query == index]
        assert own == [read for read in every if read.offset < end and read.offset + read.tokens > start]
    assert len({read.number for read in every}) > 3
    assert {read.query for read in found.read} == {read.query for read in found.next} == {0, 1, 2}
    for read in found.read:
        trace: Any = loader.trace(read.step, rank=read.rank)
        assert trace.documents[read.row, read.first] == long
        assert trace.document_offsets[read.row, read.first] == read.offset


def test_phases_count_steps_and_samples_over_the_run(folders: dict[str, str]) -> None:
    sources = {name: folders[name] for name in ("notes", "web")}
    weights = {"notes": 1, "web": 1}
    phases = [Phase(T=12, B=3, tokens=400, weights=weights), Phase(T=24, B=2, packing="best_fit", weights={"notes": 1, "web": 0})]
    loader = PhasedLoader(sources, phases=phases, seed=1, lot_tokens=80, lanes=2, drop_last=True)
    take_steps(loader, 20)
    assert loader.phase == 1
    assert check_steps(loader) > 50


def test_the_next_row_is_unknown_if_the_run_ends_before_it(folders: dict[str, str]) -> None:
    once: Any = TokenLoader(folders["notes"], T=12, B=3, seed=1, epochs=1, on_exhausted="raise")
    again = TokenLoader(folders["notes"], T=12, B=3, seed=1, epochs=1)
    take_steps(once, len(once))
    assert [*once.steps_of(range(24), until=once.step).next] == []
    assert {read.document for read in again.steps_of(range(24), until=once.step).next} == set(range(24))
    with pytest.raises(NielsCacheError, match="until=500"):
        once.steps_of([0], until=500)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"documents": [24]}, "document=24.*0 to 23"), ({"documents": [-1]}, "document=-1"), ({"documents": [0], "source": "x"}, "notes")],
)
def test_what_does_not_exist_is_one_clear_line(folders: dict[str, str], arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(NielsCacheError, match=message):
        TokenLoader(folders["notes"], T=12, B=3, seed=1).steps_of(**arguments)
