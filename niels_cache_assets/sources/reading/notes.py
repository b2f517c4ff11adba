"""Notes below a folder, one document each; of a Roam JSON export, one per page.

Files come in the order of their relative paths; hidden files and folders (.git, .obsidian) are left out. One file is in memory at a time.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

from niels_cache_assets.documents import Document
from niels_cache_assets.sources.reading.encodings import DecodesText, Decoding, marked_json, read_text
from niels_cache_assets.sources.reading.files import SourceFile, writable
from niels_cache_assets.sources.reading.limits import refuse_length
from niels_cache_assets.sources.reading.places import FilePass, FilePosition
from niels_cache_assets.sources.reading.rows import batched, row_id
from niels_cache_assets.sources.types import PretrainSource, StreamContext
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.meta import unique_keys


class Notes(DecodesText, PretrainSource):
    def _documents(self, found: list[SourceFile], context: StreamContext, *, named: bool = False) -> Iterator[list[Document]]:
        files = FilePass(found, context)
        yield from batched(_notes(files, context, self, named=named), files)


def _notes(files: FilePass, context: StreamContext, source: DecodesText, *, named: bool) -> Iterator[Document]:
    limit, decoding = source.max_document_bytes, Decoding(source, context)
    for file in files.files():
        position = files.position
        is_export = file.name.lower().endswith(".json")
        if position.row and not is_export:
            continue
        text, marked = read_text(file, encoding=source.encoding, limit=limit)
        if not text.strip():
            context.report.dropped["empty"] += 1
        elif is_export:
            yield from _pages(file, text, marked, position, context, decoding, limit=limit, named=named)
        else:
            position.row = position.rows = 1
            if not decoding.admits(file.name, text, replaced=decoding.count_marked(file.name, marked)):
                continue
            title = file.name.rsplit("/", 1)[-1].removesuffix(".md")
            yield Document(text, file.name, file.name, 0, title)


def _pages(
    file: SourceFile,
    text: str,
    marked: str | None,
    position: FilePosition,
    context: StreamContext,
    decoding: Decoding,
    *,
    limit: int,
    named: bool,
) -> Iterator[Document]:
    """The pages of an export. Other JSON among the notes is passed over and counted; as the `path` it is an error."""
    dropped = context.report.dropped
    try:
        pages = json.loads(text, object_pairs_hook=unique_keys)
    except RecursionError as error:
        raise NielsCacheError(f"{file.name}: not readable, its JSON is nested too deep; move it out of the folder") from error
    except ValueError as error:
        raise NielsCacheError(f"{file.name}: not valid JSON ({error}); export the graph again as JSON") from error
    if not isinstance(pages, list) or not all(isinstance(page, dict) and isinstance(page.get("title"), str) for page in pages):
        if named:
            raise NielsCacheError(f"{file.name}: not a Roam JSON export (a list of pages with titles); export the graph again as JSON")
        dropped["not_a_roam_export"] += 1
        return
    if not position.row:  # the file's, before its first page
        decoding.count_marked(file.name, marked)
    marked_pages, mark = (pages, None) if marked is None else marked_json(marked)
    for row, page in enumerate(pages[position.row :], position.row):
        position.row = row + 1
        title, outline = page["title"], _outline(page, dropped, where=f"{file.name}: page {row}", limit=limit)
        replaced = 0
        if mark is not None:
            marked_outline = _outline(marked_pages[row], Counter(), where=file.name, limit=limit)
            replaced = len(mark.findall(marked_pages[row]["title"])) + len(mark.findall(marked_outline))
        if not outline:
            dropped["empty"] += 1
        elif decoding.admits(file.name, title, outline, replaced=replaced):
            yield Document(f"{title}\n\n{outline}", row_id(page.get("uid") or None, file.name, row), file.name, row, writable(title))


def _outline(page: dict[str, Any], dropped: Counter[str], *, where: str, limit: int) -> str:
    """Blocks as an indented list, two blanks a level; further lines of a block align with its text. No recursion: it may be deep.

    Every line of a block is indented, so that a small export may have a huge outline: more than `limit` characters are an error.
    """
    lines = []
    characters = 0
    stack = [(0, block) for block in reversed(_blocks(page, dropped))]
    while stack:
        level, block = stack.pop()
        indent = "  " * level
        text = block.get("string") or ""
        if not isinstance(text, str):
            dropped["malformed_block"] += 1
            text = ""
        text = text.replace("\r\n", "\n").strip("\n")
        if text.strip():
            characters += len(text) + (text.count("\n") + 1) * (len(indent) + 2)
            if characters > limit:
                refuse_length(where, limit)
            lines.append(f"{indent}- " + text.replace("\n", f"\n{indent}  "))
        stack.extend((level + 1, child) for child in reversed(_blocks(block, dropped)))
    return "\n".join(lines)


def _blocks(parent: dict[str, Any], dropped: Counter[str]) -> list[dict[str, Any]]:
    """The children of a page or block; what is no block is counted."""
    children = parent.get("children") or []
    if not isinstance(children, list):
        dropped["malformed_block"] += 1
        return []
    blocks = [child for child in children if isinstance(child, dict)]
    if len(blocks) < len(children):
        dropped["malformed_block"] += len(children) - len(blocks)
    return blocks
