"""The licence of a file, as an SPDX expression such as `MIT` or `MIT OR Apache-2.0`.

    1. the line `SPDX-License-Identifier: ...` in the first lines of the file
    2. the licence of the nearest folder above it that has one:
       metadata (METADATA, pyproject.toml, package.json, Cargo.toml), otherwise the text of LICENSE or COPYING

The package `identify` recognizes the texts of the licences on choosealicense.com, if at most 5% of a text is changed; `packaging` checks
expressions. A licence that is not found this way is unknown (None), also if there is a file LICENSE.
"""

import json
import os
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping
from email.parser import HeaderParser
from typing import Any

from niels_cache_assets.sources.reading.files import SourceFile
from niels_cache_corpora.code.listing import Repository
from niels_cache_runtime.errors import NielsCacheError

_HEADER = re.compile(r"SPDX-License-Identifier:[ \t]*([^\n\r]{1,200}?)[ \t]*(?:\*/|-->|#\}|\"\"\"|$)", re.MULTILINE)
_HEADER_CHARACTERS = 4_000
_TEXT_FILE = re.compile(r"(?:un)?licen[cs]es?(?:[._-].{0,40})?|copying(?:[._-].{0,40})?", re.IGNORECASE)
_NOT_TEXT = re.compile(r".*\.(?:py|pyi|js|ts|go|rs|java|c|h|json|toml|html?|png|svg)", re.IGNORECASE)
_CLASSIFIERS = {
    "MIT License": "MIT",
    "Apache Software License": "Apache-2.0",
    "BSD License": None,  # which of them is not said
    "ISC License (ISCL)": "ISC",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
    "The Unlicense (Unlicense)": "Unlicense",
    "GNU General Public License v2 (GPLv2)": "GPL-2.0-only",
    "GNU General Public License v2 or later (GPLv2+)": "GPL-2.0-or-later",
    "GNU General Public License v3 (GPLv3)": "GPL-3.0-only",
    "GNU General Public License v3 or later (GPLv3+)": "GPL-3.0-or-later",
    "GNU Lesser General Public License v3 (LGPLv3)": "LGPL-3.0-only",
    "GNU Lesser General Public License v3 or later (LGPLv3+)": "LGPL-3.0-or-later",
    "Zero-Clause BSD (0BSD)": "0BSD",
}
_NAMES = {  # in `License` of older metadata
    "Apache 2.0": "Apache-2.0",
    "Apache License 2.0": "Apache-2.0",
    "Apache License, Version 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "MIT License": "MIT",
    "BSD 3-Clause": "BSD-3-Clause",
    "BSD 3-Clause License": "BSD-3-Clause",
    "3-Clause BSD License": "BSD-3-Clause",
    "BSD 2-Clause": "BSD-2-Clause",
}
_MAX_BYTES = 1 << 20


def header_license(text: str) -> str | None:
    """Return the licence that the first lines of a file state, or None."""
    match = _HEADER.search(text[:_HEADER_CHARACTERS])
    return match and expression(match[1])


def expression(text: str | None) -> str | None:
    """Return an SPDX expression in its canonical form, or None if the text is not one."""
    from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

    try:
        return str(canonicalize_license_expression(text)) if text else None
    except InvalidLicenseExpression:
        return None


def joined(expressions: Iterable[str]) -> str | None:
    """Return the expression that all of some licences hold, or None without any."""
    found = sorted({part for each in expressions for part in ([each] if " OR " in each else each.split(" AND "))})
    return " AND ".join(f"({each})" if " OR " in each and len(found) > 1 else each for each in found) or None


def is_allowed(license: str, allowed: Collection[str]) -> bool:
    """Return whether a list of licences allows an expression: one side of each OR, both of each AND. An exception of WITH does not count.

    Args:
        license: An SPDX expression in its canonical form.
        allowed: SPDX identifiers or expressions.
    """
    if license in allowed:
        return True
    tokens = re.findall(r"[()]|[^\s()]+", license)
    place = 0

    def alternatives() -> bool:
        nonlocal place
        found = conjunction()
        while place < len(tokens) and tokens[place] == "OR":
            place += 1
            found = conjunction() or found
        return found

    def conjunction() -> bool:
        nonlocal place
        found = single()
        while place < len(tokens) and tokens[place] == "AND":
            place += 1
            found = single() and found
        return found

    def single() -> bool:
        nonlocal place
        token = tokens[place]
        place += 1
        if token == "(":
            found = alternatives()
            place += 1
            return found
        if tokens[place : place + 1] == ["WITH"]:
            exception = f"{token} WITH {tokens[place + 1]}"
            place += 2
            return token in allowed or exception in allowed
        return token in allowed

    return alternatives()


