"""Templates that are prose: `template_text`.

A dump holds the calls of templates, not their output. This module therefore lists the names of the few templates that show words, numbers
or punctuation. All other templates (infoboxes, references, maintenance notes, navigation, pronunciation in IPA) are removed, and so are
templates whose value depends on the date (age, currentyear, inflation).

Names and arguments come from the pages of the templates in the English Wikipedia. If an argument contains templates, these have already
become text. Links and entities in an argument are not changed. The time is linear in the length of the call.
"""

import re
from collections.abc import Callable, Iterator
from itertools import count, takewhile
from typing import TypeVar

from niels_cache_corpora.wikipedia.names import COUNTRIES

EQUALS = "\x0f"  # stands for an equals sign of an inner template, which names no argument of the outer template
Arguments = dict[str, str]  # "1", "2", ... for arguments without a name
Template = Callable[[Arguments], str]  # returns the text that a template shows
_Value = TypeVar("_Value")

_NAME = re.compile(r"[^|{}<>\[\]\n\x02-\x08]{1,60}")
_BOUNDS = re.compile("[\x05\x06|]")  # bars, and the bounds of a link, which `markup` has marked
_KEY = re.compile(r"\s{0,99}([\w ,.-]{1,30}?)\s{0,99}=")
_NUMBER = re.compile(r"[-−–+]?\d[\d,. /⁄]*")
_UNIT_NAMES = "sqmi sq mi, sqft sq ft, sqin sq in, sqyd sq yd, cuft cu ft, cuin cu in, cuyd cu yd, C °C, F °F, C-change °C, F-change °F"
_UNIT_NAMES += ", usgal US gal, impgal imp gal, LT long tons"
_UNITS = dict(entry.split(" ", 1) for entry in _UNIT_NAMES.split(", "))
_BETWEEN = {"-": "–", "–": "–", "to": " to ", "and": " and ", "or": " or ", "by": " by ", "x": " × ", "×": " × ", "*": " × "}
_BETWEEN |= {"+/-": " ± ", "±": " ± ", "to(-)": " to ", "and(-)": " and ", "or(-)": " or ", "xx": " × ", ",": ", "}
_MONTHS = ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December"]
_MAX_DIGITS = 100  # maximum length of the number of a month; `int` rejects thousands of digits
_SHIPS = "hms hmas hmcs hmnzs hmis hmsas hnlms hdms hswms uss usns uscgc uscgs usat usrc ss rms ms mv mt ps ts sms css mf rv ins orp fs"


def template_text(call: str, before: str) -> str | None:
    """Return the text of a template in running text, or None for any other template.

    Only the text of a quotation has several lines. EQUALS stands for each equals sign of the text.

    Args:
        call: The text between the braces.
        before: The text before the call.
    """
    text = _text(call, before)
    return None if text is None else text.replace("=", EQUALS)


def _text(call: str, before: str) -> str | None:
    name, _, rest = call.partition("|")
    if _NAME.fullmatch(name.strip()) is None:
        return None
    if name.strip() in COUNTRIES:
        return COUNTRIES[name.strip()]
    title = name.strip().replace("_", " ").lower()
    if title in _SIGNS:
        return _SIGNS[title]
    function, colon, _ = title.partition(":")
    if colon:  # a parser function; only functions that change the look of their argument show text
        return next(_split(call.lstrip()[len(function) + 1 :])).strip() if function in _FUNCTIONS else None
    arguments = _arguments(rest)
    if title in _QUOTATIONS:  # the quotation is a paragraph, and its author and work are a second one
        author, work = _QUOTATIONS[title]
        text = _first_given(arguments, "1", "text", "quote", "content")
        values = [_first_given(arguments, *keys) for keys in ((author, "author", "by", "sign", "cite"), (work, "title", "source"))]
        attribution = ", ".join(filter(None, values))
        return f"\n\n{text}\n\n" + (f"— {attribution}\n\n" if attribution else "") if text else "\n\n"
    make = _TEXTS.get(title) or (_argument("1") if title.startswith(("lang-", "script/")) else None)
    if make is None:
        return None
    text = " ".join(make(arguments).split())
    if not text.strip("\x03 "):
        return None
    return _AFTER_DIGITS.get(title, "") + text if before[-1:].isdigit() else text


def _arguments(call: str) -> Arguments:
    arguments: Arguments = {}
    position = 0
    for piece in _split(call):
        key = _KEY.match(piece)
        if key:
            arguments[key[1]] = piece[key.end() :].strip()
        else:
            position += 1
            arguments[str(position)] = piece.strip()
    return arguments


