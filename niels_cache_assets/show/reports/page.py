"""A report as one self-contained HTML file. It includes the plots, has no script and makes no request. It is light or dark like the
reader's system.

All inserted text is escaped (Jinja's autoescape), and a Content-Security-Policy forbids everything outside the file.
"""

from __future__ import annotations

import base64
import hashlib
import os
import struct
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined

from niels_cache_assets.show.contents import contents
from niels_cache_assets.show.reports.cache import CacheReport, Item
from niels_cache_assets.show.reports.charts import HEIGHT, MARGIN, WIDTH, rule_chart, shown
from niels_cache_assets.show.reports.drawings import Drawings
from niels_cache_assets.show.reports.history import date
from niels_cache_assets.show.reports.mixture import share
from niels_cache_assets.show.wording import SHORT_SHA256, UNKNOWN, counted, file_size, label, reason
from niels_cache_runtime.errors import NielsCacheError

PAGE_NAME = "cache.html"

_FEW = 12  # if a page has at most this many items, all items are open
_PNG_SIZE = slice(16, 24)  # the bytes of width and height in the header


def page_path(root: Path) -> Path:
    """Return the default path of the report of a cache root."""
    return root / "reports" / PAGE_NAME


def render_page(report: CacheReport, drawings: Drawings, *, now: float) -> str:
    """Return the page. `now`: the current time in seconds since 1970. The page shows this time, and ages refer to it."""
    return rendered(
        "page.html",
        ["page.css", "charts.css"],
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
        shown=shown,
        rule_chart=rule_chart,
        is_open=lambda item: _is_open(report, item),
        data_address=lambda png: f"data:image/png;base64,{base64.b64encode(png).decode()}",
        png_size=lambda png: struct.unpack(">II", png[_PNG_SIZE]),
    )


def rendered(template: str, styles: Sequence[str], **values: Any) -> str:
    """Return a page. template, styles: names of files beside this module. The style sheets are in the page, and nothing else is allowed."""
    style = "".join(map(_text, styles))
    environment = Environment(
        loader=FunctionLoader(_text), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"
    return environment.get_template(template).render(style=style, policy=policy, width=WIDTH, height=HEIGHT, margin=MARGIN, **values)


def _is_open(report: CacheReport, item: Item) -> bool:
    """Return whether the page shows this item open. If there are few items, all items are open. Otherwise only items that need attention
    are open.
    """
    return len(report.items) <= _FEW or item.name in report.noticed


def write_page(path: Path, page: str) -> None:
    """Write the page in one step, so that readers always see a complete page. Raise NielsCacheError if it cannot be written, or would
    replace a file that is no page.

    Bytes of file names that are not UTF-8 are escaped.
    """
    spare = path.parent / f".{path.name}.{os.getpid()}"
    try:
        if path.is_file() and not _is_page(path):
            raise NielsCacheError(f"{path}: is there already, and is no page; name another file with --out")
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            spare.write_text(page, encoding="utf-8", errors="backslashreplace")
            os.replace(spare, path)
        finally:
            spare.unlink(missing_ok=True)
    except OSError as error:
        raise NielsCacheError(f"{path}: cannot be written: {error.strerror or error}; name another file with --out") from error


def _is_page(path: Path) -> bool:
    """Return whether a file is empty, or begins as a page does."""
    with open(path, "rb") as file:
        begin = file.read(256).lstrip().lower()
    return not begin or begin.startswith(b"<!doctype html")


def _text(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
