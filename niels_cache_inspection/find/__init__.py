"""Text and tokens in finished caches, found by `niels-cache find`.

caches.py     the caches to search: of a root, and published ones
pieces.py     the table of pieces, which turns tokens into the bytes of text
certain.py    the tokens of a text that are the same in any context
places.py     the search, and the places that it finds
"""
