"""The rules of docs/cleaning.md again, in slow and simple Python. benchmarks/cleaning.py compares the cleaning chain with this code.

Nothing here uses `niels_cache_cleaning`. The order of the reasons is that of the documentation.
"""

import html
import re
import unicodedata
from collections import Counter
from collections.abc import Callable
from html.entities import html5

BREAKING = """address article aside blockquote br caption center dd details dialog dir div dl dt fieldset figcaption figure footer form
h1 h2 h3 h4 h5 h6 header hr li main menu nav noscript ol optgroup option p poem pre search section select source summary syntaxhighlight
table tbody template textarea tfoot thead title tr ul"""
SPACING = "audio button canvas embed iframe img input object picture td th video"
INLINE = """a abbr acronym area b base basefont bdi bdo big body categorytree ce chem cite code col colgroup data datalist del dfn em font
frame frameset gallery graph head html i imagemap includeonly indicator inputbox ins kbd label legend link map mapframe maplink mark math
meta meter noframes noinclude nowiki onlyinclude output param progress q rb ref references rp rt rtc ruby s samp score script slot small
span strike strong style sub sup templatedata templatestyles time timeline track tt u var wbr"""
TAGS = {
    **dict.fromkeys(BREAKING.split(), "\n"),
    **dict.fromkeys(SPACING.split(), " "),
    **dict.fromkeys(INLINE.split(), ""),
}
ALONE = "br dd dt hr li nowiki p references td th tr wbr".split()  # noqa: SIM905
WITHOUT_VALUE = """allowfullscreen async autoplay checked chem compact controls defer disabled hidden inline ismap line loop multiple muted
noshade nowrap open readonly required reversed selected"""
VALUE = r"""(?:"[^"<>]*"|'[^'<>]*'|(?:[^\s"'<>/]|/(?!>))+)"""
ATTRIBUTES = rf"(?:[\s/]+(?:[A-Za-z_:][\w:.-]*\s*=\s*{VALUE}|(?:{'|'.join(WITHOUT_VALUE.split())})(?=[\s/>])))*"
BEFORE_TABLE = r"(?m:(?=[ \t]*(?:$|<|[A-Za-z-]+[ \t]*=)))"
NOT_PROSE = "ref gallery script style timeline math chem score graph templatedata mapframe".split()  # noqa: SIM905
STOP_WORDS = {"the", "be", "to", "of", "and", "that", "have", "with"}
BULLETS = "*•‣◦⁃∙▪●·"
DASHES = "-–—+"


def normalize(text: str) -> str:
    before = None
    while text != before:
        before = text
        for character in sorted(set(text)):
            text = text.replace(character, readable(character))
        text = again_and_again(r"&(#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});", entity, text)
        text = inner_to_outer(text, r"\[\[", r"\]\]", 5_000, is_file_link)
        text = inner_to_outer(text, r"(?<!\{)\{\{\{(?!\{)", r"(?<!\})\}\}\}(?!\})", 10_000, lambda found: is_template(found[3:-3]))
        text = inner_to_outer(text, r"\{\{", r"\}\}", 10_000, lambda found: is_template(found[2:-2]))
        text = inner_to_outer(text, rf"(?m:^[ \t:*]*)\{{\|{BEFORE_TABLE}", r"(?m:^[ \t]*)\|\}", 20_000, lambda table: True)
        text = inner_to_outer(text, "<!--", "-->", 5_000, lambda comment: True)
        for name in NOT_PROSE:
            element = rf"(?is)<{name}(?=[\s>]){ATTRIBUTES}\s*>(?:(?!<{name}[\s>]).)*?</{name}\s*>"
            text = re.sub(element, lambda found: "" if len(found.group()) <= 10_000 else found.group(), text)
        text = re.sub(r"(?i)(?<=\d)<sup>\s*([+\-−]?\d{1,9})\s*</sup>", r"^\1", text)
        text = tags(text)
        text = again_and_again(r"\[\[(?!\[)((?:(?!\[\[|\]\])[^\n])*)\]\]", wiki_link, text)
        text = again_and_again(
            r"\[(?:(?:https?:|ftps?:|ircs?:|news:)?//|mailto:)[^\s\[\]<>]+(?:[ \t]+([^\[\]\n]*))?\]", external_link, text
        )
        text = "\n".join(heading(line) for line in text.split("\n"))
        text = blanks(text)
    return text


