"""The command `local-copy DIR`. It shows, trims or checks a local copy, which `TokenLoader(..., local_dir=DIR)` fills from an address."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from niels_cache_assets.cli.addresses import byte_count
from niels_cache_assets.cli.command import Command
from niels_cache_assets.cli.console import new_table, output, print_json
from niels_cache_assets.cli.exit_codes import DONE, FAILED
from niels_cache_assets.show.wording import SHORT_SHA256, UNKNOWN, counted, file_size


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", help="the folder that was given as local_dir")
    doing = parser.add_mutually_exclusive_group()
    doing.add_argument(
        "--trim", metavar="SIZE", type=byte_count, help="remove files that no process uses until SIZE is left, such as 100GB"
    )
    doing.add_argument("--check", action="store_true", help="hash every file, and remove damaged files from the copy")


COMMAND = Command(
    usage="DIR ",
    description="""\
Show the builds in a local copy: their addresses, files and bytes, and whether a process uses them.

--trim removes the files that were not used for the longest time. It never removes a file that a process
uses, nor a file that the copy did not fetch. --check reads the whole copy. A loader fetches a removed
file again when it needs it.""",
    examples="""\
  niels-cache local-copy /local/tokens               what it holds
  niels-cache local-copy /local/tokens --trim 100GB  make room
  niels-cache local-copy /local/tokens --check       hash every file""",
    add_options=_add_options,
    has_caches=False,
    has_json=True,
)


def run(arguments: argparse.Namespace) -> int:
    from niels_cache_runtime.remote.upkeep import check, contents, trim

    folder = Path(arguments.folder).expanduser()
    freed = None if arguments.trim is None else trim(folder, arguments.trim)
    damaged = check(folder) if arguments.check else None
    found = contents(folder)
    if arguments.json:
        print_json({"folder": folder, **asdict(found), "freed_bytes": freed, "damaged": damaged})
        return FAILED if damaged else DONE
    console = output()
    table = new_table("data set", "address", "build", "files", "size", "in use", right=frozenset({"files", "size"}), shrinking=["address"])
    for build in found.builds:
        in_use = "yes" if build.in_use else "no"
        table.add_row(
            f"{build.family}/{build.name}",
            build.address,
            build.content_sha256[:SHORT_SHA256],
            f"{build.files:,}",
            file_size(build.bytes),
            in_use,
        )
    if found.builds:
        console.print(table)
    limit = UNKNOWN if found.limit is None else file_size(found.limit)
    console.print(f"{folder}: {file_size(found.bytes)}, limit {limit}, {counted(found.readers, 'reader')} now", soft_wrap=True)
    if freed is not None:
        console.print(f"removed {file_size(freed)}", soft_wrap=True)
    for path in damaged or []:
        advice = "a process uses it; check again after its end" if (folder / path).exists() else "the next reader fetches it again"
        console.print(f"{path}: was damaged or missing; {advice}", soft_wrap=True)
    if damaged is not None and not damaged:
        console.print("every file has its sha256", soft_wrap=True)
    return FAILED if damaged else DONE
