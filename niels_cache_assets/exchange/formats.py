"""What defines a format of exports, and the plan of an export, which `writing` writes to disk."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from niels_cache_assets.base.beside import load_beside
from niels_cache_assets.exchange.replacing import ExportTarget
from niels_cache_assets.exchange.splits import ExportSplit
from niels_cache_assets.exchange.writing import ExportPlan, Unit, list_unit
from niels_cache_runtime.cache.opening import open_split
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import SPLITS, Split
from niels_cache_runtime.megatron.indexed_writer import Link


@dataclass(frozen=True, kw_only=True)
class ExportSettings:
    """The settings of an export.

    Attributes:
        format: The name of the format.
        out: A folder, or for megatron the prefix of the files.
        splits: The splits to export. Empty splits are left out.
        max_bytes: The largest size of the tokens in one file. None means the format's default.
        key: Megatron's naming, `PREFIX_<key>_document`.
        link: How megatron's .bin is made if it equals exactly one shard.
    """

    format: str
    out: Path
    splits: tuple[Split, ...] = SPLITS
    max_bytes: int | None = None
    key: str | None = None
    link: Link = "copy"


@dataclass(frozen=True, kw_only=True)
class ExportFormat:
    """What differs between the export formats. A module of a format has one, as `FORMAT`.

    Attributes:
        units: Returns the files of a split, each with at most this many bytes of tokens.
        max_bytes: The default of this maximum, in bytes. A format without a default has one file for each split.
        max_tokens: The default of this maximum, in tokens.
        target: Returns where a split goes. This depends only on the settings, so an older export is replaced even if the split is
            empty now.
        label: Returns the folder of the files, and what distinguishes exports to this folder.
        notes_and_lines: Returns notes for the user, and lines of code for the other project.
        eot: Where EOT is.
        replaced_note: A note for the user if the export replaces an older one, or nothing.
    """

    units: Callable[[ExportSplit, int, ExportSettings], list[Unit]]
    max_bytes: int = 0
    max_tokens: int = 0
    target: Callable[[str, Split, ExportSettings], ExportTarget] = lambda name, split, settings: ExportTarget(
        list_name=f"{name}_{split}.{settings.format}.files"
    )
    label: Callable[[str, ExportSettings], tuple[Path, str]] = lambda name, settings: (settings.out, f"{name}.{settings.format}")
    notes_and_lines: Callable[[Sequence[ExportSplit], ExportSettings], tuple[list[str], list[str]]] = lambda splits, settings: ([], [])
    eot: str = "is after each document, as in the cache"
    replaced_note: str = ""


def plan_export(name: str, directory: Path, settings: ExportSettings) -> ExportPlan:
    """Return the plan for exporting the pretrain cache `name`: files, sizes, notes, and lines of code for the other project.

    Empty splits are left out with a note, if any split has tokens.

    Args:
        name: The name of the data set.
        directory: The folder of the cache.
        settings: The settings of the export.

    Raises:
        NielsCacheError: If the cache cannot be opened, if there is nothing to export, or if the format does not have one of the settings.
    """
    format: ExportFormat = load_beside("formats", settings.format).FORMAT
    folders = {split: directory / split for split in settings.splits}
    opened = [ExportSplit(name=name, split=split, folder=each, opened=open_split(each, doc_ends=True)) for split, each in folders.items()]
    max_bytes = _max_bytes(format, settings, opened[0].dtype)
    splits = [split for split in opened if split.tokens]
    if not splits:
        empty = ", ".join(split.split for split in opened)
        raise NielsCacheError(f"{directory}: nothing to export, {empty} is empty (0 tokens)")
    units: list[Unit] = []
    for split in splits:
        files = format.units(split, max_bytes, settings)
        list_name = format.target(name, split.split, settings).list_name
        units += files if list_name is None else [*files, list_unit(list_name, files)]
    empty_notes = [f"{split.split} is empty, so no file is written for it" for split in opened if not split.tokens]
    notes, lines = format.notes_and_lines(splits, settings)
    eot_note = "no EOT: meta.json names no EOT that ends all documents; tokens are copied unchanged"
    if splits[0].eot is not None:
        eot_note = f"EOT ({splits[0].eot}) {format.eot}"
    folder, label = format.label(name, settings)
    plan = ExportPlan(
        folder=folder,
        label=label,
        splits=tuple(splits),
        units=tuple(units),
        targets=tuple(format.target(name, split.split, settings) for split in opened),
        notes=(eot_note, *empty_notes, *notes),
        lines=tuple(lines),
    )
    return replace(plan, notes=(*plan.notes, format.replaced_note)) if format.replaced_note and plan.existing() else plan


def _max_bytes(format: ExportFormat, settings: ExportSettings, dtype: np.dtype) -> int:
    """Return the size limit.

    Raises:
        NielsCacheError: If the limit is below one token, or if the key cannot be part of a file name.
    """
    default = format.max_bytes or format.max_tokens * dtype.itemsize
    if settings.max_bytes is not None and not default:
        raise NielsCacheError(f"max_bytes={settings.max_bytes}: {settings.format} has one file for each split")
    if settings.max_bytes is not None and settings.max_bytes < dtype.itemsize:
        raise NielsCacheError(f"max_bytes={settings.max_bytes}: must be at least {dtype.itemsize}, one token")
    if settings.key is not None and not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", settings.key):
        raise NielsCacheError(f"key={settings.key!r}: is part of file names; use letters, digits, _ - . with no leading - or .")
    return settings.max_bytes or default
