"""Plots of what was built, for the UI and for reports: `measures` counts, the others draw. No Dagster here."""
