"""The account of training data: how many tokens of which source, domain, licence, language and year there are, and how many were read.

    dimensions.py  the values of a document: domain (domains.py), licence, language and year, from what `keep` has kept
    tables.py      the columns of the account, and tables of them by value
    splits.py      the documents of a split as planned, chunk by chunk, compared with meta.json and the ends of documents
    runs.py        the samples that training has read, from saved states
    readings.py    how often each document was read in these samples
    ledger.py      all tables, with the checks that their sums are equal
    output.py      the files: account.json, CSV tables, and the page (account.html, draft.html)
    croissant.py   the description of a cache in Croissant's JSON-LD

Everything is counted; nothing is estimated. A sum that differs from what a cache or a state records is an error.
"""
