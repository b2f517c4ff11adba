"""Conversion of wikitext to plain text: `text_or_list`.

There are two steps. First, one scan over the page removes everything that shows no prose (comments, references, templates, tables, files,
categories, tags) and all marks that are never closed. The scan inserts the text of templates that are prose (`templates`) and the labels of
addresses. Second, mwparserfromhell parses the links and entities in the remaining text line by line, and its nodes become text.

Used alone, the parser reads to the end of its input at an unclosed mark and goes back: 20 KB of `{{a|` take 15 s. After the scan, it gets
one line with all marks closed. The time is therefore linear in the page, and a page has no size limit: about 10 MB/s on articles. A line
whose links are plain needs no parser (`simple_text`).

The text keeps paragraphs, headings as separate lines, list items with `-`, labels of links, formulas as LaTeX between `$`, code,
quotations, and raised numbers such as `10^6`. The text omits sections of end matter (`languages`) and sections that only list names or
works, because such sections are not prose and would turn many articles into lists. It also omits links to the same article in a different
language if they are on a separate line. (`[[wp:Manual]]` in a sentence shows the same text as in MediaWiki.) With
`Form(headings=True)`, headings keep their levels.

Grammar: mediawiki.org, Help:Formatting and Preprocessor ABNF. Dumps and redirects are handled elsewhere.
"""

import re
from collections.abc import Iterator
from html.entities import name2codepoint
from typing import Any, NamedTuple

from niels_cache_corpora.wikipedia.names import BLOCK_TAGS, EXTENSIONS, FORMULAS, LANGUAGES, LITERAL_TAGS, TAGS
from niels_cache_corpora.wikipedia.site import NO_SITE, Site, prefix_of
from niels_cache_corpora.wikipedia.templates import EQUALS, template_text

_LISTED_LINES = 50  # lines of an article that has only lists, for an example
_SENTENCE = 100  # list items with at least this average length in characters are prose
_JOINED = re.compile(r"\s*(?:,|&|/|\band\b)\s*")

_OPENING = re.compile(rf"<!--|<({'|'.join(sorted(EXTENSIONS, key=len, reverse=True))})(?=[\s/>])([^<>]{{0,2000}})>", re.IGNORECASE)

_NEXT_MARK = re.compile(r"[\[\]{}<\n]")
_BRACES = re.compile(r"\{{2,}|\}{2,}")
_TABLE_LINE = re.compile(r"[ \t:*#]{0,20}\{\||[ \t]{0,20}\|\}(?!\})")  # at the start of a line
_TAG = re.compile(rf"(?P<table><table\b[^<>]{{0,2000}}>|</table\s{{0,9}}>)|(?P<tag></?(?:{TAGS})(?:[\s/][^<>]{{0,2000}})?>)", re.IGNORECASE)
_ADDRESS_START = re.compile(r"\[(?=(?:https?:|ftp:|mailto:)?//|mailto:)", re.IGNORECASE)

_DEPTH = 40  # maximum number of open marks; if a page has more, the marks are not meant as markup
_RANKS = {"[": 0, "[[": 1, "{|": 2, "<table": 2, "{{": 2}  # a closing mark skips open marks of the same or a lower rank to find its partner
_TAG_NAME = re.compile(r"</?([a-zA-Z][a-zA-Z0-9]*)")
_ADDRESS = re.compile(r"[^\s\[\]<>\"\x02-\x08]*")
_POWER = re.compile(
    r"(?:(?<=[\d)])|(?<=''))<sup>[ ]?((?:&minus;|[-−–+])?(?:\d{1,9}(?:[.,/]\d{1,9})?|''[^\W\d_]{1,3}''))[ ]?</sup>", re.IGNORECASE
)

# Characters that stand for what the scan has found. The scan first removes these characters from the page.
_RAW = re.compile("\x02(\\d+)\x02")  # text that is not wikitext, by its index
_REMOVED = "\x03"  # a template or reference was here; brackets and blanks around it may be superfluous
_ROWS = "\x04"  # a table or template that never closes began here; the following lines may be its rows
_LINK, _LINK_END = "\x05", "\x06"
_LITERALS = (("[", "\x07"), ("{", "\x08"))  # hidden from the parser, which would read [ and { as marks
_LESS = "\x0e"
_RESTORED = (
    *((hidden, mark) for mark, hidden in _LITERALS),
    (_LESS, "<"),
    (EQUALS, "="),
    *((mark, "") for mark in (_REMOVED, _ROWS, _LINK, _LINK_END)),
)
_PRIVATE = re.compile("[\x00\x02-\x08\x0e-\x11\x1e]")

