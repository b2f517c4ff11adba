"""What a cache holds and what a run would read of it, as pages for people: figures first, then Markdown and HTML of them. No Dagster here.

    settings.py   [reports]                  mixture.py   what a planned run reads of each data set
    cache.py      everything that is built   history.py   what Dagster recorded of it (defs/home/history.py reads it)
    drawings.py   plots of each              markdown.py, page.py (page.html, page.css)   how it is shown

Nothing here changes a cache; a clock shows on pages alone.
"""
