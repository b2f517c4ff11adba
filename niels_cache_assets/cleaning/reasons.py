"""Names of the filters, in the order in which they look at a document: what settings may skip and reports count. Loads nothing."""

REASONS = (
    "redirect",
    "empty",
    "disambiguation",
    "too_short",
    "list_page",
    "bad_mean_word_len",
    "high_symbol_ratio",
    "low_alpha_ratio",
    "no_stopwords",
    "repetitive",
    "language_error",
    "not_english",
)
