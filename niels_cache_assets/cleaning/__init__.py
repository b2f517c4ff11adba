"""Cleaning of documents: markup is converted to text, and then filters reject documents with a reason.

All functions are pure, and use no files.
"""
