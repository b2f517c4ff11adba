"""The files of a build. This package has a journal for resuming, files that are written once and hashed at the same time, and checks of
free disk space.
"""
