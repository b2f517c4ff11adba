"""What niels-cache shows of finished caches, and how it answers for the data in them.

    commands/         the commands of the groups "inspect the content" and "answer for the data", one file each
    samples.py        random windows, examples and documents as text
    origins.py        the lineage and text of the tokens of a batch; loader_states.py reads the state of a loader from a checkpoint,
                      and loaders.py makes the loader
    explanation.py    which step dropped a document, and why
    find/             where a text or tokens are in all caches, and which steps have read them
    differences/      the settings, documents and tokens of two builds
    web.py            the pages that `niels-cache ui` serves: a search, and a document
    erasure/          erases documents from all that was built, and proves that they are gone
    account/          tokens by source, domain, licence, language and year, as planned and as read

A package beside the others, because building caches and training from them need none of it. It uses `niels_cache_assets`, whose command
line loads these commands by name. Nothing imports this package, and nothing here imports Dagster.
"""
