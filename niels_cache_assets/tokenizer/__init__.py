"""The tokenizer: its kinds, training, measures of its quality, and tokens as readable text."""
