"""The corpus of a data set with `prepare`: cleaned documents and their signatures on disk, the search for duplicates, and reports."""
