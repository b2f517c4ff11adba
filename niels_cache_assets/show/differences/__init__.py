"""What differs between two builds: `niels-cache diff`. Reads both, writes nothing but temporary files.

    folders.py     two data sets, or two cache roots, and what their meta.json say
    documents.py   which documents are in one of them alone
    tokens.py      the first token that differs

Memory is flat in the size of both: lineage comes in batches, tokens are mapped and compared in blocks.
"""
