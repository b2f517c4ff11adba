"""The search for exact and near duplicates by canonical text, MinHash signatures and LSH bands, and the choice of the copy to keep.

This package knows documents only as signatures and texts; it does not know data sets.
"""
