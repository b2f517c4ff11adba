"""Facts about builds and finished caches, from meta.json and lineage: counts, drops, progress, mixtures. Nothing here builds."""
