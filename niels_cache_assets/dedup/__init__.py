"""Exact and near duplicates: canonical text, MinHash signatures, LSH bands, who goes because of whom. Knows no data sets."""
