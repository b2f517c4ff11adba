"""The configuration of a project: each table has a schema, and the module `registry` combines all tables into one typed object.

    registry: from files, profile and flags to a Registry      merging: tables over tables      problems: error messages
    tables: a schema for each table that is not a data set      defaults: every default      shipped: profiles, catalog

The schema of a data set's table is defined by the source of the data set (`sources`).
"""
