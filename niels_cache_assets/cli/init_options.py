"""Options and help of `init`."""

from __future__ import annotations

import argparse

from niels_cache_assets.cli.command import Command
from niels_cache_assets.cli.overrides import whole_number


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", metavar="FILE", default="niels_cache.toml", help="the file to write (default: niels_cache.toml)")
    parser.add_argument("--force", action="store_true", help="replace a file that is there")
    start = parser.add_argument_group("what is built")
    start.add_argument(
        "--profile", metavar="PROFILE", help="default (fineweb_edu, wikitext, dolly15k, oasst1) or quickstart (Python's own documentation)"
    )
    start.add_argument("--only-mine", action="store_true", help="turn the data sets of the profile off: only those that are given here")
    start.add_argument(
        "--files",
        metavar="PATH",
        nargs="+",
        action="extend",
        default=[],
        help="your text: .txt, .md, .jsonl, .parquet, .xml (also .gz, .bz2, .xz, .zst), or folders of them",
    )
    start.add_argument("--notes", metavar="DIR", help="your folder of Markdown notes, such as Obsidian's")
    start.add_argument("--roam", metavar="PATH", help="your Roam export: its folder, or the JSON file")
    start.add_argument(
        "--hub", metavar="OWNER/NAME", nargs="+", action="extend", default=[], help="text of the Hugging Face hub; OWNER/NAME:CONFIG"
    )
    start.add_argument("--chats", metavar="PATH", nargs="+", action="extend", default=[], help=".jsonl files of conversations, for SFT")
    how = parser.add_argument_group("how")
    how.add_argument("--cache-dir", metavar="DIR", help="root of the caches (default: cache, beside the file)")
    how.add_argument("--tokenizer", metavar="FILE", help="a SentencePiece model to use instead of training one")
    how.add_argument("--vocab-size", metavar="N", type=whole_number, help="pieces of the tokenizer that is trained")


COMMAND = Command(
    name="init",
    module="init",
    summary="write a niels_cache.toml with comments, from flags or from answers",
    description="""\
Write a niels_cache.toml that says what is built, with a comment for every key. Without options, at a
terminal, it asks. What is written is checked as `build-all` would.""",
    examples="""\
  niels-cache init                                       asks, at a terminal
  niels-cache init --profile quickstart
  niels-cache init --files books/ --chats chats.jsonl --only-mine
  niels-cache init --hub allenai/c4:en --vocab-size 32_000 --cache-dir /data/cache""",
    add_options=_add_options,
    has_caches=False,
    has_json=True,
)
