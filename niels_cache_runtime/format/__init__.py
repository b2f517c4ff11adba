"""The room of files: what a cache is on disk, what meta.json says, and how files that may be damaged or hostile are read.

    layout: names, dtypes, paths        meta, meta_keys, foreign_meta, place: the commit record
    npy_files, reading, safe_open: bytes        described: what lies at a path, in words

Needs numpy. Imports no other room. Mapping tokens is `cache`'s business, the checks of a whole cache are `verify`'s.
"""
