"""Training under Lightning: a run that was stopped at a checkpoint goes on with the batches that a run without a stop would take."""

import copy
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from niels_cache_runtime import Batch, NielsCacheError, TokenLoader
from tests.hand_made import write_stream

L = pytest.importorskip("lightning.pytorch", reason="the extra lightning is not installed")
from niels_cache_runtime.lightning import LightningTokens  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*`isinstance.treespec, LeafSpec.` is deprecated"),
]
STEPS, STOP = 23, 9  # of the whole run, and where it is stopped


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return write_stream(tmp_path / "notes", np.arange(341))  # 42 windows of T=8 and their next token


class Model(L.LightningModule):
    """Remembers the first token of every row that it was trained on, and of those that it was shown for validation."""

    def __init__(self, *, stop_at: int | None = None) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.seen: list[list[int]] = []
        self.validated: list[list[int]] = []
        self._stop_at = stop_at

    def training_step(self, batch: Batch, batch_idx: int) -> torch.Tensor:
        self.seen.append(batch.x[:, 0].tolist())
        return (batch.y[0, 0].float() * self.weight).sum()

    def validation_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> None:
        self.validated.append(batch["x"][:, 0].tolist())

    def on_train_batch_end(self, outputs: Any, batch: Batch, batch_idx: int) -> None:
        if len(self.seen) == self._stop_at:
            self.trainer.save_checkpoint(Path(self.trainer.default_root_dir) / "stopped.ckpt")
            self.trainer.should_stop = True

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.0)


def trainer_of(tokens: Any, root: Path, **settings: Any) -> Any:
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    return L.Trainer(accelerator="cpu", devices=1, default_root_dir=root, callbacks=[tokens], min_epochs=0, **quiet, **settings)


def tokens_of(folder: str, *, workers: int = 0, **settings: Any) -> LightningTokens:
    loader = TokenLoader(folder, T=8, B=4, seed=3, **settings)
    return LightningTokens(StatefulDataLoader(loader, batch_size=None, num_workers=workers) if workers else loader)


def run(folder: str, root: Path, *, workers: int, trainer: dict[str, Any], stop_at: int | None = None, resume: bool = False,
        val: Any = None, **settings: Any) -> Model:  # fmt: skip
    tokens, model = tokens_of(folder, workers=workers, **settings), Model(stop_at=stop_at)
    checkpoint = root / "stopped.ckpt" if resume else None
    trainer_of(tokens, root, **trainer).fit(model, tokens.batches, val, ckpt_path=checkpoint, weights_only=False)
    return model


CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "endless": ({}, {"max_steps": STEPS, "max_epochs": -1}),
    "endless, in epochs of five batches": ({}, {"max_steps": STEPS, "max_epochs": -1, "limit_train_batches": 5}),
    "one pass an epoch": ({"epochs": 1}, {"max_steps": STEPS, "max_epochs": -1}),
    "one pass an epoch, whole batches": ({"epochs": 1, "drop_last": True}, {"max_epochs": 2}),
}


@pytest.mark.parametrize(("case", "workers"), [*((case, 0) for case in CASES), ("endless", 2), ("one pass an epoch", 2)])
def test_a_stopped_run_goes_on_with_the_next_batch(folder: str, tmp_path: Path, case: str, workers: int) -> None:
    settings, trainer = CASES[case]
    whole = run(folder, tmp_path, workers=workers, trainer=trainer, **settings).seen
    alone = [batch.x[:, 0].tolist() for batch, _ in zip(endlessly(TokenLoader(folder, T=8, B=4, seed=3, **settings)), whole, strict=False)]
    assert len(whole) > 19
    assert whole == alone, "Lightning leaves none out and takes none twice, from epoch to epoch"
    for stop in (STOP, 10, 11) if not workers else (STOP,):  # in the middle of an epoch, at its end, and at the start of one
        before = run(folder, tmp_path, workers=workers, trainer=trainer, stop_at=stop, **settings).seen
        after = run(folder, tmp_path, workers=workers, trainer=trainer, resume=True, **settings).seen
        assert before + after == whole


def endlessly(loader: TokenLoader) -> Iterator[Batch]:
    while True:
        yield from loader


def test_validation_and_accumulation_in_the_middle_change_nothing(folder: str, tmp_path: Path) -> None:
    trainer = {"max_steps": 8, "max_epochs": -1, "limit_train_batches": 8, "val_check_interval": 3, "accumulate_grad_batches": 2}
    held_out = TokenLoader(folder, T=8, B=4, seed=5, epochs=1, shuffle=False)

    def val() -> DataLoader[Any]:
        return DataLoader(held_out.as_dataset(8), batch_size=4)

    whole = run(folder, tmp_path, workers=0, trainer=trainer, val=val())
    assert len(whole.seen) == 16
    assert len(whole.validated) > 6
    for stop in (6, 7, 9):
        before = run(folder, tmp_path, workers=0, trainer=trainer, val=val(), stop_at=stop)
        after = run(folder, tmp_path, workers=0, trainer=trainer, val=val(), resume=True)
        assert (before.seen + after.seen)[: len(whole.seen)] == whole.seen


