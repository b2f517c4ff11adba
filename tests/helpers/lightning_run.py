"""A run under Lightning, for tests/loader/test_lightning.py and its ranks. Importing Lightning takes seconds, so only they import this."""

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import torch
from lightning.pytorch.plugins.environments import LightningEnvironment
from lightning.pytorch.strategies import DDPStrategy
from torchdata.stateful_dataloader import StatefulDataLoader

from niels_cache_runtime import Batch, TokenLoader
from niels_cache_runtime.lightning import LightningTokens
from tests.helpers import programs
from tests.helpers.servers import free_port

QUIET = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}


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
    return L.Trainer(
        **{"accelerator": "cpu", "devices": 1, "default_root_dir": root, "callbacks": [tokens], "min_epochs": 0, **QUIET, **settings}
    )


def run(folder: str, root: Path, *, workers: int = 0, trainer: dict[str, Any], stop_at: int | None = None, resume: bool = False,
        val: Any = None, **settings: Any) -> Model:  # fmt: skip
    """Train, and save behind `stop_at` batches or go on from there."""
    tokens: Any = TokenLoader(folder, **{"T": 8, "B": 4, "seed": 3, **settings})
    if workers:
        tokens = StatefulDataLoader(tokens, batch_size=None, num_workers=workers)
    kept, model = LightningTokens(tokens), Model(stop_at=stop_at)
    checkpoint = root / "stopped.ckpt" if resume else None
    trainer_of(kept, root, **trainer).fit(model, kept.batches, val, ckpt_path=checkpoint, weights_only=False)
    if workers:
        tokens._iterator = None  # or the garbage collector finds its workers, which then take five seconds each to end
    return model


PARTS = ("whole", "before", "after")
WORLD_SIZE = 2


def train_on_ranks(**settings: Any) -> None:
    """Call `train_on_a_rank` on every rank, with the environment of torchrun. The ranks are forks of one program."""
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(WORLD_SIZE)}
    repository = Path(__file__).parents[2]
    words = ("-m", "tests.helpers.lightning_run", json.dumps(settings))
    done = programs.run(*words, cwd=repository, env=environment, timeout=300, imported=("lightning.pytorch", "torch._dynamo"))
    assert done.returncode == 0, done.stderr


def train_on_a_rank(rank: int, folder: str, root: str, steps: int, stop: int) -> None:
    """The whole run, one that is stopped, and one that goes on from there."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "NODE_RANK": "0"}
    torch.set_num_threads(1)
    world_size = WORLD_SIZE
    for name, settings in zip(PARTS, ({}, {"stop_at": stop}, {"resume": True}), strict=True):
        strategy = DDPStrategy(process_group_backend="gloo", cluster_environment=LightningEnvironment())
        trainer = {"devices": world_size, "strategy": strategy, "max_steps": steps, "max_epochs": -1}
        model = run(folder, Path(root), trainer=trainer, rank=rank, world_size=world_size, **settings)
        torch.save(model.seen, Path(root) / f"{name}_{rank}.pt")


if __name__ == "__main__":
    importlib.import_module("torch._dynamo")  # an optimizer imports it at its first step; here, once for all ranks
    given = json.loads(sys.argv[1])
    arguments = tuple(given[name] for name in ("folder", "root", "steps", "stop"))
    torch.multiprocessing.start_processes(train_on_a_rank, args=arguments, nprocs=WORLD_SIZE, start_method="fork")
