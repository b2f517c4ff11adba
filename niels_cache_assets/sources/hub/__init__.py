"""Sources from the Hugging Face hub.

The hub's own library (datasets) streams the tables, from the hub or a mirror. `data` has the base class.
"""