_LANGUAGE_LINKS = re.compile("(?:\x05\\s?([a-z-]{2,12})\\s?:[^\x05\x06|]{1,300}\x06\\s{0,9})+")
_LANGUAGE_CODE = re.compile("\x05\\s?([a-z-]{2,12})\\s?:")

_QUOTES = re.compile(r"'{2,}")
_SWITCH = re.compile(
    r"__(?:NOTOC|FORCETOC|TOC|NOEDITSECTION|NEWSECTIONLINK|NONEWSECTIONLINK|NOGALLERY|HIDDENCAT|EXPECTUNUSEDCATEGORY|EXPECTUNUSEDTEMPLATE"
    r"|NOCONTENTCONVERT|NOCC|NOTITLECONVERT|NOTC|INDEX|NOINDEX|STATICREDIRECT|NOGLOBAL|DISAMBIG)__"
)  # mediawiki.org, Help:Magic words, and the magic words of the usual extensions
_LIST = re.compile(r"([*#:;]+)[ \t]*")
_RULE = re.compile("-{4,}")
_HEADING = re.compile("(={1,6})(.+)\\1[\\s\x03]*")
_EMPTIED_BRACKETS = re.compile(" ?\\([ ,;:–-]*\x03[ ,;:–\x03-]*\\)")
_DOUBLED = re.compile("[,;] *\x03[ \x03]*(?=[,;])")
_EMPTIED_START = re.compile("\\([ ,;:]*\x03[ ,;:\x03]*")
_EMPTIED_END = re.compile("(?<![ ,;:\x03])[ ,;:\x03]++(?=\\))")
_SPACE_BEFORE = re.compile("(?<![ \x03])[ \x03]++([,;:.)])(?=\\W|$)")
_BLANKS = re.compile(r"[ \t\u00a0]{2,}|[\t\u00a0]")
_DOUBLE_MARK = re.compile(r"\[\[|\]\]")


class Form(NamedTuple):
    """The options for the text of a page.

    Attributes:
        site: The wiki of the page.
        headings: Whether headings keep their level, as in Markdown.
    """

    site: Site = NO_SITE
    headings: bool = False


def text_or_list(wikitext: str, form: Form) -> tuple[str, bool]:
    """Return the prose of a page as paragraphs between blank lines, and whether the page has only lists.

    The function is pure, and linear in time and memory.

    Args:
        wikitext: The markup of the page.
        form: The options.

    Returns:
        The prose and False. For a page without prose that has sections that list names or works, the beginning of these lists and True.
    """
    raw: list[str] = []
    text = _without_extensions(_PRIVATE.sub("", wikitext).replace("\r\n", "\n"), raw)
    if "<sup>" in text:
        text = _POWER.sub(r"^\1", text)
    text = _SWITCH.sub("", _closed_markup(text, form.site))
    page = _Page(form)
    in_rows = False
    for line in text.split("\n"):
        heading = _HEADING.fullmatch(line) if line.startswith("=") else None
        if heading:
            in_rows = False
            page.start_section(len(heading[1]), heading[2])
            continue
        if page.end_matter:
            continue
        if _ROWS in line or line.startswith("|-"):
            in_rows = True
            line = line.replace(_ROWS, "")
        page.section.append("" if in_rows and line.startswith(("|", "!")) else _line_text(line))
    page.end_section()

    def joined(lines: list[str]) -> str:
        shown = re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip("\n")
        return _RAW.sub(lambda match: raw[int(match[1])], shown).strip()

    text = joined(page.lines)
    listed = joined(page.listed) if not text else ""
    return text or listed, bool(listed)


