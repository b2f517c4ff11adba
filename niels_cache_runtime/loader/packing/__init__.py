"""Packing: whole SFT examples share rows of T+1 tokens.

`rows` finds the kept part of each example and has the rows with targets and documents, and `plan` decides which examples share a row.
"""
