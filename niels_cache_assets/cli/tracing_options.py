"""Options and help of `trace`."""

from __future__ import annotations

import argparse

from niels_cache_assets.cli.command import Command
from niels_cache_assets.cli.overrides import whole_number


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--state", metavar="FILE", required=True, help="JSON or torch checkpoint with the loader's state")
    parser.add_argument("--step", metavar="N", type=whole_number, required=True, help="which batch, counted from 0 as loader.step does")
    parser.add_argument("--rank", metavar="R", type=whole_number, default=0, help="whose batch of that step (default: 0)")
    parser.add_argument("--row", metavar="I", type=whole_number, help="only this row, with all of its text")
    parser.add_argument("--column", metavar="J", type=whole_number, help="only this token of the row: x[I, J], which is y[I, J - 1]")
    parser.add_argument(
        "--source",
        metavar="NAME=FOLDER",
        nargs="+",
        type=_name_and_folder,
        action="extend",
        default=[],
        dest="sources",
        help="where a data set's split lies now, if not where training read it",
    )


def _name_and_folder(text: str) -> tuple[str, str]:
    name, equals, folder = text.partition("=")
    if not name or not equals or not folder:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=FOLDER")
    return name, folder


COMMAND = Command(
    name="trace",
    module="trace",
    usage="--state FILE --step N ",
    summary="show which documents a batch of a training run came from",
    description="""\
Show where a batch of a training run came from: data set, epoch, sample, shard and offset of every
row, and of every document in it the source's own id, file, row and text.

FILE is what loader.state_dict() was saved in: JSON, or a torch checkpoint that holds it somewhere.
The batch is computed again from that state: any step of the run, on the batch size and the ranks
that it ran with. A cache that changed since is refused.""",
    examples="""\
  niels-cache trace --state checkpoint.pt --step 1200                    every row of rank 0
  niels-cache trace --state checkpoint.pt --step 1200 --rank 3 --row 5   one row, with all of its text
  niels-cache trace --state loader.json --step 0 --row 0 --column 17     one token and the text around it
  niels-cache trace --state loader.json --step 0 --source notes=/mnt/cache/pretrain/notes/train""",
    add_options=_add_options,
    has_json=True,
    has_caches=False,
)
