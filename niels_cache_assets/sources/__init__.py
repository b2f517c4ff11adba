"""Kinds of sources, one file each.

A file has the name that a table gives as `source = "..."`.

    types            the interface of a source                 errors      errors of sources, and how messages show them
    conversations    functions of all SFT kinds                val_share   the seeded share of documents that goes to val
    hub/             the Hugging Face hub                      net/        requests over the network
    finding/         files that a glob or a folder names       reading/    files, rows, encodings

Corpora that are published in a form of their own are in the package `niels_cache_corpora`. It uses what the kinds here use, and nothing
here imports it. own.py makes kinds of the user's code, which are in no table. A kind loads its module at first use. Importing this package
opens no file and loads no large library.
"""

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TypeVar

from niels_cache_assets.sources.types import PretrainSource, SftSource, Source

S = TypeVar("S", bound=Source)


class _Kinds(Mapping[str, type[S]]):
    """The kinds of a family by name. `classes` has the class of each in the module of that name, or in another: `MODULE:CLASS`."""

    def __init__(self, classes: Mapping[str, str]) -> None:
        self._classes = classes

    def __getitem__(self, name: str) -> type[S]:
        module, _, class_name = self._classes[name].rpartition(":")  # a KeyError, which a Mapping expects, before any import
        return getattr(import_module(module or f"{__name__}.{name}"), class_name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._classes)

    def __len__(self) -> int:
        return len(self._classes)


PRETRAIN_SOURCES: Mapping[str, type[PretrainSource]] = _Kinds(
    {
        "fineweb_edu": "FinewebEdu",
        "wikitext": "niels_cache_corpora.wikitext:Wikitext",
        "roam": "niels_cache_corpora.roam:Roam",
        "gutenberg": "niels_cache_corpora.gutenberg:Gutenberg",
        "wikipedia": "niels_cache_corpora.wikipedia.source:Wikipedia",
        "warc": "niels_cache_corpora.warc.source:Warc",
        "huggingface": "Huggingface",
        "markdown_folder": "MarkdownFolder",
        "parquet": "Parquet",
        "arrow": "Arrow",
        "jsonl": "Jsonl",
        "csv": "Csv",
        "text": "Text",
        "html": "Html",
        "epub": "Epub",
        "interleave": "Interleave",
        "python_docs": "PythonDocs",
        "code": "niels_cache_corpora.code.source:Code",
    }
)

SFT_SOURCES: Mapping[str, type[SftSource]] = _Kinds(
    {
        "dolly15k": "niels_cache_corpora.dolly15k:Dolly15k",
        "oasst1": "niels_cache_corpora.oasst1:Oasst1",
        "chat_jsonl": "ChatJsonl",
        "python_help": "PythonHelp",
    }
)
