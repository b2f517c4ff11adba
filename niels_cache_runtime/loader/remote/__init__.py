"""Sources behind addresses such as s3://bucket/prefix, and the order in which a loader needs their shards.

`windows` reads windows from shards that a local copy holds, or by one request each. `opening` chooses between these, and `feed` decides
which shards a process needs now and next.
"""
