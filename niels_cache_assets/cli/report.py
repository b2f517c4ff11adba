"""What build-all prints when it is done: one row per data set, what failed or was skipped and why, and what to do next."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from niels_cache_assets.budgets import shares_met, shortfall
from niels_cache_assets.cli.console import PROGRAM, is_quiet, new_table
from niels_cache_assets.contents import all_counts, content_hash, contents, total_bytes
from niels_cache_assets.registry import CONFIG_NAME, CONFIG_VARIABLE, PROFILE_VARIABLE, ROOT_VARIABLE
from niels_cache_assets.training_code import training_code
from niels_cache_assets.wording import SHORT_SHA256, UNKNOWN, file_size, listed
from niels_cache_runtime.format.layout import FAMILIES
from niels_cache_runtime.format.meta import Meta

if TYPE_CHECKING:
    from niels_cache_assets.defs.launcher import LaunchResult

STYLES = {"built": "green", "cache_hit": "green", "disabled": "dim", "skipped": "yellow", "failed": "bold red"}
HOME_VARIABLE = "DAGSTER_HOME"


def print_results(console: Console, results: Sequence[LaunchResult]) -> None:
    """The table, then one line for each thing to say, with the data sets that it is said of."""
    table = new_table(
        "data set",
        "state",
        "train",
        "val",
        "size",
        "content sha256",
        "seconds",
        right=frozenset({"train", "val", "size", "seconds"}),
        shrinking=["content sha256"],
    )
    for result in results:
        state = Text(result.state.replace("_", " "), style=STYLES[result.state])
        meta = result.meta or {}
        sha256, size = _sha256(meta), _bytes(result)
        cells = [
            *contents(all_counts(meta), shares_met(meta)),
            file_size(size) if size else UNKNOWN,
            sha256[:SHORT_SHA256] if sha256 else UNKNOWN,
        ]
        table.add_row(result.name, state, *cells, f"{result.seconds:.1f}")
    console.print(table)
    noted = [result for result in results if result.message]
    if noted:
        console.print()
    alike: dict[tuple[str, str | None], list[str]] = {}
    for result in noted:
        alike.setdefault((result.state, result.message), []).append(result.name)
    for (said, message), names in alike.items():
        console.print(Text(f"{listed(names)} {said.replace('_', ' ')}", style=STYLES[said]), end="", soft_wrap=True)
        console.print(f": {message}", soft_wrap=True)


def _sha256(meta: Meta) -> str | None:
    """None of a report, which has that of its corpus in it."""
    return content_hash(meta) if "files" in meta else None


def _bytes(result: LaunchResult) -> int | None:
    """Of all files that meta.json lists; of a report, which lists none, of those on disk."""
    if not result.meta or not result.meta.get("built", True):
        return None
    if "files" in result.meta:
        return total_bytes(result.meta["files"])
    return sum(path.stat().st_size for path in result.directory.iterdir()) if result.directory else None


def result_json(result: LaunchResult) -> dict[str, Any]:
    """The same for programs: counts are as in meta.json."""
    meta = result.meta if result.meta and result.meta.get("built", True) else {}
    return {
        "name": result.name,
        "family": result.family,
        "state": result.state,
        "message": result.message,
        "seconds": round(result.seconds, 3),
        "directory": result.directory,
        "bytes": _bytes(result),
        "sha256": _sha256(meta),
        "counts": all_counts(meta),
        "shortfall": shortfall(meta),
    }


def print_next_steps(console: Console, results: Sequence[LaunchResult], arguments: argparse.Namespace) -> None:
    """How to look, check and train, with the real paths. Nothing where nothing was built, or with --quiet."""
    built = [result for result in results if result.state == "built" and result.family in FAMILIES and result.meta and result.directory]
    if not built or is_quiet():
        return
    options = _options(arguments)
    example = next((result for result in built if result.family == "pretrain"), built[0])
    console.print("\nWhat to do next", style="bold")
    for command, purpose in (
        (_ui_command(arguments), "lineage, counts and history in the Dagster UI"),
        (f"{_program()} verify{options}", "hash every file again"),
        (f"{_program()} sample {example.name}{options}", "what training will see"),
    ):
        console.print(f"  {command}  # {purpose}", soft_wrap=True)
    console.print("\nTrain from it:\n", style="bold")
    assert example.directory is not None
    assert example.meta is not None
    code = training_code(example.directory, "pretrain" if example.family == "pretrain" else "sft", example.meta)
    console.print(textwrap.indent(code, "  "), soft_wrap=True)


def _program() -> str:
    """What to type here: `make cache` runs the console script of an environment that is not active."""
    if shutil.which(PROGRAM):
        return PROGRAM
    return sys.argv[0] if Path(sys.argv[0]).name == PROGRAM else "python -m niels_cache_assets.cli"


def _options(arguments: argparse.Namespace) -> str:
    """The options that make another command look at the same caches."""
    given = {"--profile": arguments.profile, "--config": arguments.config, "--cache-dir": arguments.cache_dir}
    return "".join(f" {option} {shlex.quote(value)}" for option, value in given.items() if value)


def _ui_command(arguments: argparse.Namespace) -> str:
    """`make ui` in a clone, else `niels-cache ui`, with the environment that shows the same caches."""
    in_clone = Path("Makefile").exists() and Path("workspace.yaml").exists()
    by_itself = in_clone and arguments.profile == "quickstart" and not Path(CONFIG_NAME).exists() and CONFIG_VARIABLE not in os.environ
    home = os.environ.get(HOME_VARIABLE)  # the launcher has set it to the home it used
    variables = {
        PROFILE_VARIABLE: None if by_itself else arguments.profile,  # `make ui` shows it where nothing else is configured
        CONFIG_VARIABLE: arguments.config,
        ROOT_VARIABLE: arguments.cache_dir,
        HOME_VARIABLE: None if in_clone or home == str(Path(".dagster").absolute()) else home,  # the usual home is found without it
    }
    environment = "".join(f"{name}={shlex.quote(value)} " for name, value in variables.items() if value)
    return environment + ("make ui" if in_clone else f"{_program()} ui")
