"""What a build says about the files of a source before it reads them: links, and hard links."""

from __future__ import annotations

from niels_cache_assets.sources.added import AddedFiles
from niels_cache_assets.sources.reading.files import notes_on_files
from niels_cache_assets.sources.types import Source


def notes_on_source(source: Source) -> list[str]:
    """Return one line each for the local files of a table that links name again, and for those that are hard links."""
    path = getattr(source, "path", None)
    lists = [[path] if path else [], getattr(source, "files", None) or [], getattr(source, "val_files", None) or []]
    added = [each.files for each in getattr(source, "added", ()) if isinstance(each, AddedFiles)]
    return notes_on_files([*lists, *added], source.endings)
