"""The tokenizer: which kinds there are, the text that one is trained on, how well it fits, and tokens as text to be read."""
