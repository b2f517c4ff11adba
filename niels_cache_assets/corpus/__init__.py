"""The corpus of a data set that asks for `prepare`: cleaned documents and signatures on disk, duplicates over all of them, reports."""
