"""Readers of files for all kinds of sources.

The modules locate and decompress files, decode text, enforce limits, read rows, and track positions to resume from.
"""
