"""Values that describe caches, for display. The command line and the UI print these values."""
