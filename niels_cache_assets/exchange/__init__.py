"""Export of pretrain caches to the files of other training projects, and import of such files.

    formats.py    the formats, and the plan of an export: files and sizes
    writing.py    the plan on disk: all files are written beside their places first, then renamed
    placing.py    the renaming, and the files of an older export
    splits.py     a split of a cache, read from front to back
    megatron.py   nanogpt.py   llmc.py   datatrove.py   olmo.py   npy.py      one format each
    megatron_import.py    Megatron-LM's tokens as a pretrain cache
    hf.py                 a cache as a `datasets.Dataset`

EOT stays after each document, as in the cache. Only llm.c has it before each document. Tokens are copied without a look at their values, so
an export takes as long as reading and writing them, and a few megabytes of memory. Nothing is tokenized again, and the command line is not
handled here.
"""
