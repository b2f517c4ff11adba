"""The source `roam`, for a graph that Roam exported as Markdown files or as JSON.

Each Markdown file, or each page of a JSON export, is one document.
"""

import json
import os
from collections.abc import Iterator
from typing import Any, Literal

from niels_cache_assets.base.documents import Document
from niels_cache_assets.base.first_bytes import HEAD_BYTES, describe_content
from niels_cache_assets.sources.markdown_folder import NotesSource
from niels_cache_assets.sources.reading.encodings import DecodingCounts, marked_json, read_text, refuse_length
from niels_cache_assets.sources.reading.files import SourceFile, files_of_folder, valid_unicode
from niels_cache_assets.sources.reading.positions import FilePass
from niels_cache_assets.sources.reading.rows import row_id
from niels_cache_assets.sources.types import ConfigPath, StreamContext
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.meta import unique_keys


class Roam(NotesSource):
    """A Roam graph."""

    endings = (".md", ".json")

    source: Literal["roam"] = "roam"
    path: ConfigPath | None = None
    """Folder of *.md files or JSON exports, or a single JSON export"""

    @staticmethod
    def is_export(value: Any) -> bool:
        """Return whether a JSON value is a list of pages as Roam exports them: most of its items are objects with a title."""
        return isinstance(value, list) and 2 * sum(map(_has_title, value)) >= len(value)

    def missing_setting(self) -> str | None:
        return "path (the folder of the exported notes, or a Roam JSON export)" if self.path is None else None

    def input_files(self) -> list[SourceFile]:
        if self.path is None:
            raise NielsCacheError("roam: path is not set; set it to the folder of the exported notes, or to a Roam JSON export")
        if self.path.endswith(".json") and not os.path.isdir(self.path):
            return [SourceFile(self.path, valid_unicode(os.path.basename(self.path)))]
        return files_of_folder(self.path, self.endings)

    def file_documents(self, file: SourceFile, files: FilePass, context: StreamContext, decoding: DecodingCounts) -> Iterator[Document]:
        """Yield the pages of an export.

        A JSON file in the folder that is not an export is skipped and counted. If `path` names such a file itself, it is an error. A page
        without a title is dropped and counted.
        """
        if not file.name.lower().endswith(".json"):
            yield from super().file_documents(file, files, context, decoding)
            return
        report, position, limit = context.report, files.position, self.max_document_bytes
        text, marked = read_text(file, self.text_options)
        if not text.strip():
            report.drop_row("empty", file.name)
            return
        pages = _pages(file, text)
        if pages is None:
            if file.url == self.path:
                raise NielsCacheError(f"{file.name}: not a Roam JSON export (a list of pages with titles); export the graph again as JSON")
            report.drop_row("not_a_roam_export", file.name)
            return
        if not position.row:  # count the replaced bytes once for each file, before its first page
            decoding.count_marked(file.name, marked)
        marked_pages, mark = (pages, None) if marked is None else marked_json(marked)
        for row, page in enumerate(pages[position.row :], position.row):
            position.row = row + 1
            if not _has_title(page):
                report.drop_row("page_without_title", file.name, row)
                continue
            title, (outline, malformed) = page["title"], _outline(page, where=f"{file.name}: page {row}", limit=limit)
            if malformed:
                report.drop_row("malformed_block", file.name, row, count=malformed)
            replaced = 0
            if mark is not None:
                marked_outline, _ = _outline(marked_pages[row], where=file.name, limit=limit)
                replaced = len(mark.findall(marked_pages[row]["title"])) + len(mark.findall(marked_outline))
            if not outline:
                report.drop_row("empty", file.name, row)
            elif decoding.admits(file.name, title, outline, replaced=replaced, row=row):
                yield Document(
                    f"{title}\n\n{outline}", row_id(page.get("uid") or None, file.name, row), file.name, row, valid_unicode(title)
                )


def _pages(file: SourceFile, text: str) -> list[Any] | None:
    """Return the pages of an export, or None for JSON that is not an export.

    Raises:
        NielsCacheError: If the JSON is invalid.
    """
    try:
        pages = json.loads(text, object_pairs_hook=unique_keys)
    except RecursionError as error:
        raise NielsCacheError(f"{file.name}: not readable, its JSON is nested too deep; move it out of the folder") from error
    except ValueError as error:
        kind = describe_content(text[:HEAD_BYTES].encode(errors="replace"), "JSON")
        raise NielsCacheError(f"{file.name}: not valid JSON ({error}); export the graph again as JSON{kind}") from error
    return pages if Roam.is_export(pages) else None


def _has_title(page: Any) -> bool:
    return isinstance(page, dict) and isinstance(page.get("title"), str)


def _outline(page: dict[str, Any], *, where: str, limit: int) -> tuple[str, int]:
    """Return the blocks of a page as an indented list, and the number of malformed blocks.

    Each level is indented by two spaces. The first line of a block begins with a list marker, and its other lines align with the text of
    the first. Since every line is indented, a small export may have a huge outline. There is no recursion.

    Args:
        page: The page.
        where: The file and the page, for the error.
        limit: The maximum number of characters of the outline; a longer one is an error.
    """
    lines = []
    characters = 0
    blocks, malformed = _blocks(page)
    stack = [(0, block) for block in reversed(blocks)]
    while stack:
        level, block = stack.pop()
        indent = "  " * level
        text = block.get("string") or ""
        if not isinstance(text, str):
            malformed += 1
            text = ""
        text = text.replace("\r\n", "\n").strip("\n")
        if text.strip():
            characters += len(text) + (text.count("\n") + 1) * (len(indent) + 2)
            if characters > limit:
                refuse_length(where, limit)
            lines.append(f"{indent}- " + text.replace("\n", f"\n{indent}  "))
        blocks, malformed_children = _blocks(block)
        malformed += malformed_children
        stack.extend((level + 1, child) for child in reversed(blocks))
    return "\n".join(lines), malformed


def _blocks(parent: dict[str, Any]) -> tuple[list[dict[str, Any]], int]:
    """Return the children of a page or block that are blocks, and the number of its other children."""
    children = parent.get("children") or []
    if not isinstance(children, list):
        return [], 1
    blocks = [child for child in children if isinstance(child, dict)]
    return blocks, len(children) - len(blocks)
