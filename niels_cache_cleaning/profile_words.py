"""The splitters of `profiles`: words and sentences of English text.

`Spacy` splits with spaCy's blank English pipeline, as datatrove does. `Words` needs no other package, and is written to find nearly the
same words in a tenth of the time: it splits at white space, takes punctuation, contractions and units from each piece by rules, and keeps
the words of pieces that it has seen. A word never contains white space at its ends. Sentences are only counted, up to a limit, because no
rule needs more.
"""

import re
from functools import lru_cache
from importlib import import_module
from itertools import chain
from typing import Any, Protocol
from unicodedata import category

from niels_cache_runtime.errors import NielsCacheError

_SENTENCE_ENDS = (  # code points that end a sentence, as in spaCy's sentencizer
    "21 2E 3F 589 61F 6D4 700-702 7F9 964-965 104A-104B 1362 1367-1368 166E 1735-1736 1803 1809 1944-1945 1AA8-1AAB 1B5A-1B5B 1B5E-1B5F "
    "1C3B-1C3C 1C7E-1C7F 203C-203D 2047-2049 2E2E 2E3C 3002 A4FF A60E-A60F A6F3 A6F7 A876-A877 A8CE-A8CF A92F A9C8-A9C9 AA5D-AA5F "
    "AAF0-AAF1 ABEB FE52 FE56-FE57 FF01 FF0E FF1F FF61 10A56-10A57 11047-11048 110BE-110C1 11141-11143 111C5-111C6 111CD 111DE-111DF "
    "11238-11239 1123B-1123C 112A9 1144B-1144C 115C2-115C3 115C9-115D7 11641-11642 1173C-1173E 11A42-11A43 11A9B-11A9C 11C41-11C42 "
    "16A6E-16A6F 16AF5 16B37-16B38 16B44 1BC9F 1DA88"
)
CACHED_PIECES, CACHED_CHARACTERS = 200_000, 100  # of a process, about 50 MB, and of a piece
LONG_PIECE = 1_000  # characters; longer pieces, which no prose has, are cut, because the time for a piece grows with its square


@lru_cache
def characters(ranges: str) -> frozenset[str]:
    """Return the characters in ranges of hexadecimal code points."""
    bounds = [each.partition("-") for each in ranges.split()]
    return frozenset(chr(point) for low, _, high in bounds for point in range(int(low, 16), int(high or low, 16) + 1))


def classes(ranges: str) -> str:
    """Return the inside of a class of a regular expression for ranges of hexadecimal code points."""
    return "".join("-".join(re.escape(chr(int(bound, 16))) for bound in each.split("-")) for each in ranges.split())


