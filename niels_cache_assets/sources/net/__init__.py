"""Requests over the network, with retries and checked answers, and files at http(s) addresses."""
