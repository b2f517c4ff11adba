"""Options and help of `diff`."""

from __future__ import annotations

import argparse

from niels_cache_assets.cli.command import Command
from niels_cache_assets.cli.overrides import whole_number

SHOWN = 5


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", metavar="A", help="a cache root, or the folder of one data set")
    parser.add_argument("b", metavar="B", help="another one of the same kind")
    parser.add_argument("--only", metavar="NAME", nargs="+", help="of two cache roots, these data sets (or tokenizer) only")
    parser.add_argument("-n", metavar="N", dest="count", type=whole_number, default=SHOWN, help=f"documents to name (default: {SHOWN})")


COMMAND = Command(
    name="diff",
    module="diff",
    usage="A B ",
    summary="compare two builds: settings, documents, first token that differs",
    description="""\
Compare two builds: the settings that differ, the documents that one of them does not have, and the
first token that differs, with its document and the text around it on both sides. Exits 0 where
nothing differs, 1 where something does, 2 for wrong use, as diff(1) does.

A and B are two cache roots, compared data set by data set, or the folders of two data sets of one
family, whatever these are called. A document is told by its source's id, its file and its row there.
Corpora, duplicates and indices are not compared; `niels-cache tokenizer compare` compares what
tokenizers make of the same text.""",
    examples="""\
  niels-cache diff cache old/cache
  niels-cache diff cache old/cache --only wikitext
  niels-cache diff cache/pretrain/wikitext old/cache/pretrain/wikitext -n 20""",
    add_options=_add_options,
    has_caches=False,
    has_json=True,
)