def _split(call: str) -> Iterator[str]:
    """Yield the pieces between bars that are not inside a link."""
    depth = start = 0
    for bound in _BOUNDS.finditer(call):
        if bound[0] == "|":
            if depth == 0:
                yield call[start : bound.start()]
                start = bound.end()
        else:
            depth += 1 if bound[0] == "\x05" else -1
    yield call[start:]


def _first_given(arguments: Arguments, *keys: str) -> str:
    """Return the first of these arguments that is present and not empty."""
    return next((arguments[key] for key in keys if arguments.get(key)), "")


def _in_order(arguments: Arguments) -> list[str]:
    """Return the arguments without a name, up to the first gap."""
    return [arguments[key] for key in takewhile(arguments.__contains__, map(str, count(1)))]


def _argument(*keys: str) -> Template:
    return lambda arguments: _first_given(arguments, *keys)


def _joined(between: str) -> Template:
    return lambda arguments: between.join(value for value in _in_order(arguments) if value)


def _currency(sign: str) -> Template:
    return lambda arguments: (sign + _first_given(arguments, "1")).strip()


def _around(start: str, end: str) -> Template:
    def put(arguments: Arguments) -> str:
        text = _first_given(arguments, "1")
        return start + text + end if text.strip("\x03 ") else ""

    return put


def _form(form: str) -> Template:
    """Return a function that puts the first two arguments at `{0}` and `{1}`. Without the first argument, there is no text."""
    return lambda arguments: form.format(arguments["1"], _first_given(arguments, "2")) if arguments.get("1") else ""


def _convert(arguments: Arguments) -> str:
    """Return the quantity as it was written: a number, a range (5|to|10|km) or a number in two units (5|ft|6|in)."""
    values = _in_order(arguments)
    if not values:
        return ""
    text, index = values[0], 1
    while index + 1 < len(values) and values[index] in _BETWEEN:
        text += _BETWEEN[values[index]] + values[index + 1]
        index += 2
    if index < len(values):
        text += " " + _UNITS.get(values[index], values[index])
    if index + 2 < len(values) and _NUMBER.fullmatch(values[index + 1]) and values[index + 2][:1].isalpha():
        text += f" {values[index + 1]} {_UNITS.get(values[index + 2], values[index + 2])}"
    return text


def _val(arguments: Arguments) -> str:
    """Return a measured value with its uncertainty, power of ten and unit."""
    values = _in_order(arguments)
    if not values:
        return ""
    text = _first_given(arguments, "p") + values[0]
    for uncertainty in values[1:3]:
        if uncertainty:
            text += uncertainty if uncertainty[0] in "(+-−" else f"±{uncertainty}"
    power, unit, per = _first_given(arguments, "e"), _first_given(arguments, "u", "ul"), _first_given(arguments, "up", "upl")
    text += f"×10^{power}" if power else ""
    text += f" {unit}" if unit else ""
    return text + (f"/{per}" if per else "") + _first_given(arguments, "s")


def _fraction(arguments: Arguments) -> str:
    values = [value for value in _in_order(arguments) if value][:3]
    return ("", "1/{}", "{}/{}", "{} {}/{}")[len(values)].format(*values)


def _as_of(arguments: Arguments) -> str:
    if arguments.get("alt"):
        return arguments["alt"]
    values = [value for value in _in_order(arguments) if value][:3]
    if not values:
        return ""
    if len(values) > 1:
        values[1] = _month(values[1])
    word = "since" if arguments.get("since") else "as of"
    if arguments.get("lc", arguments.get("lcase", "n")).lower() not in ("y", "yes", "1"):
        word = word.capitalize()
    if len(values) == 3 and arguments.get("df", "").lower() == "us":
        return f"{word} {values[1]} {values[2]}, {values[0]}"
    return f"{word} {' '.join(reversed(values))}"


def _nihongo(first: str, *inside: str) -> Template:
    """Return a function that makes `first (inside, inside)`. A missing argument is left out."""

    def put(arguments: Arguments) -> str:
        main, *others = [value for key in (first, *inside) if (value := _first_given(arguments, key))] or [""]
        return f"{main} ({', '.join(others)})" if others else main

    return put


def _labelled(labels: dict[str, str]) -> Template:
    """Return a function that makes `label: value; label: value`, in the order of the labels."""

    def put(arguments: Arguments) -> str:
        shown = {key: label if arguments.get("labels", "yes") != "no" else "" for key, label in labels.items() if arguments.get(key)}
        return "; ".join(f"{label}: {arguments[key]}" if label else arguments[key] for key, label in shown.items())

    return put


def _years(word: str) -> Template:
    """Return a function that makes `word 1900–1910`."""
    return lambda arguments: f"{word} {'–'.join(value for value in _in_order(arguments)[:2] if value)}".strip()


def _circa(arguments: Arguments) -> str:
    return " – ".join(f"c. {value}" for value in _in_order(arguments)[:2] if value) or "c."


