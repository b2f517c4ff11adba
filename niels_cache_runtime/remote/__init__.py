"""Caches in object stores: the client (`store`) and the record that names a published build (`record`)."""
