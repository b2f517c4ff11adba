"""Cleaning of documents. Markup is converted to text. Then filters reject documents, and give a reason.

All functions are pure, and use no files.
"""
