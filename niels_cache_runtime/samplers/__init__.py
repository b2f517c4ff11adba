"""The room of plain readers: random windows, random SFT examples, files in sequence.

Each file has one class, imported from `niels_cache_runtime`. Order, blends, and resuming at the exact sample belong to `loader`.
"""
