"""The export of pretrain caches to the files of other training projects, and the import of such files.

    formats.py      what defines a format, and the plan of an export: files and sizes
    writing.py      writes the plan to disk: all files go into a staging directory first, then they are renamed
    replacing.py    the renaming, and the files of an older export
    splits.py       a split of a cache, read from front to back
    corpus_text.py  the documents of a corpus as text
    hf.py           a cache as a `datasets.Dataset`

The formats are in the package `niels_cache_formats`, one module each. It uses what is here, and its modules are loaded by name
(base/beside.py).

EOT (the end-of-text token) stays after each document, as in the cache. Only in the files for llm.c it comes before each document. An export
copies tokens without looking at their values, so it takes as long as reading and writing the tokens, and a few megabytes of memory. Nothing
is tokenized again. The command line is not handled here.
"""

FORMATS = ("megatron", "nanogpt", "llmc", "datatrove", "olmo", "npy")
"""The formats of tokens that `export` writes. Each has a module of this name in `niels_cache_formats`."""
