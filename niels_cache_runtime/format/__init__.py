"""The files of a cache. The modules define their layout and meta.json, and read damaged or hostile files safely.

    layout: names, dtypes, paths        meta, meta_keys: the commit record
    npy_files, reading, safe_open: bytes        path_kind: the kind of a path, in words        commit: lock, staging and exchange of folders

The modules of this folder need numpy, and import no other folder of the package. `cache` maps tokens, and `verify` checks a whole cache.
"""
