"""Wikitext to plain text: `plain_text`.

Two steps. One scan over the page takes out what shows no prose anyway (comments, references, templates, tables, files, categories, tags)
and every mark that is never closed; what is left goes line by line to mwparserfromhell, which knows links and entities, and its nodes
become text. The scan is there because the parser reads on from an unclosed mark to the end of its input and comes back: 20 KB of `{{a|`
take it 15 s. After the scan its input is one line without such marks, so the whole is linear in the page, without any limit on a page's
size: about 2 MB/s on articles, two to three times what the parser alone gives. Dumps and redirects are not known here.

Kept: paragraphs, headings as lines of their own, list items with `-`, labels of links, formulas as their LaTeX between `$`, code, and the
text of the few templates in `_TEXT_TEMPLATES`. Grammar: mediawiki.org, Help:Formatting and Preprocessor ABNF.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

# Contents are no wikitext: up to the first closing tag, as MediaWiki's preprocessor reads them.
_HIDDEN = "ref gallery timeline imagemap graph score hiero templatedata templatestyles mapframe maplink categorytree inputbox references"
_HIDDEN += " section indicator style script"
_FORMULAS = ("math", "chem", "ce")
_LITERAL = ("nowiki", "pre", "source", "syntaxhighlight")
_EXTENSIONS = frozenset((*_HIDDEN.split(), *_FORMULAS, *_LITERAL))
_OPENING = re.compile(rf"<!--|<({'|'.join(sorted(_EXTENSIONS, key=len, reverse=True))})(?=[\s/>])([^<>]{{0,2000}})>", re.IGNORECASE)

_MARKS = re.compile(
    r"(?P<braces>\{{2,}|\}{2,})|(?P<link>\[\[|\]\])"
    r"|(?P<table>^[ \t:*#]{0,20}\{\||^[ \t]{0,20}\|\}(?!\})|<table\b[^<>]{0,2000}>|</table\s{0,9}>)"
    r"|(?P<tag></?[a-zA-Z][a-zA-Z0-9]{0,20}(?:[\s/][^<>]{0,2000})?>)|(?P<address>\[(?=(?:https?:|ftp:|mailto:)?//|mailto:))|(?P<end>\])"
    r"|(?P<less><)|(?P<line>\n)",
    re.MULTILINE,
)
_DEPTH = 40  # open marks at a time; more are not markup that anybody meant
_RANKS = {"[": 0, "[[": 1, "{|": 2, "<table": 2, "{{": 2}  # a closing mark looks for its partner past what ranks no higher

_BLOCK_TAGS = frozenset(("br", "hr", "p", "div", "li", "ul", "ol", "dl", "dd", "dt", "tr", "blockquote", "center", "poem"))
_TAG_NAME = re.compile(r"</?([a-zA-Z][a-zA-Z0-9]*)")
_TEMPLATE_NAME = re.compile(r"\s{0,99}([^|{}<>\[\]\n]{1,60}?)\s{0,99}(?=[|}])")
_LANGUAGE = {"lang": 2, "transl": -1, "transliteration": -1}  # which of the arguments is the text
_TEXT_TEMPLATES = {
    "nowrap": 1,
    "nobr": 1,
    "nobold": 1,
    "small": 1,
    "big": 1,
    "smallcaps": 1,
    "sc": 1,
    "abbr": 1,
    "convert": 0,
    "cvt": 0,
    **_LANGUAGE,
}

# Namespaces that show no text where they are linked, in the languages of the largest wikis.
_NO_TEXT = "file image media category datei bild kategorie fichier catégorie archivo imagen categoría ficheiro imagem categoria"
_NO_TEXT += " immagine plik grafika kategoria bestand afbeelding categorie файл изображение категория зображення категорія"
_NO_TEXT += " ファイル 画像 カテゴリ 文件 图像 分类 分類 파일 분류"
_NAMESPACES = frozenset(_NO_TEXT.split())
_NAMESPACE = re.compile(r"\s{0,9}([^\W\d_]{2,20})\s{0,9}:")
_OTHER_LANGUAGE = re.compile(r"\[\[[a-z]{2,3}(?:-[a-z]{2,8})?:[^\[\]|\n]{1,300}\]\]")

_QUOTES = re.compile(r"'{2,}")
_SWITCH = re.compile(r"__[A-Z]{3,30}__")
_LIST = re.compile(r"([*#:;]+)[ \t]*")
_HEADING = re.compile(r"(={1,6})(.+)\1\s*")
_EMPTY_BRACKETS = re.compile(r" ?\([ ,;:–-]*\)")
_BRACKET_START = re.compile(r"\([ ,;:]+")
_SPACE_BEFORE = re.compile(r" +([,;:.)])(?=\W|$)")
_BLANKS = re.compile(r"[ \t\u00a0]+")
_NEEDS_PARSER = re.compile(r"[\[&{]|//")
_DOUBLE_MARK = re.compile(r"\[\[|\]\]|\{\{|\}\}")
_PIECE = 100_000  # characters of a line that are parsed at a time
_RAW = re.compile("\x02(\\d+)\x02")


def plain_text(wikitext: str) -> str:
    """The prose of a page as paragraphs between blank lines; empty where nothing is left. Pure; linear in time and memory."""
    raw: list[str] = []
    text = _without_extensions(re.sub("[\x00\x02]", "", wikitext).replace("\r\n", "\n"), raw)
    text = _SWITCH.sub("", _OTHER_LANGUAGE.sub("", _closed_markup(text)))
    lines: list[str] = []
    pending: list[tuple[int, str]] = []  # headings whose section has shown nothing yet
    for line in text.split("\n"):
        heading = _HEADING.fullmatch(line) if line.startswith("=") else None
        if heading:
            level = len(heading[1])
            pending = [above for above in pending if above[0] < level]
            pending.append((level, _line_text(heading[2])))
            continue
        shown = _line_text(line)
        if shown:
            for _, title in pending:
                lines += ["", title, ""]
            pending = []
        if shown or (lines and lines[-1]):
            lines.append(shown)
    joined = re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip("\n")
    return _RAW.sub(lambda match: raw[int(match[1])], joined).strip()


def _without_extensions(text: str, raw: list[str]) -> str:
    """Take out comments and extension tags.

    What shows of them goes to `raw`, and its index between two characters that no page holds takes its place.
    """
    lowered = text.lower()
    lowered = lowered if len(lowered) == len(text) else text  # a few letters grow; then only closing tags in lower case are found
    missing: set[str] = set()  # closing marks that do not come any more: not to look for them again keeps this linear
    parts = []
    position = 0
    while opening := _OPENING.search(text, position):
        parts.append(text[position : opening.start()])
        position = opening.end()
        name = (opening[1] or "").lower()
        if name and opening[2].endswith("/"):
            continue
        closing = f"</{name}" if name else "-->"
        end = -1 if closing in missing else lowered.find(closing, position)
        if end < 0:
            missing.add(closing)  # what it would have hidden stays
            continue
        content = text[position:end]
        if name:
            after = text.find(">", end, end + 100)
            position = after + 1 if after >= 0 else end + len(closing)
        else:
            position = end + len(closing)
        if name in _FORMULAS or name in _LITERAL:
            if name in _FORMULAS:  # the same formula to LaTeX, and no template to whoever reads the text next
                content = "$" + content.strip().replace("{{", "{ {").replace("}}", "} }") + "$"
            raw.append(content)
            parts.append(f"\x02{len(raw) - 1}\x02")
    return "".join((*parts, text[position:]))


def _closed_markup(text: str) -> str:
    """Take out templates, tables, files, categories and tags, and every mark without a partner; join lines inside a link."""
    out: list[str] = []
    stack: list[tuple[str, int]] = []  # open marks, and where in `out` each stands
    position = 0

    def close(kind: str) -> int | None:
        """Index in `out` of the partner of a closing mark, off the stack; open marks above it never close."""
        for depth in range(len(stack) - 1, -1, -1):
            if stack[depth][0] == kind:
                for _, index in stack[depth + 1 :]:
                    out[index] = ""
                index = stack[depth][1]
                del stack[depth:]
                return index
            if _RANKS[stack[depth][0]] > _RANKS[kind]:
                return None
        return None

    def open_mark(kind: str, shown: str) -> None:
        if len(stack) >= _DEPTH:  # nobody meant these to be closed; their text shows
            for _, index in stack:
                out[index] = ""
            stack.clear()
        stack.append((kind, len(out)))
        out.append(shown)

    for match in _MARKS.finditer(text):
        out.append(text[position : match.start()])
        position = match.end()
        mark = match[0]
        group = match.lastgroup
        if group == "braces":
            if mark[0] == "{":
                open_mark("{{", mark)
            else:
                left = len(mark)
                while left >= 2 and (index := close("{{")) is not None:
                    left -= _take_template(out, index, min(left, len(out[index])), stack)
        elif group == "link":
            if mark == "[[":
                open_mark("[[", mark)
            elif (index := close("[[")) is not None:
                _take_link(out, index)
        elif group == "table":
            kind = "<table" if "<" in mark else "{|"
            if mark.startswith("</") or mark.endswith("}"):
                if (index := close(kind)) is not None:
                    del out[index:]
            else:
                open_mark(kind, "")
        elif group == "address":
            open_mark("[", "[")
        elif group == "end":
            out.append("]" if not stack or stack[-1][0] != "[" or close("[") is not None else "")
        elif group == "line":
            while stack and stack[-1][0] == "[":  # an address ends with its line
                out[stack.pop()[1]] = ""
            out.append("\n")
        elif group == "tag":
            name = _TAG_NAME.match(mark)
            out.append("\n" if name and name[1].lower() in _BLOCK_TAGS else "")
        else:
            out.append("&lt;")
    out.append(text[position:])
    for _, index in stack:
        out[index] = ""
    return "".join(out)


def _take_template(out: list[str], index: int, closing: int, stack: list[tuple[str, int]]) -> int:
    """Take out the template, or the parameter of one, that begins at `index`; returns how many braces that used (2 or 3)."""
    used = min(closing, 3)
    rest = out[index][used:]
    content = "".join(out[index + 1 :])
    del out[index:]
    if len(rest) >= 2:
        stack.append(("{{", len(out)))
        out.append(rest)
    elif rest:
        out.append(rest)
    name = _TEMPLATE_NAME.match(content + "}")
    if used == 2 and name and name[1].lower() in _TEXT_TEMPLATES and len(content) <= 1000 and "{{" not in content:
        out.append("{{" + content.replace("\n", " ") + "}}")
    return used


def _take_link(out: list[str], index: int) -> None:
    """Finish the link that begins at `index`: on one line, and nothing where it shows no text."""
    content = "".join(out[index + 1 :])
    del out[index:]
    namespace = _NAMESPACE.match(content)
    if not (namespace and namespace[1].lower() in _NAMESPACES):
        out.append("[[" + content.replace("\n", " ") + "]]")


def _line_text(line: str) -> str:
    """The text of one line without its markup; empty for what is left of a table."""
    if line.startswith(("|", "! ", "{|", "----")):
        return ""
    item = _LIST.match(line)
    prefix = ""
    if item:
        line = line[item.end() :]
        depth = len(item[1])
        prefix = "  " * (depth - 1) + "- " if item[1][-1] in "*#" else ""
    line = _QUOTES.sub(lambda match: "'" * ((0, 0, 0, 0, 1)[len(match[0])] if len(match[0]) < 5 else len(match[0]) - 5), line)
    if _NEEDS_PARSER.search(line):
        pieces = list(_pieces(line))
        line = "".join(_nodes_text(_parse(piece)) for piece in pieces)
        line = _DOUBLE_MARK.sub("", line) if len(pieces) > 1 else line  # of links that a cut went through
    line = _BLANKS.sub(" ", line)
    if "(" in line:
        line = _BRACKET_START.sub("(", _EMPTY_BRACKETS.sub("", line))
    line = _SPACE_BEFORE.sub(r"\1", line).strip()
    return prefix + line if line.strip(" -*•·,.;:|") else ""


def _pieces(line: str) -> Iterator[str]:
    """The line as the parser gets it: its nodes take a hundred times the space of their text, so a line that is a book comes in parts."""
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
    """What a reader of the page sees of a node."""
    kind = type(node).__name__
    if kind == "Text":
        return str(node.value)
    if kind == "Wikilink":
        return _nodes_text(node.text) if node.text is not None else _nodes_text(node.title).strip().removeprefix(":")
    if kind == "ExternalLink":
        return _nodes_text(node.title) if node.brackets else _nodes_text(node.url)
    if kind == "HTMLEntity":
        return _entity(node)
    if kind == "Template":
        return _template_text(node)
    if kind == "Tag":  # only list marks and rules in the middle of a line: the scan took the others
        return str(node.wiki_markup or "")
    return ""


def _entity(node: Any) -> str:
    """The character, or the entity as it stands where there is none. Half a surrogate pair and control characters show nothing."""
    try:
        character = str(node.normalize())
    except (ValueError, OverflowError):
        return str(node)
    return "" if "\ud800" <= character <= "\udfff" or character < " " else character


def _template_text(node: Any) -> str:
    """The text of a template in `_TEXT_TEMPLATES`."""
    values = [_nodes_text(parameter.value).strip() for parameter in node.params if not parameter.showkey]
    which = _TEXT_TEMPLATES.get(str(node.name).strip().lower())
    if which is None or not values:
        return ""
    if which == 0:  # convert: the number and the unit that the writer gave, both ends of a range too
        amount = [value for value in values[:4] if value]
        unit = next(
            (place for place, value in enumerate(amount[1:], 1) if value[0].isalpha() and value not in ("to", "and", "by", "or")), 1
        )
        return " ".join(amount[: unit + 1])
    return values[-1] if which < 0 or which > len(values) else values[which - 1]
