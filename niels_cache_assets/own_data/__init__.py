"""What files of the user's own hold, told by their names and by looking into them, and the niels_cache.toml that reads them."""
