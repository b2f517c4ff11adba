"""The source `arrow`, for pretrain data sets from the user's Arrow and Feather files, and from folders that `datasets` saved."""

from typing import Literal

from niels_cache_assets.sources.jsonl import Jsonl
from niels_cache_assets.sources.reading import rows


class Arrow(Jsonl):
    """Arrow and Feather files, and folders that `save_to_disk` of `datasets` wrote."""

    endings = rows.ARROW

    source: Literal["arrow"] = "arrow"  # type: ignore[assignment]
    rows_of = staticmethod(rows.arrow_rows)
