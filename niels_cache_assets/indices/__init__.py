"""Indices of blends as megatron-core looks for them.

    megatron_core_run: the indices of a whole run      megatron_core_cache: where it finds them: names, hashes, files
    megatron_core_tokenizer: the part of the hash that says which tokenizer

No index is built here: that is `blends.prebuild`.
"""
