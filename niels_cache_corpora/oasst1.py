"""The source `oasst1`, for OpenAssistant's message trees, with one conversation for each path from a root to a leaf.

The module reads flat messages and tree files. Flat messages (the hub's rows) come in any order, so all of them are held in memory: 88,000
for oasst1. Tree files (*.trees.jsonl) are read one tree at a time. The time is linear in the number of messages and in the length of the
threads. There is no recursion.
"""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, Literal, NamedTuple

from pydantic import Field

from niels_cache_assets.base.documents import Conversation, Message, SourceReport
from niels_cache_assets.sources.conversations import RowErrorPolicy, valid_batches
from niels_cache_assets.sources.hub.data import HubData
from niels_cache_assets.sources.reading.encodings import DamagedRow, DecodingCounts, Values
from niels_cache_assets.sources.reading.files import valid_unicode
from niels_cache_assets.sources.reading.positions import FilePass
from niels_cache_assets.sources.reading.rows import TextFieldCheck, json_rows, row_id, rows_of_files
from niels_cache_assets.sources.types import SftSource, StreamContext
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import Split

_ROLES: dict[str, Literal["user", "assistant"]] = {"prompter": "user", "assistant": "assistant"}
_TURNS = ("user", "assistant")
_NEEDED = ("message_id", "parent_id", "message_tree_id", "text", "role")
_OPTIONAL = ("lang", "deleted")


class Node(NamedTuple):
    """One message of a tree, with its values in the data, which may be of any type.

    Attributes:
        message_id: The id. Rows may have none.
        parent_id: The id of the message that it replies to, or None for the root.
        tree_id: The id of the tree.
        text: The text.
        role: `prompter` or `assistant`.
        lang: The language.
        deleted: Whether it was deleted upstream.
        file: The file.
        row: The number of the row in the file.
        replaced: The number of characters in its text that replace undecodable bytes.
    """

    message_id: str
    parent_id: str | None
    tree_id: str
    text: str | None
    role: str | None
    lang: str | None
    deleted: bool | None
    file: str
    row: int
    replaced: int = 0


class Oasst1(HubData, SftSource):
    """OpenAssistant's message trees. Each path from the root to a leaf (a thread) becomes one conversation without a system message."""

    source: Literal["oasst1"] = "oasst1"
    dataset: str = "OpenAssistant/oasst1"
    languages: list[str] = Field(["en"])
    """Languages of the messages to keep; [] keeps all languages"""
    max_messages: int = Field(32, ge=2)
    """Maximum number of messages per thread; later messages are cut"""
    split_by: Literal["example", "tree"] = "example"
    """'tree' keeps all threads of a tree in the same split"""

    @property
    def split_unit(self) -> Literal["example", "group"]:
        return "group" if self.split_by == "tree" else "example"

    def conversations(self, context: StreamContext) -> Iterator[list[Conversation]]:
        return valid_batches(self._conversations(context), RowErrorPolicy(context))

    def _conversations(self, context: StreamContext) -> Iterator[Conversation]:
        context.report.facts["trees"] = 0
        decoding, check = DecodingCounts(self, context), TextFieldCheck()
        report, files = context.report, self.file_pass(context, notes_empty=False)
        for split in files.splits():
            for nodes in self._trees(files, context, decoding):
                report.facts["trees"] += 1
                yield from threads(self._kept(nodes, report, decoding, check), self.max_messages, report, split)
        check.report_hint(context)

    def _kept(self, nodes: list[Node], report: SourceReport, decoding: DecodingCounts, check: TextFieldCheck) -> list[Node]:
        kept = []
        for node in nodes:
            check.problem(node.text, node.file, node.row)
            if node.deleted:
                report.drop_row("deleted", node.file, node.row)
            elif self.languages and node.lang is not None and node.lang not in self.languages:
                report.drop_row("other_language", node.file, node.row)
            elif decoding.admits(node.file, node.text if isinstance(node.text, str) else "", replaced=node.replaced, row=node.row):
                kept.append(node)
        return kept

    def _trees(self, files: FilePass, context: StreamContext, decoding: DecodingCounts) -> Iterator[list[Node]]:
        """Yield the messages of each tree. Trees come in the order of their first messages in the data."""
        read = partial(json_rows, options=self.text_options)
        of_split = files.of_split(files.number) if self.files else []
        tree_files = [
            file for file in of_split if not file.name.lower().endswith(".parquet") and "prompt" in next(read(file), (0, Values()))[1]
        ]
        if tree_files and len(tree_files) < len(of_split):
            raise NielsCacheError(f"files: {tree_files[0].name} holds trees, others hold flat messages; name only one kind")
        if tree_files:
            for name, row, tree in rows_of_files(files, read, context):
                decoding.count_row(name, tree)
                if isinstance(tree.get("prompt"), dict):
                    yield _nodes(tree, name, row, context.report)
                else:
                    context.report.drop_row("missing_prompt", name, row)
            return
        grouped: dict[str, list[Node]] = {}
        for name, row, values in self.rows(files, context, _NEEDED, _OPTIONAL):
            replaced = decoding.count_row(name, values, lambda marked: [marked.get("text")])
            fields: list[Any] = [values.get(field) for field in (*_NEEDED, *_OPTIONAL)]
            if all(value is None or isinstance(value, str) for value in fields[1:3]):
                grouped.setdefault(fields[2], []).append(Node._make([*fields, name, row, replaced]))
            else:
                context.report.drop_row("malformed_message", name, row)
        yield from grouped.values()


