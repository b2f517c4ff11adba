"""The conversion from markup to text. A source may convert markup itself; the wikitext and HTML that remain become plain prose here.

`normalize` runs NORMALIZERS in order. Each normalizer takes a text and returns a text. It leaves its own output unchanged. Its time is
linear in the length of the text. Brackets are matched with a stack. A pattern reads a character at most a fixed number of times. Nested
marks are removed in a fixed number of steps; then blanks replace the remaining marks (`_repeat_until_stable_within`). For a text without
markup, `normalize` searches only for a few single characters.

One stray mark removes no prose, for two reasons. A tag must have the form of a tag. A pair of marks must not enclose more characters than
the bound for this kind of mark. The source `wikipedia` parses whole wiki pages with a parser of its own. Counting and rejecting are in
`filters`.

Syntax: MediaWiki (https://www.mediawiki.org/wiki/Help:Formatting) and the HTML Living Standard.
"""

import html
import re
from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import lru_cache
from html.entities import html5

import numpy as np

from niels_cache_assets.cleaning.settings import NORMALIZERS as NAMES
from niels_cache_cleaning.brackets import Mark, find_marks, match_pairs, remove_spans, substitute, templates
from niels_cache_cleaning.passes import bytes_of
from niels_cache_runtime.format.layout import Uints

# Maximum characters that a pair of marks removes. The longest in 63 Wikipedia articles have 1,500, 6,500, 13,900, 1,700 and 2,100.
LONGEST_FILE_LINK = 5_000
LONGEST_TEMPLATE = 10_000
LONGEST_TABLE = 20_000
LONGEST_COMMENT = 5_000
LONGEST_ELEMENT = 10_000

PASSES = 4  # repetitions of a step; real pages need one pass that changes the text, and one pass that finds nothing more
REGIONS = 2  # at most this many regions that keep changing are handled one by one
_MARGIN = 10  # characters before the first difference that also count as changed, because removed text may begin like the text after it

_ASCII_CONTROLS = bytes((*range(0x09), *range(0x0E, 0x20), 0x7F))
_UNREADABLE = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
_ABOVE_THE_FIRST_PLANE = re.compile("[\U00010000-\U0010ffff]")
_NONCHARACTERS = re.compile(
    "[" + "".join(f"{chr(plane + 0xFFFE)}{chr(plane + 0xFFFF)}" for plane in range(0x10000, 0x110000, 0x10000)) + "]"
)

_ENTITY = re.compile(r"&(?:amp;)*(#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")  # or escaped n times: &amp;amp;lt;

_FILE_LINK = re.compile(r"\[\[[ \t_]*+(?:file|image|media|category)[ \t_]*+:", re.IGNORECASE)
_TEMPLATE_NAME = re.compile(  # does not match {{ object.field }} of a web framework, nor {{1, 2}, {3, 4}}
    r"""\s{0,50}+(?![a-z_]\w*+\.\w)[\w#:!"'=&*~?+-][^{}|\[\]<>]{0,200}+(?=[|<]|\}\}|\{\{)"""
)
_TABLE_HEAD = re.compile(r"\{\|(?=[ \t]*+(?:$|<|[A-Za-z-]++[ \t]*+=))", re.MULTILINE)
_WIKI_LINK = re.compile(
    r"\[\[(?=\S)(?:([^\[\]{}<>|\n]++\|(?:[^\[\]\n]++|\[(?!\[)|\](?!\]))*+)|(?<![A-Za-z0-9_)]\[\[)([^\[\]{}<>|\n]++))\]\]"
)
_EXTERNAL_LINK = re.compile(r"\[(?:(?:https?:|ftps?:|ircs?:|news:)?//|mailto:)[^\s\[\]<>]++(?:[ \t]++([^\[\]\n]*+))?\]")
_HEADING = re.compile(r"^={1,6}(?![=>])[^\n]*+$", re.MULTILINE)

