"""The forecast of a build, for `niels-cache build-all --dry-run`: its steps, their reasons, and estimates of time, data and disk space.

A forecast builds nothing and writes nothing.
"""