class _Page:
    """The output of a page.

    It has the lines of each section with prose, and the headings of these sections and of the sections that contain them.
    """

    def __init__(self, form: Form) -> None:
        self._form = form
        self.lines: list[str] = []
        self.section: list[str] = []  # lines of the current section
        self.listed: list[str] = []  # the first lines of sections that only list names or works
        self.end_matter = 0  # heading level of the current end matter, 0 in prose
        self._headings: list[tuple[int, str]] = []  # headings of sections that have shown nothing yet

    def start_section(self, level: int, title: str) -> None:
        if self.end_matter and level > self.end_matter:
            return
        self.end_section()
        title = _line_text(title)
        self._headings = [above for above in self._headings if above[0] < level]
        self.end_matter = level if _is_end_matter(title, self._form.site.end_matter) else 0
        if not self.end_matter:
            self._headings.append((level, f"{'#' * level} {title}" if self._form.headings and title else title))

    def end_section(self) -> None:
        shown = [line for line in self.section if line]
        are_items = all(line.lstrip(" ").startswith("- ") for line in shown)
        is_list = are_items and sum(map(len, shown)) < _SENTENCE * len(shown)  # of short items, such as names or works
        if shown and not (self._headings and is_list):
            for _, title in self._headings:
                self.lines += ["", title, ""]
            self._headings = []
            self.lines += self.section
        elif shown:
            self.listed = [*self.listed, *shown][:_LISTED_LINES]
        self.section = []


def _is_end_matter(title: str, headings: frozenset[str]) -> bool:
    title = title.lower().strip(" :.")
    return title in headings or all(part in headings for part in _JOINED.split(title[:100]))


def _without_extensions(text: str, raw: list[str]) -> str:
    """Remove comments and extension tags.

    Visible content is appended to `raw`, and its index there, between two characters that no page contains, replaces it in the text.
    """
    lowered = text.lower()
    lowered = lowered if len(lowered) == len(text) else text  # `lower` makes a few letters longer; then only lower-case tags are closed
    missing: set[str] = set()  # closing marks that do not occur again; they are not searched for twice, so that the scan stays linear
    parts = []
    position = 0
    while opening := _OPENING.search(text, position):
        parts.append(text[position : opening.start()])
        position = opening.end()
        name = (opening[1] or "").lower()
        hidden = bool(name) and name not in FORMULAS and name not in LITERAL_TAGS
        if name and opening[2].endswith("/"):
            parts.append(_REMOVED if hidden else "")
            continue
        closing = rf"</{name}(?!\w)" if name else "-->"  # `</references>` does not close `<ref>`
        end = None if closing in missing else re.compile(closing).search(lowered, position)
        if end is None:
            missing.add(closing)  # the text that this tag would have hidden stays
            continue
        content = text[position : end.start()]
        after = text.find(">", end.end(), end.end() + 100) if name else -1
        position = after + 1 if after >= 0 else end.end()
        if hidden:
            parts.append(_REMOVED)
        elif name:
            if name in FORMULAS:  # in LaTeX this is the same formula, and the next step does not mistake it for a template
                content = "$" + content.strip().replace("{{", "{ {").replace("}}", "} }") + "$"
            raw.append(content)
            parts.append(f"\x02{len(raw) - 1}\x02")
    return "".join((*parts, text[position:]))


def _closed_markup(text: str, site: Site) -> str:
    """Remove templates, tables, files, categories, tags and all marks without a partner, and join the lines inside a link."""
    out: list[str] = []
    stack: list[tuple[str, int]] = []  # open marks, and the index of each in `out`
    position = 0

    def never_close(marks: list[tuple[str, int]]) -> None:
        for _, index in marks:
            out[index] = _ROWS if out[index].startswith((_ROWS, "{{")) else ""

    def close(kind: str) -> int | None:
        """Return the index in `out` of the open mark for a closing mark, and pop this open mark. Open marks above it never close."""
        for depth in range(len(stack) - 1, -1, -1):
            if stack[depth][0] == kind:
                never_close(stack[depth + 1 :])
                index = stack[depth][1]
                del stack[depth:]
                return index
            if _RANKS[stack[depth][0]] > _RANKS[kind]:
                return None
        return None

    def open_mark(kind: str, shown: str) -> None:
        if len(stack) >= _DEPTH:  # such marks are not meant as markup; their text shows
            never_close(stack)
            stack.clear()
        stack.append((kind, len(out)))
        out.append(shown)

    while match := _next_mark(text, position):
        start, group, mark = match
        out.append(text[position:start])
        position = start + len(mark)
        if group == "braces":
            if mark[0] == "{":
                open_mark("{{", mark)
            else:
                left = len(mark)
                while left >= 2 and (index := close("{{")) is not None:
                    left -= _replace_template(out, index, min(left, len(out[index])), stack)
        elif group == "link":
            if mark == "[[":
                open_mark("[[", mark)
            elif stack and stack[-1][0] == "[" and (text.startswith("]", position) or all(kind != "[[" for kind, _ in stack)):
                _replace_address(out, stack.pop()[1])  # the label of the address ends with the first bracket
                position -= 1
            elif (index := close("[[")) is not None:
                _finish_link(out, index, site)
        elif group == "table":
            kind = "<table" if "<" in mark else "{|"
            if mark.startswith("</") or mark.endswith("}"):
                if (index := close(kind)) is not None:
                    del out[index:]
            else:
                open_mark(kind, _ROWS if kind == "{|" else "")
        elif group == "address":
            open_mark("[", "[")
        elif group == "end":
            if stack and stack[-1][0] == "[":
                _replace_address(out, stack.pop()[1])
            else:
                out.append("]")
        elif group == "line":
            while stack and stack[-1][0] == "[":  # an address ends at the end of its line
                out[stack.pop()[1]] = ""
            out.append("\n")
        elif group == "tag":
            found = _TAG_NAME.match(mark)
            out.append("\n" if found and found[1].lower() in BLOCK_TAGS else "")
        else:
            out.append(_LESS)
    out.append(text[position:])
    never_close(stack)
    return "".join(out)


