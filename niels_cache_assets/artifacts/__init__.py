"""Everything that can be built: one class for each kind, one way to build it (`materialize`), and one graph of dependencies (`graph`)."""
