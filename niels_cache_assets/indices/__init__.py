"""Indices of blends (stored orders of samples). They are built before training, under our own names or under the names of megatron-core.

The modules are:

    prebuild                 the plan of a blend, and its indices
    megatron_core_run        the indices of a whole run
    megatron_core_cache      the names, hashes and files that megatron-core expects
    megatron_core_tokenizer  the part of the hash that identifies the tokenizer
"""
