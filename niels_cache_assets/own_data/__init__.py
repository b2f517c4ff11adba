"""The user's own files: the kind of data in them, by name and by content, and the niels_cache.toml that reads them."""
