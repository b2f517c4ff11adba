"""`prebuild-index`: the indices of a blend, built before training asks for them. How is the business of niels_cache_assets.blends."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import get_args

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from niels_cache_assets.blends.prebuild import BlendPlan, IndexOutcome, Part, plan_of, prebuild, read_blend_file
from niels_cache_assets.blends.settings import ALL_TRAIN, MEGATRON_SEED
from niels_cache_assets.cli.console import diagnostics, new_table, output, print_json
from niels_cache_assets.cli.context import open_registry
from niels_cache_assets.cli.exit_codes import DONE
from niels_cache_assets.cli.interrupts import stop_on_signals
from niels_cache_assets.cli.overrides import WHERE
from niels_cache_assets.cli.prebuild_options import MEGATRON_CORE, OF_MEGATRON_CORE
from niels_cache_assets.progress import Throttle
from niels_cache_assets.registry import Registry, refuse_choice
from niels_cache_assets.wording import file_size
from niels_cache_runtime.errors import NielsCacheError

_OF_A_FILE = ("sequence_length", "num_samples", "seed", "split", "part")

OnArray = Callable[[str, int, int], None]


def run(arguments: argparse.Namespace) -> int:
    """Build what is not there and print all of it. Raises NotWrittenError if the blend was good and its folder cannot be written."""
    if arguments.reader is not None:
        if arguments.reader != MEGATRON_CORE:
            refuse_choice(f"{WHERE}: --for", "no program", arguments.reader, [MEGATRON_CORE])
        from niels_cache_assets.cli.core_prebuilding import run_core

        return run_core(arguments, array_progress())
    for option in OF_MEGATRON_CORE:
        value = getattr(arguments, option)
        if value is not None and value is not False:  # 0 is a value
            raise NielsCacheError(f"{WHERE}: --{option.replace('_', '-')}: is of --for megatron-core; give that, too")
    registry, root = open_registry(arguments)
    plan = _plan(arguments, registry, root)
    with stop_on_signals(), array_progress() as progress:
        outcome = prebuild(plan, root=root, progress=progress)
        if arguments.name in registry.blend_keys():  # else the UI has no such partition
            _record(registry, arguments.name, root)
    if arguments.json:
        indices = [{**asdict(index), "hash": index.hash} for index in outcome.indices]
        print_json({"state": outcome.state, "part": plan.part, "seconds": outcome.seconds, "hash": outcome.hash, "indices": indices})
        return DONE
    _print(outcome, plan)
    return DONE


def _record(registry: Registry, name: str, root: Path) -> None:
    """Let the Dagster home that is used here know, if there is one: its UI shows the index as built."""
    home = Path(os.environ.get("DAGSTER_HOME") or ".dagster").expanduser().absolute()
    if not (home / "dagster.yaml").exists():
        return
    from niels_cache_assets.defs.launcher import record_index  # takes seconds: dagster

    try:
        record_index(registry, name, root=root, home=home)
    except NielsCacheError as error:  # the index is there
        diagnostics().print(f"WARNING: not recorded in {home}: {error}", soft_wrap=True)


def _plan(arguments: argparse.Namespace, registry: Registry, root: Path) -> BlendPlan:
    given = [f"--{option.replace('_', '-')}" for option in _OF_A_FILE if getattr(arguments, option) is not None]
    if arguments.name is not None:
        if arguments.blend is not None or given:
            option = "--blend" if arguments.blend is not None else given[0]
            raise NielsCacheError(f"{WHERE}: {option}: the table [blend.{arguments.name}] says all; give NAME, or --blend and its settings")
        return plan_of(registry, arguments.name, root=root)
    if arguments.blend is None:
        names = ", ".join(registry.blend) or "none"
        raise NielsCacheError(f"{WHERE}: which blend? Give --blend FILE, or the name of a configured one ({registry.origin} has: {names})")
    if arguments.sequence_length is None:
        raise NielsCacheError(f"{WHERE}: --blend needs --sequence-length")
    part = next((part for part in get_args(Part) if part == (arguments.part or "train")), None)
    if part is None:
        refuse_choice(f"{WHERE}: --part", "no part", arguments.part, get_args(Part))
    paths, weights = read_blend_file(arguments.blend)
    if weights is not None and arguments.num_samples is None:
        raise NielsCacheError(f"{WHERE}: {arguments.blend} has weights, which share out --num-samples: give that, too")
    return BlendPlan(
        labels=tuple(paths),
        paths=tuple(map(Path, paths)),
        weights=None if weights is None else tuple(weights),
        num_samples=arguments.num_samples,
        sequence_length=arguments.sequence_length,
        seed=MEGATRON_SEED if arguments.seed is None else arguments.seed,
        split=ALL_TRAIN if arguments.split is None else arguments.split,
        part=part,
    )


@contextmanager
def array_progress(clock: Callable[[], float] = time.monotonic) -> Iterator[OnArray]:
    """Called with the array that is being built, entries done and in all: a bar on a terminal, else a line every ten seconds."""
    console = diagnostics()
    if not console.is_terminal:
        throttle = Throttle(clock())

        def print_line(array: str, done: int, total: int) -> None:
            if throttle.is_due(clock()):
                console.print(f"{array}: {done:,} of {total:,}", soft_wrap=True)

        yield print_line
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task, shown = bar.add_task("opening", total=None), ""

        def update(array: str, done: int, total: int) -> None:
            nonlocal shown
            if array != shown:
                bar.reset(task, total=total, description=array)
                shown = array
            bar.update(task, completed=done, total=total)

        yield update


def _print(outcome: IndexOutcome, plan: BlendPlan) -> None:
    console = output()
    table = new_table("index of", "samples", "size", "hash", right=frozenset({"samples", "size"}), shrinking=["index of"])
    for index in outcome.indices:
        table.add_row(index.label, f"{index.samples:,}", file_size(index.bytes), index.hash)
    console.print(table)
    verb = "built" if outcome.state == "built" else "already there"
    console.print(f"\n{plan.part}, in {outcome.indices[-1].directory.parent}: {verb} in {outcome.seconds:.1f} s", soft_wrap=True)
    console.print(f"hash of all: {outcome.hash}", soft_wrap=True)
