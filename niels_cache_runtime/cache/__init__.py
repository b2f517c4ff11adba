"""The room of open caches: shards as one memory map (`mmap`), checked against meta.json (`opening`), gathered into tensors (`gather`).

Imports `format` only. Which tokens a batch takes is the business of `loader` and `samplers`.
"""
