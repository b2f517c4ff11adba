"""Plots of caches for the UI and for reports. `measures` does the counting, and all other modules draw. Nothing here imports Dagster."""
