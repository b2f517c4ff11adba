"""Everything that can be built.

There is one class for each kind, one way to build an artifact (`materialize`), and one graph of dependencies (`graph`).
"""
