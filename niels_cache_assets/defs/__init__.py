"""Everything that uses Dagster: assets, checks, jobs, resources, the instance and the launcher.

    assembly --> assets/, checks/, jobs, sensors                  every definition over one registry
    keys, config, resources, progress, stream_slots, part_slots   shared by the definitions
    launcher, launch_events, part_processes                       runs without the UI
    metadata/    the UI's view of an asset     ui/    the web UI and its guard     home/    the instance and its records

Only this package and definitions.py import dagster. This package does not read, split, tokenize or write text. It resolves settings, calls
the modules that do this work, and reports the result.
"""
