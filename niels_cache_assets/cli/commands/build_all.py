"""The command `build-all`, which builds everything that the settings name, and prints a table of the results.

The launcher in defs/ determines the order of the builds, and what happens to the remaining data sets when one data set fails.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from niels_cache_assets.base.processes import stop_on_signals
from niels_cache_assets.base.wording import SHORT_SHA256, UNKNOWN, file_size, format_count, format_duration, format_list
from niels_cache_assets.cli.command import CACHES, DONE, FAILED, TOKENIZER, WHERE, Command, option, switch
from niels_cache_assets.cli.console import PROGRAM, diagnostics, display, is_quiet, new_table, print_facts, print_json, styled
from niels_cache_assets.cli.overrides import FLAGS, collect_overrides
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.safe_open import require_utf8

if TYPE_CHECKING:
    from niels_cache_assets.artifacts.forecast.steps import Step
    from niels_cache_assets.defs.launcher import LaunchResult
    from niels_cache_assets.project.registry import Registry

_STYLES = {"built": "green", "cache_hit": "green", "disabled": "dim", "skipped": "yellow", "failed": "bold red"}
_STEP_STYLES = {"build": "cyan", "cache_hit": "green", "disabled": "dim", "skip": "yellow", "fail": "bold red"}
# By field of an estimate: the heading of its column, and the format of its values.
_ESTIMATES: dict[str, tuple[str, Callable[[Any], str]]] = {
    "bytes_to_read": ("to read", file_size),
    "tokens": ("tokens", "{:,}".format),
    "disk_bytes": ("disk", file_size),
    "memory_bytes": ("memory", file_size),
    "core_seconds": ("core time", format_duration),
}


COMMAND = Command(
    options=(
        option("--only", "NAME", "build only these data sets (and the tokenizer, if it is missing)", nargs="+"),
        switch("--force", "rebuild finished data sets"),
        switch("--dry-run", "print what would be built, why, and the estimated cost; write nothing"),
        switch("--record", "record in the Dagster home what is found, even if it was recorded there, such as after an asset was wiped"),
        switch("--wait", "wait instead of failing if a process with a different Dagster home is building a data set"),
        option(
            "--set",
            "TABLE.KEY=VALUE",
            "override any setting: pretrain.NAME.key=value, sft.NAME.key=value, blend.NAME.key=value, tokenizer.key=value, "
            "build.key=value, or one entry of a table, such as pretrain.NAME.cleaning.min_words=5; the value is TOML, or plain text "
            "if it is not valid TOML; repeatable",
            action="append",
            default=[],
            dest="settings",
        ),
    ),
    groups={group: [flag.declared() for flag in flags] for group, flags in FLAGS.items()},
    description="""\
Build the tokenizer and every data set that niels_cache.toml lists, or, without that file, the data sets
of the default profile. Before it trains a tokenizer, build-all checks all inputs and reports every
input that it cannot read. Data sets with `prepare` are cleaned and deduplicated first, and the
tokenizer is trained on the remaining documents (docs/cleaning.md).

A data set already built from the same settings, tokenizer and upstream revision is a cache hit. If a
data set fails, the others are still built, and its last good cache stays unchanged. A data set with a
missing setting (such as roam without a folder) is skipped.

With --only, a tokenizer whose settings have changed is replaced only if no other cache uses it. With
--force, it is always replaced, and the other caches become stale.

