"""The corpus of a data set with `prepare`: cleaned documents and signatures on disk, duplicates over all of them, reports."""
