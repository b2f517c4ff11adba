"""Masks for personal data and secrets, from the key `mask` of [cleaning]: `jo@web.org` becomes `[email]`.

The masks work on normalized text, before the filters. They find forms, not meanings: a phone number without a country code, without
separators and without a word such as "Tel." before it is kept. Addresses of private and reserved networks are kept, because they identify
no machine. Each pattern looks at a bounded number of characters after each position where it may begin, so the time is linear in the length
of the text. A text without `@`, digits and known beginnings costs about a microsecond per kilobyte for each kind.

Sources of the forms: RFC 5322 and RFC 1035 (email), RFC 5952 and the IANA registries of special-purpose addresses (ip), ITU-T E.164 and the
North American Numbering Plan (phone), and the documentation of the services that issue keys.
"""

import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import NamedTuple

from niels_cache_assets.cleaning.settings import MASKS

CONTEXT = 40  # characters of an example on each side

_EMAIL = re.compile(
    r"(?<![\w.%+-])[\w%+-](?:[\w.%+-]{0,62}[\w%+-])?@((?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.){1,8}([A-Za-z]{2,24}))(?![\w@-])"
)
_NO_DOMAIN_ENDS = frozenset(("png", "jpg", "jpeg", "gif", "svg", "webp", "css", "js", "ts", "py"))  # icon@2x.png

_FOUR = r"\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}"
_IPV4 = re.compile(rf"(?<![\w.])(?<![\w.]-){_FOUR}(?:-{_FOUR})*(?!\w|\.\d)")  # ranges too: 93.184.216.34-93.184.216.99
_ONE_IPV4 = re.compile(_FOUR)
_IPV6 = re.compile(r"(?<![\w:.])[23][0-9A-Fa-f]{3}:[0-9A-Fa-f:]{2,34}(?![\w:])")  # 2000::/3 is all that is assigned
_VERSION = re.compile(r"(?i)\b(?:version|release|firmware|build|section|chapter)\s?$")
_RESERVED = (
    "0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.0.2.0/24 192.168.0.0/16 198.18.0.0/15 "
    "198.51.100.0/24 203.0.113.0/24 224.0.0.0/4 240.0.0.0/4"
)
_RESERVED_NETWORKS = [*map(IPv4Network, _RESERVED.split())]
_RESERVED_NETWORKS_6 = [IPv6Network(network) for network in ("2001:db8::/32", "2001:2::/48", "3fff::/20")]

_PHONE_FORMS = (
    r"(?<![\w+])\+\d{1,3}(?:[ .\u2010-\u2013-]?(?:\(\d{1,5}\)|\d{1,5})){2,7}(?!\w)",  # +49 (0)30 1234-567
    r"(?<![\w+.)-])(?:1[-. ])?(?:\([2-9]\d\d\) ?|[2-9]\d\d[-. ])[2-9]\d\d[-. ]\d{4}(?![\w-]|\.\d)",  # (212) 555-0123
    r"(?i)(?<!\w)(?:tel(?:efon|ephone)?|phone|fon|fax|mobile?|cell)\b[.:]{0,2} {0,2}(?P<value>\(?\d(?:[ ./()-]{0,2}\d){5,14})(?!\w)",
)
_PHONES = [*map(re.compile, _PHONE_FORMS)]
_DIGITS = range(7, 16)  # of a number with its country code

_KEY_FORMS = (
    r"(?<!\w)(?:AKIA|ASIA)[0-9A-Z]{16}(?!\w)",  # AWS
    r"(?<!\w)gh[pousr]_[A-Za-z0-9]{36,255}(?!\w)",  # GitHub
    r"(?<!\w)github_pat_[A-Za-z0-9_]{40,255}(?!\w)",
    r"(?<!\w)glpat-[A-Za-z0-9_-]{20,64}(?![\w-])",  # GitLab
    r"(?<![\w-])sk-(?=[A-Za-z_-]{0,40}\d)[A-Za-z0-9_-]{20,220}(?![\w-])",  # OpenAI, Anthropic
    r"(?<!\w)[srp]k_(?:live|test)_[0-9A-Za-z]{16,120}(?!\w)",  # Stripe
    r"(?<!\w)xox[abeprs]-[A-Za-z0-9-]{10,250}(?![\w-])",  # Slack
    r"(?<!\w)AIza[0-9A-Za-z_-]{35}(?![\w-])",  # Google
    r"(?<!\w)hf_[A-Za-z0-9]{30,60}(?!\w)",  # Hugging Face
    r"(?<!\w)eyJ[A-Za-z0-9_-]{8,2000}\.eyJ[A-Za-z0-9_-]{8,4000}\.[A-Za-z0-9_-]{8,2000}(?![\w-])",  # JSON Web Token, RFC 7519
    r"-----BEGIN (?:[A-Z]{2,12} ){0,3}PRIVATE KEY-----[A-Za-z0-9+/=:,\s-]{40,10000}?-----END (?:[A-Z]{2,12} ){0,3}PRIVATE KEY-----",
    (
        r"(?i)(?<![A-Za-z])(?:api[_-]?key|secret(?:[_-]?key)?|access[_-]?token|auth[_-]?token|password|passwd)[\"']?"
        r" {0,3}[:=] {0,3}(?P<quote>[\"'])(?P<value>[^\"'\s<>{}$*]{8,200})(?P=quote)"
    ),
)
_KEYS = [*map(re.compile, _KEY_FORMS)]
_KEY_BEGINNINGS = ("AKIA", "ASIA", "gh", "github_pat_", "glpat-", "sk-", "k_", "xox", "AIza", "hf_", "eyJ", "PRIVATE KEY", "=", ":")

Span = tuple[int, int]


