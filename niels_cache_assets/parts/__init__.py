"""Data sets in parts: the plan that divides a data set, the lease of one part, and the seal that joins the parts.

    plan.py       files, parts, budgets, and their division: written once as plan.json, read by all others
    layout.py     names of folders and files
    lease.py      which process builds a part, on whichever machine
    attempts.py   the staging directory of an attempt, and what it takes over from the previous attempt
    exclusion.py  which documents of a finished part are in a list of ids
    seal.py       the joined cache: hard links, shifted document ends, meta.json

    Without a shared folder, in a store:

    store.py, store_lease.py     keys and conditional writes; the lease
    store_attempt.py             sends what is finished, and goes on after what another machine has sent

The classes in `artifacts/parts/` build the plan, the parts and the joined cache, and remove what nothing names.
`sources/reading/part_stream.py` yields the documents of a part.
"""
