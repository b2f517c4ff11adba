"""Reports as self-contained HTML files: the page about all caches, and the page that helps to choose the limits of one data set.

A page includes its pictures as SVG, has no script and makes no request. It is light or dark like the reader's system. All inserted text
is escaped (Jinja's autoescape), and a Content-Security-Policy forbids everything outside the file.
"""

import base64
import hashlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from niels_cache_assets.artifacts.corpus_report import corpus_report
from niels_cache_assets.base.beside import load_beside
from niels_cache_assets.base.reasons import explain
from niels_cache_assets.base.wording import SHORT_SHA256, UNKNOWN, by_count, file_size, format_count, format_duration, format_share, label
from niels_cache_assets.facts.contents import content_cells
from niels_cache_assets.facts.mixture import share
from niels_cache_assets.facts.published import address_in_store
from niels_cache_assets.project.registry import Registry
from niels_cache_assets.reports import page_path
from niels_cache_assets.reports.cache import CODE_VERSION, CacheItem, CacheReport
from niels_cache_assets.reports.history import date
from niels_cache_assets.tokenizer.decoding import as_text, open_tokenizer
from niels_cache_assets.tokenizer.measures import characters_per_token_by_source
from niels_cache_pages.drawing import Picture, as_svg
from niels_cache_pages.measures import measure_cache
from niels_cache_pages.pictures import (
    cache_pictures,
    corpus_pictures,
    format_measure,
    limit_picture,
    mixture_pictures,
    ratios_picture,
    similarity_pictures,
)
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import FAMILIES
from niels_cache_runtime.format.meta import sha256_text

_FEW = 12  # if a page has at most this many items, all items are open
_LANGUAGES = 15
_SAMPLE_TOKENS = 96
Drawings = dict[Path, Sequence[Picture] | str]  # of each folder; a text is the reason why it has none
_FIGURE = re.compile(r'<figure data-sha256="(\w+)">(.*?)</figure>', re.DOTALL)


def tuning_path(root: Path, name: str) -> Path:
    """Return the default path of the page of a data set with a corpus."""
    return root / "reports" / "tune" / f"{name}.html"


def draw_report(registry: Registry, report: CacheReport, *, progress: Callable[[str], None] = lambda name: None) -> Drawings:
    """Return the pictures of each folder as data. The pass of measures.py over a cache takes at most a second or two.

    Args:
        registry: The configuration.
        report: The report.
        progress: Called with the name of each item before it is read; by default does nothing.
    """
    found: Drawings = {}
    for item in report.items:
        if item.is_built and item.condition != "broken":
            progress(item.name)
            try:
                found[item.directory] = _pictures(registry, item, report.root)
            except (NielsCacheError, OSError, LookupError, TypeError, ValueError) as error:  # a malformed meta.json raises the last three
                reason = f"meta.json has no {error}" if isinstance(error, KeyError) else error
                found[item.directory] = f"its plots cannot be drawn: {reason}"
    return found


def _pictures(registry: Registry, item: CacheItem, root: Path) -> list[Picture]:
    kind, directory, meta = item.kind, item.directory, item.meta
    for family in FAMILIES:
        if kind == family:
            measures = measure_cache(directory, family, meta, address=address_in_store(registry, family, item.name))
            return cache_pictures(measures, family, dropped=meta.get("dropped", {}))
    if kind == "tokenizer":
        return [ratios_picture(characters_per_token_by_source(root, meta))]
    if kind == "corpus" and directory.parent.name == "corpus" and directory.name in registry.prepared():
        return corpus_pictures(corpus_report(registry, directory.name, root=root))
    return []


