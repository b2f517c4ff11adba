"""The forecast of a build, for `niels-cache build-all --dry-run`: its steps, their reasons, and about how much they read, make and take.

A forecast builds nothing and writes nothing.
"""