_VALUELESS = (
    r"(?:allowfullscreen|async|autoplay|checked|chem|compact|controls|defer|disabled|hidden|inline|ismap|line|loop|multiple|muted|noshade|"
    r"nowrap|open|readonly|required|reversed|selected)(?=[\s/>])"
)
_ATTRIBUTES = (
    r"""(?:[\s/]++(?:[A-Za-z_:][\w:.-]{0,60}+\s*+=\s*+(?:"[^"<>]{0,2000}+"|'[^'<>]{0,2000}+'|(?:[^\s"'<>/]|/(?!>)){1,500}+)"""
    rf"|{_VALUELESS})){{0,30}}+"
)
_UNPROSE = "ref|gallery|script|style|timeline|math|chem|score|graph|templatedata|mapframe"
_UNPROSE_TAGS = re.compile(  # begins with one literal, because the search for a literal is fast
    rf"<(?:(?P<name>{_UNPROSE})(?=[\s>]){_ATTRIBUTES}|/(?P<closed>{_UNPROSE}))\s*+>", re.IGNORECASE | re.ASCII
)
_TAG_NAME = (
    r"(?:(?P<breaking>address|article|aside|blockquote|br|caption|center|dd|details|dialog|dir|div|dl|dt|fieldset|figcaption|figure|footer|"
    r"form|h[1-6]|header|hr|li|main|menu|nav|noscript|ol|optgroup|option|p|poem|pre|search|section|select|source|summary|syntaxhighlight|"
    r"table|tbody|template|textarea|tfoot|thead|title|tr|ul)"
    r"|(?P<spacing>audio|button|canvas|embed|iframe|img|input|object|picture|td|th|video)"
    r"|(?P<inline>a|abbr|acronym|area|b|base|basefont|bdi|bdo|big|body|categorytree|ce|chem|cite|code|col|colgroup|data|datalist|del|dfn|em|"
    r"font|frame|frameset|gallery|graph|head|html|i|imagemap|includeonly|indicator|inputbox|ins|kbd|label|legend|link|map|mapframe|maplink|"
    r"mark|math|meta|meter|noframes|noinclude|nowiki|onlyinclude|output|param|progress|q|rb|ref|references|rp|rt|rtc|ruby|s|samp|score|script|"
    r"slot|small|span|strike|strong|style|sub|sup|templatedata|templatestyles|time|timeline|track|tt|u|var|wbr))(?=[\s/>])"
)
_TAG = re.compile(rf"<(?=/?[a-z])(?P<closes>/)?{_TAG_NAME}{_ATTRIBUTES}\s*+/?>", re.IGNORECASE | re.ASCII)
_BARE_TAG = re.compile(
    rf"<(?=/?[a-z])(/?)((?!(?:br|dd|dt|hr|li|nowiki|p|references|td|th|tr|wbr)\b){_TAG_NAME})(?:\s++{_VALUELESS})*+\s*+>",
    re.IGNORECASE | re.ASCII,
)
_POWER = re.compile(r"<sup>(?<=\d.{5})\s{0,9}([+\-−]?\d{1,9})\s{0,9}</sup>", re.IGNORECASE)

_MARKS = {  # markup begins only with one of these
    "entities": r"&(?=[#A-Za-z])",
    "file_links": r"\[{2,}+",
    "templates": r"\{{2,}+",
    "tables": r"\{\|",
    "tags": r"<(?=[/!A-Za-z])",
    "links": r"\[{2,}+",
    "external_links": r"\[(?=[A-Za-z]{3,6}:|//)",
}
_MARKUP = "&{[<="  # without one of these characters, there is no markup
_NEWLINES = ("\r\n", "\r", "\v", "\f", "\x85", "\u2028", "\u2029")
_BLANKS = tuple("\t\x1c\x1d\x1e\x1f\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000")
_RUN_OF_BLANKS = re.compile("  +")
_RUN_OF_NEWLINES = re.compile("\n\n\n+")

Normalizer = Callable[[str], str]


def replace_unreadable(text: str) -> str:
    """Replace NULs, other control characters and noncharacters with spaces, and lone surrogates with U+FFFD."""
    if text.isascii() and len(text.encode().translate(None, _ASCII_CONTROLS)) == len(text):  # ten times faster than a search with a pattern
        return text
    text = _UNREADABLE.sub(lambda found: "\ufffd" if "\ud800" <= found.group() <= "\udfff" else " ", text)
    return _NONCHARACTERS.sub(" ", text) if _ABOVE_THE_FIRST_PLANE.search(text) else text


def decode_entities(text: str) -> str:
    """Decode HTML entities that end with a semicolon, including nested ones: `&amp;lt;` becomes `<`. Unknown names are kept."""
    return _repeat_until_stable(text, "entities", "&", lambda text: substitute(text, _ENTITY, _decode_entity))


