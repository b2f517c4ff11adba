"""Exact and near duplicates: canonical text, MinHash signatures, LSH bands, and the choice of the copy to keep. No data sets."""
