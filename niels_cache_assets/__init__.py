"""Turns text into token caches: sources as streams, one tokenization, uint16 shards with lineage and sha256 for every file."""
