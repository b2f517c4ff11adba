"""What Dagster's UI shows of an asset: figures, excerpts, tables, pictures, owners and links."""
