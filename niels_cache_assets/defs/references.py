"""Links from an asset to the tables of niels_cache.toml that configure its partitions, for the editor that the user has chosen in the UI.

A table of a shipped data set may be in the profile instead. An asset without a table of its own links to the file.
"""

import re
from pathlib import Path

import dagster as dg

import niels_cache_assets
from niels_cache_assets.defs.metadata.entries import MAX_TABLE_ROWS
from niels_cache_assets.project.registry import FALLBACK_PROFILE, Registry

_HEADER = re.compile(r"""\s*\[\s*(?:(?:pretrain|sft|blend)\s*\.\s*)?["']?([^\]."']+?)["']?\s*\]""")


def table_lines(toml: str) -> dict[str, tuple[int, str]]:
    """Return the line of the table of each data set, blend and group of settings, and its header, by the last part of its name."""
    headers = ((_HEADER.match(line), number) for number, line in enumerate(toml.splitlines(), 1))
    return {header[1]: (number, header[0].strip()) for header, number in headers if header}


class TableLinks:
    """The lines of all tables of a configuration, read once."""

    def __init__(self, registry: Registry) -> None:
        profiles = Path(niels_cache_assets.__file__).parent / "project" / "profiles"
        files = [profiles / f"{registry.profile}.toml", Path(registry.origin)]  # the table in the user's file counts
        self._files = [file.absolute() for file in files if file.is_file()] or [profiles / f"{FALLBACK_PROFILE}.toml"]
        self._lines = {
            name: dg.LocalFileCodeReference(file_path=str(file), line_number=line, label=f"{header} of {file.name}")
            for file in self._files
            for name, (line, header) in table_lines(file.read_text(encoding="utf-8")).items()
        }

    def of(self, spec: dg.AssetSpec) -> list[dg.LocalFileCodeReference]:
        """Return the links of an asset, at most MAX_TABLE_ROWS and then one to the file."""
        partitions = [] if spec.partitions_def is None else spec.partitions_def.get_partition_keys()
        names = {key.partition("/")[0]: None for key in partitions} or {spec.key.path[-1]: None}
        links = [self._lines[name] for name in names if name in self._lines]
        whole = dg.LocalFileCodeReference(file_path=str(self._files[-1]), line_number=1, label=self._files[-1].name)
        return links[:MAX_TABLE_ROWS] if 0 < len(links) <= MAX_TABLE_ROWS else [*links[:MAX_TABLE_ROWS], whole]
