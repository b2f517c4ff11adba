"""The output of `build-all --dry-run`: the steps of a build, with the reason and the estimate of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from niels_cache_assets.cli.console import new_table, output
from niels_cache_assets.show.wording import UNKNOWN, counted, duration, file_size, listed

if TYPE_CHECKING:
    from niels_cache_assets.artifacts.forecast.steps import Step

_STYLES = {"build": "cyan", "cache_hit": "green", "disabled": "dim", "skip": "yellow", "fail": "bold red"}
_NUMBERS: dict[str, tuple[str, Callable[[Any], str]]] = {  # by field of an estimate: the head of its column, and the form of its values
    "bytes_to_read": ("to read", file_size),
    "tokens": ("tokens", "{:,}".format),
    "disk_bytes": ("disk", file_size),
    "seconds": ("time", duration),
}


def dry_run_json(steps: Sequence[Step], root: Path) -> dict[str, Any]:
    """Return the steps and their sums for programs."""
    from niels_cache_assets.disk.space import free_bytes

    rows = [{"name": step.name, **asdict(step)} for step in steps]
    sums = {field: {"known": known, "unknown": unknown} for field, (known, unknown) in _sums(steps).items()}
    return {"root": root, "dry_run": True, "steps": rows, "sums": sums, "free_bytes": free_bytes(root)}


def print_dry_run(steps: Sequence[Step], root: Path) -> None:
    """Print the table with the sums, then where the estimates come from, then what would fail."""
    from rich.text import Text

    from niels_cache_assets.disk.space import free_bytes

    heads = [head for head, _ in _NUMBERS.values()]
    table = new_table("step", "action", "why", *heads, right=frozenset(heads), shrinking=["why"])
    notes: dict[str, list[str]] = {}
    for step in steps:
        values = [(getattr(step.estimate, field, None), form) for field, (_, form) in _NUMBERS.items()]
        cells = [UNKNOWN if value in (None, 0) else form(value) for value, form in values]
        why = UNKNOWN if step.action == "fail" else step.why  # a failure has a line of its own
        table.add_row(step.name, Text(step.action.replace("_", " "), style=_STYLES[step.action]), why, *cells)
        if step.estimate is not None:
            notes.setdefault(step.estimate.basis, []).append(step.name)
    if notes:
        table.add_section()
        sums = zip(_sums(steps).values(), _NUMBERS.values(), strict=True)
        table.add_row("in all", "", "", *(_sum(known, unknown, form) for (known, unknown), (_, form) in sums))
    console = output()
    console.print(table)
    console.print()
    for basis, names in notes.items():
        console.print(f"{listed(names)}: {basis}", soft_wrap=True)
    for step in steps:
        if step.action == "fail":
            console.print(Text(f"{step.name} would fail", style=_STYLES["fail"]), end="", soft_wrap=True)
            console.print(f": {step.why}", soft_wrap=True)
    built = f"{sum(step.action == 'build' for step in steps)} of {counted(len(steps), 'step')} would be built"
    console.print(f"{built}; {file_size(free_bytes(root))} are free; nothing was built or written", soft_wrap=True)


def _sum(known: Any, unknown: int, form: Callable[[Any], str]) -> str:
    if unknown and not known:
        return UNKNOWN
    return f"at least {form(known)}" if unknown else form(known)


def _sums(steps: Sequence[Step]) -> dict[str, tuple[Any, int]]:
    """Return for each number the sum of the known estimates, and how many estimates are unknown."""
    found = [step.estimate for step in steps if step.estimate is not None]
    values = {field: [getattr(estimate, field) for estimate in found] for field in _NUMBERS}
    return {field: (sum(value for value in each if value is not None), each.count(None)) for field, each in values.items()}
