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

_PUNCTUATION = re.escape("…,:;!?¿؟¡()[]{}<>_#*&。？！，、；：～·।،۔؛٪")
_QUOTES = re.escape("'\"”“`‘´’‚„»«「」『』（）〔〕【】《》〈〉⟦⟧")
_CURRENCY = re.escape("$£€¥฿₽﷼₴₠₡₢₣₤₥₦₧₨₩₪₫₭₮₯₰₱₲₳₵₶₷₸₹₺₻₼₾₿")
_ICON = "\u00a6\u00a9\u00ae\u00b0\u2190-\u23ff\u2400-\u27bf\u2900-\u297f\u2b00-\u2bff\u3004\u3012\u3013\ufffc\ufffd\U0001f000-\U0001faff"
_LOWER, _UPPER, _LETTER = "a-zß-öø-ÿа-яёα-ω", "A-ZÀ-ÖØ-ÞА-ЯЁΑ-Ω", r"[^\W\d_]"
_UNITS = (
    "km|km²|km³|m|m²|m³|dm|dm²|dm³|cm|cm²|cm³|mm|mm²|mm³|ha|µm|nm|yd|in|ft|kg|g|mg|µg|t|lb|oz|m/s|km/h|kmh|mph|hPa|Pa|mbar|mb|MB|kb|KB|gb|GB"
    "|tb|TB|T|G|M|K|%"
)
_PREFIX = re.compile(rf"\.\.+|[§%=—–{_PUNCTUATION}{_QUOTES}{_CURRENCY}{_ICON}]|\+(?!\d)")
_SUFFIX = re.compile(
    rf"(?:['’][sS]|[—–{_PUNCTUATION}{_QUOTES}{_ICON}]|(?<=\d)(?:\+|[{_CURRENCY}]|{_UNITS})"
    rf"|(?<=[\d{_LOWER}%²+\-{_PUNCTUATION}{_QUOTES}])\.|(?<=[{_UPPER}][{_UPPER}])\.|(?<=°[FfCcKk])\.)$"
)
_SUFFIX_CHARACTERS = 8  # more than the longest
_INFIX = re.compile(
    rf"(\.\.+|[…{_ICON}]|(?<=\d)[+\-*^](?=[\d-])|(?<=[{_LOWER}{_QUOTES}])\.(?=[{_UPPER}{_QUOTES}])|(?<={_LETTER}),(?={_LETTER})"
    rf"|(?<=[^\W_])(?:---?|[-–—~])(?={_LETTER})|(?<=[^\W_])[:<>=/](?={_LETTER}))"
)
_ADDRESS = re.compile(
    r"(?:[\w+.-]{2,}://)?(?:\S+@)?(?:(?:[A-Za-z0-9\u00a1-\uffff](?:[A-Za-z0-9\u00a1-\uffff_-]{0,62}[A-Za-z0-9\u00a1-\uffff])?\.)+[a-zß-öø-ÿ]{2,63}"
    r"|(?!10\.|127\.|192\.168\.)[1-9]\d{0,2}(?:\.\d{1,3}){2}\.[1-9]\d{0,2})(?::\d{2,5})?(?:[/?#]\S*)?"
)
_NOT = "ai are ca could dare did do does had has have is may might must need ought sha should was were wo would"
_SUBJECT = "i you he she it we they who what when where why how there that this"
_BARE = (  # contractions without an apostrophe that are no other words
    "i d|i m|i ve|he s|she s|that s|what s|when s|where s|who s|why s|how s|there s|you ve|they ve|we ve|what ve|they re|you re|you ll|"
    "could ve|might ve|must ve|should ve|would ve|can not|gon na|got ta"
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


_JOINED = frozenset(("):", "(:", ":)", "(=", "[=", "=)", ":>", ":*", ":}", "''", "0:", ":("))  # marks that are one word, such as faces
_CONTRACTIONS = _contractions()
_TIME = re.compile(r"(\d{1,2})([ap]\.?m\.?)")
_WITH_MARKS = (  # words that end with a mark, and faces
    "a.m. Adm. Bros. co. Co. Corp. D.C. Dr. e.g. E.g. E.G. Gen. Gov. i.e. I.e. I.E. Inc. Jr. Ltd. Md. Messrs. Mo. Mont. Mr. Mrs. Ms. p.m. "
    "Ph.D. Prof. Rep. Rev. Sen. St. vs. v.s. Jan. Feb. Mar. Apr. Jun. Jul. Aug. Sep. Sept. Oct. Nov. Dec. Ala. Ariz. Ark. Calif. Colo. "
    "Conn. Del. Fla. Ga. Ia. Id. Ill. Ind. Kan. Kans. Ky. La. Mass. Mich. Minn. Miss. N.C. N.D. N.H. N.J. N.M. N.Y. Neb. Nebr. Nev. Okla. "
    "Ore. Pa. S.C. Tenn. Va. Wash. Wis. 'S 's 'Cause 'cause 'cos 'Cos 'em 'bout 'nuff ma'am o'clock C++ and/or w/o \\t \\n '' :) :-) :( "
    ":-( ;) ;-) :D :-D :P :-P :/ :p ;D XD xD <3 :] :[ =) =( :o :O :| ^_^ -_- -__- :3 :* :-/ :-P 8) (: (; (-:"
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
            if "IS_ALPHA" not in text:  # a word with the name of an attribute of spaCy, which some of its versions cannot read
                raise
            return read(text.replace("IS_ALPHA", ""))


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
        if len(pair) == 2 and pair in _JOINED:
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


@lru_cache
def characters(ranges: str) -> frozenset[str]:
    """Return the characters in ranges of hexadecimal code points."""
    bounds = [each.partition("-") for each in ranges.split()]
    return frozenset(chr(point) for low, _, high in bounds for point in range(int(low, 16), int(high or low, 16) + 1))


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
