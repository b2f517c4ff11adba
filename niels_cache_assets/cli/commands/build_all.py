"""`build-all`: settings make a registry, the launcher in defs/ builds it, a table says what came of it.

In which order, and what happens to the others when one fails, is the launcher's business.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from niels_cache_assets.cli.console import diagnostics, output, print_json
from niels_cache_assets.cli.context import TOKENIZER, open_registry, tell_advice
from niels_cache_assets.cli.exit_codes import DONE, FAILED
from niels_cache_assets.cli.interrupts import stop_on_signals
from niels_cache_assets.cli.overrides import WHERE, collect_overrides
from niels_cache_assets.cli.progress import build_listener
from niels_cache_assets.cli.report import print_next_steps, print_results, result_json
from niels_cache_assets.registry import Registry, cache_root, load_registry
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.safe_open import require_utf8


def run(arguments: argparse.Namespace) -> int:
    """Build, print the table, and return 1 if any data set failed."""
    configured, _ = open_registry(arguments)
    said = collect_overrides(arguments, configured)
    registry = load_registry(profile=arguments.profile, config=arguments.config, overrides=said.tables, options=said.options)
    root = cache_root(registry, arguments.cache_dir)
    _check_names(registry, arguments.only)
    _require_writable(root)
    tell_advice(registry)
    with stop_on_signals(), build_listener(diagnostics()) as listener:
        from niels_cache_assets.defs.launcher import launch_builds  # takes seconds: dagster

        results = launch_builds(registry, root=root, only=arguments.only, force=arguments.force, wait=arguments.wait, listener=listener)
    code = FAILED if any(result.state == "failed" for result in results) else DONE
    if arguments.json:
        print_json({"root": root, "results": [result_json(result) for result in results]})
        return code
    console = output()
    print_results(console, results)
    print_next_steps(console, results, arguments)
    return code


def _check_names(registry: Registry, only: list[str] | None) -> None:
    names = [TOKENIZER, *registry.pretrain, *registry.sft, *registry.blend]
    for name in only or ():
        if name not in names:
            parts = name.split(",")
            if len(parts) > 1 and set(parts) <= set(names):
                raise NielsCacheError(f"{WHERE}: --only: {name!r}; names have spaces between them: --only {' '.join(parts)}")
            registry.refuse_data_set(f"{WHERE}: --only", "no data set", name, names)
        if name in registry.switched_off():
            table = f"{registry.family_of(name)}.{name}"
            raise NielsCacheError(
                f"{WHERE}: --only: {name} is switched off; set enabled = true in [{table}], or add --set {table}.enabled=true"
            )


def _require_writable(root: Path) -> None:
    """Say so before anything is read, and once rather than per data set."""
    require_utf8(root.absolute(), "choose another --cache-dir")
    try:
        root.mkdir(parents=True, exist_ok=True)
        writable = os.access(root, os.W_OK)
    except OSError as error:
        raise NielsCacheError(f"{root}: cannot be made a cache directory: {error.strerror}; choose another --cache-dir") from error
    if not writable:
        raise NielsCacheError(f"{root}: not writable; choose another --cache-dir, or change its permissions")
