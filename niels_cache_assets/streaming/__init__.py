"""The moving parts of a build: encoding on threads, splits, shuffling, writers, atomic directories."""
