"""Links from an asset to the tables of niels_cache.toml that configure its partitions, for the editor that the user has chosen in the UI.

A table of a shipped data set may be in the profile instead. An asset without a table of its own links to the file.
"""

import re
from collections.abc import Mapping
from pathlib import Path

import dagster as dg

from niels_cache_assets.defs.metadata.entries import MAX_TABLE_ROWS
from niels_cache_assets.project import shipped
from niels_cache_assets.project.registry import FALLBACK_PROFILE, Registry

_HEADER = re.compile(r"""\s*\[\s*(?:(?:pretrain|sft|blend)\s*\.\s*)?["']?([^\]."']+?)["']?\s*\]""")


def table_lines(toml: str) -> dict[str, tuple[int, str]]:
    """Return the line of the table of each data set, blend and group of settings, and its header, by the last part of its name."""
    headers = ((_HEADER.match(line), number) for number, line in enumerate(toml.splitlines(), 1))
    return {header[1]: (number, header[0].strip()) for header, number in headers if header}


def table_links(registry: Registry) -> dict[str | None, dg.LocalFileCodeReference]:
    """Return a link to each table by the last part of its name, and to the whole file under the key None. The user's file counts first."""
    profiles = Path(shipped.__file__).parent / "profiles"
    files = [profiles / f"{registry.profile or FALLBACK_PROFILE}.toml", Path(registry.origin)]
    found: dict[str | None, dg.LocalFileCodeReference] = {}
    for file in filter(Path.is_file, files):
        found[None] = dg.LocalFileCodeReference(file_path=str(file.absolute()), line_number=1, label=file.name)
        for name, (line, header) in table_lines(file.read_text(encoding="utf-8")).items():
            found[name] = dg.LocalFileCodeReference(file_path=str(file.absolute()), line_number=line, label=header)
    return found


def links_of(spec: dg.AssetSpec, tables: Mapping[str | None, dg.LocalFileCodeReference]) -> list[dg.LocalFileCodeReference]:
    """Return the links of an asset to the tables of its partitions, or to the file if there are none or more than MAX_TABLE_ROWS."""
    partitions = [] if spec.partitions_def is None else spec.partitions_def.get_partition_keys()
    names = {key.partition("/")[0]: None for key in partitions} or {spec.key.path[-1]: None}
    links = [tables[name] for name in names if name in tables]
    return links if 0 < len(links) <= MAX_TABLE_ROWS else [*links[:MAX_TABLE_ROWS], tables[None]]
