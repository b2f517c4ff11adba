"""The configuration of a project: each table has a schema here, and `registry` combines them into one typed object.

    registry: from files, profile and flags to a Registry      merging: tables over tables      problems: error messages
    tables: a schema for each table that is not a data set      defaults: every default      shipped: profiles, catalog

The table of a data set has the schema of its source (`sources`).
"""
