"""Options and help of `init`."""

from __future__ import annotations

import argparse

from niels_cache_assets.cli.command import Command
from niels_cache_assets.cli.overrides import whole_number


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", metavar="PATH", nargs="*", help="your data: files, folders or globs; what they hold is looked at")
    parser.add_argument("--out", metavar="FILE", default="niels_cache.toml", help="the file to write (default: niels_cache.toml)")
    parser.add_argument("--force", action="store_true", help="replace a file that is there")
    start = parser.add_argument_group("what is built")
    start.add_argument(
        "--from",
        metavar="NAME",
        nargs="+",
        action="extend",
        default=[],
        dest="catalog",
        help="data sets that ship with niels-cache: `niels-cache catalog` lists them",
    )
    start.add_argument(
        "--profile",
        metavar="PROFILE",
        help="all of a profile: default (fineweb_edu, wikitext, dolly15k, oasst1) or quickstart (Python's own documentation)",
    )
    start.add_argument("--only-mine", action="store_true", help="with --profile: turn its data sets off, so that its settings remain")
    start.add_argument(
        "--files",
        metavar="PATH",
        nargs="+",
        action="extend",
        default=[],
        help="as PATH, and always as text to pretrain on: .txt, .md, .jsonl, .parquet, .xml (also .gz, .bz2, .xz, .zst), or folders",
    )
    start.add_argument("--notes", metavar="DIR", help="your folder of Markdown notes, such as Obsidian's")
    start.add_argument("--roam", metavar="PATH", help="your Roam export: its folder, or the JSON file")
    start.add_argument(
        "--hub", metavar="OWNER/NAME", nargs="+", action="extend", default=[], help="text of the Hugging Face hub; OWNER/NAME:CONFIG"
    )
    start.add_argument(
        "--chats", metavar="PATH", nargs="+", action="extend", default=[], help="as PATH, and always as conversations: .jsonl, .parquet"
    )
    how = parser.add_argument_group("how")
    how.add_argument("--cache-dir", metavar="DIR", help="root of the caches (default: cache, beside the file)")
    how.add_argument("--tokenizer", metavar="FILE", help="a SentencePiece model to use instead of training one")
    how.add_argument("--vocab-size", metavar="N", type=whole_number, help="pieces of the tokenizer that is trained")


COMMAND = Command(
    name="init",
    module="init",
    summary="write a niels_cache.toml with comments, from flags or from answers",
    description="""\
Write a niels_cache.toml that says what is built, with a comment for every key. It looks into what it
is given: which field holds the text, and of conversations their form (lists of messages, instruction
and answer, trees of OpenAssistant). Without options, at a terminal, it asks. What is written is
checked as `doctor` would: what could not be read is refused, and then no file is written.""",
    usage="[PATH ...] ",
    examples="""\
  niels-cache init                                       asks, at a terminal
  niels-cache init data/ chats.jsonl                     your data
  niels-cache init --from fineweb_edu wikitext           data sets of the catalog
  niels-cache init --hub allenai/c4:en --vocab-size 32_000 --cache-dir /data/cache""",
    add_options=_add_options,
    has_caches=False,
    has_json=True,
)
