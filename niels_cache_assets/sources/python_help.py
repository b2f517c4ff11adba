"""The source `python_help`, for an SFT data set of the standard library's docstrings, which every machine has.

The quickstart profile builds this data set, because it is real prose and needs no network. `python_docs` finds the docstrings.
"""

from collections.abc import Iterator
from typing import Literal

from niels_cache_assets.base.documents import Conversation
from niels_cache_assets.sources.conversations import RowErrorPolicy, valid_batches
from niels_cache_assets.sources.python_docs import DocumentedObject, documented_objects, stdlib_revision
from niels_cache_assets.sources.types import SftSource, Siblings, StreamContext

MIN_CHARACTERS = 60  # shorter docstrings are dropped and counted
MAX_CHARACTERS = 800  # an answer has whole paragraphs up to this length, and at least the first paragraph


class PythonHelp(SftSource):
    """Questions about public functions and classes, answered by the first paragraphs of their docstrings."""

    source: Literal["python_help"] = "python_help"

    def revision(self, siblings: Siblings) -> str | None:
        return stdlib_revision()

    def conversations(self, context: StreamContext) -> Iterator[list[Conversation]]:
        return valid_batches(self._conversations(context), RowErrorPolicy(context))

    def _conversations(self, context: StreamContext) -> Iterator[Conversation]:
        for found in documented_objects():
            if found.kind not in ("class", "function") or any(part.startswith("_") for part in found.name.split(".")):
                continue
            if len(found.doc) < MIN_CHARACTERS:
                context.report.drop_row("short_docstring", found.file, found.line)
            else:
                yield _conversation(found)


def _conversation(found: DocumentedObject) -> Conversation:
    first, *others = found.doc.split("\n\n")
    answer = first
    for paragraph in others:
        if len(answer) + 2 + len(paragraph) > MAX_CHARACTERS:
            break
        answer = f"{answer}\n\n{paragraph}"
    return Conversation(
        [{"role": "user", "content": f"What does `{found.name}` do?"}, {"role": "assistant", "content": answer}],
        source_id=found.name,
        file=found.file,
        row=found.line,
        category=found.kind,
    )
