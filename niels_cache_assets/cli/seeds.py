"""Seeds of what the commands show: given, or drawn and then printed, so that the same can be seen again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from niels_cache_assets.cli.command import WHERE
from niels_cache_runtime.errors import NielsCacheError

if TYPE_CHECKING:
    import numpy as np

MAX_SEED = 2**63 - 1


def draw_seed(given: int | None) -> int:
    """The seed that was given, or one that differs every time. Raises NielsCacheError outside of 0..MAX_SEED."""
    if given is None:
        import torch

        return torch.Generator().seed() & MAX_SEED
    if not 0 <= given <= MAX_SEED:
        raise NielsCacheError(f"{WHERE}: --seed must be from 0 to {MAX_SEED}, not {given}")
    return given


def seeded_choice(count: int, wanted: int, seed: int) -> np.ndarray:
    """int64, ascending: min(wanted, count) different numbers below count, each set of them with the same chance. Costs 8 bytes a number."""
    import numpy as np
    import torch

    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))[:wanted]
    chosen: np.ndarray = np.sort(order.numpy())
    return chosen