def _next_mark(text: str, position: int) -> tuple[int, str, str] | None:
    """Return the start, the kind and the text of the first mark from `position` on, or None.

    `position` is the start of the text or the end of a mark. A search for the few characters that begin a mark, followed by a match at this
    place, takes a fifth of the time of one pattern for all marks.
    """
    if (not position or text[position - 1] == "\n") and (table := _TABLE_LINE.match(text, position)):
        return position, "table", table[0]
    while found := _NEXT_MARK.search(text, position):
        start, character = found.start(), found[0]
        if character == "\n":
            return start, "line", "\n"
        if character in "[]":
            if text.startswith(character, start + 1):
                return start, "link", character * 2
            if character == "]":
                return start, "end", "]"
            if _ADDRESS_START.match(text, start):
                return start, "address", "["
        elif character == "<":
            tag = _TAG.match(text, start)
            return (start, tag.lastgroup or "", tag[0]) if tag else (start, "less", "<")
        elif braces := _BRACES.match(text, start):
            return start, "braces", braces[0]
        position = start + 1
    return None


def _replace_template(out: list[str], index: int, closing: int, stack: list[tuple[str, int]]) -> int:
    """Replace the template that begins at `index` by its text, or remove the parameter that begins there.

    Returns:
        The number of braces used: two for a template, three for a parameter. Four braces are two templates.
    """
    used = 2 if closing in (2, 4) else 3
    rest = out[index][used:]
    content = "".join(out[index + 1 :])
    del out[index:]
    if len(rest) >= 2:
        stack.append(("{{", len(out)))
        out.append(rest)
    elif rest:
        out.append(rest)
    before = next((part for part in out[:-4:-1] if part), "")
    text = template_text(content, before) if used == 2 else None
    out.append(_REMOVED if text is None else text)
    return used


def _finish_link(out: list[str], index: int, site: Site) -> None:
    """Put the link that begins at `index` on one line, or remove it if it shows no text."""
    content = "".join(out[index + 1 :])
    del out[index:]
    namespace = prefix_of(content)
    if namespace in site.hidden or (namespace in site.media and "|" not in content):
        out.append(_REMOVED)
        return
    out.append(_LINK + content.replace("\n", " ") + _LINK_END)


def _replace_address(out: list[str], index: int) -> None:
    """Replace the address in brackets that begins at `index` by its label."""
    content = "".join(out[index + 1 :])
    del out[index:]
    address = _ADDRESS.match(content)
    label = content[address.end() if address else 0 :].strip()
    out.append(label or _REMOVED)


def _line_text(line: str) -> str:
    item = _LIST.match(line)
    prefix = ""
    if item:
        line = line[item.end() :]
        depth = len(item[1])
        prefix = "  " * (depth - 1) + "- " if item[1][-1] in "*#" else ""
    elif line.startswith("----"):
        line = _RULE.sub("", line, count=1)
    elif line.startswith(_LINK) and _only_languages(line):
        return ""
    if "''" in line:
        line = _QUOTES.sub(lambda match: "'" * max(len(match[0]) - 5, len(match[0]) == 4), line)
    if _LINK in line or "&" in line:  # addresses without brackets need no parser, because they show unchanged
        line = _replaced(line, _LITERALS)
        shown = simple_text(line)
        line = nodes_text(line.replace(_LINK, "[[").replace(_LINK_END, "]]")) if shown is None else shown
        line = _DOUBLE_MARK.sub("", line)  # such marks remain if the parser rejects a link, and after a cut through a link
    line = _BLANKS.sub(" ", line)
    if _REMOVED in line:
        if "(" in line:
            line = _EMPTIED_START.sub("(", _EMPTIED_BRACKETS.sub(_REMOVED, line))
        if ")" in line:
            line = _EMPTIED_END.sub(lambda match: "" if _REMOVED in match[0] else match[0], line)
        line = _DOUBLED.sub("", line)
        if f" {_REMOVED}" in line:
            line = _SPACE_BEFORE.sub(lambda match: match[1] if f" {_REMOVED}" in match[0] else match[0], line)
        line = _BLANKS.sub(" ", line.replace(_REMOVED, ""))
    line = _replaced(line, _RESTORED).strip()
    return prefix + line if line.strip(" -*•·,.;:|") else ""


