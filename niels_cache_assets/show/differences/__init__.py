"""The differences between two builds, for `niels-cache diff`. It reads both and writes only temporary files.

    folders.py     two data sets, or two cache roots, and their meta.json
    documents.py   documents that only one of them has
    tokens.py      the first token that differs

Memory does not grow with the builds: lineage is read in batches, and tokens are mapped and compared in blocks.
"""
