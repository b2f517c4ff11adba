"""Requests over the network: retries, checked answers, and files at http(s) addresses."""
