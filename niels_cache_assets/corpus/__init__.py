"""The corpus of a data set with `prepare`: the cleaned documents and their signatures on disk.

The artifacts in `artifacts/` build corpora, drop lists and reports with this package.
"""
