"""The Hugging Face hub: tables streamed by the hub's own library, or read from a mirror; `text` and `data` are base classes of kinds."""
