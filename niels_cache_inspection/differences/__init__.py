"""The differences between two builds, for `niels-cache diff`. The modules here read both builds, and write only temporary files.

    folders.py     the comparison of two data sets or two cache roots, with their meta.json
    documents.py   documents that only one of the two builds has
    tokens.py      the first token that differs

Memory does not grow with the size of the builds. Lineage (the origin of each document) is read in batches, and tokens are mapped and
compared in blocks.
"""
