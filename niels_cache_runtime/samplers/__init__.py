"""The room of the plain ways to read a cache: random windows, random SFT examples, files in sequence.

One class a file. Each is imported from `niels_cache_runtime`. Order, blends and resume to the sample are `loader`'s business.
"""
