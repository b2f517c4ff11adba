"""Sources behind addresses such as s3://bucket/prefix, and the order in which a loader needs their shards.

windows: windows from shards that a local copy holds    feed: which shards a process needs now and next
ranges: windows by one request each    opening: the choice between these
"""
