"""The source `csv`, for pretrain data sets from the user's CSV and TSV files."""

from collections.abc import Iterator
from functools import partial
from typing import Literal

from pydantic import Field

from niels_cache_assets.sources.huggingface import HubCsv
from niels_cache_assets.sources.reading import rows
from niels_cache_assets.sources.reading.encodings import Values
from niels_cache_assets.sources.reading.positions import FilePass
from niels_cache_assets.sources.types import StreamContext


class Csv(HubCsv):
    """CSV and TSV files with a header: one document per record. In the lineage, `row` is the number of the record."""

    endings = rows.CSV

    source: Literal["csv"] = "csv"  # type: ignore[assignment]
    delimiter: str | None = Field(None, min_length=1, max_length=1, examples=[";"])
    """Character between values; by default the most frequent of comma, tab, semicolon and vertical bar in the header (.tsv: a tab)"""
    quote: str = Field('"', max_length=1)
    """Character around values with delimiters or line ends; '' if quotes are ordinary characters"""
    columns: tuple[str, ...] = Field((), strict=False)
    """Names of the columns, for files without a header"""

    def _rows(self, files: FilePass, context: StreamContext, text_field: str | None = None) -> Iterator[tuple[str, int, Values]]:
        def log(delimiter: str) -> None:
            line = f"values are separated by {delimiter!r}"
            if not self.delimiter and line not in context.decided:
                context.decided[line] = delimiter
                context.log(f"{files.name}: {line}; set delimiter if this is wrong")

        form = self.model_dump(include={"delimiter", "quote", "columns"})
        read = partial(rows.csv_rows, options=self.damage_options(context, files), on_delimiter=log, **form)
        return rows.rows_of_files(files, read, context, text_field or self.text_field)
