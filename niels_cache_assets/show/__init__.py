"""Values that describe caches, for the command line and the UI."""
