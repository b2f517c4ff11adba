"""Builds of parts by a child process: here, or on another machine behind a prefix such as `srun` or `ssh HOST`.

The child is `niels-cache part` (`child.py`). It shares the folder of the caches with this process, so its result is read from the disk.
"""
