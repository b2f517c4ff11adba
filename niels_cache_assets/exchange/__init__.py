"""Pretrain caches as the files that other projects train from, and such files as pretrain caches.

    formats.py    what can be written, and the plan of an export: which files, of what size
    writing.py    a plan on disk: every file beside its place first, then all of them renamed
    placing.py    the renaming, and which files an older export wrote
    splits.py     a split of a cache, read from front to back
    megatron.py   nanogpt.py   llmc.py   datatrove.py   olmo.py   npy.py      one format each
    megatron_import.py    Megatron-LM's tokens as a pretrain cache
    hf.py                 a cache as a `datasets.Dataset`

EOT stays where it is in the cache, after each document, except for llm.c, which wants it before each one. Tokens are copied, never looked
at: an export takes as long as reading and writing them, and a few megabytes of memory. Nothing is tokenized again here, and command lines
are not known.
"""
