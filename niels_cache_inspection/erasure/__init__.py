"""The erasure of documents with a receipt, for `niels-cache erase`.

    targets.py     what a request erases: documents, their exact copies, and near copies
    scanning.py    the search in everything that is known; texts.py reads it, prints.py finds pieces of texts again
    work.py        the steps, each repeatable after a kill: excluding.py, builds, scanning.py, deletion, publishing.py, receipt.py
    remains.py     what cannot be reached
    verifying.py   whether it is still absent, by a receipt
    trained.py     the steps of trainings that had read the documents
    striking.py    instead of builds: documents are struck in place, by tombstone.py

Nothing but the command imports this.
"""
