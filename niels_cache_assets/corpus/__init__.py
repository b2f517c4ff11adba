"""The corpus of a data set with `prepare`. A corpus is the cleaned documents and their signatures on disk. This package also has the search
for duplicates, and reports.
"""
