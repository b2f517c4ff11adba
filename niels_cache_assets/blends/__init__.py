"""Blends in Megatron-LM's sense: their indices, built before training asks for them.

The table is `config.blend`; indices under the names of megatron-core are in `indices`.
"""
