"""The assets, one module for each group."""
