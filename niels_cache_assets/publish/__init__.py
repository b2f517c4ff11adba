"""Published caches: caches in object stores, for machines that did not build them.

    push     a local cache --> an address, `s3://bucket/prefix`       prune    older builds at an address
    pull     an address --> a local cache, or one of its splits       check    an address against its own record

`niels_cache_runtime.remote` contains the client of the store and the format of the record. Commands and Dagster use this package.
"""