def readable(character: str) -> str:
    if unicodedata.category(character) == "Cs":
        return "\ufffd"
    control = unicodedata.category(character) == "Cc" and character not in "\t\n\v\f\r\x85"
    noncharacter = ord(character) & 0xFFFE == 0xFFFE or 0xFDD0 <= ord(character) <= 0xFDEF
    return " " if control or noncharacter else character


def again_and_again(pattern: str, replacement: Callable[[re.Match[str]], str], text: str) -> str:
    before = None
    while text != before:
        before = text
        text = re.sub(pattern, replacement, text)
    return text


def entity(found: re.Match[str]) -> str:
    name = found.group(1)
    if name.startswith("#"):
        return "".join(readable(character) for character in html.unescape(found.group()))
    return html5.get(name + ";", found.group())


def inner_to_outer(text: str, opening: str, closing: str, most: int, goes: Callable[[str], bool]) -> str:
    """Pair the first closing mark with the last opening mark before it, and so on. A pair with more than `most` characters stays."""
    position = 0
    unused: list[int] = []
    while True:
        close = re.compile(closing).search(text, position)
        open_ = re.compile(opening).search(text, position)
        if open_ and (close is None or open_.start() < close.start()):
            unused.append(open_.start())
            position = open_.end()
        elif close and unused:
            start = unused.pop()
            between = text[start : close.end()].replace("\0", "")
            if len(between) > most or not goes(between):
                position = close.end()
            else:
                text = text[:start] + "\0" + text[close.end() :]  # \0 keeps the text on both sides apart in this round
                position = start + 1
        elif close:
            position = close.end()
        else:
            return text.replace("\0", "")


def is_file_link(link: str) -> bool:
    name = link.removeprefix("[[").lstrip(" \t_").partition(":")[0].rstrip(" \t_").lower()
    return ":" in link and name in ("file", "image", "media", "category")


def is_template(inside: str) -> bool:
    name = re.split(r"\||<|\{\{", inside)[0].lstrip()
    begins_like_one = name[:1].isalnum() or name[:1] in tuple("_#:!\"'=&*~?+-")
    is_field = re.match(r"[a-z_]\w*\.\w", name) is not None
    return begins_like_one and not is_field and len(name) <= 201 and not set(name) & set("{}[]>")


def tags(text: str) -> str:
    before = None
    while text != before:
        before = text
        found = list(re.finditer(rf"(?a)(</?)([A-Za-z][A-Za-z0-9]*)(?=[\s/>])({ATTRIBUTES})\s*(/?)>", text))
        for place in reversed(range(len(found))):
            tag = found[place]
            name = tag[2].lower()
            if name in TAGS and (not is_bare(tag) or name in ALONE or tag[1] == "</" or is_closed(name, found[place + 1 :])):
                text = text[: tag.start()] + TAGS[name] + text[tag.end() :]
    return text


def is_bare(tag: re.Match[str]) -> bool:
    return "=" not in tag[3] and "/" not in tag[3] and not tag[4]


def is_closed(name: str, later: list[re.Match[str]]) -> bool:
    """Return whether one of the later tags is the partner of an opening tag. Tags whose attributes have values are no partners."""
    depth = 1
    for tag in later:
        if tag[2].lower() == name and is_bare(tag):
            depth += -1 if tag[1] == "</" else 1
        if depth == 0:
            return True
    return False


def wiki_link(found: re.Match[str]) -> str:
    target, bar, label = found.group(1).partition("|")
    label = label.split("|")[-1]
    before = found.string[: found.start()][-1:]
    if target != target.lstrip() or not target or set(target) & set("[]{}<>"):
        return found.group()
    if not bar and (before in (")", "_") or (before.isascii() and before.isalnum())):
        return found.group()
    return (label or target).removeprefix(":")


