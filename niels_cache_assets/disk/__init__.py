"""The files of a build: the journal that allows it to resume, files that are written once and hashed at the same time, and free
disk space.
"""
