"""Kinds of sources, one file each.

A file has the name that a table gives as `source = "..."`.

    types            the interface of a source                 errors      errors of sources, and how messages show them
    conversations    functions of all SFT kinds                val_share   the seeded share of documents that goes to val
    hub/             the Hugging Face hub                      net/        requests over the network
    finding/         files that a glob or a folder names       reading/    files, rows, encodings
    mediawiki/       dumps and their markup

Importing this package opens no file and loads no large library.
"""

from niels_cache_assets.sources.chat_jsonl import ChatJsonl
from niels_cache_assets.sources.dolly15k import Dolly15k
from niels_cache_assets.sources.fineweb_edu import FinewebEdu
from niels_cache_assets.sources.gutenberg import Gutenberg
from niels_cache_assets.sources.huggingface import Huggingface
from niels_cache_assets.sources.interleave import Interleave
from niels_cache_assets.sources.jsonl import Jsonl
from niels_cache_assets.sources.note_files import MarkdownFolder, Roam
from niels_cache_assets.sources.oasst1 import Oasst1
from niels_cache_assets.sources.parquet import Parquet
from niels_cache_assets.sources.python_docs import PythonDocs, PythonHelp
from niels_cache_assets.sources.text import Text
from niels_cache_assets.sources.types import PretrainSource, SftSource
from niels_cache_assets.sources.wikipedia import Wikipedia
from niels_cache_assets.sources.wikitext import Wikitext

PRETRAIN_SOURCES: dict[str, type[PretrainSource]] = {
    "fineweb_edu": FinewebEdu,
    "wikitext": Wikitext,
    "roam": Roam,
    "gutenberg": Gutenberg,
    "wikipedia": Wikipedia,
    "huggingface": Huggingface,
    "markdown_folder": MarkdownFolder,
    "parquet": Parquet,
    "jsonl": Jsonl,
    "text": Text,
    "interleave": Interleave,
    "python_docs": PythonDocs,
}

SFT_SOURCES: dict[str, type[SftSource]] = {"dolly15k": Dolly15k, "oasst1": Oasst1, "chat_jsonl": ChatJsonl, "python_help": PythonHelp}
