"""`huggingface`: any text data set of the Hugging Face hub, and the base class of `fineweb_edu`. The hub's library shuffles."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field, NonNegativeInt

from niels_cache_assets.config import defaults
from niels_cache_assets.documents import Document
from niels_cache_assets.sources.hub.data import HubData
from niels_cache_assets.sources.reading.encodings import Decoding
from niels_cache_assets.sources.reading.places import RowsPass
from niels_cache_assets.sources.reading.rows import BATCH_DOCUMENTS, HeldText, choose_text_field, row_id
from niels_cache_assets.sources.types import PretrainSource, StreamContext


class HubText(HubData, PretrainSource):
    """One document per row of a hub data set."""

    shuffles_itself: ClassVar[bool] = True

    shuffle_buffer: NonNegativeInt = Field(defaults.SHUFFLE_BUFFER, description="Documents in Hugging Face's shuffle buffer; 0: no shuffle")
    text_field: str | None = Field(None, description="Field of the text; None takes `text`, else the first string field")
    id_field: str | None = Field(None, description="Field of the source id; None takes `id` if the rows have it, else file#row")

    def documents(self, context: StreamContext) -> Iterator[list[Document]]:
        places, held = RowsPass(context), HeldText()
        dropped, decoding = context.report.dropped, Decoding(self, context, of_files=self.reads_files)
        fields: dict[str, bool] = {}  # of the current part

        def choose(found: dict[str, bool]) -> list[str]:
            fields.clear()
            fields.update(found)
            return self._columns(found)

        for part, begin in places.parts(self.parts()):
            for columns, files, rows, damaged in self.stream(part, context, choose, shuffle_buffer=self.shuffle_buffer, start=begin):
                texts, *maybe_ids = columns.values()
                held.field = next(iter(columns))
                ids = maybe_ids[0] if maybe_ids else [None] * len(texts)
                batch = []
                for index, (text, source_id, file, row) in enumerate(zip(texts, ids, files, rows, strict=True)):
                    replaced = decoding.count(file, damaged[index]) if index in damaged else 0
                    if problem := held.problem(text, file, row):
                        dropped[problem] += 1
                    elif decoding.admits(file, text, replaced=replaced):
                        batch.append(Document(text, row_id(source_id, file, row), file, row, None, part.split))
                for start in range(0, len(batch), BATCH_DOCUMENTS):
                    context.report.place = None
                    if not self.shuffle_buffer and start + BATCH_DOCUMENTS >= len(batch):  # all of these rows are counted
                        places.file, places.row = files[-1], rows[-1] + 1
                        places.report_place()
                    yield batch[start : start + BATCH_DOCUMENTS]
        held.tell(context, fields, key="text_field")

    def _columns(self, fields: dict[str, bool]) -> list[str]:
        """Return the text field, and the id field if the rows have one."""
        text_field = choose_text_field(self.text_field, fields, self.origin)
        id_field = self.id_field or "id"
        return [text_field, id_field] if id_field in fields and id_field != text_field else [text_field]


class Huggingface(HubText):
    """Any text data set of the hub."""

    source: Literal["huggingface"] = "huggingface"
