"""Preference pairs: `rows` packs both sides of the pairs, and `batch` makes tensors of them."""
