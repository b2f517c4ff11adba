"""Open caches: shards as one memory map, checked against meta.json, gathered into tensors.

    mmap: tokens and offsets, mapped      opening: all files of one build      sft: the two files of an SFT split, and its targets
    gather: mapped tokens -> int64 tensors on a device      checks: settings that a caller gives

The modules of this folder import only the folder `format`. `loader` and `samplers` choose the tokens of a batch.
"""
