"""The Dagster side: assets, checks, jobs, resources, the instance and the launcher.

Only this package and definitions.py import dagster. Nothing here reads, splits, tokenizes or writes text: it resolves settings, calls
the plain code beside it, and reports what came of it.
"""
