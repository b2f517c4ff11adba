"""The corpus of a data set with `prepare`: the cleaned documents and their signatures on disk.

This package also contains the search for duplicates, and reports.
"""
