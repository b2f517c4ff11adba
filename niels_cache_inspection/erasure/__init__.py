"""Erasing documents, and proving that they are gone."""
