"""The folders of a corpus, and the columns of its files. Only the asset package reads them; training does not."""

from pathlib import Path

CODE_VERSION = "3"  # bumped by hand when a corpus's bytes change for the same input

DOCUMENTS = {
    "ordinal": "int64",
    "text": "string",
    "title": "string",  # null where the source has none
    "source_id": "string",
    "file": "string",
    "row": "int64",
    "split": "string",  # upstream's own, else null
    "characters": "int64",
    "bytes": "int64",  # of the text as UTF-8
}
REJECTED = {
    "reason": "string",
    "title": "string",
    "source_id": "string",
    "file": "string",
    "row": "int64",
    "value": "double",  # what the filter measured; null where it measures nothing
    "excerpt": "string",  # how the document begins, after normalization
}
DUPLICATES = {
    "ordinal": "int64",  # who goes, in this data set's corpus
    "split": "string",
    "kind": "string",  # exact or near
    "similarity": "double",  # 1 if exact; else estimated from signatures, or measured where verify = "jaccard"
    "because_dataset": "string",
    "because_ordinal": "int64",
    "because_split": "string",
}
REJECTED_NAME = "rejected.parquet"
DIGESTS_NAME = "digests.npy"  # (documents, 20) uint8: SHA-1 of the canonical text
SIGNATURES_NAME = "signatures.npy"  # (documents, num_perm) uint32
REPORT_NAME = "report.json"
TEXT_BYTES_PER_FILE = 128_000_000  # what a kill loses at most, a minute of work on one core


def documents_file(index: int) -> str:
    """Return the file name of the index-th part of the documents."""
    return f"documents_{index:05d}.parquet"


def duplicates_file(name: str) -> str:
    """Return the file name of a data set's drop list."""
    return f"{name}.parquet"


def corpus_dir(root: str | Path, name: str) -> Path:
    """Return the folder of a corpus: documents_*.parquet, rejected.parquet, digests.npy and signatures.npy, meta.json."""
    return Path(root) / "corpus" / name


def duplicates_dir(root: str | Path) -> Path:
    """Return the folder of the drop lists: <data set>.parquet each, and meta.json."""
    return Path(root) / "duplicates"


def reports_dir(root: str | Path, name: str) -> Path:
    """Return the folder of report.json and plots of a data set's corpus."""
    return Path(root) / "reports" / "corpus" / name
