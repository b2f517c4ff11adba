"""The tokenizer: kinds of tokenizers, training, measures of quality, and tokens as readable text."""
