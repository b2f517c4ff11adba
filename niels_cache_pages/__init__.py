"""Pages and pictures of caches: what `niels-cache report` writes, and what Dagster's UI shows.

    page.py      the page about all caches, and the page about the limits of one data set (page.html, tuning.html, page.css)
    search.py    the pages of the search in the UI (search.html, document.html); account.html is filled by `niels-cache account`
    head.html    the first lines of every page
    markdown.py  reports for Dagster's UI
    pictures.py  plots as data; drawing.py draws them with matplotlib
    measures.py  the counts for plots, from one pass over a cache
    tuning.py    the facts that help to choose the limits of a data set

A package beside the others, because building caches and training from them need none of it. It uses `niels_cache_assets`, where `reports/`
gathers the facts about all caches, and which loads these modules by name (`niels_cache_assets.base.beside.load_beside`). Nothing imports
this package, and nothing here imports Dagster or changes a cache.
"""
