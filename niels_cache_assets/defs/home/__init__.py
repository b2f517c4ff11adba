"""The Dagster home, the folder of Dagster's files: its instance, its records, errors of its disk and database, and abandoned runs."""
