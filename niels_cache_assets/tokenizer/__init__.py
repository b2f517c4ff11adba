"""Tokenizers: their kinds, training, measures of quality, and the conversion of tokens to readable text."""