_PUNCTUATION = re.escape("…,:;!?¿؟¡()[]{}<>_#*&。？！，、；：～·।،۔؛٪")
_QUOTES = re.escape("'\"”“`‘´’‚„»«「」『』（）〔〕【】《》〈〉⟦⟧")
_CURRENCY = re.escape("$£€¥฿₽﷼₴₠₡₢₣₤₥₦₧₨₩₪₫₭₮₯₰₱₲₳₵₶₷₸₹₺₻₼₾₿")
_ICON = classes(  # code points that are symbols (category So of Unicode 11)
    "A6 A9 AE B0 482 58D-58E 60E-60F 6DE 6E9 6FD-6FE 7F6 9FA B70 BF3-BF8 BFA C7F D4F D79 F01-F03 F13 F15-F17 F1A-F1F F34 F36 F38 "
    "FBE-FC5 FC7-FCC FCE-FCF FD5-FD8 109E-109F 1390-1399 1940 19DE-19FF 1B61-1B6A 1B74-1B7C 2100-2101 2103-2106 2108-2109 2114 "
    "2116-2117 211E-2123 2125 2127 2129 212E 213A-213B 214A 214C-214D 214F 218A-218B 2195-2199 219C-219F 21A1-21A2 21A4-21A5 "
    "21A7-21AD 21AF-21CD 21D0-21D1 21D3 21D5-21F3 2300-2307 230C-231F 2322-2328 232B-237B 237D-239A 23B4-23DB 23E2-2426 2440-244A "
    "249C-24E9 2500-25B6 25B8-25C0 25C2-25F7 2600-266E 2670-2767 2794-27BF 2800-28FF 2B00-2B2F 2B45-2B46 2B4D-2B73 2B76-2B95 "
    "2B98-2BC8 2BCA-2BFE 2CE5-2CEA 2E80-2E99 2E9B-2EF3 2F00-2FD5 2FF0-2FFB 3004 3012-3013 3020 3036-3037 303E-303F 3190-3191 "
    "3196-319F 31C0-31E3 3200-321E 322A-3247 3250 3260-327F 328A-32B0 32C0-32FE 3300-33FF 4DC0-4DFF A490-A4C6 A828-A82B A836-A837 "
    "A839 AA77-AA79 FDFD FFE4 FFE8 FFED-FFEE FFFC-FFFD 1D000-1D0F5 1D100-1D126 1D129-1D164 1D200-1D241 1D300-1D356 1F000-1F02B "
    "1F030-1F093 1F0A0-1F0AE 1F0B1-1F0BF 1F0C1-1F0CF 1F0D1-1F0F5 1F110-1F16B 1F170-1F1AC 1F1E6-1F202 1F210-1F23B 1F240-1F248 "
    "1F250-1F251 1F260-1F265 1F300-1F3FA 1F400-1F6D4 1F6E0-1F6EC 1F6F0-1F6F9 1F700-1F773 1F780-1F7D8 1F800-1F80B 1F810-1F847 "
    "1F850-1F859 1F860-1F887 1F890-1F8AD 1F900-1F90B 1F910-1F93E 1F940-1F970 1F973-1F976 1F97A 1F97C-1F9A2 1F9B0-1F9B9 1F9C0-1F9C2 "
    "1F9D0-1F9FF 1FA60-1FA6D"
)
_UNCASED = classes(  # letters without case, and what else is in their blocks
    "591-5F4 620-64A 66E-6D5 6E5-6FF 750-77F 8A0-8BD 900-9FF B80-CFF D80-DFF 1100-137F 2E80-2FDF 2FF0-30FF 31C0-31EF 3200-4DBF "
    "4E00-9FFF AC00-D7AF F900-FAFF FB1D-FBB1 FBD3-FD3D FD50-FDC7 FDF0-FDFB FE30-FE4F FE70-FEFC 1EE00-1EEBB 1F200-1F2FF 20000-2A6DF "
    "2A700-2EBEF 2F800-2FA1F"
)
_EXTENDED = [*map(chr, (*range(0x100, 0x2B0), *range(0x1E00, 0x1F00)))]  # of the Latin alphabet
_LOWER = f"a-zß-öø-ÿά-ώа-ёђ-њќѝ{''.join(filter(str.islower, _EXTENDED))}{_UNCASED}"
_UPPER = f"A-ZÀ-ÖØ-ÞΆ-ΏΑ-ΩЀ-Я{''.join(filter(str.isupper, _EXTENDED))}{_UNCASED}"
_LETTER = f"[{_LOWER}{_UPPER}]"
_UNITS = (
    "km|km²|km³|m|m²|m³|dm|dm²|dm³|cm|cm²|cm³|mm|mm²|mm³|ha|µm|nm|yd|in|ft|kg|g|mg|µg|t|lb|oz|m/s|km/h|kmh|mph|hPa|Pa|mbar|mb|MB|kb|KB|gb|GB"
    "|tb|TB|T|G|M|K|%"
)
_PREFIX = re.compile(rf"\.\.+|[§%=—–{_PUNCTUATION}{_QUOTES}{_CURRENCY}{_ICON}]|\+(?!\d)")
_SUFFIX = re.compile(
    rf"(?:['’][sS]|[—–{_PUNCTUATION}{_QUOTES}{_ICON}]|(?<=\d)(?:\+|[{_CURRENCY}]|{_UNITS})"
    rf"|(?<=[\d{_LOWER}%²+\-|{_PUNCTUATION}{_QUOTES}])\.|(?<=[{_UPPER}][{_UPPER}])\.|(?<=°[FfCcKk])\.)$"
)
_SUFFIX_CHARACTERS = 8  # more than the longest
_INFIX = re.compile(
    rf"(\.\.+|[…{_ICON}]|(?<=\d)[+\-*^](?=[\d-])|(?<=[{_LOWER}{_QUOTES}])\.(?=[{_UPPER}{_QUOTES}])|(?<={_LETTER}),(?={_LETTER})"
    rf"|(?<=[0-9{_LOWER}{_UPPER}])(?:(?:---?|[-–—~])|[:<>=/])(?={_LETTER}))"
)
_ADDRESS = re.compile(
    r"(?:[\w+.-]{2,}://)?(?:\S+@)?(?:(?:[A-Za-z0-9\u00a1-\uffff](?:[A-Za-z0-9\u00a1-\uffff_-]{0,62}[A-Za-z0-9\u00a1-\uffff])?\.)+[a-zß-öø-ÿ]{2,63}"
    r"|(?!10\.|127\.|192\.168\.)[1-9]\d{0,2}(?:\.\d{1,3}){2}\.[1-9]\d{0,2})(?::\d{2,5})?(?:[/?#]\S*)?"
)
_NOT = "ai are ca could dare did do does had has have is may might must need ought sha should was were wo would"
_SUBJECT = "i you he she it we they who what when where why how there that this"
_BARE = (  # contractions without an apostrophe that are no other words
    "i d|i m|i ve|he s|she s|that s|what s|when s|where s|who s|why s|how s|there s|you ve|they ve|we ve|what ve|they re|you re|"
    "you ll|we d|it d|you d|he d|they d|it ll|they ll|that ll|who ll|what ll|c'm on|y' all|y’ all|could ve|might ve|must ve|"
    "should ve|would ve|can not|gon na|got ta"
)


