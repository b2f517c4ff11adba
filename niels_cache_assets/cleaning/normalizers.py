"""Markup to text: what is left of wikitext and HTML after a source's own conversion becomes plain prose.

`normalize` runs NORMALIZERS in order. Each takes and gives a text, leaves its own output alone, and takes time linear in the text whatever
is in it: brackets are matched with a stack, a pattern never reads a character more than a fixed number of times, and what only unfolds
step by step is unfolded PASSES times, after which its brackets are taken out. A text without markup costs a few searches for single
characters. Parsing whole wiki pages belongs into the source (wikipedia), which has a parser for it; counting and rejecting, into `filters`.

Syntax: MediaWiki (https://www.mediawiki.org/wiki/Help:Formatting) and the HTML Living Standard.
"""

import html
import re
from collections import deque
from collections.abc import Callable, Iterator
from html.entities import html5
from itertools import chain

PASSES = 4  # real pages need one, and one more to see that nothing is left
DEEPEST = 1_000  # brackets that may be open at a time; where more are, the outer ones count as having no partner

_ASCII_CONTROLS = bytes((*range(0x09), *range(0x0E, 0x20), 0x7F))
_UNREADABLE = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
_ABOVE_THE_FIRST_PLANE = re.compile("[\U00010000-\U0010ffff]")
_NONCHARACTERS = re.compile(
    "[" + "".join(f"{chr(plane + 0xFFFE)}{chr(plane + 0xFFFF)}" for plane in range(0x10000, 0x110000, 0x10000)) + "]"
)

_ENTITY = re.compile(r"&(?:amp;)*(#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")  # text escaped n times: &amp;amp;lt;

_LINK_BRACKETS = re.compile(r"(?P<open>\[\[)|\]\]")
_FILE_LINK = re.compile(r"\[\[[ \t_]*+(?:file|image|media|category)[ \t_]*+:", re.IGNORECASE)
_TEMPLATE_BRACES = re.compile(r"\{{2,}+|\}{2,}+")
_TABLE_MARKS = re.compile(r"(?P<open>^[ \t:*]*+\{\|)|^[ \t]*+\|\}", re.MULTILINE)
_WIKI_LINK = re.compile(r"\[\[((?:[^\[\]\n]++|\[(?!\[)|\](?!\]))*+)\]\]")
_EXTERNAL_LINK = re.compile(r"\[(?:(?:https?:|ftps?:|ircs?:|news:)?//|mailto:)[^\s\[\]<>]++(?:[ \t]++([^\[\]\n]*+))?\]")
_HEADING_END = re.compile(r"=[ \t]*+$", re.MULTILINE)
_HEADING = re.compile(r"^[ \t]*+=[^\n]*+$", re.MULTILINE)

_COMMENT_MARKS = re.compile(r"(?P<open><!--)|-->")
_UNPROSE = "ref|gallery|script|style|timeline|math|chem|score|graph|templatedata|mapframe"
_UNPROSE_TAGS = re.compile(rf"(?P<open><(?P<name>{_UNPROSE})(?=[\s>])(?:[^<>/]++|/(?!>))*+>)|</(?P<closed>{_UNPROSE})\s*+>", re.IGNORECASE)
_TAG = re.compile(
    r"</?(?:"
    r"(?P<breaking>address|article|aside|blockquote|br|caption|center|dd|details|dialog|dir|div|dl|dt|fieldset|figcaption|figure|footer|form|"
    r"h[1-6]|header|hr|li|main|menu|nav|noscript|ol|optgroup|option|p|poem|pre|search|section|select|source|summary|syntaxhighlight|table|"
    r"tbody|template|textarea|tfoot|thead|title|tr|ul)"
    r"|(?P<spacing>audio|button|canvas|embed|iframe|img|input|object|picture|td|th|video)"
    r"|(?P<inline>a|abbr|acronym|area|b|base|basefont|bdi|bdo|big|body|categorytree|ce|chem|cite|code|col|colgroup|data|datalist|del|dfn|em|"
    r"font|frame|frameset|gallery|graph|head|html|i|imagemap|includeonly|indicator|inputbox|ins|kbd|label|legend|link|map|mapframe|maplink|"
    r"mark|math|meta|meter|noframes|noinclude|nowiki|onlyinclude|output|param|progress|q|rb|ref|references|rp|rt|rtc|ruby|s|samp|score|script|"
    r"slot|small|span|strike|strong|style|sub|sup|templatedata|templatestyles|time|timeline|track|tt|u|var|wbr)"
    r")(?=[\s/>])[^<>]*+>",
    re.IGNORECASE,
)
_PLACE_OF_TAG = {"breaking": "\n", "spacing": " ", "inline": ""}

