"""Packing: whole SFT examples share rows of T+1 tokens.

`truncation` finds the kept part of each example, `plan` decides which examples share a row, and `rows` has the rows with targets and
documents.
"""
