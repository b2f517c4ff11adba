"""Builds of parts by a child process: here, or on another machine behind a prefix such as `srun` or `ssh HOST`.

    command    the words of the command      child    its start, its lines, its end and its retries

The child is `niels-cache part`. It shares the folder of the caches with this process, so its result is read from the disk.
"""
