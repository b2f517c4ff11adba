"""The command `pull`, which fetches a published cache, or manages a local copy.

`pull ADDRESS` brings a published cache, or one of its splits, into a cache root. `pull --copy DIR` shows, trims or checks a local copy,
which `TokenLoader(..., remote=Copy(dir=DIR))` fills from an address.
"""

import argparse
import re
from pathlib import Path

from niels_cache_assets.base.wording import SHORT_SHA256, UNKNOWN, file_size, format_count
from niels_cache_assets.cli.command import DONE, FAILED, WHERE, Command, option, refuse_options, switch
from niels_cache_assets.cli.console import PROGRAM, display, new_table, print_facts
from niels_cache_runtime.errors import NielsCacheError

_UNITS = {"": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_SIZE = re.compile(rf"([\d_]+(?:\.\d+)?)\s*({'|'.join(_UNITS)})")


def byte_count(text: str) -> int:
    """Return a number of bytes, such as 200GB, 1.5TiB or 1_000_000."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or not match[1].strip("_"):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a number of bytes such as 200GB")
    return int(float(match[1]) * _UNITS[match[2]])


COMMAND = Command(
    options=(
        option("address", "ADDRESS", "s3://BUCKET/PREFIX, gs://, az://, file:///PATH or hf://datasets/OWNER/NAME", nargs="?"),
        option("--out", "DIR", "the cache directory to write to, such as cache"),
        option(
            "--split", "SPLIT", "download only train or only val, and leave the other split empty (default: both)", choices=("train", "val")
        ),
        switch("--replace", "replace another build of this data set in DIR"),
    ),
    groups={
        "the local copy of a loader": [
            option("--copy", "DIR", "show the content of DIR, the folder given to Copy(dir=DIR)"),
            [
                option("--trim", "SIZE", "remove unused files until at most SIZE remains, such as 100GB", type=byte_count),
                switch("--check", "hash every file, and remove damaged files from the copy"),
            ],
        ]
    },
    usage="ADDRESS --out DIR ",
    description="""\
Download a published cache and its tokenizer to a cache directory. Requires obstore: pip install
"niels-cache[remote]". Credentials come from the environment, as for push.

pull hashes each file as it is written, and moves the cache into place once all files are complete. If
pull is interrupted, run it again: it downloads only the missing data.

--copy shows the builds in a loader's local copy: their addresses, files and bytes, and whether a process
is using them. --trim removes the least recently used files, but never files that are in use or were not
downloaded by the loader. A loader downloads a removed file again when it needs the file.""",
    examples="""\
  niels-cache pull s3://bucket/caches/wikitext --out cache                download the cache
  niels-cache pull s3://bucket/caches/wikitext --out cache --split train  only train
  niels-cache pull hf://datasets/ours/wikitext --out cache                from the hub
  niels-cache pull --copy /local/tokens --trim 100GB                      free up disk space""",
    has_caches=False,
)


def run(arguments: argparse.Namespace) -> int:
    """Fetch the cache, or manage the local copy."""
    given = [option for option in ("address", "out", "split", "replace") if getattr(arguments, option)]
    if arguments.copy is not None:
        if given:
            raise NielsCacheError(f"{WHERE}: --copy shows a local copy, and takes no {given[0]}; leave it out")
        return _local_copy(arguments)
    refuse_options(arguments, ("trim", "check"), "only for a local copy; name it with --copy DIR")
    if arguments.address is None or arguments.out is None:
        raise NielsCacheError(f"{WHERE}: pull needs an ADDRESS and --out DIR, or --copy DIR (see {PROGRAM} pull --help)")
    return _pull(arguments)


def _pull(arguments: argparse.Namespace) -> int:
    from niels_cache_assets.cli.progress import transfer_progress
    from niels_cache_assets.publish.hub import address_at
    from niels_cache_assets.publish.pull import pull

    address = address_at(arguments.address)
    with transfer_progress("pulling") as progress:
        result = pull(address, Path(arguments.out).expanduser(), split=arguments.split, replace_other=arguments.replace, progress=progress)
    facts = {
        "address": address,
        "folder": result.directory,
        "state": result.state,
        "content_sha256": result.meta["content_sha256"],
        "fetched_bytes": result.fetched_bytes,
    }
    if not print_facts(arguments, facts):
        display(f"{result.directory}: {result.state}, {file_size(result.fetched_bytes)} fetched")
        display(f"look at it: {PROGRAM} sample {result.directory.name} --cache-dir {arguments.out}")
    return DONE


def _local_copy(arguments: argparse.Namespace) -> int:
    from niels_cache_runtime.remote.maintenance import check, contents, trim

    folder = Path(arguments.copy).expanduser()
    freed = None if arguments.trim is None else trim(folder, arguments.trim)
    damaged = check(folder) if arguments.check else None
    found = contents(folder)
    code = FAILED if damaged else DONE
    if print_facts(arguments, {"folder": folder, **vars(found), "freed_bytes": freed, "damaged": damaged}):
        return code
    table = new_table("data set", "address", "build", "files", "size", "in use", right=["files", "size"], shrinking=["address"])
    for build in found.builds:
        name, sha256, in_use = f"{build.family}/{build.name}", build.content_sha256[:SHORT_SHA256], "yes" if build.in_use else "no"
        table.add_row(name, build.address, sha256, f"{build.files:,}", file_size(build.bytes), in_use)
    if found.builds:
        display(table)
    limit = UNKNOWN if found.limit is None else file_size(found.limit)
    display(f"{folder}: {file_size(found.bytes)}, limit {limit}, {format_count(found.readers, 'reader')} now")
    if freed is not None:
        display(f"removed {file_size(freed)}")
    for path in damaged or []:
        advice = "a process uses it; check again after its end" if (folder / path).exists() else "the next reader fetches it again"
        display(f"{path}: was damaged or missing; {advice}")
    if damaged == []:
        display("every file has its sha256")
    return code
