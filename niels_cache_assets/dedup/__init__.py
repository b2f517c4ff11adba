"""The search for exact and near duplicates. It uses canonical text, MinHash signatures and LSH bands, and it chooses the copy to keep.

This package knows documents only as signatures and texts; it does not know data sets.
"""
