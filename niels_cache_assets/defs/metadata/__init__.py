"""The metadata of assets in Dagster's UI: numbers, samples, tables and pictures."""
