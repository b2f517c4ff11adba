"""The Dagster side: assets, checks, jobs, resources, the instance and the launcher.

    assembly --> assets/, checks/, jobs, sensors, automation      every definition over one registry
    keys, config, resources, progress, turns                      what definitions share
    launcher                                                      runs without the UI
    metadata/    what the UI shows of an asset      ui/    the web UI and its guard      home/    the instance and what it recorded

Only this package and definitions.py import dagster. Nothing here reads, splits, tokenizes or writes text: it resolves settings, calls
the plain code beside it, and reports what came of it.
"""