def _replaced(line: str, pairs: tuple[tuple[str, str], ...]) -> str:
    for old, new in pairs:  # several times as fast as `translate`, because nearly every line holds none of them
        line = line.replace(old, new)
    return line


def _only_languages(line: str) -> bool:
    """Return whether the line holds only links to the same article in different languages."""
    links = line.replace(_REMOVED, "").rstrip()
    return bool(_LANGUAGE_LINKS.fullmatch(links)) and all(code in LANGUAGES for code in _LANGUAGE_CODE.findall(links))


# A link with a plain target and label, between the marks of the scan, or a named entity. The parser alone knows what else may be in a link.
_PLAIN = re.compile("\x05([^\x00-\x1f\\[\\]{}<>|&:/]+)(?:\\|([^\x00-\x1f\\[\\]{}<>|&/]*))?\x06|&([A-Za-z][A-Za-z0-9]{0,30});")
_OTHER_MARKS = re.compile("[\x05\x06]|&#")
_BLOCK_MARKS = ("*", "#", ":", ";", "=", "-")  # at the start of a line, these may begin a list, a heading or a rule
_PIECE = 100_000  # characters of a line that are parsed at a time


def nodes_text(line: str) -> str:
    """Return the text of a line whose marks are all closed."""
    return "".join(_nodes_text(_parse(piece)) for piece in _pieces(line))


def simple_text(line: str) -> str | None:
    """Return the text of a line whose links are plain, or None if the line needs the parser.

    The parser gives the same text in twenty times the time.

    Args:
        line: The line, with the marks that the scan puts at the ends of links.
    """
    if len(line) > _PIECE or line.startswith(_BLOCK_MARKS):
        return None
    shown = _PLAIN.sub(_plain_text, line)
    return None if _OTHER_MARKS.search(shown) else shown


def _plain_text(found: re.Match[str]) -> str:
    target, label, entity = found.groups()
    if entity is not None:
        code_point = name2codepoint.get(entity)
        return found[0] if code_point is None else chr(code_point)
    return target.strip() if label is None else label


def _pieces(line: str) -> Iterator[str]:
    """Yield the line in pieces for the parser. A long line is cut, because the parser needs a hundred times its memory."""
    start = 0
    while len(line) - start > _PIECE:
        end = line.rfind(" ", start, start + _PIECE) + 1
        end = end if end > start else start + _PIECE
        yield line[start:end]
        start = end
    yield line[start:]


def _parse(text: str) -> Any:
    import mwparserfromhell

    return mwparserfromhell.parse(text, skip_style_tags=True)


def _nodes_text(code: Any) -> str:
    return "".join(map(_node_text, code.nodes)) if code is not None else ""


def _node_text(node: Any) -> str:
    """Return the text that a reader of the page sees for a node."""
    kind = type(node).__name__
    if kind == "Text":
        return str(node.value)
    if kind == "Wikilink":
        return _nodes_text(node.text) if node.text is not None else _nodes_text(node.title).strip().removeprefix(":")
    if kind == "ExternalLink":  # an address without brackets; the scan has replaced all addresses with brackets
        return _nodes_text(node.url)
    if kind == "HTMLEntity":
        return _entity(node)
    if kind == "Tag":  # only list marks and rules in the middle of a line; the scan has removed all remaining tags
        return str(node.wiki_markup or "")
    if kind == "Heading":
        return _nodes_text(node.title)
    return ""


def _entity(node: Any) -> str:
    """Return the character of an entity, or the entity if it has none. Lone surrogates and control characters show nothing."""
    try:
        character = str(node.normalize())
    except (ValueError, OverflowError):
        return str(node)
    return "" if "\ud800" <= character <= "\udfff" or character < " " else character
