"""What the user's file says: every table has a schema here, and `registry` makes one typed whole of them.

    registry: from files, profile and flags to a Registry      merging: tables over tables      problems: what is wrong, in words
    tables: a schema for each table that is no data set      defaults: every default      shipped: profiles, catalog

A data set's own table is the schema of its source (`sources`).
"""
