"""Training under Lightning. A run that was stopped at a checkpoint continues with the batches of a run without a stop."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from niels_cache_runtime import Batch, NielsCacheError, TokenLoader
from tests.helpers.hand_made import write_stream

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*`isinstance.treespec, LeafSpec.` is deprecated"),
]
STEPS, STOP = 23, 9  # of the whole run, and where it is stopped


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return write_stream(tmp_path / "notes", np.arange(341))  # 42 windows of T=8 and their next token


@pytest.fixture(scope="module")
def lightning() -> Any:
    """tests/helpers/lightning_run.py, where Lightning is installed."""
    pytest.importorskip("lightning.pytorch", reason="the extra lightning is not installed")
    from tests.helpers import lightning_run

    return lightning_run


CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "endless": ({}, {"max_steps": STEPS, "max_epochs": -1}),
    "endless, five an epoch": ({}, {"max_steps": STEPS, "max_epochs": -1, "limit_train_batches": 5}),
    "one pass": ({"epochs": 1}, {"max_steps": STEPS, "max_epochs": -1}),
    "one pass, whole": ({"epochs": 1, "drop_last": True}, {"max_epochs": 2}),
}


@pytest.mark.parametrize(("case", "workers"), [*((case, 0) for case in CASES), ("endless", 2), ("one pass", 2)])
def test_a_stopped_run_goes_on_with_the_next_batch(lightning: Any, folder: str, tmp_path: Path, case: str, workers: int) -> None:
    settings, trainer = CASES[case]
    whole = lightning.run(folder, tmp_path, workers=workers, trainer=trainer, **settings).seen
    alone = [batch.x[:, 0].tolist() for batch, _ in zip(endlessly(TokenLoader(folder, T=8, B=4, seed=3, **settings)), whole, strict=False)]
    assert len(whole) > 19
    assert whole == alone, "Lightning leaves none out and takes none twice, from epoch to epoch"
    for stop in (STOP, 10, 11) if not workers else (STOP,):  # in the middle of an epoch, at its end, and at the start of one
        before = lightning.run(folder, tmp_path, workers=workers, trainer=trainer, stop_at=stop, **settings).seen
        after = lightning.run(folder, tmp_path, workers=workers, trainer=trainer, resume=True, **settings).seen
        assert before + after == whole


def endlessly(loader: TokenLoader) -> Iterator[Batch]:
    while True:
        yield from loader


def test_every_rank_takes_its_part_and_resumes_on_it(lightning: Any, folder: str, tmp_path: Path) -> None:
    """Two processes of gloo. The checkpoint is that of rank 0."""
    lightning.train_on_ranks(folder=folder, root=str(tmp_path), steps=STEPS, stop=STOP)
    whole, before, after = ([torch.load(tmp_path / f"{name}_{rank}.pt") for rank in range(2)] for name in lightning.PARTS)
    alone = [batch.x[:, 0].tolist() for batch, _ in zip(TokenLoader(folder, T=8, B=8, seed=3), range(STEPS), strict=False)]
    assert [first + second for first, second in zip(*whole, strict=True)] == alone
    assert [len(seen) for seen in before] == [STOP] * 2
    assert [[*first, *second] for first, second in zip(before, after, strict=True)] == whole


def test_what_cannot_be_resumed_is_refused(lightning: Any, folder: str, tmp_path: Path) -> None:
    loader = TokenLoader(folder, T=8, B=4, seed=3)
    for wrong, message in (
        (DataLoader(loader, batch_size=None, num_workers=2), "plain DataLoader with num_workers=2"),
        (StatefulDataLoader(loader, batch_size=2), "batch_size=2: .*use batch_size=None"),
        (StatefulDataLoader(loader, batch_size=None, num_workers=2, persistent_workers=True), "persistent_workers=True"),
        ([1, 2], "is a list; give a TokenLoader"),
    ):
        with pytest.raises(NielsCacheError, match=message):
            lightning.LightningTokens(wrong)  # type: ignore[arg-type]
    tokens = lightning.LightningTokens(loader)
    with pytest.raises(NielsCacheError, match=r"Trainer\(callbacks=\[tokens\]\)"):
        iter(tokens.batches)
    with pytest.raises(NielsCacheError, match=r"train_dataloaders=tokens\.batches"):
        lightning.trainer_of(tokens, tmp_path, max_steps=2).fit(lightning.Model(), copy.copy(loader))
    of_another_rank = lightning.LightningTokens(TokenLoader(folder, T=8, B=4, seed=3, rank=1, world_size=2))
    with pytest.raises(NielsCacheError, match=r"rank=1, world_size=2,.* rank=0, world_size=1"):
        lightning.trainer_of(of_another_rank, tmp_path, max_steps=2).fit(lightning.Model(), of_another_rank.batches)
