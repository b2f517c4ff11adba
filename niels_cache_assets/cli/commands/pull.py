"""The command `pull ADDRESS`. It brings a published cache, or one of its splits, into a cache root."""

from __future__ import annotations

import argparse
from pathlib import Path

from niels_cache_assets.cli.command import Command, at_least, chosen
from niels_cache_assets.cli.console import PROGRAM, output, print_json
from niels_cache_assets.cli.exit_codes import DONE
from niels_cache_assets.processes import stop_on_signals
from niels_cache_assets.publish.transfer import THREADS
from niels_cache_assets.show.wording import file_size


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "address",
        metavar="ADDRESS",
        help="where the cache is published: s3://BUCKET/PREFIX, gs://, az://, file:///PATH or hf://datasets/OWNER/NAME",
    )
    parser.add_argument("--out", metavar="DIR", required=True, help="the cache directory to put it into, such as cache")
    parser.add_argument("--split", metavar="SPLIT", help="bring train or val only; the other split is empty (default: both)")
    parser.add_argument("--replace", action="store_true", help="exchange another build of this data set in DIR")
    parser.add_argument(
        "--threads", type=at_least(1), metavar="N", default=THREADS, help="number of files to fetch at a time (default: %(default)s)"
    )


COMMAND = Command(
    usage="ADDRESS --out DIR ",
    description="""\
Bring a published cache and its tokenizer into a cache directory. Needs obstore: pip install
"niels-cache[remote]". Credentials come from the environment, as for push.

pull hashes each file while it writes the file, and puts the cache in its place when all files are
complete. If pull is cut, run it again: it fetches only what is missing.""",
    examples="""\
  niels-cache pull s3://bucket/caches/wikitext --out cache                bring the cache
  niels-cache pull s3://bucket/caches/wikitext --out cache --split train  bring only train
  niels-cache pull s3://bucket/caches/wikitext --out cache --replace      exchange an older build
  niels-cache pull hf://datasets/ours/wikitext --out cache                bring it from the hub""",
    add_options=_add_options,
    offers={"split": ("train", "val")},
    has_caches=False,
    has_json=True,
)


def run(arguments: argparse.Namespace) -> int:
    from niels_cache_assets.cli.progress import transfer_progress
    from niels_cache_assets.publish.hub import SCHEME, pull_from_hub, repository_of
    from niels_cache_assets.publish.pull import pull
    from niels_cache_runtime.format.layout import SPLITS
    from niels_cache_runtime.remote.store import check_address

    on_hub = arguments.address.startswith(SCHEME)
    address = f"{SCHEME}datasets/{repository_of(arguments.address)}" if on_hub else check_address(arguments.address)
    split = None if arguments.split is None else chosen("--split", "no split", arguments.split, SPLITS)
    with stop_on_signals(), transfer_progress("pulling") as progress:
        pulled = (pull_from_hub if on_hub else pull)(
            address,
            Path(arguments.out).expanduser(),
            split=split,
            replace_other=arguments.replace,
            threads=arguments.threads,
            progress=progress,
        )
    meta = pulled.meta
    if arguments.json:
        print_json(
            {
                "address": address,
                "folder": pulled.directory,
                "state": pulled.state,
                "content_sha256": meta["content_sha256"],
                "fetched_bytes": pulled.fetched_bytes,
            }
        )
        return DONE
    console = output()
    console.print(f"{pulled.directory}: {pulled.state}, {file_size(pulled.fetched_bytes)} fetched", soft_wrap=True)
    console.print(f"look at it: {PROGRAM} sample {pulled.directory.name} --cache-dir {arguments.out}", soft_wrap=True)
    return DONE
