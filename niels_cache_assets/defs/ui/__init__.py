"""The web UI: Dagster's web server behind a guard, and its services."""
