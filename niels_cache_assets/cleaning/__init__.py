"""Cleaning of documents: markup becomes text, then filters reject documents with a reason. All functions are pure: one document in, one
out.
"""
