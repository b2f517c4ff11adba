"""The source `arrow`, for pretrain data sets from the user's Arrow and Feather files, and from folders that `datasets` saved."""

import glob
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
        return find_groups([*map(_data_of, self.files)], [[*map(_data_of, each.files)] for each in self.added], self.endings)


def _data_of(path: str) -> str:
    """Return the glob of the data in a folder that `datasets` saved, where it also keeps caches. Other paths are returned unchanged.

    Raises:
        NielsCacheError: If the folder holds splits.
    """
    folder = Path(path)
    if (folder / "dataset_dict.json").is_file():
        raise NielsCacheError(f"files: {path!r} holds splits in folders; name one of them, such as {str(folder / 'train')!r}")
    return f"{glob.escape(path)}/data-*.arrow" if (folder / "state.json").is_file() else path
