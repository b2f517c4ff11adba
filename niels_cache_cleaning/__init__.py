"""The shipped cleaning of documents (normalizers, masks, the language identifier, filters) and the profiles of other projects.

    chain.py         normalizes a document, masks it, and runs the filters
    normalizers.py   one function for each change of the text; brackets.py finds matching marks of markup
    masks.py         personal data
    languages.py     the language of a text
    filters.py       one reason for each way to be rejected, and the limits
    measuring.py     what the filters measure, for the report
    quick_checks.py  proves for most documents, with the compiled loops of kernels.py, that a filter would let them pass
    scores.py        scores of fastText, as a step of a data set; fasttext_files.py checks the file of the model
    profiles.py      a step that makes the decisions of datatrove's filters, which profile_words.py and profile_kernels.py help

It uses `niels_cache_assets`, which has the settings, the counts and the report of cleaning, and loads these modules by name
(`niels_cache_assets.base.beside.load_beside`). Nothing imports this package.
"""
