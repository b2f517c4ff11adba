"""Kinds of sources by the name that `source = "..."` has in a table. Importing this opens nothing and loads no large library."""

from niels_cache_assets.sources.base import PretrainSource, SftSource
from niels_cache_assets.sources.python_docs import PythonDocs, PythonHelp
from niels_cache_assets.sources.row_files import Jsonl, Parquet, Text

PRETRAIN_SOURCES: dict[str, type[PretrainSource]] = {
    "jsonl": Jsonl,
    "parquet": Parquet,
    "python_docs": PythonDocs,
    "text": Text,
}

SFT_SOURCES: dict[str, type[SftSource]] = {
    "python_help": PythonHelp,
}
