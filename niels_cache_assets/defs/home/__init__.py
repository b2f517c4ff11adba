"""The Dagster home: its instance, what it recorded, what it refuses, and runs in it whose process was killed."""
