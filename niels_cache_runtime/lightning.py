"""Training batches for Lightning. A run is saved and resumed at the exact batch. Only this module needs the package lightning.

    tokens = LightningTokens(TokenLoader(...))
    trainer = L.Trainer(callbacks=[tokens], ...)
    trainer.fit(model, train_dataloaders=tokens.batches, ckpt_path=...)

If a loader has no length, Lightning reads one batch more from the loader than it trains on. So the loader's own position is one batch ahead
when a checkpoint is written, and a resumed run would skip that batch. This callback counts the trained batches and saves the position after
them. It moves the loader to this position whenever Lightning begins an epoch or continues in the middle of one. The saved state is a state
of the TokenLoader. Its position does not depend on the rank, so the checkpoint of rank 0 serves all ranks.
"""

import copy
from collections.abc import Iterator
from typing import Any

import lightning.pytorch as L
from torch.utils.data import DataLoader

from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.loader.batch import Batch
from niels_cache_runtime.loader.loader import TokenLoader


class LightningTokens(L.Callback):
    """The callback that keeps the position of a TokenLoader. Pass its `batches` to `trainer.fit` as `train_dataloaders`.

    Give the callback to `Trainer(callbacks=[...])`, and also its `batches` to `fit`. If one of the two is missing, an error is raised when
    `fit` begins.

    Args:
        loader: A TokenLoader, or torchdata's StatefulDataLoader(TokenLoader(...), batch_size=None, num_workers=n). The TokenLoader's rank
            and world_size must be the trainer's.

    Raises:
        NielsCacheError: For any other object, and for a StatefulDataLoader with a batch_size.
        NielsCacheError: For a plain DataLoader with workers, because the positions of its workers can be neither saved nor restored.
        NielsCacheError: For persistent workers, because they do not see a restored position.
    """

    def __init__(self, loader: TokenLoader | DataLoader[Batch]) -> None:
        tokens = loader if isinstance(loader, TokenLoader) else getattr(loader, "dataset", None)
        if not isinstance(tokens, TokenLoader):
            raise NielsCacheError(f"loader is a {type(loader).__name__}; give a TokenLoader, or a StatefulDataLoader of one")
        if isinstance(loader, DataLoader):
            if loader.batch_size is not None:
                raise NielsCacheError(f"batch_size={loader.batch_size}: a TokenLoader gives whole batches; use batch_size=None")
            if loader.num_workers and not hasattr(loader, "state_dict"):
                raise NielsCacheError(
                    f"a plain DataLoader with num_workers={loader.num_workers} can neither save nor restore its workers' positions; use "
                    "torchdata's StatefulDataLoader with the same arguments, or the TokenLoader itself"
                )
            if loader.persistent_workers:
                raise NielsCacheError("persistent_workers=True: such workers do not see a restored position; leave this argument out")
        self.batches = TrainingBatches(loader, tokens)

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Check that the loader has the rank and world_size of this process."""
        self.batches.is_counted = True
        given, expected = (self.batches.tokens.rank, self.batches.tokens.world_size), (trainer.global_rank, trainer.world_size)
        if given != expected:
            raise NielsCacheError(
                f"TokenLoader has rank={given[0]}, world_size={given[1]}, the trainer rank={expected[0]}, world_size={expected[1]}; "
                f"make the loader with rank=trainer.global_rank, world_size=trainer.world_size"
            )

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.train_dataloader is not self.batches:
            raise NielsCacheError(
                "the trainer reads another loader than this callback counts; call fit(model, train_dataloaders=tokens.batches)"
            )

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.batches.trained += 1
        self.batches.trained_of_pass += 1


class TrainingBatches:
    """The batches that Lightning iterates. Each iteration begins after the last trained batch. LightningTokens makes this object.

    Its state is the loader's state after the last trained batch. Lightning keeps this state in the checkpoint. Its length is the length of
    a whole pass, because Lightning continues its own count in the middle of a pass.

    Raises:
        TypeError: From `len`, for an endless loader, and for a blend, because the passes of a blend may differ by a batch.
    """

    def __init__(self, loader: TokenLoader | DataLoader[Batch], tokens: TokenLoader) -> None:
        self._loader, self.tokens = loader, tokens
        self._anchor = copy.copy(tokens)  # never iterated: the position from which `trained` is counted
        self.trained = self.trained_of_pass = 0
        self.is_counted = False  # whether the callback counts the trained batches

    def __iter__(self) -> Iterator[Batch]:
        """Move the loader to the position after the last trained batch; at the end of a pass, to the start of the next pass."""
        if not self.is_counted:
            raise NielsCacheError(
                "this loader's position would not be saved; give its callback to the trainer: Trainer(callbacks=[tokens])"
            )
        self.tokens.load_state_dict(self._anchor.state_dict(steps=self.trained))
        if self.tokens.begin_pass():
            self.trained_of_pass = 0
        return iter(self._loader)

    def __len__(self) -> int:
        if len(self.tokens.names) > 1:
            raise TypeError("passes of a blend may differ in length")
        tokens = copy.copy(self.tokens)
        tokens.load_state_dict(self._anchor.state_dict(steps=self.trained))
        is_new_pass = tokens.begin_pass()
        return len(tokens) + (0 if is_new_pass else self.trained_of_pass)

    def state_dict(self) -> dict[str, Any]:
        """Return the loader's state after the last trained batch, and the number of batches trained in this pass, as JSON-able values."""
        return {"loader": self._anchor.state_dict(steps=self.trained), "trained_of_pass": self.trained_of_pass}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue after the batches of a checkpoint.

        Raises:
            NielsCacheError: For the reasons that TokenLoader.load_state_dict lists.
        """
        self._anchor.load_state_dict(state["loader"])
        self.trained, self.trained_of_pass = 0, int(state["trained_of_pass"])
