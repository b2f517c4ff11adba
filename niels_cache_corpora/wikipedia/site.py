"""The wiki that a dump comes from: `Site`, with the language and the names of namespaces from the dump's `<siteinfo>`.

The site determines which links show no text, which sections are end matter, and the namespace of a page whose dump has no `<ns>`. A dump
without `<siteinfo>` gets NO_SITE, which knows only the names in `languages`.
"""

import re
from dataclasses import dataclass
from functools import cached_property

from niels_cache_corpora.wikipedia.languages import END_MATTER, END_MATTER_OF, NO_TEXT, REDIRECT_WORDS, SAME_LANGUAGE

_MEDIA, _FILE, _CATEGORY = -2, 6, 14  # numbers of namespaces (mediawiki.org, Manual:Namespace)
_CANONICAL = {"media": _MEDIA, "special": -1, "talk": 1, "image": _FILE, "image talk": _FILE + 1} | {
    name: 2 * number for number, name in enumerate(("user", "project", "file", "mediawiki", "template", "help", "category"), start=1)
}
_CANONICAL |= {f"{name} talk": number + 1 for name, number in list(_CANONICAL.items()) if number > 1 and not name.endswith(" talk")}
_UNSEEN = " \u200e\u200f"  # characters without meaning around the name of a namespace
_LONGEST_NAME = 80  # characters
_WIKI = "wiki|wiktionary|wikibooks|wikinews|wikiquote|wikisource|wikiversity|wikivoyage"
_DATABASE = re.compile(rf"([a-z_]{{2,20}}?)(?:{_WIKI})")
_ADDRESS = re.compile(r"(?:https?:)?//([a-z-]{2,20})\.(?:m\.)?wik[a-z]+\.org\b.*", re.DOTALL)
_BLANKS = re.compile(r"[\s_]+")
REDIRECT = re.compile(rf"\s*[#＃](?:{'|'.join(sorted(REDIRECT_WORDS))})\s*:?\s*\[\[", re.IGNORECASE)


@dataclass(frozen=True)
class Site:
    """The facts about a wiki.

    Attributes:
        language: A code such as `de`, or an empty string.
        namespaces: The number and name of each namespace.
    """

    language: str = ""
    namespaces: tuple[tuple[int, str], ...] = ()

    @cached_property
    def hidden(self) -> frozenset[str]:
        """The namespaces whose links show no text, in lower case: those of files and of categories."""
        return NO_TEXT | self._names(_FILE) | self._names(_CATEGORY)

    @cached_property
    def media(self) -> frozenset[str]:
        """The namespaces whose links show only a label, if they have one, in lower case."""
        return frozenset({"media"}) | self._names(_MEDIA)

    @cached_property
    def end_matter(self) -> frozenset[str]:
        """The headings of sections without prose, in lower case."""
        language = SAME_LANGUAGE.get(self.language, self.language)
        return END_MATTER | END_MATTER_OF.get(language, END_MATTER_OF.get(language.partition("-")[0], frozenset()))

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return _CANONICAL | {_plain(name): number for number, name in self.namespaces if name}

    def _names(self, number: int) -> frozenset[str]:
        return frozenset(_plain(name) for key, name in self.namespaces if key == number and name)

    def namespace_of(self, title: str) -> int:
        """Return the number of the namespace that a title begins with, or 0 if the dump names no namespaces."""
        return self._numbers.get(prefix_of(title), 0) if self.namespaces else 0


NO_SITE = Site()


def prefix_of(target: str) -> str:
    """Return the name before the first colon of a link's target or of a title, in lower case, or an empty string."""
    name, colon, _ = target[:_LONGEST_NAME].partition(":")
    return _plain(name) if colon else ""


def _plain(name: str) -> str:
    return _BLANKS.sub(" ", name).strip(_UNSEEN).lower()


def language_of(code: str, database: str, address: str) -> str:
    """Return the language of a wiki, or an empty string.

    Args:
        code: The attribute `xml:lang` of the dump.
        database: The content of `<dbname>`.
        address: The content of `<base>`.
    """
    if code.strip():
        return code.strip().lower().replace("_", "-")
    found = _DATABASE.fullmatch(database.strip()) or _ADDRESS.fullmatch(address.strip())
    return found[1].replace("_", "-") if found else ""
