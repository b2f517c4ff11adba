"""The settings of cleaning, its counts and its report. The shipped cleaning itself is in the package `niels_cache_cleaning`."""
