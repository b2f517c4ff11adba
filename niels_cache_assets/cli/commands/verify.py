"""`verify`: the runtime's verifier on the cache root of this configuration, with a bar. What is checked is decided there."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from niels_cache_assets.cli.command import CACHES, Command, refuse, whole_number
from niels_cache_assets.cli.console import new_table, output, print_json
from niels_cache_assets.cli.exit_codes import DONE, FAILED

_STYLES = {"sound": "green", "findings": "red", "unverifiable": "yellow", "off": "dim"}


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "names", metavar="NAME", nargs="*", help="data sets, tokenizer or duplicates; all of the cache directory where none is named"
    )
    parser.add_argument("--quick", action="store_true", help="compare names and sizes only; read no file")
    parser.add_argument("--threads", type=whole_number, metavar="N", help="files to read at a time (default: as many as there are cores)")
    parser.add_argument(
        "--against-dagster",
        action="store_true",
        help="also compare each meta.json with the hash that Dagster recorded (DAGSTER_HOME): finds changes whose hashes were made anew",
    )


COMMAND = Command(
    usage="[NAME ...] ",
    description="""\
Hash every file again and check the invariants of the format: one line for each finding, a note for
what harms nothing, and a table of the folders with what came of each.

unverifiable: a cache whose meta.json another program wrote has no hashes to compare with. A note says
so, and only what that meta.json says of the tokens is checked; the exit code counts findings alone.
With --json, `unverifiable` lists such caches: a script that wants none tests that it is empty.

not verified: reports/, unfinished builds (.NAME.partial) and locks, other names with a leading dot,
Dagster's home (.dagster) with its logs, exports, and whatever else lies in the cache directory""",
    examples="""\
  niels-cache verify                    everything below the cache directory, corpora and indices too
  niels-cache verify wikitext dolly15k  two data sets, and their corpora
  niels-cache verify --quick            names and sizes only: no file is read
  niels-cache verify --against-dagster  also against what Dagster recorded when it built them

training machines without this package's dependencies: python -m niels_cache_runtime.verify cache/""",
    add_options=_add_options,
    offers={"names": CACHES},
    has_json=True,
)


def run(arguments: argparse.Namespace) -> int:
    from rich.text import Text

    from niels_cache_assets.cli.context import find_places, open_registry, refuse_path
    from niels_cache_assets.cli.progress import transfer_progress
    from niels_cache_runtime.verify import find_folders, notes, verify_folders
    from niels_cache_runtime.verify.folder import VerifiedFolder
    from niels_cache_runtime.verify.table import COLUMNS, NUMBERS, results, summary

    registry, root = open_registry(arguments)
    names = arguments.names or None
    known = [*find_places(registry, root), *(path.name for pattern in ("*", "*/*") for path in root.glob(pattern))]
    for name in arguments.names:
        is_known = name.rpartition("/")[2] in known
        if not is_known or name.count("/") > 1:
            refuse_path(name)
        if not is_known:
            refuse("", "no data set", name, known)
    verified = [VerifiedFolder(path) for path in find_folders(root, names=names)]
    folders = [folder.path for folder in verified]
    with transfer_progress("verifying") as progress:
        findings = verify_folders(root, verified, beside=not names, quick=arguments.quick, threads=arguments.threads, progress=progress)
    if arguments.against_dagster:
        from niels_cache_assets.defs.home.history import recorded_findings

        findings += recorded_findings(root, folders)
    said = notes(root, verified, beside=not names)
    names_found = [folder.relative_to(root).as_posix() for folder in folders]
    rows = results(root, verified, findings, quick=arguments.quick)
    if arguments.json:
        found = [asdict(finding) for finding in findings]
        unverifiable = [name for name, folder in zip(names_found, verified, strict=True) if folder.is_unverifiable]
        print_json(
            {
                "root": root,
                "folders": names_found,
                "quick": arguments.quick,
                "findings": found,
                "unverifiable": unverifiable,
                "notes": said,
                "results": [row._asdict() for row in rows],
            }
        )
        return FAILED if findings else DONE
    console = output()
    for finding in findings:
        console.print(str(finding), soft_wrap=True)
    for note in said:
        console.print(f"note: {note}", style="dim", soft_wrap=True)
    table = new_table(*COLUMNS, right=frozenset(NUMBERS), shrinking=["data set"])
    for row in rows:
        *cells, result = row.cells()
        table.add_row(*cells, Text(result, style=_STYLES[row.outcome]))
    console.print(table)
    console.print(summary(rows, findings, quick=arguments.quick), soft_wrap=True)
    return FAILED if findings else DONE
