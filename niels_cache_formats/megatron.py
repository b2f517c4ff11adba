"""The files of Megatron-LM: PREFIX.bin and PREFIX.idx. Each document, with its EOT, is one sequence. uint32 tokens become int32.

The runtime writes the files.
"""

from pathlib import Path

from niels_cache_assets.exchange.formats import ExportFormat, ExportSettings
from niels_cache_assets.exchange.replacing import ExportTarget
from niels_cache_assets.exchange.splits import ExportSplit
from niels_cache_assets.exchange.writing import OnBytes, PlannedFile, Unit
from niels_cache_runtime.format.layout import Split
from niels_cache_runtime.megatron.indexed_writer import MAX_BYTES, plan_indexed, write_indexed

STALE_NOTE = (
    "the prefix had files already: Megatron-LM never compares its indices with the data, so those in the --data-cache-path of earlier runs "
    "are stale; delete them, or run examples/megatron_core_indices.py, which removes and rebuilds them"
)


def units(split: ExportSplit, max_bytes: int, settings: ExportSettings) -> list[Unit]:
    """Return all files of the split as one unit. The errors are those of `plan_indexed`."""
    stem, key = _stem(split.split, settings), settings.key
    files: list[PlannedFile] = []
    for part in plan_indexed(stem, split.folder, max_bytes=max_bytes, key=key):
        tokens = part.end_token - part.first_token
        files.append(PlannedFile(name=f"{part.prefix}.bin", bytes=part.bin_bytes, tokens=tokens, documents=part.documents))
        files.append(PlannedFile(name=f"{part.prefix}.idx", bytes=part.idx_bytes))

    def write(stage: Path, on_bytes: OnBytes) -> None:
        before = 0

        def progress(done: int, total: int) -> None:
            nonlocal before
            on_bytes(done - before)
            before = done

        write_indexed(stage / stem, split.folder, max_bytes=max_bytes, key=key, link=settings.link, progress=progress)
        on_bytes(sum(file.bytes for file in files) - before)  # the sizes of the indices

    return [Unit(files=tuple(files), write=write)]


def list_name(stem: str, key: str | None) -> str:
    """Return the name of the list of files of an export to this PREFIX. With a different key, Megatron's PREFIX is different."""
    return f"{stem if key is None else f'{stem}_{key}_document'}.megatron.files"


def _stem(split: Split, settings: ExportSettings) -> str:
    """Return the name of PREFIX in the export's folder."""
    return f"{settings.out.name}_{split}" if len(settings.splits) > 1 else settings.out.name


FORMAT = ExportFormat(
    units=units,
    max_bytes=MAX_BYTES,
    target=lambda name, split, settings: ExportTarget(list_name=list_name(_stem(split, settings), settings.key)),
    label=lambda name, settings: (settings.out.parent, f"{settings.out.name}.megatron"),
    replaced_note=STALE_NOTE,
)