def external_link(found: re.Match[str]) -> str:
    return found.group(1) or ""


def heading(line: str) -> str:
    whole = line.rstrip(" \t")
    for level in range(1, 7):
        inside = whole[level:-level]
        if whole == "=" * level + inside + "=" * level and inside[:1] not in ("=", ">") and inside[-1:] != "=" and inside.strip("= \t"):
            return inside.strip("= \t")
    return line


def blanks(text: str) -> str:
    text = re.sub("\r\n|\r|\v|\f|\x85|\u2028|\u2029", "\n", text)
    text = re.sub(r"[^\S\n]+", " ", text)
    text = re.sub(" *\n", "\n", text)
    return re.sub("\n\n+", lambda found: "\n\n", text).strip()


def rules(identify: Callable[[str], str | None]) -> dict[str, Callable[[str, str], bool]]:
    """Return every rule in order. `identify` gives the language code of a text, or None if the language is unknown."""
    return {
        "redirect": lambda text, title: re.match(r"#redirect\b", text, re.IGNORECASE) is not None,
        "empty": lambda text, title: not text.strip(),
        "disambiguation": lambda text, title: is_disambiguation(text, title),
        "too_short": lambda text, title: len(text) < 400 or len(text.split()) < 50,
        "not_english": lambda text, title: language(text, identify) not in ("en", None),
        "list_page": lambda text, title: is_list(text),
        "bad_mean_word_len": lambda text, title: not 3 <= sum(len(word) for word in text.split()) / len(text.split()) <= 12,
        "high_symbol_ratio": lambda text, title: symbols(text) / len(text.split()) > 0.1,
        "low_alpha_ratio": lambda text, title: words_with_letter(text) / len(text.split()) < 0.8,
        "no_stopwords": lambda text, title: len(STOP_WORDS & set(text.lower().split())) < 2,
        "repetitive": lambda text, title: is_repetitive(text),
        "language_error": lambda text, title: language(text, identify) is None,
    }


def language(text: str, identify: Callable[[str], str | None]) -> str | None:
    """Return the language of a text. If its beginning is not English, look at more text and at the middle."""
    first = identify(text[:400])
    if first == "en" or len(text) <= 400:
        return first
    middle = (len(text) - 1333) // 2
    more = text if len(text) <= 4000 else "\n".join([text[:1333], text[middle : middle + 1333], text[-1333:]])
    middle = (len(text) - 400) // 2
    answers = [first, identify(more), identify(text[middle : middle + 400])]
    return "en" if "en" in answers else next((answer for answer in answers if answer), None)


def is_disambiguation(text: str, title: str) -> bool:
    if title.lower().strip().endswith("(disambiguation)"):
        return True
    verbs = r"(may|can|could|might|commonly|usually) (\w+ )?(refers?|stands?) (to|for)\b[^:]{0,80}:"
    lines = text[:500].split("\n")
    for place, line in enumerate(lines):
        if re.search(rf"\b{verbs}$", line):
            after = text[len("\n".join(lines[: place + 1])) :].lstrip().split("\n")[0]
            if len(after) < 80 or is_bullet(after):
                return True
    return False


def is_bullet(line: str) -> bool:
    return line[0] in BULLETS or (line[0] in DASHES and line[1:2] == " ")


def is_list(text: str) -> bool:
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    items = [line for line in lines if is_bullet(line)]
    characters = sum(len(line) for line in items if len(line) < 100) / sum(len(line) for line in lines)
    return len(items) / len(lines) > 0.5 and characters > 0.5


def symbols(text: str) -> int:
    return len(re.findall(r"#|\.\.\.|…", text))


def words_with_letter(text: str) -> int:
    return len([word for word in text.split() if any(character.isalpha() for character in word)])


def is_repetitive(text: str) -> bool:
    words = text.lower().split()
    pairs = Counter((words[place], words[place + 1]) for place in range(len(words) - 1))
    count = max(pairs.values())
    return count > 1 and count / (len(words) - 1) > 0.05
