"""Plots of caches for the UI and for reports. `measures` counts, the other modules draw. Nothing here imports Dagster."""
