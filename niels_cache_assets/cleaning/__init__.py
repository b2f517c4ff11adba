"""Cleaning of documents: markup is converted to text, and then filters reject documents with a reason.

All functions are pure, and no module reads or writes files.
"""
