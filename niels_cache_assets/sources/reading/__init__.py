"""Reading of files, whatever the kind of source: where they lie, decompression, encodings, limits, rows, and places to begin again."""
