"""`export FORMAT NAME`: a pretrain cache as other projects' files. What they are is the business of niels_cache_assets.export."""

from __future__ import annotations

import argparse
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

from rich.console import Console

from niels_cache_assets.cli.console import new_table, output, print_error, print_json
from niels_cache_assets.cli.context import find_place, open_registry
from niels_cache_assets.cli.exit_codes import DONE, FAILED
from niels_cache_assets.cli.interrupts import stop_on_signals
from niels_cache_assets.cli.overrides import WHERE
from niels_cache_assets.cli.transfers import transfer_progress
from niels_cache_assets.export.formats import FORMATS, ExportSettings, plan_export, split_choice
from niels_cache_assets.export.megatron import Link
from niels_cache_assets.export.writing import ExportPlan, write_export
from niels_cache_assets.registry import refuse_choice
from niels_cache_assets.wording import counted, file_size
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import FAMILIES, SPLITS, tokenizer_dir


def run(arguments: argparse.Namespace) -> int:
    """Plan, and unless that is all, write. Returns 1 where the plan was good and writing failed."""
    settings = _settings(arguments)
    registry, root = open_registry(arguments)
    place = find_place(registry, root, arguments.name, kinds=("pretrain",))
    plan = plan_export(place.name, place.directory, settings)
    _refuse_inside_caches(plan.folder, root)
    if not arguments.dry_run:
        if not arguments.force:
            plan.require_free()
        try:
            with stop_on_signals(), transfer_progress(f"exporting {place.name}") as progress:
                write_export(plan, force=arguments.force, progress=progress)
        except NielsCacheError as error:
            print_error(f"error: {error}")
            return FAILED
    if arguments.json:
        print_json(_as_json(plan, settings.format, dry_run=arguments.dry_run))
        return DONE
    _print_plan(output(), plan, settings.format, dry_run=arguments.dry_run)
    return DONE


def _settings(arguments: argparse.Namespace) -> ExportSettings:
    if arguments.format not in FORMATS:
        refuse_choice(WHERE, "export has no format", arguments.format, FORMATS)
    splits = tuple(split_choice(arguments.split))
    if not splits:
        refuse_choice(f"{WHERE}: --split", "no split", arguments.split, (*SPLITS, "all"))
    link = next((link for link in get_args(Link) if link == arguments.link), None)
    if arguments.link is not None and link is None:
        refuse_choice(f"{WHERE}: --link", "no such way", arguments.link, get_args(Link))
    for option, given in (("--key", arguments.key), ("--link", arguments.link)):
        if given is not None and arguments.format != "megatron":
            raise NielsCacheError(f"{WHERE}: {option}: is for megatron; {arguments.format} has no such choice")
    if arguments.format == "megatron" and os.path.basename(arguments.out) in ("", ".", ".."):
        prefix = os.path.join(arguments.out, "notes")
        raise NielsCacheError(f"{WHERE}: --out {arguments.out}: is a folder; give a prefix, such as {prefix}")
    return ExportSettings(
        format=arguments.format,
        out=Path(arguments.out),
        splits=splits,
        max_bytes=arguments.max_bytes,
        key=arguments.key,
        link=link or ("reflink" if arguments.format == "megatron" else "copy"),
    )


def _refuse_inside_caches(folder: Path, root: Path) -> None:
    """What lies beside a cache's own files is a finding of `verify`, and goes with the next build."""
    for caches in (*(root / family for family in FAMILIES), tokenizer_dir(root)):
        if folder.resolve().is_relative_to(caches.resolve()):
            raise NielsCacheError(f"{WHERE}: --out: {folder} is inside {caches}, which holds caches alone; choose another place")


def _as_json(plan: ExportPlan, format: str, *, dry_run: bool) -> dict[str, Any]:
    files = [{**asdict(file), "name": plan.folder / file.name} for file in plan.files]
    deleted = [plan.folder / name for name in plan.deleted()] if dry_run else []
    return {"format": format, "written": not dry_run, "files": files, "notes": plan.notes, "lines": plan.lines, "would_be_deleted": deleted}


def _print_plan(console: Console, plan: ExportPlan, format: str, *, dry_run: bool) -> None:
    table = new_table("file", "documents", "tokens", "size", right=frozenset({"documents", "tokens", "size"}))
    for file in plan.files:
        cells = ["-" if number is None else f"{number:,}" for number in (file.documents, file.tokens)]
        table.add_row(str(plan.folder / file.name), *cells, f"{file.bytes:,} B")
    console.print(table)
    verb = "would be written" if dry_run else "written"
    console.print(f"\n{counted(len(plan.files), 'file')}, {file_size(plan.bytes)}, {verb} for {format}", soft_wrap=True)
    for note in plan.notes:
        console.print(note, soft_wrap=True)
    existing = plan.existing() if dry_run else []
    if existing:
        console.print(f"{counted(len(existing), 'file')} of an older export there: --force would replace it", soft_wrap=True)
        for name in plan.deleted():
            console.print(f"--force would delete {plan.folder / name}", soft_wrap=True, markup=False)
    if plan.lines:
        console.print("\n".join(("", *plan.lines)), soft_wrap=True, markup=False)