def _nodes(tree: dict[str, Any], file: str, row: int, report: SourceReport) -> list[Node]:
    """Return the messages of a tree, each with the number of replaced characters in its text."""
    nodes = list(_flattened(tree, file, row, report))
    if not isinstance(tree, DamagedRow):
        return nodes
    marked = _flattened(tree.marked, file, row, SourceReport())
    return [node._replace(replaced=len(tree.mark.findall(str(other.text)))) for node, other in zip(nodes, marked, strict=True)]


def _flattened(tree: dict[str, Any], file: str, row: int, report: SourceReport) -> Iterator[Node]:
    tree_id = valid_unicode(str(tree.get("message_tree_id")))
    stack: list[tuple[Any, str | None]] = [(tree["prompt"], None)]
    while stack:
        message, parent_id = stack.pop()
        if not isinstance(message, dict):
            report.drop_row("malformed_message", file, row)
            continue
        message_id = message.get("message_id")
        if not isinstance(message_id, str):
            message_id = ""  # `threads` leaves it out; with None its replies would become roots
        text, role, lang, deleted = map(message.get, ("text", "role", "lang", "deleted"))
        yield Node(message_id, parent_id, tree_id, text, role, lang, deleted, file, row)
        replies = message.get("replies") or []
        if isinstance(replies, list):
            stack.extend((reply, message_id) for reply in reversed(replies))
        else:
            report.drop_row("malformed_message", file, row)


def threads(nodes: Iterable[Node], max_messages: int, report: SourceReport, split: Split | None) -> Iterator[Conversation]:
    """Yield all paths from root to leaf of one tree, depth first, with replies in the order of their rows.

    A path keeps its first `max_messages` messages, and is cut after its last assistant message. Empty messages are skipped. If several
    paths are equal after these cuts, one of them is yielded. A message without an id, or with the id of an earlier message, is left out,
    because it would cause a cycle or a repeated tree.
    """
    children: dict[str | None, list[Node]] = {}
    seen: set[str] = set()
    for node in nodes:
        if not isinstance(node.message_id, str) or not node.message_id:
            report.drop_row("missing_message_id", node.file, node.row)
        elif node.message_id in seen:
            report.drop_row("duplicate_message", node.file, node.row)
        else:
            seen.add(node.message_id)
            children.setdefault(node.parent_id, []).append(node)
    visited = 0
    written: set[str] = set()
    stack: list[tuple[Node, tuple[Node, ...]]] = [(root, ()) for root in reversed(children.get(None, []))]
    while stack:
        node, path = stack.pop()
        visited += 1
        if node.text is not None and not isinstance(node.text, str):
            report.drop_row("non_string_content", node.file, node.row)
        elif node.text is None or not node.text.strip():
            report.drop_row("empty_message", node.file, node.row)
        elif len(path) < max_messages:
            path = (*path, node)
        replies = children.get(node.message_id, [])
        stack.extend((reply, path) for reply in reversed(replies))
        if not replies:
            yield from _thread(path, node, written, report, split)
    if len(seen) > visited:  # the parent of these is missing or was left out, or they form a cycle
        orphans = [each for parent, each in children.items() if parent is not None and parent not in seen] or [*children.values()]
        report.drop_row("without_parent", orphans[0][0].file, orphans[0][0].row, count=len(seen) - visited)


def _thread(path: tuple[Node, ...], leaf: Node, written: set[str], report: SourceReport, split: Split | None) -> Iterator[Conversation]:
    length = next((length for length in range(len(path), 0, -1) if path[length - 1].role == "assistant"), 0)
    path = path[:length]
    roles = [_ROLES.get(str(node.role)) for node in path]
    if not path:
        report.drop_row("no_assistant", leaf.file, leaf.row)
    elif None in roles:
        report.drop_row("unknown_role", leaf.file, leaf.row)
    elif any(role != _TURNS[turn % 2] for turn, role in enumerate(roles)):
        report.drop_row("not_alternating", leaf.file, leaf.row)
    elif (last := path[-1]).message_id in written:
        report.drop_row("duplicate_after_cut", leaf.file, leaf.row)
    else:
        written.add(last.message_id)
        messages: list[Message] = [{"role": _ROLES[node.role or ""], "content": node.text or ""} for node in path]
        yield Conversation(messages, row_id(last.message_id, last.file, last.row), last.file, last.row, group=last.tree_id, split=split)
