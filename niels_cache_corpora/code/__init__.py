"""The source `code`, for source code in folders, git checkouts and Parquet files like those of The Stack.

source.py has the table, and makes documents of files, or of the files of a repository together. It uses:

    listing.py     repositories and their files in folders, git checkouts and Python environments
    licensing.py   the licence of a file, as an SPDX expression
    notebooks.py   notebooks as scripts
    joining.py     the order of a repository's files by imports, and documents of several files
    copies.py      files that earlier repositories have, and forks
    sorting.py     rows of Parquet files brought together by repository
"""
