"""The configuration of a project: niels_cache.toml, profiles and flags, as one typed object.

    registry: from files, profile and flags to a Registry      merging: tables over tables      problems: error messages
    tables, running: schemas of tables      shipped: profiles and catalog      editing: changes to the user's file

A source defines the schema for the table of its data sets, and [tokenizer], [cleaning] and [dedup] are defined beside their code
(`settings.py`).
"""