def _contractions() -> dict[str, tuple[str, ...]]:
    """Return the words of each contraction, in lower case and with a capital."""
    found = [tuple(each.split()) for each in _BARE.split("|")]
    for mark in ("'", "\u2019"):
        for stem in _NOT.split():
            found += [(stem, f"n{mark}t"), (stem, f"n{mark}t", f"{mark}ve"), (stem, "nt")]
        for stem in _SUBJECT.split():
            for end in ("m", "re", "s", "d", "ll", "ve"):
                found += [(stem, f"{mark}{end}"), (stem, f"{mark}{end}", f"{mark}ve")]
        found += [(stem, f"{mark}ve") for stem in ("could", "might", "must", "should", "would")] + [("let", f"{mark}s")]
    return {"".join(words): words for each in found for words in (each, (each[0].capitalize(), *each[1:]))}


_CONTRACTIONS = _contractions()
_TIME = re.compile(r"(1[0-2]|[1-9])([ap]m|[ap]\.m\.)")
_WITH_MARKS = (  # words that end with a mark, and faces
    "a.m. Adm. Bros. co. Co. Corp. D.C. Dr. e.g. E.g. E.G. Gen. Gov. i.e. I.e. I.E. Inc. Jr. Ltd. Md. Messrs. Mo. Mont. Mr. Mrs. Ms. p.m. "
    "Ph.D. Prof. Rep. Rev. Sen. St. vs. v.s. Jan. Feb. Mar. Apr. Jun. Jul. Aug. Sep. Sept. Oct. Nov. Dec. Ala. Ariz. Ark. Calif. Colo. "
    "Conn. Del. Fla. Ga. Ia. Id. Ill. Ind. Kan. Kans. Ky. La. Mass. Mich. Minn. Miss. N.C. N.D. N.H. N.J. N.M. N.Y. Neb. Nebr. Nev. Okla. "
    "Ore. Pa. S.C. Tenn. Va. Wash. Wis. 'S 's 'Cause 'cause 'cos 'Cos 'em 'bout 'nuff ma'am o'clock C++ and/or w/o \\t \\n '' :) :-) :( "
    ":-( ;) ;-) :D :-D :P :-P :/ :p ;D XD xD <3 :] :[ =) =( :o :O :| ^_^ -_- -__- :3 :* :-/ :-P 8) (: (; (-: "
    "): (= [= =] ]= =[ [: :] :> :} =| :/ =/ :0 :1 :X :x :P =D =3 ;-D :-] Mt. Havin' havin' Goin' goin' Nothin' nothin' Nuthin' nuthin' "
    "Lovin' lovin' Doin' doin' Ol' ol' Somethin' somethin' 'Coz 'coz 'Cuz 'cuz 'll 're 'd \\\")"
)
_WHOLE = frozenset(_WITH_MARKS.split()) | frozenset(f"{letter}." for letter in "abcdefghijklmnopqrstuvwxyzäöü")


class Splitter(Protocol):
    """What a profile asks of a text."""

    def words(self, text: str) -> list[str]:
        """Return the words of a text."""

    def sentences(self, line: str, most: int) -> int:
        """Return the number of sentences of a line, or at least `most` if it has that many; 1 for an empty line."""


class Pieces(dict[str, tuple[str, ...]]):
    """The words of pieces, which are split when they are first asked for. The garbage collector does not visit tuples of text."""

    def __missing__(self, piece: str) -> tuple[str, ...]:
        found = tuple(words_of(piece))
        if len(piece) <= CACHED_CHARACTERS:
            if len(self) >= CACHED_PIECES:
                self.clear()
            self[piece] = found
        return found


