"""Options and help of the commands that look at caches: list, show, sample."""

from __future__ import annotations

import argparse

from niels_cache_assets.cli.command import ALL_HELP, Command
from niels_cache_assets.cli.corpus_options import SEED_HELP
from niels_cache_assets.cli.overrides import whole_number


def _add_list_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--all", action="store_true", help=ALL_HELP)


def _add_show_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="a data set, `tokenizer`, or the path of a folder with a meta.json")


def _add_sample_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="a data set that is built")
    parser.add_argument("--stage", metavar="STAGE", default="cache", help="cache: what training sees (default); corpus: what cleaning left")
    parser.add_argument("--split", metavar="SPLIT", help="train or val (default: train; of a corpus, all of it)")
    parser.add_argument("-n", metavar="N", dest="count", type=whole_number, default=3, help="how many (default: 3)")
    parser.add_argument("--notable", action="store_true", help="the first one, a fixed random one, the longest, the shortest; not -n")
    parser.add_argument("--seed", metavar="N", type=whole_number, help=SEED_HELP)
    parser.add_argument(
        "--tokens", metavar="N", type=whole_number, default=128, help="longest to print, in tokens (default: 128; of a corpus, estimated)"
    )


LIST = Command(
    name="list",
    module="list",
    summary="list the data sets that are configured, and what is built",
    description="""\
List the data sets that niels_cache.toml names, and what is built of them; then what else lies in
the cache directory. Without a file: what is built.

states: in sync; missing; needs ... (a setting); other tokenizer, other settings (built before they
changed); damaged (a file), unreadable (meta.json), other data set (the folder was renamed or copied);
unverifiable (made by another program); with --all also disabled, switched off (enabled = false; the
second has an old cache); `niels-cache status` says more

train, val: with a share where the source ended before the token budget was met

corpus: documents that cleaning and deduplication left, of those read, for data sets with `prepare`""",
    examples="""\
  niels-cache list
  niels-cache list --all  what is switched off, too""",
    add_options=_add_list_options,
    has_json=True,
)

SHOW = Command(
    name="show",
    module="show",
    usage="NAME ",
    summary="show what a cache holds: counts, what was dropped, revision, files with sha256",
    examples="""\
  niels-cache show wikitext
  niels-cache show tokenizer --cache-dir cache/quickstart
  niels-cache show ./pretrain/wikitext   the folder at this path, whatever it is called""",
    add_options=_add_show_options,
    has_json=True,
)

SAMPLE = Command(
    name="sample",
    module="sample",
    usage="NAME ",
    summary="print random windows (pretrain), examples (SFT) or documents as text",
    examples="""\
  niels-cache sample wikitext                   three random windows of train
  niels-cache sample dolly15k --split val -n 5  examples; what the assistant is trained to say is marked
  niels-cache sample wikitext --notable         the first, a random, the longest and the shortest document
  niels-cache sample wikipedia --stage corpus   documents that cleaning left, any with the same chance""",
    add_options=_add_sample_options,
    has_json=True,
)
