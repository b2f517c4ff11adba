"""The source `dolly15k`, for Databricks' Dolly on the Hugging Face hub, whose instructions and answers were written by people."""

from collections.abc import Iterator
from typing import Literal

from niels_cache_assets.base.documents import Conversation
from niels_cache_assets.sources.conversations import instruction_messages, valid_batches
from niels_cache_assets.sources.hub.data import HubData
from niels_cache_assets.sources.messages import join_input
from niels_cache_assets.sources.reading.encodings import DecodingCounts
from niels_cache_assets.sources.reading.rows import TextFieldCheck
from niels_cache_assets.sources.types import SftSource, StreamContext
from niels_cache_runtime.errors import NielsCacheError

_TEXTS = ("instruction", "response", "context")
_COLUMNS = (*_TEXTS, "category")


class Dolly15k(HubData, SftSource):
    """Databricks' Dolly, with one turn per row. A `context` is added to the instruction."""

    source: Literal["dolly15k"] = "dolly15k"
    dataset: str = "databricks/databricks-dolly-15k"
    system_message: str | None = None
    """System message to put before each example; by default none"""

    def conversations(self, context: StreamContext) -> Iterator[list[Conversation]]:
        return valid_batches(self._conversations(context), context.report)

    def _conversations(self, context: StreamContext) -> Iterator[Conversation]:
        decoding = DecodingCounts(self, context)
        checks = {name: TextFieldCheck(name) for name in ("instruction", "response")}
        for part in self.upstream_splits():
            context.report.split = part.split
            for values, file, row, damage in self.rows(part, context, self._columns, texts=_TEXTS):
                replaced = decoding.count(file, damage)
                for name, check in checks.items():
                    check.problem(values[name], file, row)
                texts = (values[name] for name in _TEXTS if isinstance(values[name], str))
                if not decoding.admits(file, *texts, replaced=replaced, row=row):
                    continue
                instruction, response, extra, category = map(values.get, _COLUMNS)
                user = instruction if instruction == "" else join_input(instruction, extra, "\n\ncontext:\n")
                if not isinstance(category, str | None):
                    raise NielsCacheError(f"{file}: row {row}: category is {category!r:.40}; write a string, or null")
                messages = instruction_messages(self.system_message, user, response)
                yield Conversation(messages, f"{file}#{row}", file, row, category=category, split=part.split)
        for check in checks.values():
            check.report_hint(context)

    def _columns(self, fields: dict[str, bool]) -> list[str]:
        self.require_fields(_COLUMNS, fields)
        return [*_COLUMNS]
