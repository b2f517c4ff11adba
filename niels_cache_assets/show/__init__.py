"""What is shown of caches, as values: what prints them is the command line's business or the UI's."""
