"""The formats of other training projects: one module for each format that `export` writes and `import` reads.

    megatron   nanogpt   llmc   datatrove   olmo   npy      `FORMAT`, the files of an export
    megatron_import      Megatron-LM's tokens as a pretrain cache
    hf                   a cache as a `datasets.Dataset`

A package beside the others, because building caches and training from them need none of it. It stands on `niels_cache_assets.exchange`,
which plans and writes every export, and finds these modules by their names when they are needed. Nothing imports them otherwise.
"""