def _samples(item: CacheItem) -> list[tuple[str, str]]:
    """Return the title and the beginning of a few documents or examples in the train of a data set, or why they cannot be shown."""
    directory = item.directory
    if item.kind == "repeats" and item.is_built:
        return load_beside("repeats", "shown").most_cut(directory.parent.parent, directory.name, item.meta)
    for family in FAMILIES:
        if item.kind == family and item.condition == "complete":
            try:
                tokenizer = open_tokenizer(directory.parent.parent)
                drawn = load_beside("inspection", "samples").notable(directory, family, "train", length=_SAMPLE_TOKENS, tokenizer=tokenizer)
                return [(sample.title, as_text(sample.tokens.tolist(), tokenizer)) for sample in drawn]
            except (OSError, LookupError, TypeError, ValueError) as error:
                return [("no sample can be shown", str(error))]
    return []


def render_page(report: CacheReport, drawings: Drawings, *, now: float, with_samples: bool = False) -> str:
    """Return the page. Pictures that the page of the cache root already shows are not drawn again.

    Args:
        report: The report.
        drawings: Pictures of each folder.
        now: Current time in seconds since 1970, which the page shows.
        with_samples: Whether the page shows the beginnings of a few documents. A build writes no text of documents outside of the cache.
    """
    noticed = {notice.name for notice in report.notices}
    return render_template(
        "page.html",
        report=report,
        drawings=drawings,
        now=now,
        date=date,
        share=share,
        contents=content_cells,
        file_size=file_size,
        format_duration=format_duration,
        samples=_samples if with_samples else None,
        SHORT_SHA256=SHORT_SHA256,
        UNKNOWN=UNKNOWN,
        mixture_pictures=mixture_pictures,
        figure=_figures(page_path(report.root)),
        is_open=lambda item: len(report.items) <= _FEW or item.name in noticed,
    )


def _figures(path: Path) -> Callable[[Picture, str], Markup]:
    """Return a function that returns the figure of a picture, which is taken from an earlier page if that page has it."""
    try:
        earlier = dict(_FIGURE.findall(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):  # no page, or not a page
        earlier = {}

    def figure(picture: Picture, of: str) -> Markup:
        sha256 = sha256_text(repr((CODE_VERSION, picture, of)))
        return Markup('<figure data-sha256="{}">{}</figure>').format(sha256, Markup(earlier.get(sha256) or as_svg(picture, of)))

    return figure


def render_tuning(found: Mapping[str, Any]) -> str:
    """Return the page of a data set with a corpus, given the result of `tuning` in tuning.py."""
    cleaning, duplicates = found["cleaning"], found["duplicates"]
    languages = by_count(cleaning["languages"]) if cleaning else []
    others = sum(count for _, count in languages[_LANGUAGES:])
    return render_template(
        "tuning.html",
        found=found,
        limit_picture=limit_picture,
        shown=format_measure,
        similarities=[*similarity_pictures(duplicates)] if duplicates else (),
        languages=[*languages[:_LANGUAGES], *([("all others", others)] if others else [])],
        asked=sum(count for _, count in languages),
        share_of=format_share,
    )


def render_template(template: str, *, forms: str = "'none'", **values: Any) -> str:
    """Return a page that includes its style sheet and allows nothing else.

    Args:
        template: Name of a file beside this module.
        forms: Where forms of the page may lead, as in a Content-Security-Policy.
        **values: Values for the template.
    """
    style = _text("page.css")
    environment = Environment(
        loader=FunctionLoader(_text), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.globals |= {"as_svg": as_svg, "counted": format_count, "label": label, "explain": explain}
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action {forms}"
    return environment.get_template(template).render(style=style, policy=policy, **values)


def require_page(path: Path) -> None:
    """Refuse a file that is no page, because a page may only replace a page."""
    if path.is_file() and not _is_page(path):
        raise NielsCacheError(f"{path}: is there already, and is no page; name another file with --out")


def write_page(path: Path, page: str) -> None:
    """Write the page in one step, so that readers always see a complete page.

    Bytes of file names that are not UTF-8 are escaped.

    Raises:
        NielsCacheError: If it cannot be written, or would replace a file that is not a page.
    """
    spare = path.parent / f".{path.name}.{os.getpid()}"
    try:
        require_page(path)
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
