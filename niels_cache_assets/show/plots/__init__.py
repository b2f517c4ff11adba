"""Pictures of what was built, for the UI and for reports: measures.py counts, the others draw. No Dagster here."""
