"""TokenLoader and its parts: the order of samples, and how a sample becomes a row of a batch.

    order, blocks, blend, run_order: position -> samples      windows, packing: a sample -> tokens      batch: tokens -> tensors
    settings, state, steps: the settings of a run, its saved state, its position      trace, report: origins of tokens, a planned run

The modules of this folder import `cache`, `format` and `remote`. TokenLoader is imported at its first use, so `blend` can be imported
without torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from niels_cache_runtime.loader.loader import TokenLoader

__all__ = ["TokenLoader"]

if not TYPE_CHECKING:  # otherwise a type checker would accept every name

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{__name__}.loader"), name)
