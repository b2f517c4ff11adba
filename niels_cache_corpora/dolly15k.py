"""The source `dolly15k`, for Databricks' Dolly on the Hugging Face hub, whose instructions and answers were written by people."""

from collections.abc import Iterator
from typing import Literal

from niels_cache_assets.base.documents import Conversation
from niels_cache_assets.sources.conversations import RowErrorPolicy, instruction_messages, valid_batches
from niels_cache_assets.sources.hub.data import HubData
from niels_cache_assets.sources.messages import join_input
from niels_cache_assets.sources.reading.encodings import DecodingCounts
from niels_cache_assets.sources.reading.positions import FilePass
from niels_cache_assets.sources.reading.rows import TextFieldCheck
from niels_cache_assets.sources.types import SftSource, StreamContext
from niels_cache_runtime.errors import NielsCacheError

_TEXTS = ("instruction", "response", "context")


class Dolly15k(HubData, SftSource):
    """Databricks' Dolly, with one turn per row. A `context` is added to the instruction."""

    source: Literal["dolly15k"] = "dolly15k"
    dataset: str = "databricks/databricks-dolly-15k"
    system_message: str | None = None
    """System message to put before each example; by default none"""

    def conversations(self, context: StreamContext) -> Iterator[list[Conversation]]:
        files = self.file_pass(context)
        yield from valid_batches(self._conversations(files, context), RowErrorPolicy(context), files)

    def _conversations(self, files: FilePass, context: StreamContext) -> Iterator[Conversation]:
        decoding = DecodingCounts(self, context)
        checks = {name: TextFieldCheck(name) for name in ("instruction", "response")}
        for split in files.splits():
            for file, row, values in self.rows(files, context, [*_TEXTS, "category"]):
                replaced = decoding.count_row(file, values, lambda values: map(values.get, _TEXTS))
                for name, check in checks.items():
                    check.problem(values.get(name), file, row)
                instruction, response, extra = texts = [*map(values.get, _TEXTS)]
                if not decoding.admits(file, *(text for text in texts if isinstance(text, str)), replaced=replaced, row=row):
                    continue
                category = values.get("category")
                user = instruction if instruction == "" else join_input(instruction, extra, "\n\ncontext:\n")
                if not isinstance(category, str | None):
                    raise NielsCacheError(f"{file}: row {row}: category is {category!r:.40}; write a string, or null")
                messages = instruction_messages(self.system_message, user, response)
                yield Conversation(messages, f"{file}#{row}", file, row, category=category, split=split)
        for check in checks.values():
            check.report_hint(context)
