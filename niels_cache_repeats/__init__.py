"""The searches for repeated text in the corpora of all data sets: which lines, paragraphs and spans are cut.

    cuts.py           the found cuts of one data set, applied to its texts
    search.py         compared documents in order, and the files of the cuts
    lines.py          repeated lines and paragraphs, which line_kernels.py finds with compiled loops
    spans.py          repeated spans, which span_kernels.py finds with compiled loops

artifacts/repeats.py of `niels_cache_assets` says what is searched, and loads these modules by name. Nothing imports this package.
"""