def _root(arguments: Arguments) -> str:
    text, index = _first_given(arguments, "1"), _first_given(arguments, "2")
    if not text:
        return ""
    return index + "√" + (text if re.fullmatch(r"[\w.,'π]*", text) else f"({text})")


def _ordinal(arguments: Arguments) -> str:
    number = _first_given(arguments, "1")
    ending = "th" if number[-2:-1] == "1" else {"1": "st", "2": "nd", "3": "rd"}.get(number[-1:], "th")
    return number + ending if number[-1:].isdecimal() else number


def _month(given: str) -> str:
    """Return the name of a month that is given as a number. Anything else is returned unchanged."""
    number = int(given) if given.isdecimal() and len(given) <= _MAX_DIGITS else 0
    return _MONTHS[number - 1] if 1 <= number <= 12 else given


def _date(arguments: Arguments) -> str:
    """Return a date of year, month and day, in the order of the United States unless `df` is set."""
    year, month, day = (*_in_order(arguments), "", "", "")[:3]
    month = _month(month)
    if not (month and day):
        return f"{month} {year}".strip()
    day = day.lstrip("0")
    return f"{day} {month} {year}" if arguments.get("df", "n").lower() in ("y", "yes", "1") else f"{month} {day}, {year}"


def _height(arguments: Arguments) -> str:
    return " ".join(f"{arguments[unit]} {unit}" for unit in ("m", "cm", "ft", "in") if arguments.get(unit))


def _list(arguments: Arguments) -> str:
    """Return the items, each an argument or a line that begins with an asterisk, separated by commas."""
    lines = (line.strip(" \t*\x03") for value in _in_order(arguments) for line in value.split("\n"))
    return ", ".join(line for line in lines if line)


def _note(arguments: Arguments) -> str:
    return {"flat": "♭", "sharp": "♯", "natural": "♮"}.get(_first_given(arguments, "1").lower(), "")


def _by_name(table: dict[_Value, str]) -> dict[str, _Value]:
    """Return the values of a table by name. The table has the names of each value, separated by commas."""
    return {name: value for value, names in table.items() for name in names.split(", ")}


_QUOTE = "&#39;"  # a quotation mark as an entity, because two quotation marks together would be markup
_SIGNS = _by_name(
    {
        "&#124;": "!",
        "=": "=",
        _QUOTE: "'",
        f"{_QUOTE}s": "'s",
        f'{_QUOTE} "': "' \"",
        f'" {_QUOTE}': "\" '",
        f'{_QUOTE}"': "'\"",
        f'"{_QUOTE}': "\"'",
        '"': '-"',
        "⇌": "eqm",
        " ": "nbsp, space, thinsp, thin space, hair space, hairsp, spaces, gap, pad, ensp, emsp, en space, em space, figure space, figsp"
        ", nnbsp, 0spaces",
        "": "wbr, shy, zwj, zwnj, zwsp, zwnbsp",
        "—": "mdash, em dash, emdash, mdashb, —",
        "–": "ndash, en dash, endash, –",
        " – ": "snd, snds, spnd, sndash, spndash, spaced ndash, spaced en dash, dash",
        " — ": "spaced mdash, spaced em dash, smdash, snmdash",
        " · ": "dot, ·, •, bull, bullet, middot, \\",
        "π": "pi",
        "∞": "infin, infinity",
        "×": "times",
        "−": "minus",
        "±": "plusmn",
        "1/2": "half",
        "-": "hyphen",
        "\u2011": "nbhyph",
        "ʻ": "okina, hamza okina, wg-apos, wg-apos-",
        "ʿ": "ayin",
        "ʾ": "hamza",
    }
)
_FUNCTIONS = frozenset(("formatnum", "lc", "uc", "lcfirst", "ucfirst"))
# The positions of author and work among the arguments without a name.
_QUOTATIONS = _by_name(
    {
        ("2", "3"): "quote, quotation, blockquote, block quote, bquote, quoted text, poemquote, poem quote, poem",
        ("4", "5"): "cquote, centered pull quote, bq",
    }
)
_CHINESE = {"c": "Chinese", "s": "simplified Chinese", "t": "traditional Chinese", "p": "pinyin", "w": "Wade–Giles", "j": "Jyutping"}
_CHINESE |= {"y": "Cantonese Yale", "poj": "Pe̍h-ōe-jī", "l": "lit."}
_KOREAN = {"1": "Korean", "hangul": "Korean", "hanja": "Hanja", "rr": "RR", "mr": "MR", "lit": "lit."}
_CURRENCIES = {
    "£": "£, gbp, pound, pound sterling",
    "€": "€, euro, eur",
    "US$": "us$, usd, $",
    "¥": "¥, yen, jpy, cny, rmb",
    "₹": "₹, inr, rs, rupee, indian rupee",
    "A$": "a$, aud, au$",
    "C$": "c$, ca$, cad",
    "NZ$": "nz$, nzd",
    "HK$": "hk$, hkd",
    "S$": "s$, sgd",
    "R$": "r$, brl",
    "₩": "₩, krw, won",
    "₽": "₽, rub, ruble",
    "₪": "₪, ils",
    "₱": "₱, php, peso",
    "₨": "₨, pkr",
    "₺": "₺, try",
    "₫": "₫, vnd",
    "₴": "₴, uah",
    "CHF ": "chf",
}
_FRACTIONS = ("frac", "sfrac", "fraction", "tfrac")
_AFTER_DIGITS = {**dict.fromkeys(_FRACTIONS, " "), "sup": "^"}  # what comes between a digit and the text of these templates

