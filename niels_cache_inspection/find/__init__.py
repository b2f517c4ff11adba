"""Text and tokens in finished caches, found by `niels-cache find`.

`places.py` has the search and what it finds. It searches the caches of `caches.py`. `pieces.py` turns tokens into the bytes of text, and
`certain.py` computes the tokens that a text has in any context.
"""
