"""Everything that can be built: one class per kind, one way to build it (`materialize`), one graph of what comes from what (`graph`)."""