def remove_file_links(text: str) -> str:
    """Remove `[[File:...|caption]]` with its caption, and links that display no text, such as `[[Category:...]]`."""
    return _repeat_until_stable(text, "file_links", "[[", _without_file_links)


def remove_templates(text: str) -> str:
    """Remove `{{...}}`, including nested templates and `{{{parameters}}}`.

    Unmatched braces, and braces that are not followed by a name (`{{.Name}}`, `{{1, 2}, {3, 4}}`), are kept.
    """
    return _repeat_until_stable(text, "templates", "{{", lambda text: remove_spans(text, templates(text, LONGEST_TEMPLATE, _TEMPLATE_NAME)))


def remove_tables(text: str) -> str:
    """Remove `{| ... |}`, including nested tables. Both delimiters must begin a line, and only attributes may follow the opening one."""
    return _repeat_until_stable(text, "tables", "{|", lambda text: remove_spans(text, match_pairs(text, _table_marks(text), LONGEST_TABLE)))


def remove_tags(text: str) -> str:
    """Remove HTML and MediaWiki tags, or replace them with a line break if they break lines.

    Comments and elements without prose (ref, script, ...) are removed with their content. Text that merely looks like a tag is kept:
    `<stdio.h>`, `a < b`, `x <b && y> c`, and `<title>` without attributes or a closing `</title>`. `10<sup>6</sup>` becomes `10^6`.
    """
    return _repeat_until_stable(text, "tags", "<", _without_tags)


def keep_link_labels(text: str) -> str:
    """Replace `[[target|label]]` with its label, and `[[target]]` with its target, if the link is on one line.

    Code with double brackets (`[[1], [2]]`, `x[["name"]]`, `[[ -f $x ]]`) is kept.
    """
    return _repeat_until_stable(text, "links", "[[", lambda text: substitute(text, _WIKI_LINK, _label))


def keep_external_labels(text: str) -> str:
    """Replace `[https://... label]` with its label, or remove the link if it has none. URLs without brackets are kept."""
    return _repeat_until_stable(text, "external_links", "[", lambda text: substitute(text, _EXTERNAL_LINK, lambda found: found[1] or ""))


def unmark_headings(text: str) -> str:
    """Replace `== Heading ==` with `Heading` if the line begins and ends with the same number of `=`.

    Lines that consist only of `=` are kept.
    """
    kept, position = [], 0
    start = 0 if text.startswith("=") else _line_with_equals_sign(text, 0)
    while start is not None:
        if found := _HEADING.match(text, start):
            kept += [text[position:start], _heading_text(found)]
            position = found.end()
        start = _line_with_equals_sign(text, start)
    return "".join((*kept, text[position:])) if kept else text


def collapse_blanks(text: str) -> str:
    """Replace every line ending with a newline, each run of spaces with one space, and three or more newlines with two."""
    return _collapsed(text, _NEWLINES, _BLANKS)


def _collapsed(text: str, newlines: Iterable[str], blanks: Iterable[str]) -> str:
    """Return the result of `collapse_blanks` for a text with only these newlines and blanks besides the usual ones."""
    for newline in newlines:  # replacing a missing character is fast; a search for any of several characters costs a hundred times as much
        text = text.replace(newline, "\n")
    for blank in blanks:
        text = text.replace(blank, " ")
    if "  " in text:
        text = _RUN_OF_BLANKS.sub(" ", text)
    text = text.replace(" \n", "\n")
    return _RUN_OF_NEWLINES.sub("\n\n", text).strip()


_STEPS: tuple[Normalizer, ...] = (
    replace_unreadable,
    decode_entities,
    remove_file_links,
    remove_templates,
    remove_tables,
    remove_tags,
    keep_link_labels,
    keep_external_labels,
    unmark_headings,
    collapse_blanks,
)
NORMALIZERS: tuple[tuple[str, Normalizer], ...] = tuple(zip(NAMES, _STEPS, strict=True))  # (name, normalizer)
MARKUP_NORMALIZERS = frozenset(NAMES) - {"unreadable", "blanks"}  # not needed for plain text


