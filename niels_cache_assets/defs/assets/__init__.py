"""One module for each group of assets."""
