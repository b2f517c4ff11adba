"""Cleaning of documents: markup is converted to text, then filters reject documents and give a reason.

All functions are pure, and use no files.
"""
