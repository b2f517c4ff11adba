"""Options and help of the commands about corpora: clean, rejected, duplicates."""

from __future__ import annotations

import argparse

from niels_cache_assets.cli.command import Command
from niels_cache_assets.cli.overrides import whole_number

SEED_HELP = "the same seed shows the same; default: another choice every time"


def _add_clean_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", metavar="FILE", nargs="+", help="files and folders")
    parser.add_argument(
        "-n", metavar="N", dest="count", type=whole_number, help="rejected examples of each reason (default: none; 3 with --reason)"
    )
    parser.add_argument("--reason", metavar="REASON", help="examples of this reason only")
    parser.add_argument("--limit", metavar="N", type=whole_number, help="read the first N documents only")
    parser.add_argument(
        "--text-field", metavar="FIELD", help="field of the text, of .jsonl and .parquet (default: text, else the first string)"
    )
    parser.add_argument("--like", metavar="NAME", help="thresholds of this data set, where it has some of its own")
    parser.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        dest="settings",
        help="another threshold, a key of [cleaning]; values are TOML, or plain text where they are not; may be given many times",
    )


def _add_rejected_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="a data set with a corpus")
    parser.add_argument("--reason", metavar="REASON", help="this reason only")
    parser.add_argument("-n", metavar="N", dest="count", type=whole_number, default=3, help="examples of each reason (default: 3)")


def _add_duplicates_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", nargs="?", help="a data set that was deduplicated; all of them, in numbers, without")
    parser.add_argument("-n", metavar="N", dest="count", type=whole_number, default=3, help="how many pairs (default: 3)")
    parser.add_argument("--kind", metavar="KIND", help="exact or near (default: near, where there are any)")
    parser.add_argument("--closest-call", action="store_true", help="the least similar pairs instead of random ones")
    parser.add_argument("--characters", metavar="N", type=whole_number, default=600, help="longest to print of each (default: 600)")
    parser.add_argument("--seed", metavar="N", type=whole_number, help=SEED_HELP)


CLEAN = Command(
    name="clean",
    module="clean",
    usage="FILE ... ",
    summary="run the cleaning chain on files: what goes, and why",
    description="""\
Run the cleaning chain on files and say what it does to them. Nothing is registered or written.

FILE is told by its name: .txt, .md and .rst (one document a file), .jsonl (one a line), .parquet
(one a row), .xml (a MediaWiki dump), each also as .gz, .bz2, .xz or .zst; of a folder, every such
file in it. The thresholds are those of [cleaning] in your configuration.""",
    examples="""\
  niels-cache clean notes/ articles.jsonl.gz                   how many stay, and why the others go
  niels-cache clean dump.xml.bz2 --limit 1000 -n 2             two examples of each reason
  niels-cache clean a.jsonl -n 20 --reason list_page           twenty of one reason
  niels-cache clean a.jsonl --set min_words=20 --set 'skip=["not_english"]'
  niels-cache clean a.jsonl --like wikipedia                   with that data set's own thresholds

What each reason means, and where its threshold comes from: docs/cleaning.md""",
    add_options=_add_clean_options,
    has_json=True,
)


REJECTED = Command(
    name="rejected",
    module="rejected",
    usage="NAME ",
    summary="show what cleaning took out",
    description="""\
Show what cleaning took out of a data set: how many for each reason, and examples with the value that
was measured. 50 of each reason are kept, drawn evenly over all of them.""",
    examples="""\
  niels-cache rejected wikipedia                        every reason, with three examples of each
  niels-cache rejected wikipedia --reason list_page -n 20
  niels-cache rejected wikipedia -n 0                   the counts alone""",
    add_options=_add_rejected_options,
    has_json=True,
)


DUPLICATES = Command(
    name="duplicates",
    module="duplicates",
    usage="[NAME] ",
    summary="show duplicates side by side",
    description="""\
Show duplicates of a data set, each side by side with the document because of which it goes: that of
another data set, another split or further up. Without NAME: how many there are, of every data set.""",
    examples="""\
  niels-cache duplicates                                every data set in numbers
  niels-cache duplicates wikipedia -n 5                 five near duplicates, the same with the same --seed
  niels-cache duplicates wikipedia --closest-call -n 5  the five least similar: is the threshold right?
  niels-cache duplicates wikipedia --kind exact""",
    add_options=_add_duplicates_options,
    has_json=True,
)
