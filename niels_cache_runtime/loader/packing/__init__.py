"""Packing, by which whole SFT examples share rows of T+1 tokens.

kept: the kept part of each example      plan: which examples share a row      rows: the rows, with targets and documents
"""
