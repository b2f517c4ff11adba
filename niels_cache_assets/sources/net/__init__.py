"""Requests over the network: patience with servers, checked answers, and files at http(s) addresses."""
