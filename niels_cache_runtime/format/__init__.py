"""The room of files: the files of a cache, its meta.json, and safe reading of damaged or hostile files.

    layout: names, dtypes, paths        meta, meta_keys, foreign_meta, place: the commit record
    npy_files, reading, safe_open: bytes        described: the kind of a path, in words        commit: lock, staging and exchange of folders

Needs numpy. Imports no other room. Mapping tokens belongs to `cache`, the checks of a whole cache to `verify`.
"""
