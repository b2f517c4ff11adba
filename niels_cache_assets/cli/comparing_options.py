"""Options and help of `tokenizer`."""

from __future__ import annotations

import argparse

from niels_cache_assets.cli.command import Command
from niels_cache_assets.cli.overrides import whole_number

ACTIONS = ("compare",)
CHARACTERS = 1_000_000


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", metavar="ACTION", help="compare")
    parser.add_argument("models", metavar="MODEL", nargs="+", help="SentencePiece .model files, two or more; `cache`: that of the caches")
    parser.add_argument("--only", metavar="NAME", nargs="+", help="on the text of these data sets only")
    parser.add_argument("--files", metavar="PATH", nargs="+", default=[], help="on text of yours, too: files and folders as `clean` takes")
    parser.add_argument(
        "--characters", metavar="N", type=whole_number, default=CHARACTERS, help=f"of each, from its start (default: {CHARACTERS:_})"
    )


COMMAND = Command(
    name="tokenizer",
    module="tokenizer",
    usage="compare MODEL MODEL ... ",
    summary="compare tokenizers: characters per token by source",
    description="""\
Compare tokenizers by what they make of the same text: characters per token, by source; more is
better, the same text being shorter. Newlines and blanks are characters of it; special tokens such as
EOT are not counted, here and wherever else this figure stands. The text is that of the data sets that
are built, as their tokens spell it (nothing is downloaded), and that of --files.""",
    examples="""\
  niels-cache tokenizer compare cache new.model
  niels-cache tokenizer compare 16k.model 32k.model --only wikitext dolly15k
  niels-cache tokenizer compare a.model b.model --files books/ --characters 10_000_000""",
    add_options=_add_options,
    has_json=True,
)
