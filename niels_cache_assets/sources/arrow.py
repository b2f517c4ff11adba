"""The source `arrow`, for pretrain data sets from the user's Arrow and Feather files, and from folders that `datasets` saved."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from niels_cache_assets.sources.jsonl import Jsonl
from niels_cache_assets.sources.reading import rows
from niels_cache_assets.sources.reading.files import SourceFile, find_groups
from niels_cache_runtime.errors import NielsCacheError


class Arrow(Jsonl):
    """Arrow and Feather files, and folders that `save_to_disk` of `datasets` wrote."""

    endings = rows.ARROW

    source: Literal["arrow"] = "arrow"  # type: ignore[assignment]
    rows_of = staticmethod(rows.arrow_rows)

    def groups(self) -> list[list[SourceFile]]:
        return find_groups(_data_of(self.files), [_data_of(each.files) for each in self.added], self.endings)


def saved_files(folder: str) -> list[str]:
    """Return the data files of a folder that `datasets` saved, where it also keeps caches and older data. Empty for other folders."""
    try:
        named = json.loads(Path(folder, "state.json").read_bytes())["_data_files"]
        return [os.path.join(folder, each["filename"]) for each in named]
    except (OSError, ValueError, LookupError, TypeError):
        return []


def _data_of(paths: Sequence[str]) -> list[str]:
    for path in paths:
        if os.path.isfile(os.path.join(path, "dataset_dict.json")):
            raise NielsCacheError(f"files: {path!r} holds splits in folders; name one of them, such as {os.path.join(path, 'train')!r}")
    return [file for path in paths for file in saved_files(path) or [path]]