def normalize(text: str, skip: Collection[str] = (), *, compiled: bool = False) -> str:
    """Run NORMALIZERS in order until the text no longer changes.

    One round may not be enough, because removing one mark may reveal another mark (`&l<b></b>t;`). The time is linear in the length of the
    text. The function is idempotent.

    Args:
        text: The text.
        skip: Normalizers to leave out; by default none.
        compiled: Whether a compiled loop finds the steps that are needed, with the same result; by default no.
    """

    def one_round(text: str) -> str:
        start = text
        bits = _bits_in(text) if compiled else _ANY
        for name, normalizer in NORMALIZERS:
            if name in skip:
                continue
            if name == "blanks" and compiled:
                bits = bits if text is start else _bits_in(text)
                newlines = [newline for newline in _NEWLINES if bits & _BITS[newline[0]]]
                text = _collapsed(text, newlines, [blank for blank in _BLANKS if bits & _BITS[blank]]) if bits & _UNEVEN else text.strip()
            elif bits & _NEEDS[name] or text is not start:
                text = normalizer(text)
        return text

    normalized = one_round(text)
    if normalized == text or not any(mark in normalized for mark in _MARKUP):
        return normalized
    return _repeat_until_stable_within(
        normalized, one_round, re.compile("|".join(mark for name, mark in _MARKS.items() if name not in skip) or "(?!)")
    )


# The bits of characters for `_bits_in`. The table has one more bit, for characters that `replace_unreadable` replaces.
_BITS = {character: 1 << bit for bit, character in enumerate((*_MARKUP, *(newline[0] for newline in _NEWLINES[1:]), *_BLANKS))}
_UNREADABLE_BIT = len(_BITS)
_RUNS = 7 << 61  # the bits of runs of blanks and newlines (see kernels.scan)
_UNEVEN = sum(bit for character, bit in _BITS.items() if character not in _MARKUP) | _RUNS
_NEEDS = {
    "unreadable": 1 << _UNREADABLE_BIT,
    **{name: _BITS[mark.strip("\\")[0]] for name, mark in _MARKS.items()},
    "headings": _BITS["="],
    "blanks": _UNEVEN,
}
_ANY = (1 << 64) - 1


def _bits_in(text: str) -> int:
    """Return the bits of _BITS, _UNREADABLE_BIT and _RUNS for everything that the text contains."""
    from niels_cache_cleaning import kernels

    return int(kernels.scan(bytes_of(text), _table()))


@lru_cache(maxsize=1)
def _table() -> Uints:
    """Return the bits of each code point, in the form that `kernels.scan` takes."""
    from niels_cache_cleaning import kernels

    table = np.zeros(kernels.SIZE, dtype=np.uint64)
    table[[*map(ord, _BITS)]] = [*_BITS.values()]
    unreadable = [code_point for code_point in range(kernels.LIMIT) if _UNREADABLE.match(chr(code_point))]
    table[[*unreadable, kernels.LIMIT]] |= np.uint64(1 << _UNREADABLE_BIT)  # the other code points are looked at one by one
    return table


def _repeat_until_stable(text: str, name: str, mark: str, step: Normalizer) -> str:
    if mark[0] not in text or mark not in text:  # one character is found faster than two
        return text
    return _repeat_until_stable_within(text, step, re.compile(_MARKS[name]), needed=mark)


def _repeat_until_stable_within(text: str, step: Callable[[str], str], marks: re.Pattern[str], *, needed: str = "") -> str:
    """Return the text after repeating a step until the text no longer changes, at most a fixed number of times.

    Only a text crafted for this purpose changes more than PASSES times. For such a text, blanks replace the marks in the region that
    still changes. If the text changes even then, blanks replace all marks. Without marks no markup begins, and the blanks keep the text on
    both sides apart, so two more steps are enough.

    Args:
        text: The text.
        step: The step.
        marks: Pattern of the marks that blanks replace.
        needed: Part of each mark, if `step` changes no text without marks; by default unknown.
    """
    for _ in range(PASSES):
        before, text = text, step(text)
        if text == before or (needed and (needed not in text or not marks.search(text))):
            return text
    for _ in range(REGIONS):
        after = step(text)
        if after == text:
            return text
        start, end = _changed_range(text, after)
        text = step(text[:start] + marks.sub(" ", text[start:end]) + text[end:])
    return step(step(marks.sub(" ", text)))


