"""Cleaning of documents: markup to text, then filters that give a reason. Pure functions of one document; no file is touched here."""
