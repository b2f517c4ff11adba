"""One module per group of assets."""
