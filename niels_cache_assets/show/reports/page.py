"""A report as one HTML file that needs nothing else: no script, no request, plots inside, light and dark as the reader has it.

Everything that is put into the page is escaped (Jinja's autoescape), and a Content-Security-Policy forbids what is not in the file itself.
"""

from __future__ import annotations

import base64
import hashlib
import os
import struct
from importlib import resources
from pathlib import Path

from jinja2 import Environment, StrictUndefined

from niels_cache_assets.show.contents import contents
from niels_cache_assets.show.reports.cache import CacheReport, Item
from niels_cache_assets.show.reports.drawings import Drawings
from niels_cache_assets.show.reports.history import date
from niels_cache_assets.show.reports.mixture import share
from niels_cache_assets.show.wording import SHORT_SHA256, UNKNOWN, counted, file_size, label, reason
from niels_cache_runtime.errors import NielsCacheError

PAGE_NAME = "cache.html"

_FEW = 12  # items that may all be unfolded
_PNG_SIZE = slice(16, 24)  # of the header: width and height


def page_path(root: Path) -> Path:
    """Where the report of a cache root lies unless it is asked for elsewhere."""
    return root / "reports" / PAGE_NAME


def render_page(report: CacheReport, drawings: Drawings, *, now: float) -> str:
    """`now`: seconds since 1970, which ages are counted from; the page says it."""
    style = _text("page.css")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return environment.from_string(_text("page.html")).render(
        report=report,
        drawings=drawings,
        now=now,
        date=date,
        share=share,
        contents=contents,
        counted=counted,
        file_size=file_size,
        SHORT_SHA256=SHORT_SHA256,
        UNKNOWN=UNKNOWN,
        label=label,
        reason=reason,
        is_open=lambda item: _is_open(report, item),
        data_address=lambda png: f"data:image/png;base64,{base64.b64encode(png).decode()}",
        png_size=lambda png: struct.unpack(">II", png[_PNG_SIZE]),
        policy=f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'",
        style=style,
    )


def _is_open(report: CacheReport, item: Item) -> bool:
    """Few are unfolded, of many those that need attention."""
    return len(report.items) <= _FEW or item.name in report.noticed


def write_page(path: Path, page: str) -> None:
    """In one step: who reads it meanwhile reads the old one. Raises NielsCacheError where it cannot be written.

    Bytes of a file name that are no UTF-8 are shown escaped.
    """
    spare = path.parent / f".{path.name}.{os.getpid()}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            spare.write_text(page, encoding="utf-8", errors="backslashreplace")
            os.replace(spare, path)
        finally:
            spare.unlink(missing_ok=True)
    except OSError as error:
        raise NielsCacheError(f"{path}: cannot be written: {error.strerror or error}; name another file with --out") from error


def _text(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