def _changed_range(before: str, after: str) -> tuple[int, int]:
    """Return (start, end) of the part of `before` that differs from `after`, without the common beginning and the common end."""
    shared = min(len(before), len(after))
    start = bisect_left(range(shared), True, key=lambda length: before[: length + 1] != after[: length + 1])
    shared_end = bisect_left(range(shared - start), True, key=lambda length: before[-length - 1 :] != after[-length - 1 :])
    return max(0, start - _MARGIN), len(before) - shared_end


def _decode_entity(found: re.Match[str]) -> str:
    """Return the character that an entity stands for.

    An unknown name is kept. `html.unescape` alone would read `&notit;` as `&not` and `it;`.
    """
    name = found.group(1) + ";"
    return replace_unreadable(html.unescape("&" + name)) if name[0] == "#" else html5.get(name, "&" + name)


def _without_file_links(text: str) -> str:
    return remove_spans(text, match_pairs(text, _brackets_of_files(text), LONGEST_FILE_LINK, _FILE_LINK))


def _brackets_of_files(text: str) -> Iterator[Mark]:
    """Yield the brackets of links, except those between two links to files."""
    found = _FILE_LINK.search(text)
    while found:
        start = end = found.start()
        before = start
        while before and text[before - 1] == "[":
            before -= 1
        if (start - before) % 2:  # in a run of brackets, links begin at every second one
            found = _FILE_LINK.search(text, start + 1)
            continue
        depth = 0
        for mark in find_marks(text, "[[", "]]", start):
            yield mark
            end = mark[1]
            depth += 1 if mark[2] else -1
            if not depth:
                break
        else:
            return
        found = _FILE_LINK.search(text, end)


def _table_marks(text: str) -> Iterator[Mark]:
    """Yield the marks of tables.

    Blanks before a mark belong to it, and before an opening mark also marks of lists.
    """
    for start, end, opens, _ in find_marks(text, "{|", "|}"):
        line = start
        while line and text[line - 1] in (" \t:*" if opens else " \t"):
            line -= 1
        if (not line or text[line - 1] == "\n") and (not opens or _TABLE_HEAD.match(text, start)):
            yield line, end, opens, ""


def _unprose_tags(text: str) -> Iterator[Mark]:
    for found in _UNPROSE_TAGS.finditer(text):
        name = found["name"]
        yield found.start(), found.end(), name is not None, (name or found["closed"]).lower()


def _without_tags(text: str) -> str:
    if "<!--" in text:
        text = remove_spans(text, match_pairs(text, find_marks(text, "<!--", "-->"), LONGEST_COMMENT))
    if "</" in text:
        text = remove_spans(text, match_pairs(text, _unprose_tags(text), LONGEST_ELEMENT))
        text = _POWER.sub(r"^\1", text)
    unmatched = _unmatched(text)

    def replacement(found: re.Match[str]) -> str:
        if unmatched and unmatched[found.start()]:
            return found.group()
        return "" if found["inline"] else "\n" if found["breaking"] else " "

    return substitute(text, _TAG, replacement)


def _unmatched(text: str) -> bytearray | None:
    """Return for each character whether an opening tag begins there that has neither attribute values nor a closing tag.

    The result is None if the text has no tags to check.
    """
    unmatched = None
    opened: dict[str, array[int]] = defaultdict(lambda: array("q"))
    for found in _BARE_TAG.finditer(text):
        unmatched = unmatched or bytearray(len(text))
        open_tags = opened[found[2].lower()]
        if not found[1]:
            open_tags.append(found.start())
            unmatched[found.start()] = True
        elif open_tags:
            unmatched[open_tags.pop()] = False
    return unmatched


def _label(found: re.Match[str]) -> str:
    target, _, label = (found[1] or found[2]).rpartition("|")
    return (label or target.partition("|")[0]).removeprefix(":")


def _line_with_equals_sign(text: str, after: int) -> int | None:
    """Return the start of the next line that begins with an equals sign, or None."""
    newline = text.find("\n=", after)
    return newline + 1 if newline >= 0 else None


def _heading_text(found: re.Match[str]) -> str:
    line = found[0].rstrip(" \t")
    is_balanced = len(line.lstrip("=")) == len(line.rstrip("="))
    return (line.strip("= \t") if is_balanced else "") or found[0]
