"""Reading of files for all kinds of sources: location, decompression, encodings, limits, rows, and places to resume from."""
