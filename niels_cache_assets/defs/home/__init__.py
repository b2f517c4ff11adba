"""The Dagster home: its instance, its records, errors of its disk and database, and its runs whose process was killed."""
