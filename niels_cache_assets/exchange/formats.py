"""The export formats, and the plan of an export. `writing` writes the files."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from niels_cache_assets.exchange import datatrove, llmc, megatron, nanogpt, npy, olmo
from niels_cache_assets.exchange.placing import Place
from niels_cache_assets.exchange.splits import ExportSplit, open_export_split
from niels_cache_assets.exchange.writing import ExportPlan, Unit, list_unit
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import SPLITS, TOKEN_DTYPE, Split

FORMATS = ("megatron", "nanogpt", "llmc", "datatrove", "olmo", "npy")

# The default maximum size of a file of tokens, in bytes or in tokens. A format without a default has one file for each split.
_MAX_BYTES = {"megatron": megatron.MAX_BYTES, "datatrove": datatrove.MAX_BYTES, "olmo": olmo.MAX_BYTES}
_MAX_TOKENS = {"llmc": llmc.SHARD_TOKENS, "npy": npy.SHARD_TOKENS}


@dataclass(frozen=True, kw_only=True)
class ExportSettings:
    """The settings of an export.

    out: a folder; for megatron the prefix of the files.
    splits: the splits to export; empty splits are left out.
    max_bytes: the most bytes of tokens in one file.
    key: Megatron's naming, PREFIX_<key>_document.
    link: how megatron's .bin is made if it equals exactly one shard.
    """

    format: str
    out: Path
    splits: tuple[Split, ...] = SPLITS
    max_bytes: int | None = None
    key: str | None = None
    link: megatron.Link = "copy"


def plan_export(name: str, directory: Path, settings: ExportSettings) -> ExportPlan:
    """Return the plan for exporting the pretrain cache `name` in `directory`: files, sizes, notes, and lines of code for the other project.

    Empty splits are left out with a note, if any split has tokens. Raises NielsCacheError if the cache cannot be opened, if there is
    nothing to export, or for a setting that the format does not have.
    """
    opened = [open_export_split(name, directory, split) for split in settings.splits]
    dtype = opened[0].dtype
    max_bytes = _max_bytes(settings, dtype)
    splits = [split for split in opened if split.tokens]
    if not splits:
        empty = ", ".join(split.split for split in opened)
        raise NielsCacheError(f"{directory}: nothing to export, {empty} is empty (0 tokens)")
    notes = [_eot_note(settings.format, splits[0])]
    notes += [f"{split.split} is empty, so no file is written for it" for split in opened if not split.tokens]
    units: list[Unit] = []
    for split in splits:
        units += _units(split, settings, max_bytes)
    vocab_size, lines = (splits[0].opened.meta or {}).get("vocab_size"), []
    if settings.format == "nanogpt":
        notes.append(nanogpt.vocabulary_note(vocab_size))
        lines = nanogpt.lines(vocab_size, dtype)
    elif settings.format == "olmo":
        notes += olmo.notes(splits, vocab_size)
        lines = olmo.lines(settings.out, splits, vocab_size)
    elif settings.format == "npy":
        notes.append(npy.READERS_NOTE)
    elif settings.format == "llmc" and dtype != TOKEN_DTYPE:
        notes.append(llmc.WIDE_NOTE)
    places = tuple(_place(name, split.split, settings) for split in opened)
    folder, label = settings.out, f"{name}.{settings.format}"
    if settings.format == "megatron":
        folder, label = settings.out.parent, f"{settings.out.name}.{settings.format}"
    elif settings.format == "nanogpt":
        label = settings.format  # nanoGPT's files have the same names for each data set
    return ExportPlan(
        folder=folder, label=label, splits=tuple(splits), units=tuple(units), places=places, notes=tuple(notes), lines=tuple(lines)
    )


def _units(split: ExportSplit, settings: ExportSettings, max_bytes: int) -> list[Unit]:
    if settings.format == "nanogpt":
        return nanogpt.units(split)
    if settings.format == "megatron":
        stem = _stem(split.split, settings)
        units = megatron.units(split, stem=stem, key=settings.key, max_bytes=max_bytes, link=settings.link)
    else:
        module = {"llmc": llmc, "datatrove": datatrove, "olmo": olmo, "npy": npy}[settings.format]
        units = module.units(split, max_bytes=max_bytes)
    list_name = _place(split.name, split.split, settings).list_name
    assert list_name is not None
    return [*units, list_unit(list_name, units)]


def _place(name: str, split: Split, settings: ExportSettings) -> Place:
    """Return the place of a split. It depends only on the settings, so an older export is replaced even if the split is empty now."""
    if settings.format == "nanogpt":
        return Place(names=(nanogpt.file_name(split),))
    if settings.format == "megatron":
        return Place(list_name=megatron.list_name(_stem(split, settings), settings.key))
    return Place(list_name=f"{name}_{split}.{settings.format}.files")


def _stem(split: Split, settings: ExportSettings) -> str:
    return f"{settings.out.name}_{split}" if len(settings.splits) > 1 else settings.out.name


def _max_bytes(settings: ExportSettings, dtype: np.dtype) -> int:
    """Return the size limit. Raises NielsCacheError for a limit that is too small for any file, and for options of a different format."""
    default = _MAX_BYTES.get(settings.format, _MAX_TOKENS.get(settings.format, 0) * dtype.itemsize)
    if settings.max_bytes is not None and not default:
        raise NielsCacheError(f"max_bytes={settings.max_bytes}: {settings.format} has one file for each split")
    if settings.max_bytes is not None and settings.max_bytes < dtype.itemsize:
        raise NielsCacheError(f"max_bytes={settings.max_bytes}: must be at least {dtype.itemsize}, one token")
    if settings.format != "megatron" and (settings.key is not None or settings.link != "copy"):
        raise NielsCacheError(f"key and link are settings of megatron; {settings.format} has neither")
    if settings.format == "megatron" and settings.out.name in ("", ".."):
        raise NielsCacheError(f"{settings.out}: is a folder; megatron's files need a prefix, such as {settings.out / 'notes'}")
    if settings.key is not None and not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", settings.key):
        raise NielsCacheError(f"key={settings.key!r}: is part of file names; use letters, digits, _ - . with no leading - or .")
    return settings.max_bytes or default


def _eot_note(format: str, split: ExportSplit) -> str:
    if split.eot is None:
        return "no EOT: meta.json names no EOT that ends all documents; tokens are copied unchanged"
    if format == "llmc":
        return f"EOT ({split.eot}) is before each document, as llm.c reads it; in the cache it is after each"
    return f"EOT ({split.eot}) is after each document, as in the cache"


def split_choice(choice: str) -> Sequence[Split]:
    """Return the splits that `train`, `val` or `all` names; an empty tuple for any other word."""
    return SPLITS if choice == "all" else tuple(split for split in SPLITS if split == choice)
