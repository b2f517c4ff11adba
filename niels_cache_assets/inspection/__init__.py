"""Values that describe caches. The command line and the UI show these values."""
