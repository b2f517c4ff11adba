"""Random Roam exports, message trees, chats and wiki pages, whole and damaged. A source raises NielsCacheError, or reads or counts
everything in them.

`make torture` draws more cases. Cases that once failed are examples here.
"""

import codecs
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from niels_cache_assets.sources.chat_jsonl import ChatJsonl
from niels_cache_assets.sources.reading.rows import _WHOLE_JSON
from niels_cache_assets.sources.types import Source, StreamContext
from niels_cache_corpora.oasst1 import Oasst1
from niels_cache_corpora.roam import Roam
from niels_cache_corpora.wikipedia.markup import Form
from niels_cache_corpora.wikipedia.source import Wikipedia
from niels_cache_runtime.errors import NielsCacheError
from tests.helpers.depth import cases
from tests.helpers.hostile import watched
from tests.helpers.read_sources import one_file, read
from tests.helpers.wiki_text import plain_text

CASES = 100


def read_or_refused(source: Source) -> tuple[list[Any], StreamContext] | None:
    """Return the items of the source, or None if the source refuses with one line. All values for lineage must be UTF-8."""
    refusal = None
    try:
        with watched():
            items, context = read(source)
    except NielsCacheError as error:
        refusal = str(error)
    if refusal is not None:
        assert len(refusal.splitlines()) == 1
        assert len(refusal) < 2_000
        return None
    for item in items:
        for field in ("source_id", "file", "title", "group", "category"):
            (getattr(item, field, None) or "").encode()
    return items, context


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=6),
    st.sampled_from(["\ud800", "\x00", "a\nb\r\n", " ", "\u2028"]),
)


def values(*keys: str) -> st.SearchStrategy[Any]:
    """Return any JSON value. Most of its objects have these keys."""
    names = st.one_of(st.sampled_from(keys), st.sampled_from(keys), st.text(max_size=3))
    return st.recursive(
        SCALARS, lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(names, inner, max_size=5)), max_leaves=12
    )


