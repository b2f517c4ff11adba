"""Indices of blends, built before training asks for them: by our own names, and as megatron-core looks for them.

prebuild: what a blend is, and its index
megatron_core_run: the indices of a whole run      megatron_core_cache: where it finds them: names, hashes, files
megatron_core_tokenizer: the part of the hash that says which tokenizer
"""
