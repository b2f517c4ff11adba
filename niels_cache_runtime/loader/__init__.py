"""TokenLoader and its parts: the order of samples, and how a sample becomes a row of a batch.

    order, blocks, blend, run_order: position -> samples      windows, packing: a sample -> tokens      batch: tokens -> tensors
    settings, state, steps: the settings of a run, its saved state, its position      trace, report: origins of tokens, a planned run

The modules of this folder import `cache`, `format` and `remote`.
"""
