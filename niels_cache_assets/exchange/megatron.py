"""The files of Megatron-LM: PREFIX.bin and PREFIX.idx. Each document, with its EOT, is one sequence. uint32 tokens become int32.

The runtime writes the files.
"""

from pathlib import Path

from niels_cache_assets.exchange.splits import ExportSplit
from niels_cache_assets.exchange.writing import OnBytes, PlannedFile, Unit
from niels_cache_runtime.megatron.indexed_writer import Link, plan_indexed, write_indexed

STALE_NOTE = (
    "the prefix had files already: Megatron-LM never compares its indices with the data, so those in the --data-cache-path of earlier runs "
    "are stale; delete them, or run examples/megatron_core_indices.py, which removes and rebuilds them"
)


def units(split: ExportSplit, *, stem: str, key: str | None, max_bytes: int, link: Link) -> list[Unit]:
    """Return all files of the split as one unit. PREFIX is `stem` in the export's folder. The errors are those of `plan_indexed`."""
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

        write_indexed(stage / stem, split.folder, max_bytes=max_bytes, key=key, link=link, progress=progress)
        on_bytes(sum(file.bytes for file in files) - before)  # the sizes of the indices

    return [Unit(files=tuple(files), write=write)]


def list_name(stem: str, key: str | None) -> str:
    """Return the name of the list of files of an export to this PREFIX. With a different key, Megatron's PREFIX is different."""
    return f"{stem if key is None else f'{stem}_{key}_document'}.megatron.files"
