"""The order in blocks: windows are shuffled inside blocks of consecutive shards, so that a machine needs only a few shards at a time.

order: which sample comes at which place, with the mathematics    visits: which block a machine needs at which time
machines: which machine a rank belongs to
"""
