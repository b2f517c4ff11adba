"""Readers of files for all kinds of sources.

The modules locate and decompress files, decode text, enforce limits, read rows, and find places to resume from.
"""