class Words:
    """The splitter without other packages. The words of a piece between blanks depend only on this piece."""

    def __init__(self) -> None:
        self._pieces = Pieces()
        self._ends = characters(_SENTENCE_ENDS)

    def words(self, text: str) -> list[str]:
        return list(chain.from_iterable(map(self._pieces.__getitem__, text.split())))

    def sentences(self, line: str, most: int) -> int:
        return count_sentences(((word, word in self._ends or _is_mark(word)) for word in self.words(line)), self._ends, most)


class Spacy:
    """The splitter of datatrove: spaCy's blank English pipeline."""

    def __init__(self) -> None:
        try:
            spacy: Any = import_module("spacy")
        except ImportError as error:
            raise NielsCacheError(f'splitter = "spacy" needs spaCy ({error}); pip install "niels-cache[spacy]"') from error
        self._pipeline = spacy.blank("en")
        self._pipeline.add_pipe("sentencizer")

    def words(self, text: str) -> list[str]:
        with self._pipeline.memory_zone():
            return [word for each in self._read(text, self._pipeline.make_doc) if (word := each.text.strip())]

    def sentences(self, line: str, most: int) -> int:
        with self._pipeline.memory_zone():
            return max(1, sum(1 for _ in self._read(line, self._pipeline).sents))

    def _read(self, text: str, read: Any) -> Any:
        self._pipeline.max_length = len(text) + 10
        try:
            return read(text)
        except Exception:
            readable = text.encode(errors="replace").decode().replace("IS_ALPHA", "")
            if readable == text:
                raise
            return read(readable)  # without lone surrogates, and without the name of an attribute, which some versions of spaCy cannot read


SPLITTERS: dict[str, type[Splitter]] = {"words": Words, "spacy": Spacy}


def words_of(piece: str) -> list[str]:
    """Return the words of a piece of text without white space."""
    if len(piece) > LONG_PIECE:
        return [word for start in range(0, len(piece), LONG_PIECE) for word in words_of(piece[start : start + LONG_PIECE])]
    before: list[str] = []
    after: list[str] = []
    while piece and not (whole := _whole(piece)):
        prefix = None if piece[0].isalnum() else _PREFIX.match(piece)
        rest = piece[prefix.end() :] if prefix else piece
        if prefix and rest and _whole(rest):
            before.append(prefix[0])
            piece = rest
            continue
        end = _start_of_suffix(rest)
        if prefix is None and end == len(rest):
            break
        shorter = piece[: end - len(rest)] if prefix and end < len(rest) else ""
        if shorter and _whole(shorter):
            after.append(rest[end:])
            piece = shorter
            continue
        if prefix:
            before.append(prefix[0])
        if end < len(rest):
            after.append(rest[end:])
        piece = rest[:end]
    if piece:
        is_one = piece.isalnum() or ("." in piece and _ADDRESS.fullmatch(piece))
        before += whole or ([piece] if is_one else [part for part in _INFIX.split(piece) if part])
    if not after and len(before) == 1:
        return before
    found = before + after[::-1]
    place = 0
    while len(found) > place + 1:
        pair = found[place] + found[place + 1]
        if pair in _WHOLE:  # also what stands together in a piece
            found[place : place + 2] = [pair]
        place += 1
    return found


def _start_of_suffix(piece: str) -> int:
    """Return where the last mark or unit of a piece begins, or its end."""
    if piece.isalpha():
        return len(piece)
    if piece.endswith(".."):
        return len(piece.rstrip("."))
    found = _SUFFIX.search(piece, max(0, len(piece) - _SUFFIX_CHARACTERS))
    return found.start() if found else len(piece)


def count_sentences(words: Any, ends: frozenset[str], most: int) -> int:
    """Return the number of sentences, or `most` if there are more: a new one begins at a word after an end and the marks after it.

    Args:
        words: Pairs of a word and whether it is a mark.
        ends: The marks that end a sentence.
        most: Where counting stops.
    """
    count, has_ended = 1, False
    for word, is_mark in words:
        if word in ends:
            has_ended = True
        elif has_ended and not is_mark:
            count += 1
            has_ended = False
            if count >= most:
                break
    return count


def _whole(piece: str) -> list[str] | None:
    """Return the words of a piece that other rules must not split, or None."""
    if piece in _WHOLE:
        return [piece]
    if piece in _CONTRACTIONS:
        return [*_CONTRACTIONS[piece]]
    found = _TIME.fullmatch(piece) if piece[0].isdigit() else None
    return [*found.groups()] if found else None


def _is_mark(word: str) -> bool:
    return not word[0].isalnum() and all(category(each)[0] == "P" for each in word)