class MaskedSpan(NamedTuple):
    """A match of a mask in a text.

    Attributes:
        kind: Kind of the mask.
        start: Index of its first character in the text before masking.
        end: Index after its last character in the text before masking.
    """

    kind: str
    start: int
    end: int


def mask(text: str, kinds: Sequence[str]) -> tuple[str, list[MaskedSpan]]:
    """Return the text with `[kind]` in place of each match, and the matches in order.

    If matches of two kinds overlap, the one that begins first counts, and the longer one if both begin together. A mask can reveal another
    match beside it, because `[kind]` separates words. So the text is searched until nothing more is found, and masking a masked text
    changes nothing.

    Args:
        text: The text.
        kinds: Names in `settings.MASKS`.
    """
    masked, spans = text, list[MaskedSpan]()
    while found := _find(masked, kinds):
        spans = _merge(spans, found)
        masked = _replace(text, spans)
    return masked, spans


def _find(text: str, kinds: Sequence[str]) -> list[MaskedSpan]:
    """Return the matches of all kinds in one search, in order and without overlaps."""
    every = (MaskedSpan(kind, *span) for kind in kinds for span in _FINDERS[kind](text))
    spans: list[MaskedSpan] = []
    for each in sorted(every, key=lambda each: (each.start, -each.end, each.kind)):
        if not spans or each.start >= spans[-1].end:
            spans.append(each)
    return spans


def _replace(text: str, spans: Sequence[MaskedSpan]) -> str:
    pieces, end = [], 0
    for each in spans:
        pieces += [text[end : each.start], f"[{each.kind}]"]
        end = each.end
    return "".join([*pieces, text[end:]])


def _merge(spans: Sequence[MaskedSpan], found: Sequence[MaskedSpan]) -> list[MaskedSpan]:
    """Return the given matches and those found in the masked text, all as positions in the original text.

    A found match absorbs those that it covers.
    """
    merged: list[MaskedSpan] = []
    waiting = deque(spans)
    shift = 0  # what to add to a position in the masked text, before the first waiting span
    for kind, start, end in found:
        while waiting and waiting[0].end - shift + _growth(waiting[0]) <= start:
            shift -= _growth(waiting[0])
            merged.append(waiting.popleft())
        first, last = start + shift, end + shift
        while waiting and waiting[0].start < last:
            covered = waiting.popleft()
            shift -= _growth(covered)
            first, last = min(first, covered.start), max(end + shift, covered.end)
        merged.append(MaskedSpan(kind, first, last))
    return [*merged, *waiting]


def _growth(span: MaskedSpan) -> int:
    return len(span.kind) + 2 - (span.end - span.start)


def mask_examples(text: str, spans: Sequence[MaskedSpan], hidden: Sequence[str] = ()) -> list[dict[str, str]]:
    """Return what a report shows of the first match of each kind: its kind, its form, and the text around it.

    Reports are passed on. So the form has an `a` for each letter and a 9 for each digit, and the text around it ends at the next match.

    Args:
        text: The text before masking.
        spans: Matches that `mask` returned.
        hidden: All kinds that the data set masks, also in other steps, whose matches must not be around it either.
    """
    kinds = {span.kind for span in spans}
    if not kinds.issuperset(hidden):
        spans = mask(text, hidden)[1]
        return [each for each in mask_examples(text, spans) if each["kind"] in kinds]
    first: dict[str, dict[str, str]] = {}
    for number, span in enumerate(spans):
        if span.kind not in first:
            form = re.sub(r"[^\W\d_]", "a", re.sub(r"\d", "9", text[span.start : span.end][: 2 * CONTEXT]))
            start = max(span.start - CONTEXT, spans[number - 1].end if number else 0)
            end = min(span.end + CONTEXT, spans[number + 1].start if number + 1 < len(spans) else len(text))
            first[span.kind] = {"kind": span.kind, "form": form, "before": text[start : span.start], "after": text[span.end : end]}
    return [*first.values()]


def _emails(text: str) -> Iterator[Span]:
    if "@" in text:
        for found in _EMAIL.finditer(text):
            if found[2].lower() not in _NO_DOMAIN_ENDS:
                yield found.span()


def _addresses(text: str) -> Iterator[Span]:
    for found in _IPV4.finditer(text):
        if _VERSION.search(text, max(0, found.start() - 12), found.start()):
            continue
        for one in _ONE_IPV4.finditer(text, *found.span()):
            numbers = [int(each) for each in one.group().split(".")]
            if max(numbers) < 256 and not any(IPv4Address(bytes(numbers)) in network for network in _RESERVED_NETWORKS):
                yield one.span()
    if "::" in text or text.count(":") >= 7:
        for found in _IPV6.finditer(text):
            literal = found[0] if found[0].endswith("::") else found[0].rstrip(":")
            try:
                address6 = IPv6Address(literal)
            except ValueError:
                continue
            if not any(address6 in network for network in _RESERVED_NETWORKS_6):
                yield found.start(), found.start() + len(literal)


def _phones(text: str) -> Iterator[Span]:
    for pattern in _PHONES:
        for found in pattern.finditer(text):
            name = found.lastgroup or 0  # "value", if the pattern has such a group
            digits = sum(character.isdigit() for character in found[name])
            if digits in _DIGITS or name:
                yield found.span(name)


def _keys(text: str) -> Iterator[Span]:
    if any(beginning in text for beginning in _KEY_BEGINNINGS):
        for pattern in _KEYS:
            for found in pattern.finditer(text):
                yield found.span(found.lastgroup or 0)


_FINDERS: dict[str, Callable[[str], Iterator[Span]]] = dict(zip(MASKS, (_emails, _addresses, _phones, _keys), strict=True))
