"""Blends in Megatron-LM's sense: what they are, and their indices built before training asks for them.

settings.py                 the table [blend.NAME]
prebuild.py                 the indices of a blend, for the runtime's data sets
megatron_core_run.py        the indices of a whole run, for megatron-core's own
megatron_core_cache.py      where it finds them: names, hashes, files
megatron_core_tokenizer.py  the part of the hash that says which tokenizer
"""