_TEXTS: dict[str, Template] = _by_name(
    {
        _argument("1"): "nowrap, nobr, nobold, nobreak, small, smaller, smalldiv, big, bigger, large, larger, smallcaps, sc, sc2, abbr"
        ", tooltip, em, strong, bold, italic, i, b, iast, unicode, overline, overbar, overarc, vec, polytonic, hebrew, grc, unihan, proper"
        ", num, nts, stn, nwr, lower, raise, smallsup, nocaps, flagu, var, mvar, math, code, mono, kbd, samp, tt, strikethrough, underline"
        ", u, vanchor, sic, typo, ill, railgauge, sub, sup, flag, flagcountry, vr, no wrap, visible anchor, iso 15919, proper name"
        ", avoid wrap, not a typo, interlanguage link, track gauge, nihongo2",
        _argument("2", "text", "1"): "lang, script, rtl-lang, color, colour, font color, resize, abbrlink",
        _argument("2", "text"): "langx, wikt-lang",
        _argument("1", "text"): "citation needed span, cn span, clarify span, failed verification span",
        _argument("1", "3", "2"): "nihongo foot, nihongo krt",
        _argument("2", "1"): "sort, stnlnk, rws",
        lambda arguments: next((value for value in reversed(_in_order(arguments)) if value), ""): "transl, transliteration",
        _convert: "convert, cvt",
        _val: "val",
        _form("×10^{0}"): "e, esp, x10^",
        _fraction: ", ".join(_FRACTIONS),
        _as_of: "as of, asof",
        _joined(""): "chem, chem2, ce, linktext, gaps",
        _joined("+"): "key, keypress, key press, button",
        _joined(" "): "bibleverse, bibleref, bibleref2",
        _form("{0}-class {1}"): "sclass, sclass-",
        _list: "hlist, flatlist, plainlist, plain list, ubl, unbulleted list, blist, bulleted list, cslist",
        _circa: "circa, c., ca.",
        _nihongo("1", "2", "3", "4"): "nihongo",
        _nihongo("3", "2", "1", "4"): "nihongo3",
        _labelled(_CHINESE): "zh",
        _labelled(_KOREAN): "korean, ko",
        _years("fl."): "fl., fl, floruit",
        _years("r."): "reign, r.",
        _years("b."): "born, b.",
        _years("d."): "died, d.",
        _root: "sqrt, radic, root",
        _form("${0}$"): "tmath",
        _ordinal: "ordinal, ord",
        _date: "birth date, birth date and age, bda, birth-date and age, dob, death date, death date and age, dda, start date"
        ", start date and age, end date, end date and age, release date, birth year, birth year and age, death year",
        lambda arguments: " ".join(_in_order(arguments)[:2]): "sortname, sort name",
        _height: "height",
        _note: "music",
        lambda arguments: f"{_first_given(arguments, '1')} {_first_given(arguments, '2')}".strip(): "ship",
        _around("", "′"): "prime",
        _around("", "″"): "pprime",
        _around("&#124;", "&#124;"): "abs, mabs",
        _around("⌊", "⌋"): "floor",
        _around("⌈", "⌉"): "ceil",
        _around("&#124;", "⟩"): "ket",
        _around("⟨", "&#124;"): "bra",
        _around("⟨", "⟩"): "angbr, angle bracket, grapheme",
        _around("&#91;", "&#93;"): "bracket, interp, interpolation",
        _around('"', '"'): "\", q, '\"', qq",
        _around(_QUOTE, _QUOTE): "gloss, single+double",
        _around(f"lit. {_QUOTE}", _QUOTE): "lit, lit., literal translation, literally",
        **{_currency(sign): names for sign, names in _CURRENCIES.items()},
        **{_form(f"{name.upper()} {{0}}"): name for name in _SHIPS.split()},
    }
)
