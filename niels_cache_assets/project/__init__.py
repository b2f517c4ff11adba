"""The configuration of a project. Each table has a schema, and the module `registry` combines all tables into one typed object.

    registry: from files, profile and flags to a Registry      merging: tables over tables      problems: error messages
    tables: a schema for each table that is not a data set      defaults: every default      shipped: profiles, catalog

The schema for the table of a data set is defined by the data set's source (`sources`).
"""
