"""Data sets in parts: the plan that divides a data set, the stream of one part, and the seal that joins the parts.

    plan.py     files, parts, budgets: written once as plan.json, read by all others
    shares.py   division of files and budgets
    stream.py   the documents of one part, and the rule that gives each document its split
    layout.py   names of folders and files
    lease.py    which process builds a part, on whichever machine; lease_files.py has its files
    attempts.py the staging directory of an attempt, and what it takes over from the attempt before
    seal.py     the joined cache: hard links, shifted document ends, meta.json

The classes in `artifacts/parts/` build these four.
"""