--dry-run shows which steps would run and why, and estimates bytes to read, tokens, disk space, memory
and processor time from file sizes, token budgets and a sample of local files; "-" means unknown. It
does not check for newer revisions on the hub. The exit code is 1 if a step would fail.""",
    examples="""\
  niels-cache build-all
  niels-cache build-all --dry-run
  niels-cache build-all --set pretrain.books.val_frac=0.05""",
    offers={"only": CACHES},
)


def run(arguments: argparse.Namespace) -> int:
    """Build, and print the table of results. Return 1 if any data set failed."""
    import resource  # cannot be imported outside POSIX

    from niels_cache_assets.cli.context import open_registry, print_advice
    from niels_cache_assets.cli.progress import build_listener
    from niels_cache_assets.project.registry import cache_root, load_registry

    configured, _ = open_registry(arguments)
    overrides = collect_overrides(arguments, configured)
    registry = load_registry(profile=arguments.profile, config=arguments.config, overrides=overrides.tables, options=overrides.options)
    root = cache_root(registry, arguments.cache_dir)
    _check_names(registry, arguments.only)
    _require_tokenizer_of_all(registry, root, arguments)
    if not arguments.dry_run:
        _require_writable(root)
    print_advice(registry)
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if 0 < limit < 4 << 30:  # bytes of address space, of which threads and mapped libraries take most
        diagnostics().print(
            f"WARNING: this process may use only {file_size(limit)} of address space; if a library ends it with 'memory allocation failed' "
            "or 'cannot start new thread', raise the limit (ulimit -v) and run the same command again to resume"
        )
    if arguments.dry_run:
        return _dry_run(registry, root, arguments)
    with stop_on_signals(), build_listener(diagnostics()) as listener:
        from niels_cache_assets.defs.launcher import launch_builds

        options = {option: getattr(arguments, option) for option in ("only", "force", "wait", "record")}
        results = launch_builds(registry, root=root, listener=listener, **options)
    code = FAILED if any(result.state == "failed" for result in results) else DONE
    rows = [_row(result) for result in results]
    if print_facts(arguments, {"root": root, "results": rows}):
        return code
    _print_results(results, rows)
    _print_next_steps(results, arguments)
    return code


def _dry_run(registry: Registry, root: Path, arguments: argparse.Namespace) -> int:
    """Print what a build would do. Return 1 if a step would fail."""
    from niels_cache_assets.artifacts.forecast.estimates import parts_at_once
    from niels_cache_assets.artifacts.forecast.steps import forecast, peak_memory
    from niels_cache_assets.artifacts.graph import graph
    from niels_cache_assets.disk.space import free_bytes

    with stop_on_signals():
        steps = forecast(graph(registry, root), only=arguments.only, force=arguments.force)
    estimates = [step.estimate for step in steps if step.estimate is not None]
    values = {field: [getattr(estimate, field) for estimate in estimates] for field in _ESTIMATES}
    sums = {field: (sum(filter(None, each)), each.count(None)) for field, each in values.items()}  # what is known, and how many are not
    peak = peak_memory(steps, at_once=parts_at_once(registry, force=arguments.force))
    sums["memory_bytes"] = peak, sums["memory_bytes"][1]
    if arguments.json:
        rows = [{"name": step.name, **asdict(step)} for step in steps]
        told = {field: {"known": known, "unknown": unknown} for field, (known, unknown) in sums.items()}
        print_json({"root": root, "dry_run": True, "steps": rows, "sums": told, "free_bytes": free_bytes(root)})
    else:
        _print_dry_run(steps, sums, free_bytes(root))
    return FAILED if any(step.action == "fail" for step in steps) else DONE


def _print_dry_run(steps: Sequence[Step], sums: Mapping[str, tuple[Any, int]], free: int) -> None:
    """Print the table with the sums, then where the estimates come from, then what would fail."""
    headings = [heading for heading, _ in _ESTIMATES.values()]
    table = new_table("step", "action", "why", *headings, right=headings, shrinking=["why"])
    notes: dict[str, list[str]] = {}
    for step in steps:
        values = [(getattr(step.estimate, field, None), format_value) for field, (_, format_value) in _ESTIMATES.items()]
        cells = [UNKNOWN if value in (None, 0) else format_value(value) for value, format_value in values]
        why = UNKNOWN if step.action == "fail" else step.why  # a failure has a line of its own
        table.add_row(step.name, styled((step.action.replace("_", " "), _STEP_STYLES[step.action])), why, *cells)
        if step.estimate is not None:
            notes.setdefault(step.estimate.basis, []).append(step.name)
    if notes:
        table.add_section()
        totals = []
        for field, (_, format_value) in _ESTIMATES.items():
            known, unknown = sums[field]
            totals.append(UNKNOWN if unknown and not known else ("at least " if unknown else "") + format_value(known))
        table.add_row("in all", "", "", *totals)
    display(table)
    display()
    for basis, names in notes.items():
        display(f"{format_list(names)}: {basis}")
    for step in steps:
        if step.action == "fail":
            display(styled((f"{step.name} would fail", _STEP_STYLES["fail"]), f": {step.why}"))
    built = f"{sum(step.action == 'build' for step in steps)} of {format_count(len(steps), 'step')} would be built"
    display(f"{built}; {file_size(free)} are free; nothing was built or written")


def _check_names(registry: Registry, only: list[str] | None) -> None:
    names = [TOKENIZER, *registry.sources, *registry.blend]
    for name in only or ():
        if name not in names:
            parts = name.split(",")
            if len(parts) > 1 and set(parts) <= set(names):
                raise NielsCacheError(f"{WHERE}: --only: {name!r}; separate names with spaces: --only {' '.join(parts)}")
            registry.refuse_data_set(f"{WHERE}: --only", "no data set", name, names)
        if name in registry.switched_off():
            table = f"{registry.family_of(name)}.{name}"
            raise NielsCacheError(
                f"{WHERE}: --only: {name} is switched off; set enabled = true in [{table}], or add --set {table}.enabled=true"
            )


def _require_tokenizer_of_all(registry: Registry, root: Path, arguments: argparse.Namespace) -> None:
    """Print what becomes stale if the tokenizer is replaced.

    Raises:
        NielsCacheError: If --only names other data sets, unless --force is given.
    """
    from niels_cache_assets.artifacts.graph import graph

    if not arguments.only:
        return
    tokenizer = graph(registry, root).tokenizer()
    others = [name for name in tokenizer.users() if name not in arguments.only] if tokenizer.is_stale() else []
    if not others:
        return
    problem = f"{tokenizer.directory}: [tokenizer] has changed, and another tokenizer makes these caches stale: {format_list(others)}"
    if not arguments.force and TOKENIZER not in arguments.only:
        raise NielsCacheError(f"{WHERE}: --only: {problem}; undo the change, leave out --only to build them all again, or add --force")
    diagnostics().print(f"WARNING: {problem}")


def _require_writable(root: Path) -> None:
    """Check that the cache directory is writable, once, before any source is read.

    Raises:
        NielsCacheError: If it is not.
    """
    require_utf8(root.absolute(), "choose another --cache-dir")
    try:
        root.mkdir(parents=True, exist_ok=True)
        writable = os.access(root, os.W_OK)
    except OSError as error:
        raise NielsCacheError(f"{root}: cannot be created as cache directory: {error.strerror}; choose another --cache-dir") from error
    if not writable:
        raise NielsCacheError(f"{root}: not writable; choose another --cache-dir, or change its permissions")


def _print_results(results: Sequence[LaunchResult], rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the table of results, then what was left out, then one line for each message, with the data sets that the message is about.

    The reasons of failures come last. A table without a build is not printed.
    """
    from niels_cache_assets.facts.contents import budget_shares, content_cells

    table = new_table(
        "data set",
        "state",
        "train",
        "val",
        "size",
        "content sha256",
        "seconds",
        right=["train", "val", "size", "seconds"],
        shrinking=["content sha256"],
    )
    for result, row in zip(results, rows, strict=True):
        state = styled((result.state.replace("_", " "), _STYLES[result.state]))
        cells = [
            *content_cells(row["counts"], budget_shares(result.meta or {})),
            file_size(row["bytes"]) if row["bytes"] else UNKNOWN,
            row["sha256"][:SHORT_SHA256] if row["sha256"] else UNKNOWN,
        ]
        table.add_row(result.name, state, *cells, f"{result.seconds:.1f}")
    if any(row["bytes"] for row in rows):
        display(table)
    if any(result.left_out or result.drop_warnings for result in results):
        display()
    for result in results:  # a warning for each reason that the settings do not request, and one line for all others
        for line in result.drop_warnings:
            display(styled((f"{result.name} WARNING", "yellow"), f": {line}"))
        if result.left_out:
            display(f"{result.name}: {result.left_out}")
    by_message: dict[tuple[str, str], list[str]] = {}
    for result in sorted(results, key=lambda result: result.state == "failed"):
        if result.message:
            by_message.setdefault((result.state, result.message), []).append(result.name)
    if by_message:
        display()
    for (outcome, message), names in by_message.items():
        display(styled((f"{format_list(names)} {outcome.replace('_', ' ')}", _STYLES[outcome]), f": {message}"))


