"""The language of a text, and the stop words of some languages.

The package `langdetect-rs` identifies the language, as Nakatani Shuyo's language-detection of 2010 does: with a naive Bayes classifier of
character n-grams, whose model of 54 languages is in the package. Its random walk has a fixed seed here. docs/benchmarks.md compares it with
other identifiers. A document whose beginning is not in a wanted language is tried again, because a dictionary entry may begin with an
etymology, and a page with a menu. The cost is tens of microseconds for 400 characters.
"""

import re
from collections.abc import Collection
from functools import cache, lru_cache
from typing import Any, NamedTuple

# English: the words of Gopher (Rae et al. 2021). Others: frequent function words; for zh, ja and th, which have no blanks, parts of words.
STOP_WORDS = {
    code: frozenset(words.split())
    for code, words in {
        "en": "the be to of and that have with",
        "de": "der die das und ist in zu den mit von nicht ein eine",
        "fr": "le la les de des et est en un une que dans pour",
        "es": "el la los las de que y en un una es por con",
        "it": "il la di che e un una in per del della non con",
        "pt": "o a os as de que e em um uma do da para com não",
        "nl": "de het een en van is in dat te met op voor niet",
        "sv": "och i att det en som på är av för med den till",
        "pl": "i w na z się że do nie jest to o jak od",
        "ru": "и в не на что с по как из от это за для",
        "zh": "的 一 是 不 了 在 有 和 人 这 這 中 为 為",
        "ja": "の に は を た が で て と し れ も な",
        "th": "ที่ และ ของ ใน เป็น มี ได้ ให้ ไม่ จะ การ ว่า",
    }.items()
}
UNSPACED_LANGUAGES = frozenset({"zh", "ja", "th"})  # of the languages in STOP_WORDS
_MORE = 10  # the last attempt takes this many times as many characters as the first
_HANGUL = re.compile("[\uac00-\ud7a3]")
_DIGITS = 4  # of a share; the last bits of a probability depend on the version of Python


class Language(NamedTuple):
    """The language of a text.

    Attributes:
        code: ISO 639 code, or None if the language is unknown.
        share: Probability of that language, 0.0 if it is unknown.
    """

    code: str | None
    share: float


UNKNOWN = Language(None, 0.0)


@lru_cache(maxsize=4)  # the report measures a document again that the filters have just judged
def identify_language(text: str) -> Language:
    """Return the language of a text, or UNKNOWN if the text is too short or its language is not recognized.

    At most 10,000 characters are read. The code contains no script and no country: it is zh, not zh-Hant.
    """
    core, seed = _detector()
    found = [(code.partition("-")[0], share) for code, share in core.detect_langs(text, seed) or ()]  # none: no letter of a known script
    if not found:
        return UNKNOWN
    if not _HANGUL.search(text):  # the Korean model includes Chinese characters, and beats the Chinese one in short traditional texts
        found = [("zh" if code == "ko" else code, share) for code, share in found]
    return Language(found[0][0], round(sum(share for code, share in found if code == found[0][0]), _DIGITS))


@cache
def _detector() -> tuple[Any, Any]:
    """Return the detector, and the state of its random walk.

    The public functions seed the whole process, and use the order of the files of the package langdetect, if that is installed. The last
    bits depend on that order.
    """
    from langdetect_rs import DetectorFactory, _core
    from langdetect_rs._seed import seed_state

    core = DetectorFactory()._core
    core.load_builtin(_core.builtin_files())
    return core, seed_state(0)


def language_of(text: str, *, characters: int, wanted: Collection[str]) -> Language:
    """Return the language of a document.

    The first `characters` characters are tried. If their language is not wanted, two more excerpts are tried: the same number of characters
    in the middle, and ten times as many from the beginning, the middle and the end together. The document has a wanted language if one of
    these two results is one. Otherwise the first known result counts.

    Args:
        text: The document.
        characters: Number of characters of the first excerpt.
        wanted: Codes of the wanted languages.
    """
    first = identify_language(text[:characters])
    if first.code in wanted or len(text) <= characters:
        return first
    results = [identify_language(piece) for piece in (_more(text, _MORE * characters), _middle(text, characters))]
    return next((result for result in results if result.code in wanted), next((a for a in (first, *results) if a.code), UNKNOWN))


def stop_words_in(text: str, lower_words: Collection[str], code: str) -> int:
    """Return how many distinct stop words of a language occur: as words, or anywhere in `text` for a script without blanks."""
    words = STOP_WORDS[code]
    return sum(word in text for word in words) if code in UNSPACED_LANGUAGES else len(words.intersection(lower_words))


def _middle(text: str, characters: int) -> str:
    start = max(0, (len(text) - characters) // 2)
    return text[start : start + characters]


def _more(text: str, characters: int) -> str:
    """Return the whole text, or a third of `characters` from its beginning, its middle and its end each."""
    third = characters // 3
    return text if len(text) <= characters else "\n".join((text[:third], _middle(text, third), text[len(text) - third :]))
