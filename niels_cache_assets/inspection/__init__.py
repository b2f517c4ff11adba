"""What commands show of finished caches: samples, origins of tokens, differences, shared texts. Nothing here changes a cache."""