def test_lightnings_own_handling_would_leave_out_a_batch(folder: str, tmp_path: Path) -> None:
    """What the callback is for. If this fails, Lightning has changed, and the callback may go."""
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = L.Trainer(accelerator="cpu", devices=1, default_root_dir=tmp_path, max_steps=STEPS, max_epochs=-1, **quiet)
    trainer.fit(Model(stop_at=STOP), TokenLoader(folder, T=8, B=4, seed=3))
    saved = torch.load(tmp_path / "stopped.ckpt", weights_only=False)["loops"]["fit_loop"]["state_dict"]["combined_loader"][0]
    assert saved["step"] == STOP + 1


def test_every_rank_takes_its_part_and_resumes_on_it(folder: str, tmp_path: Path) -> None:
    """Two processes of gloo. The checkpoint is that of rank 0."""
    whole = spawn(folder, tmp_path, steps=STEPS)
    before = spawn(folder, tmp_path, steps=STEPS, stop_at=STOP)
    after = spawn(folder, tmp_path, steps=STEPS, resume=True)
    alone = [batch.x[:, 0].tolist() for batch, _ in zip(TokenLoader(folder, T=8, B=8, seed=3), range(STEPS), strict=False)]
    assert [first + second for first, second in zip(*whole, strict=True)] == alone
    assert [[*first, *second] for first, second in zip(before, after, strict=True)] == whole


def spawn(folder: str, root: Path, **settings: Any) -> list[list[list[int]]]:
    torch.multiprocessing.start_processes(_rank, args=(folder, str(root), settings), nprocs=2, start_method="spawn")
    return [torch.load(root / f"seen_{rank}.pt") for rank in range(2)]


def _rank(rank: int, folder: str, root: str, settings: dict[str, Any]) -> None:
    os.environ |= {"LOCAL_RANK": str(rank), "NODE_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517", "WORLD_SIZE": "2"}
    torch.set_num_threads(1)
    from lightning.pytorch.plugins.environments import LightningEnvironment
    from lightning.pytorch.strategies import DDPStrategy

    tokens = LightningTokens(TokenLoader(folder, T=8, B=4, seed=3, rank=rank, world_size=2))
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    strategy = DDPStrategy(process_group_backend="gloo", cluster_environment=LightningEnvironment())
    trainer = L.Trainer(accelerator="cpu", devices=2, strategy=strategy, default_root_dir=root, callbacks=[tokens],
                        max_steps=settings["steps"], max_epochs=-1, **quiet)  # fmt: skip
    model = Model(stop_at=settings.get("stop_at"))
    checkpoint = Path(root) / "stopped.ckpt" if settings.get("resume") else None
    trainer.fit(model, tokens.batches, ckpt_path=checkpoint, weights_only=False)
    torch.save(model.seen, Path(root) / f"seen_{rank}.pt")


def test_what_cannot_be_resumed_is_refused(folder: str, tmp_path: Path) -> None:
    loader = TokenLoader(folder, T=8, B=4, seed=3)
    for wrong, message in (
        (DataLoader(loader, batch_size=None, num_workers=2), "a plain DataLoader with num_workers=2 can neither save nor restore"),
        (StatefulDataLoader(loader, batch_size=2), "batch_size=2: a TokenLoader gives whole batches"),
        (StatefulDataLoader(loader, batch_size=None, num_workers=2, persistent_workers=True), "persistent_workers=True"),
        ([1, 2], "loader is a list; give a TokenLoader"),
    ):
        with pytest.raises(NielsCacheError, match=message):
            LightningTokens(wrong)  # type: ignore[arg-type]
    tokens = LightningTokens(loader)
    with pytest.raises(NielsCacheError, match="this loader's position would not be saved"):
        iter(tokens.batches)
    with pytest.raises(NielsCacheError, match="the trainer reads another loader than this callback counts"):
        trainer_of(tokens, tmp_path, max_steps=2).fit(Model(), copy.copy(loader))
    of_another_rank = LightningTokens(TokenLoader(folder, T=8, B=4, seed=3, rank=1, world_size=2))
    with pytest.raises(NielsCacheError, match="TokenLoader has rank=1, world_size=2, the trainer rank=0, world_size=1"):
        trainer_of(of_another_rank, tmp_path, max_steps=2).fit(Model(), of_another_rank.batches)
