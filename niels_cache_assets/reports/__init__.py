"""Reports about the content of caches, and about the part of each data set that a run would read. Nothing here imports Dagster.

    cache.py      all caches         mixture.py   the part of each data set that a planned run reads
    drawings.py   the plots          history.py   the records of Dagster (defs/home/history.py reads them)
    markdown.py, page.py (page.html, page.css)   the output

Nothing here changes a cache. Only pages show the current time.
"""
