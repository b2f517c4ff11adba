"""The files of a build: a journal to resume it, files that are hashed while they are written, and checks of free disk space."""
