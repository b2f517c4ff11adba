"""Blends in Megatron-LM's sense: what they are, and their indices built before training asks for them."""
