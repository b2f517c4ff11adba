"""Sources of corpora in a form of their own: Wikipedia, web crawls, WikiText, Project Gutenberg, OASST1, dolly-15k and graphs of Roam.

A package beside the others, because a data set in a usual form (Parquet, JSON lines, text, rows of the hub) needs none of it. Its kinds
stand on `niels_cache_assets.sources`, as every kind does, and the tables there name them.
"""
