"""The corpus of a data set with `prepare`: its cleaned documents and their signatures on disk, and what decides them."""
