"""The room of open caches: shards as one memory map, checked against meta.json, gathered into tensors.

    mmap: tokens and offsets, mapped      opening: all files of one build      sft: the pair of an SFT split, and its targets
    gather: mapped tokens -> int64 tensors on a device

Imports `format` only. Which tokens a batch takes is the business of `loader` and `samplers`.
"""
