"""Options and help of `build-all`."""

from __future__ import annotations

import argparse

from niels_cache_assets.cli.command import Command
from niels_cache_assets.cli.overrides import FLAGS, SFT_VAL_FRAC, SHUFFLE_BUFFER, Flag


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", metavar="NAME", nargs="+", help="build these data sets only (and the tokenizer where there is none)")
    parser.add_argument("--force", action="store_true", help="build again what is already there")
    parser.add_argument(
        "--wait", action="store_true", help="wait where another process builds the same and has another Dagster home, instead of failing"
    )
    parser.add_argument(
        "--set",
        metavar="TABLE.KEY=VALUE",
        action="append",
        default=[],
        dest="settings",
        help="any setting of the configuration: pretrain.NAME.key=value, sft.NAME.key=value, blend.NAME.key=value, tokenizer.key=value, "
        "build.key=value, and one entry of a key that is a table: pretrain.NAME.cleaning.min_words=5; values are TOML, or plain text "
        "where they are not; may be given many times",
    )
    groups: dict[str, argparse._ArgumentGroup] = {}
    for flag in (*FLAGS, SHUFFLE_BUFFER, SFT_VAL_FRAC):
        group = groups.setdefault(flag.group, parser.add_argument_group(flag.group))
        group.add_argument(flag.option, type=flag.type, metavar=flag.metavar, nargs=flag.nargs, dest=flag.dest, help=_help_of(flag))


def _help_of(flag: Flag) -> str:
    if flag.default is None:
        return flag.help
    return f"{flag.help} (default: {f'{flag.default:_}' if isinstance(flag.default, int) and flag.default > 9_999 else flag.default})"


COMMAND = Command(
    name="build-all",
    module="build_all",
    summary="build the tokenizer and every data set",
    description="""\
Build the tokenizer, then every pretrain data set, then every SFT data set that niels_cache.toml names
(without such a file: those of the default profile), through Dagster: its UI shows the same runs.
Before a tokenizer is trained, all of them are looked at, and everything that cannot be read is said.
Data sets with `prepare` are cleaned and deduplicated before, and the tokenizer is trained on what that
left (docs/cleaning.md).

What is already built from the same settings, tokenizer and upstream revision is a cache hit and
takes seconds. A data set that fails does not stop the others and leaves its last good cache as it
was; one that still needs a setting (roam without a folder) is skipped. Where a source ends before
its token budget is met, the table says how much of it is there.""",
    examples="""\
  niels-cache build-all
  niels-cache build-all --profile quickstart
  niels-cache build-all --only fineweb_edu --fineweb-train-tokens 10_000_000 --fineweb-val-tokens 100_000
  niels-cache build-all --set pretrain.books.val_frac=0.05
  niels-cache build-all --only oasst1 --force --set sft.oasst1.split_by=tree""",
    add_options=_add_options,
    has_json=True,
)
