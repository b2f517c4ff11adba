"""The files of a build: a journal for resuming, files that are written once and hashed at the same time, and free disk space."""
