"""Simple readers: random windows, random SFT examples, files in sequence.

Each module has one class or two, which can be imported from `niels_cache_runtime`. `loader` has shuffled orders, blends, and resuming at
the exact sample.
"""
