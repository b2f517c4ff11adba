"""The registrable domain of an address, by the Public Suffix List that the package publicsuffixlist contains. Nothing is downloaded.

Suffixes of companies in that list, such as `github.io`, count as suffixes too, so each of their users has a domain of their own.
"""

import re
from functools import cache
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from niels_cache_runtime.errors import NielsCacheError

_VERSION = re.compile(r"^// VERSION: (\d{4}-\d\d-\d\d)", re.MULTILINE)
_HOST = re.compile(r"\s*(?:[a-z][a-z0-9+.-]*:)?//(?:[^/?#]*@)?(\[[^\]/?#]*\]|[^/?#:\\]*)", re.IGNORECASE)
_HEADER_CHARACTERS = 4096
_HOST_CHARACTERS = 253  # at most, RFC 1035


@cache
def _load_package() -> Any:
    """Return the package.

    Raises:
        NielsCacheError: If it is missing.
    """
    try:
        import publicsuffixlist
    except ImportError as error:
        raise NielsCacheError('domains need the package publicsuffixlist; install the extra: pip install "niels-cache[account]"') from error
    return publicsuffixlist


@cache
def _load_list() -> Any:
    return _load_package().PublicSuffixList()


def list_date() -> str:
    """Return the date of the list, such as `2026-10-22`, or `unknown`.

    Raises:
        NielsCacheError: If the package is missing.
    """
    with Path(_load_package().PSLFILE).open(encoding="utf-8") as file:
        found = _VERSION.search(file.read(_HEADER_CHARACTERS))
    return found[1] if found else "unknown"


class Domains:
    """The domains of addresses. It remembers those of many hosts, because neighbouring documents often share one."""

    def __init__(self) -> None:
        self._suffixes = _load_list()
        self._known: dict[str, str | None] = {}

    def of(self, url: str) -> str | None:
        """Return the registrable domain, such as `example.co.uk`, in lower case; an IP address as it is; None without a host."""
        found = _HOST.match(url) or _HOST.match(f"//{url}")
        host = found[1].lower() if found else ""
        if not host:
            return None
        if host not in self._known:
            if len(self._known) > 1 << 17:
                self._known.clear()
            self._known[host] = self._find(host.strip("[].\t "))
        return self._known[host]

    def _find(self, host: str) -> str | None:
        try:
            return str(ip_address(host))
        except ValueError:
            pass
        try:
            name = host if host.isascii() else host.encode("idna").decode()
        except UnicodeError:
            return None
        if len(name) > _HOST_CHARACTERS or "." not in name or " " in name or ".." in name:
            return None
        return self._suffixes.privatesuffix(name) or name  # a public suffix by itself, such as `github.io`