def _row(result: LaunchResult) -> dict[str, Any]:
    """Return a row of the table, with the counts of meta.json, the size of all files, and the hash of the content.

    The meta.json of a report lists no files and has the hash of its corpus, so the files of a report are counted on disk, without a hash.
    """
    from niels_cache_assets.facts.contents import all_counts, budget_shortfall, content_hash, total_bytes

    meta = result.meta if result.meta and result.meta.get("built", True) else {}
    size = sha256 = None
    if "files" in meta:
        size, sha256 = total_bytes(meta["files"]), content_hash(meta)
    elif meta and result.directory:
        size = sum(path.stat().st_size for path in result.directory.iterdir())
    return {
        "name": result.name,
        "family": result.family,
        "state": result.state,
        "message": result.message,
        "left_out": result.left_out,
        "drop_warnings": [*result.drop_warnings],
        "seconds": round(result.seconds, 3),
        "directory": result.directory,
        "bytes": size,
        "sha256": sha256,
        "counts": all_counts(meta),
        "shortfall": budget_shortfall(meta),
    }


def _print_next_steps(results: Sequence[LaunchResult], arguments: argparse.Namespace) -> None:
    """Print commands to inspect, verify and train, with the real paths. Print nothing if nothing was built or --quiet is set."""
    from niels_cache_assets.facts.training_code import training_code
    from niels_cache_runtime.format.layout import FAMILIES

    built = [result for result in results if result.state == "built" and result.family in FAMILIES]
    example = min(built, key=lambda result: FAMILIES.index(result.family), default=None)  # the first of pretrain, or else of sft
    if example is None or not example.meta or not example.directory or is_quiet():
        return
    given = {"--profile": arguments.profile, "--config": arguments.config, "--cache-dir": arguments.cache_dir}
    options = "".join(f" {option} {shlex.quote(value)}" for option, value in given.items() if value)  # of the same caches
    display("\nNext steps", style="bold")
    for command, purpose in (
        (f"{_program()} ui{options}", "shows lineage, counts and history in the Dagster UI"),
        (f"{_program()} verify{options}", "hashes every file again"),
        (f"{_program()} sample {example.name}{options}", "shows what training will see"),
    ):
        display(f"  {command}  # {purpose}")
    display("\nTrain from it:\n", style="bold")
    code = training_code(example.directory, "pretrain" if example.family == "pretrain" else "sft", example.meta)
    display(textwrap.indent(code, "  "))


def _program() -> str:
    """Return the name or path of the program that the user must type.

    `make cache` runs the console script of an environment that is not active, so the plain name may not be found.
    """
    if shutil.which(PROGRAM):
        return PROGRAM
    return sys.argv[0] if Path(sys.argv[0]).name == PROGRAM else "python -m niels_cache_assets.cli"