def is_license_text(path: str) -> bool:
    """Return whether a file is the text of a licence by its name."""
    name = path.rpartition("/")[2]
    return bool(_TEXT_FILE.fullmatch(name)) and not _NOT_TEXT.fullmatch(name)


class RepositoryLicenses:
    """The licences of a repository by folder."""

    def __init__(self, repository: Repository) -> None:
        self._of_folder = dict[str, str | None]()
        texts = dict[str, list[str | None]]()
        for path, file in repository.files.items():
            folder, _, name = path.rpartition("/")
            if name in _METADATA:
                if stated := _stated(name, file):
                    self._of_folder[folder] = stated
            elif is_license_text(path):
                texts.setdefault(folder, []).append(text_license(file))
        for folder, found in texts.items():
            own = joined(filter(None, found)) if None not in found else None
            self._of_folder.setdefault(folder, own)
        infos = {folder for folder in self._of_folder if folder.split("/")[0].endswith(".dist-info")}
        if "" not in self._of_folder and infos:  # a distribution, whose licence is not above its files
            self._of_folder[""] = self._of_folder[
                min(infos, key=lambda folder: (self._of_folder[folder] is None, folder.count("/"), folder))
            ]

    def of(self, path: str) -> str | None:
        """Return the licence of the nearest folder above a path that has one, or None if it is unknown."""
        folder = path
        while folder:
            folder = folder.rpartition("/")[0]
            if folder in self._of_folder:
                return self._of_folder[folder]
        return None


def text_license(file: SourceFile) -> str | None:
    """Return the SPDX identifier of a licence text, or None if it is not recognized."""
    try:
        from identify.identify import license_id
    except ImportError as error:
        raise NielsCacheError("code needs the package identify; run: pip install 'niels-cache[code]'") from error
    try:
        if os.path.getsize(file.url) > _MAX_BYTES:
            return None
        return expression(license_id(file.url))
    except UnicodeDecodeError:
        return None


def _of_package(text: str) -> str | None:
    headers = HeaderParser().parsestr(text)
    for key in ("License-Expression", "License"):
        stated = headers.get(key)
        if found := expression(_NAMES.get(str(stated), stated)):
            return found
    classified = [each.rpartition(" :: ")[2] for each in headers.get_all("Classifier") or () if each.startswith("License ::")]
    known = [_CLASSIFIERS.get(each) for each in classified if each != "OSI Approved"]
    return joined(filter(None, known)) if None not in known else None


def _of_table(table: Any, key: str) -> str | None:
    value = table.get(key, {}).get("license") if isinstance(table.get(key, {}), Mapping) else None
    value = value.get("text") if isinstance(value, Mapping) else value
    return expression(value) if isinstance(value, str) else None


def _of_json(text: str) -> str | None:
    value = json.loads(text)
    license = value.get("license") if isinstance(value, dict) else None
    return expression(license) if isinstance(license, str) else None


_METADATA: dict[str, Callable[[str], str | None]] = {
    "METADATA": _of_package,
    "PKG-INFO": _of_package,
    "pyproject.toml": lambda text: _of_table(tomllib.loads(text), "project"),
    "Cargo.toml": lambda text: _of_table(tomllib.loads(text), "package"),
    "package.json": _of_json,
}


def _stated(name: str, file: SourceFile) -> str | None:
    """Return the licence in a file of metadata, or None if it has none, or cannot be read."""
    try:
        if os.path.getsize(file.url) > _MAX_BYTES:
            return None
        with open(file.url, encoding="utf-8") as stream:
            return _METADATA[name](stream.read())
    except (ValueError, RecursionError):  # no UTF-8, TOML or JSON
        return None