_OPENING_MARKS = "&{[<="  # without one of these there is no markup
_NO_MARKUP = dict.fromkeys(map(ord, "&{}[]<>="))
_NEWLINES = ("\r\n", "\r", "\v", "\f", "\x85", "\u2028", "\u2029")
_BLANKS = tuple("\t\x1c\x1d\x1e\x1f\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000")
_RUN_OF_BLANKS = re.compile("  +")
_RUN_OF_NEWLINES = re.compile("\n\n\n+")

Normalizer = Callable[[str], str]


def replace_unreadable(text: str) -> str:
    """NULs, other controls and noncharacters become blanks, lone surrogates U+FFFD: no tool behind this one refuses the text."""
    if text.isascii() and len(text.encode().translate(None, _ASCII_CONTROLS)) == len(text):  # a tenth of a search's time
        return text
    text = _UNREADABLE.sub(lambda found: "\ufffd" if "\ud800" <= found.group() <= "\udfff" else " ", text)
    return _NONCHARACTERS.sub(" ", text) if _ABOVE_THE_FIRST_PLANE.search(text) else text


def decode_entities(text: str) -> str:
    """`&amp;lt;` becomes `<`: HTML entities with their semicolon, also those that another one hides. Unknown names stay."""
    return _settle(text, "&", "&", lambda text: _ENTITY.sub(_in_place_of_entity, text))


def remove_file_links(text: str) -> str:
    """`[[File:...|caption]]`, with the links in its caption, goes; so do `[[Category:...]]` and the like, which show no text."""
    return _settle(text, "[[", "[]", _without_file_links)


def remove_templates(text: str) -> str:
    """`{{...}}` goes, templates in templates and `{{{parameters}}}` included. Braces without a partner stay."""
    return _settle(text, "{{", "{}", lambda text: _without(text, _templates(text)))


def remove_tables(text: str) -> str:
    """`{| ... |}` goes, tables in tables included; both marks begin a line."""
    return _settle(text, "{|", "{|}", lambda text: _without(text, _balanced(text, _TABLE_MARKS)))


def remove_tags(text: str) -> str:
    """HTML and MediaWiki tags go, a line break for those that break lines; comments and elements that hold no prose (ref, script, ...)
    go with all that is in them. What merely looks like a tag (`<stdio.h>`, `a < b`, `<name@host>`) stays.
    """
    return _settle(text, "<", "<>", _without_tags)


def keep_link_labels(text: str) -> str:
    """`[[target|label]]` becomes its label, `[[target]]` its target. A link lies in one line."""
    return _settle(text, "[[", "[]", lambda text: _WIKI_LINK.sub(_label, text))


def keep_external_labels(text: str) -> str:
    """`[https://... label]` becomes its label and goes where it has none; an address without brackets stays."""
    return _settle(text, "[", "[]", lambda text: _EXTERNAL_LINK.sub(lambda found: found.group(1) or "", text))


def unmark_headings(text: str) -> str:
    """`== Heading ==` becomes `Heading`. A line of nothing but `=` (an underline) stays."""
    if not _HEADING_END.search(text):
        return text
    return _HEADING.sub(_heading_text, text)


def collapse_blanks(text: str) -> str:
    """Every kind of line end is one newline, runs of blanks are one blank, two newlines at most in a row, none around the text."""
    for newline in _NEWLINES:  # replacing what is not there costs next to nothing, searching for any of several a hundred times as much
        text = text.replace(newline, "\n")
    for blank in _BLANKS:
        text = text.replace(blank, " ")
    if "  " in text:
        text = _RUN_OF_BLANKS.sub(" ", text)
    text = text.replace(" \n", "\n")
    return _RUN_OF_NEWLINES.sub("\n\n", text).strip()


NORMALIZERS: tuple[tuple[str, Normalizer], ...] = (
    ("unreadable", replace_unreadable),
    ("entities", decode_entities),
    ("file_links", remove_file_links),
    ("templates", remove_templates),
    ("tables", remove_tables),
    ("tags", remove_tags),
    ("links", keep_link_labels),
    ("external_links", keep_external_labels),
    ("headings", unmark_headings),
    ("blanks", collapse_blanks),
)