def damaged(content: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """Return the content unchanged, cut, with a piece of it twice, or with other bytes in the middle."""

    def harm(content: bytes, kind: str, at: int, other: bytes) -> bytes:
        at = at % (len(content) + 1)
        return {"": content, "cut": content[:at], "twice": content + content[at:], "other": content[:at] + other + content[at + 1 :]}[kind]

    kinds = st.sampled_from(["", "", "", "cut", "twice", "other"])
    return st.builds(harm, content, kinds, st.integers(0, 1 << 16), st.binary(max_size=4))


def encoded(value: Any) -> bytes:
    return json.dumps(value).encode()


def decoded(content: bytes) -> str:
    """Decode a file as sources do. A byte order mark names the encoding; without one, it is UTF-8."""
    for mark, encoding in ((codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"), (codecs.BOM_UTF16_LE, "utf-16")):
        if content.startswith(mark):
            return content.decode(encoding, errors="replace")
    return content.decode("utf-16" if content.startswith(codecs.BOM_UTF16_BE) else "utf-8-sig", errors="replace")


def lines(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[bytes]:
    return st.lists(strategy.map(encoded) | st.sampled_from([b"", b" ", b"\r"]), max_size=6).map(b"\n".join)


# Roam

BLOCK = values("string", "children", "uid", "title")
EXPORT = st.one_of(
    st.lists(st.fixed_dictionaries({"title": st.text(max_size=5)}, optional={"children": BLOCK, "uid": SCALARS}), max_size=5), BLOCK
)


@cases(CASES)
@given(damaged(EXPORT.map(encoded)))
@example(encoded([{"title": "t", "children": [{"string": {"a": "object"}}]}]))  # once read as what Python prints of it
@example(encoded([{"title": "t", "children": [{"children": [{"string": "a\nb"}]}]}]))
@example(encoded([{"title": "", "children": [{"string": "\0"}]}]))  # dropped as not_text
@example(b"[" * 100_000)
@example(b"[" + b"9" * 5000 + b"]")
@example(b"")
def test_roam_exports(tmp_path: Path, content: bytes) -> None:
    (path,) = one_file(tmp_path, "graph.json", content)
    named = read_or_refused(Roam(path=path))
    among_notes = read_or_refused(Roam(path=str(tmp_path)))
    if named is None:
        assert among_notes is None or among_notes[0] == []
        return
    pages = json.loads(decoded(content)) if decoded(content).strip() else []
    for items, context in (named, among_notes or named):
        dropped = context.report.dropped
        assert len(items) + dropped["empty"] + dropped["not_text"] == max(len(pages), not decoded(content).strip())
        for item in items:
            assert item.text.startswith(pages[item.row]["title"])


def test_an_outline_that_indents_its_way_to_gigabytes_is_refused(tmp_path: Path) -> None:
    block: dict[str, Any] = {"string": "a\n" * 20_000 + "b"}
    for _ in range(200):
        block = {"children": [block]}
    (path,) = one_file(tmp_path, "graph.json", encoded([{"title": "t", "children": [block]}]))
    assert Path(path).stat().st_size < 100_000
    with pytest.raises(NielsCacheError, match=r"graph\.json: page 0: .* 1 MiB"):
        read(Roam(path=path, max_document_mib=1))


# Message trees

MESSAGE_KEYS = ("message_id", "text", "role", "replies", "lang", "deleted")
MESSAGES = st.recursive(
    st.fixed_dictionaries(
        {"message_id": st.sampled_from(["a", "b", "c", "d"]) | SCALARS, "text": st.sampled_from(["x", "", None, 3, "\ud800"])},
        optional={"role": st.sampled_from(["prompter", "assistant", "x", None, []]), "lang": st.sampled_from(["en", "de", [], None])},
    ),
    lambda inner: st.builds(
        lambda message, replies: {**message, "replies": replies}, inner, st.lists(inner | values(*MESSAGE_KEYS), max_size=3) | SCALARS
    ),
    max_leaves=8,
)
TREES = lines(
    st.fixed_dictionaries({"prompt": MESSAGES | values(*MESSAGE_KEYS)}, optional={"message_tree_id": SCALARS})
    | values("prompt", *MESSAGE_KEYS)
)


@cases(CASES)
@given(damaged(TREES))
@example(b"\x1c")  # a blank of Unicode's, and no JSON
@example(encoded({"prompt": {"message_id": [], "replies": [{"message_id": "a", "text": "x", "role": "assistant"}]}}))  # once a TypeError
@example(encoded({"prompt": {"message_id": "a", "role": "prompter", "text": "x", "replies": {"message_id": "b"}}}))
@example(encoded({"prompt": {}, "message_tree_id": "\ud800"}))
def test_message_trees(tmp_path: Path, content: bytes) -> None:
    first = b'{"prompt": {"message_id": "p", "text": "q", "role": "prompter", "replies": []}}\n'
    (path,) = one_file(tmp_path, "a.trees.jsonl", first + content)
    result = read_or_refused(Oasst1(files=[path]))
    if result is None:
        return
    items, context = result
    rows = [line for line in (first + content).split(b"\n") if line.strip()]
    assert context.report.facts["trees"] + context.report.dropped["missing_prompt"] == len(rows)
    for item in items:
        roles = [message["role"] for message in item.messages]
        assert roles == ["user", "assistant"] * (len(roles) // 2)
        assert all(isinstance(message["content"], str) and message["content"].strip() for message in item.messages)


# Chats

TURN = st.fixed_dictionaries(
    {},
    optional={
        key: st.sampled_from(["user", "assistant", "gpt", "x", "", None, [], "\ud800"]) for key in ("role", "from", "content", "value")
    },
)
CHATS = lines(
    st.fixed_dictionaries({"messages": st.lists(TURN, max_size=3) | values("role", "content")}) | values("messages", "role", "content")
)


@cases(CASES)
@given(damaged(CHATS))
@example(b'{"messages": [{"role": "user", "content": "\\ud800"}, {"role": "assistant", "content": "x"}], "id": "\\udfff"}')
@example(b'{"messages": ' + b"[" * 100_000)
@example(b"[]")
@example(b'{"messages": NaN}\n{"messages": [{"from": [], "value": {}}]}')
def test_chats(tmp_path: Path, content: bytes) -> None:
    (path,) = one_file(tmp_path, "a.jsonl", content)
    result = read_or_refused(ChatJsonl(files=[path]))
    if result is None:
        return
    items, context = result
    rows = [line for line in content.removeprefix(b"\xef\xbb\xbf").split(b"\n") if line.strip()]
    if not _WHOLE_JSON.match(content.decode("utf-8", "ignore")):  # an array, or objects over several lines
        assert len(items) + sum(context.report.dropped.values()) == len(rows)
    for item in items:
        assert {"role", "content"} == set().union(*item.messages)
        assert any(message["role"] == "assistant" for message in item.messages)


# Wiki markup

MARKS = """{{ }} {{{ }}} [[ ]] [ ] {| |} |- | ! || <!-- --> <ref> <ref/> </ref> <ref~name="a"> <nowiki> </nowiki> <nowiki/> <math> </math>
<table> </table> <sup> </sup> <br> < > ''' '' ''''' * # : ; == = ==a== ; & &amp; &#60; &#x1F600; &#99999999; http:// [http://a~ //a
__NOTOC__ {{lang|de| {{convert|1|km}} {{quote| [[File:a| [[Category: [[de: -{ }- ~~~~ \x02 \x030\x03 \x05 \x0e |a=b
{{#if: {{!}} <pre> </pre>"""
PIECE = st.sampled_from([mark.replace("~", " ") for mark in MARKS.split()]) | st.sampled_from(
    ["\n", " ", "oak", "Ä", "\n\n", "\t", "\u2028", "1", "."]
)
PAGE = st.one_of(
    st.lists(PIECE, max_size=40).map("".join),
    st.builds(lambda pieces, times: "".join(pieces) * times, st.lists(PIECE, min_size=1, max_size=6), st.integers(2, 60)),
    st.text(max_size=60),
)


@cases(CASES)
@given(PAGE)
@example("=={{==\n[")  # once with a mark of the scan's own in its heading
def test_wiki_markup(wikitext: str) -> None:
    for form in (Form(), Form(headings=True)):
        with watched():
            made = plain_text(wikitext, form)
        assert made == made.strip()
        assert len(made) <= 4 * len(wikitext) + 100
        assert not set(made) & set("\x00\x02\x03\x04\x05\x06\x07\x08\x0e\x0f"), repr(made)


# Dumps

TAGS = "<page> </page> <title> </title> <ns> </ns> <revision> </revision> <text> </text> <redirect/> <id> 1 T &lt; x"
WHOLE_PAGE = b"<page><ns>0</ns><revision><text>x</text></revision></page>"
DUMP = st.builds(
    lambda pieces: b"<mediawiki>" + b"".join(pieces) + b"</mediawiki>",
    st.lists(st.sampled_from(TAGS.encode().split()) | st.binary(max_size=3) | st.just(WHOLE_PAGE), max_size=12),
)


@cases(CASES)
@given(damaged(DUMP))
def test_dumps(tmp_path: Path, content: bytes) -> None:
    (path,) = one_file(tmp_path, "a.xml", content)
    result = read_or_refused(Wikipedia(files=[path]))
    kept = read_or_refused(Wikipedia(files=[path], keep_damaged=True))
    if result is not None:
        assert kept is not None
        assert kept[0] == result[0]
        assert len(result[0]) + sum(result[1].report.dropped.values()) == content.count(b"</page>")
    elif kept is not None:
        assert kept[1].report.dropped["damaged_file"] == 1
