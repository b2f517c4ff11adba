"""TokenLoader and its parts: the order of samples, and how a sample becomes a row of a batch.

    order, blocks, blend, run_order: position -> samples      windows, packing: a sample -> tokens      batch: tokens -> tensors
    settings, state, steps: the settings of a run, its saved state, its position      trace, report: origins of tokens, a planned run

The modules of this folder import `cache`, `format` and `remote`. TokenLoader is imported at its first use, so `blend` can be imported
without torch.
"""

from typing import TYPE_CHECKING

from niels_cache_runtime.lazy_names import load_lazily

if TYPE_CHECKING:
    from niels_cache_runtime.loader.loader import TokenLoader

__all__ = ["TokenLoader"]

if not TYPE_CHECKING:  # otherwise a type checker would accept every name
    __getattr__ = load_lazily(__name__, {"loader": "TokenLoader"})
