"""The user's own files. The modules find out the kind of data in them, and write a niels_cache.toml that reads them."""