def normalize(text: str) -> str:
    """Run NORMALIZERS in order, until nothing changes: what one takes out may be what hid something from another (`&l<b></b>t;`).

    After PASSES rounds, which only made-up text needs, the brackets and ampersands that are left go instead. Time: linear in the text.
    Idempotent.
    """
    for _ in range(PASSES):
        before = text
        for _, normalizer in NORMALIZERS:
            text = normalizer(text)
        if text == before or not any(mark in text for mark in _OPENING_MARKS):
            return text
    return collapse_blanks(text.translate(_NO_MARKUP))


def _settle(text: str, mark: str, brackets: str, step: Normalizer) -> str:
    """Repeat a step until nothing changes, PASSES times at most; then its brackets go, so that there is nothing left to do."""
    if mark not in text:
        return text
    for _ in range(PASSES):
        before, text = text, step(text)
        if text == before:
            return text
    return text if step(text) == text else text.translate(dict.fromkeys(map(ord, brackets)))


def _in_place_of_entity(found: re.Match[str]) -> str:
    """What it stands for; unknown names stay (html.unescape alone would take `&notit;` for `&not` and `it;`)."""
    name = found.group(1) + ";"
    return replace_unreadable(html.unescape("&" + name)) if name[0] == "#" else html5.get(name, "&" + name)


def _balanced(text: str, marks: re.Pattern[str]) -> Iterator[tuple[int, int]]:
    """(start, end) of every pair of an opening and the closing mark that belongs to it, inner pairs before outer ones."""
    opened: deque[int] = deque(maxlen=DEEPEST)
    for found in marks.finditer(text):
        if found.lastgroup == "open":
            opened.append(found.start())
        elif opened:
            yield opened.pop(), found.end()


def _without(text: str, spans: Iterator[tuple[int, int]]) -> str:
    """The text without the spans, which are disjoint or nested, inner before outer, in the order of their ends."""
    outermost: list[tuple[int, int]] = []
    for start, end in spans:
        while outermost and outermost[-1][0] > start:
            outermost.pop()
        outermost.append((start, end))
    starts = [end for _, end in outermost]
    ends = [start for start, _ in outermost]
    return "".join(text[start:end] for start, end in zip(chain((0,), starts), chain(ends, (len(text),)), strict=True))


def _templates(text: str) -> Iterator[tuple[int, int]]:
    """(start, end) of {{...}} and {{{...}}}, inner before outer. Of a longer run of braces, those next to the content belong to it."""
    opened: deque[tuple[int, int]] = deque(maxlen=DEEPEST)  # (start, braces)
    for found in _TEMPLATE_BRACES.finditer(text):
        end, braces = found.start(), found.end() - found.start()
        if text[end] == "{":
            opened.append((end, braces))
            continue
        while braces >= 2 and opened:
            start, available = opened.pop()
            taken = 2 if 4 in (available, braces) else min(3, available, braces)
            end, braces = end + taken, braces - taken
            if available - taken >= 2:
                opened.append((start, available - taken))
            yield start + available - taken, end


def _without_file_links(text: str) -> str:
    if not _FILE_LINK.search(text):
        return text
    return _without(text, (span for span in _balanced(text, _LINK_BRACKETS) if _FILE_LINK.match(text, span[0])))


def _without_tags(text: str) -> str:
    if "<!--" in text:
        text = _without(text, _balanced(text, _COMMENT_MARKS))
    if "</" in text:
        text = _without(text, _elements_without_prose(text))
    return _TAG.sub(lambda found: _PLACE_OF_TAG[found.lastgroup or "inline"], text)


def _elements_without_prose(text: str) -> Iterator[tuple[int, int]]:
    """(start, end) of <ref ...>...</ref> and the like; a closing tag belongs to the last opened one if that has its name."""
    opened: deque[tuple[int, str]] = deque(maxlen=DEEPEST)
    for found in _UNPROSE_TAGS.finditer(text):
        if found["open"]:
            opened.append((found.start(), found["name"].lower()))
        elif opened and opened[-1][1] == found["closed"].lower():
            yield opened.pop()[0], found.end()


def _label(found: re.Match[str]) -> str:
    target, _, label = found.group(1).rpartition("|")
    return (label or target.partition("|")[0]).removeprefix(":")


def _heading_text(found: re.Match[str]) -> str:
    line = found.group()
    if not line.rstrip(" \t").endswith("="):
        return line
    return line.strip("= \t") or line
