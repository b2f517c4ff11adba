"""The folders of a corpus, and the columns of its files. Only the asset package reads these files; training does not."""

from pathlib import Path

CODE_VERSION = "1"  # raise it by hand when a corpus's bytes change for the same input

DOCUMENTS = {
    "ordinal": "int64",
    "text": "string",
    "title": "string",  # null if the source has no titles
    "source_id": "string",
    "file": "string",
    "row": "int64",
    "split": "string",  # upstream's split, or null
    "characters": "int64",
    "bytes": "int64",  # number of bytes of the text in UTF-8
}
KEPT = {"kept": "string"}  # one more column with `keep`: the kept values as a JSON object
REJECTED = {
    "reason": "string",
    "title": "string",
    "source_id": "string",
    "file": "string",
    "row": "int64",
    "value": "double",  # the value that the filter measured, or null
    "excerpt": "string",  # the beginning of the document, after normalization
}
DUPLICATES = {
    "ordinal": "int64",  # the ordinal of the dropped document in this data set's corpus
    "split": "string",
    "kind": "string",  # exact or near
    "similarity": "double",  # 1 for an exact duplicate; otherwise estimated from signatures, or measured with verify = "jaccard"
    "because_dataset": "string",
    "because_ordinal": "int64",
    "because_split": "string",
}
CUTS = {
    "ordinal": "int64",  # the ordinal of the document in this data set's corpus
    "split": "string",
    "start": "int64",  # of the cut text, in bytes of the document's text in UTF-8, as the step has read it
    "end": "int64",
    "kind": "string",  # line, paragraph or span
    "because_dataset": "string",  # the copy that stays
    "because_ordinal": "int64",
    "because_split": "string",
    "because_start": "int64",
    "emptied": "bool",  # whether nothing but white space is left of the document, which is dropped
}
REJECTED_NAME = "rejected.parquet"
DIGESTS_NAME = "digests.npy"  # (documents, 20) uint8: SHA-1 of the canonical text
SIGNATURES_NAME = "signatures.npy"  # (documents, num_perm) uint32
MEASURES_NAME = "measures.json"  # what the filters measured (cleaning/measures.py); missing without cleaning
REPORT_NAME = "report.json"
HASHES_NAME = "hashes"  # of a part: the sha256 of each document, back to back
COUNTS_NAME = "counts.json"  # of a part: the counts that the joined corpus adds up
HASHES = "hashes"  # the folder of the hashes of a search for duplicates in ranges
TEXT_BYTES_PER_FILE = 128_000_000
TEXT_BYTES_PER_RECORD = (
    8_000_000  # for each worker; a killed build repeats this and what its workers had begun, together at most 16 MB each
)


def documents_file(index: int) -> str:
    """Return the file name of the index-th part of the documents."""
    return f"documents_{index:05d}.parquet"


def duplicates_file(name: str) -> str:
    """Return the file name of a data set's drop list (the list of its dropped duplicates)."""
    return f"{name}.parquet"


def corpus_dir(root: str | Path, name: str) -> Path:
    """Return the folder of a corpus: documents_*.parquet, rejected.parquet, digests.npy and signatures.npy, meta.json."""
    return Path(root) / "corpus" / name


def corpus_parts_dir(root: str | Path, name: str) -> Path:
    """Return the folder with the parts of a corpus. A part has the files of a corpus, and its hashes and counts."""
    from niels_cache_runtime.format.layout import parts_root  # imports numpy, and commands read this module when they start

    return parts_root(root, "corpus") / name


def ranges_dir(root: str | Path) -> Path:
    """Return the folder of a search for duplicates in ranges, while it lasts. No data set has this name."""
    from niels_cache_runtime.format.layout import parts_root

    return parts_root(root, "corpus") / ".ranges"


def range_name(number: int) -> str:
    """Return the name of the folder of a range."""
    return f"range-{number:05d}"


def duplicates_dir(root: str | Path) -> Path:
    """Return the folder of the drop lists. It holds one file <data set>.parquet for each data set, and meta.json."""
    return Path(root) / "duplicates"


def repeats_dir(root: str | Path, step: str) -> Path:
    """Return the folder of the cuts of a step (lines or spans). It holds one file <data set>.parquet for each data set, and meta.json."""
    return Path(root) / "repeats" / step


def reports_dir(root: str | Path, name: str) -> Path:
    """Return the folder of the report of a data set's corpus, which holds report.json."""
    return Path(root) / "reports" / "corpus" / name
