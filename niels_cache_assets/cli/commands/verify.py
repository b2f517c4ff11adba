"""The command `verify`, which runs the verifier of niels_cache_runtime on the cache root of this configuration, with a progress bar."""

import argparse

from niels_cache_assets.base.wording import file_size, format_count
from niels_cache_assets.cli.command import CACHES, DONE, FAILED, WHERE, Command, option, raise_invalid, refuse_options, switch
from niels_cache_assets.cli.console import display, new_table, print_facts, styled
from niels_cache_runtime.errors import NielsCacheError

_STYLES = {"sound": "green", "findings": "red", "unverifiable": "yellow", "off": "dim"}


COMMAND = Command(
    options=(
        option(
            "names",
            "NAME",
            "data sets, tokenizer or duplicates (default: the whole cache directory), or one ADDRESS of a published cache",
            nargs="*",
        ),
        switch("--quick", "compare only names and sizes"),
        switch(
            "--against-dagster",
            "also compare each meta.json with the hash that Dagster recorded (DAGSTER_HOME), to find a changed file even if "
            "meta.json was updated",
        ),
        switch("--download", "with an ADDRESS: read and hash the content of every object"),
    ),
    usage="[NAME ...] ",
    description="""\
Rehash every file and check the invariants of the format. verify prints one line per finding, a note for
each harmless difference, and a table with the result for each folder.

unverifiable: the meta.json of a cache was written by a different program, so there are no hashes to
compare with, and verify only checks the tokens against that meta.json. This does not affect the exit
code.

With an ADDRESS, such as s3://bucket/prefix, verify compares the sizes and recorded hashes of a published
cache with its meta.json. Only --download reads and verifies the content.

not verified: reports/, unfinished builds (.NAME.partial), locks, other names with a leading dot,
Dagster's home (.dagster), exports, and any other file in the cache directory""",
    examples="""\
  niels-cache verify                    everything, including corpora and indices
  niels-cache verify wikitext dolly15k  two data sets, and their corpora
  niels-cache verify s3://bucket/caches/wikitext --download  read and hash a published cache

on training machines, without the dependencies of this package: python -m niels_cache_runtime.verify cache/""",
    offers={"names": CACHES},
)


def run(arguments: argparse.Namespace) -> int:
    """Verify the caches, and return FAILED if there are findings."""
    from niels_cache_assets.cli.context import find_caches, open_registry, refuse_path
    from niels_cache_assets.cli.progress import transfer_progress
    from niels_cache_runtime.remote.store import is_address
    from niels_cache_runtime.verify import Verification
    from niels_cache_runtime.verify.table import COLUMNS, NUMBERS, results, summary

    if any(map(is_address, arguments.names)):
        return _verify_address(arguments)
    refuse_options(arguments, ["download"], "only for an ADDRESS such as s3://BUCKET/PREFIX; without it, every file is read anyway")
    registry, root = open_registry(arguments)
    known = [*find_caches(registry, root), *(path.name for pattern in ("*", "*/*", "*/.parts/*/*") for path in root.glob(pattern))]
    for name in arguments.names:
        is_known = name.rpartition("/")[2] in known
        if not is_known or name.count("/") > 1:
            refuse_path(name)
        if not is_known:
            raise_invalid("", "no data set", name, known)
    with transfer_progress("verifying") as progress:
        verified = Verification(root, names=arguments.names, quick=arguments.quick, progress=progress)
    folders, findings = [folder.path for folder in verified.folders], verified.findings
    if arguments.against_dagster:
        from niels_cache_assets.defs.home.history import recorded_findings

        findings += recorded_findings(registry, root, folders)
    lines = verified.notes()
    names_found = [folder.relative_to(root).as_posix() for folder in folders]
    rows = results(verified)
    facts = {
        "root": root,
        "folders": names_found,
        "quick": arguments.quick,
        "findings": findings,
        "unverifiable": [name for name, folder in zip(names_found, verified.folders, strict=True) if folder.is_unverifiable],
        "notes": lines,
        "results": [row._asdict() for row in rows],
    }
    code = FAILED if findings else DONE
    if print_facts(arguments, facts):
        return code
    for finding in findings:
        display(str(finding))
    for note in lines:
        display(f"note: {note}", style="dim")
    table = new_table(*COLUMNS, right=NUMBERS, shrinking=["data set"])
    for row in rows:
        *cells, result = row.cells()
        table.add_row(*cells, styled((result, _STYLES[row.outcome])))
    display(table)
    display(summary(rows, verified))
    return code


def _verify_address(arguments: argparse.Namespace) -> int:
    from niels_cache_assets.cli.progress import transfer_progress
    from niels_cache_assets.publish.check import check
    from niels_cache_runtime.remote.store import check_address

    refuse_options(arguments, ("quick", "against_dagster"), "not for an address; pull the cache, and verify it then")
    if len(arguments.names) > 1:
        raise NielsCacheError(f"{WHERE}: verify takes one address, without other names")
    address = check_address(arguments.names[0])
    with transfer_progress("verifying") as progress:
        checked = check(address, download=arguments.download, progress=progress)
    published, findings = checked.published, checked.findings
    facts = {
        "address": address,
        "data_set": f"{published.family}/{published.name}",
        "content_sha256": published.meta["content_sha256"],
        "files": len(published.files),
        "is_proven": checked.is_proven,
        "findings": findings,
    }
    code = FAILED if findings else DONE
    if print_facts(arguments, facts):
        return code
    for finding in findings:
        display(str(finding))
    size = file_size(sum(file.size for file in published.files))
    compared = "the content of every object was read" if checked.is_proven else "sizes and recorded hashes were compared"
    files, found = format_count(len(published.files), "file"), format_count(len(findings), "finding")
    display(f"{published.family}/{published.name}: {files}, {size}: {compared}; {found}")
    if not checked.is_proven:
        display("note: only --download reads the content, and proves it", style="dim")
    return code
