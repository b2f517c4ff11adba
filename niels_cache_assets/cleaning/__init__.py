"""Cleaning of documents: markup becomes text, then filters reject documents with a reason. All functions are pure, and use no files."""
