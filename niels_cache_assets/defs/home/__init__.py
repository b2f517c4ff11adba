"""The Dagster home: its instance, its records, errors of its disk and database, and runs in it whose process was killed."""
