"""The files of an account: account.json, CSV tables, and the page with the draft. Equal accounts give equal bytes.

account.json has the largest values of each table; the CSV files have all of them. docs/account.md describes both.
"""

import csv
import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

from niels_cache_assets.base.beside import load_beside
from niels_cache_inspection.account.dimensions import UNKNOWN
from niels_cache_inspection.account.draft import draft_of
from niels_cache_inspection.account.ledger import SECTIONS, TABLES, Ledger
from niels_cache_inspection.account.splits import AccountedCache
from niels_cache_inspection.account.tables import COLUMNS, MEANINGS, as_dict
from niels_cache_runtime.errors import NielsCacheError

FORMAT, VERSION = "niels-cache account", 1
JSON_NAME, PAGE_NAME, TABLES_NAME = "account.json", "account.html", "tables"
_ROWS, _ROWS_OF_PAGE = 1000, 50  # of a table in account.json, and in the page
OTHERS = "(all others)"
Facts = dict[str, Any]


def facts_of(ledger: Ledger, caches: Sequence[AccountedCache]) -> Facts:
    """Return the account as JSON-able values."""
    tables = {section: {name: _table(ledger, section, name) for name in TABLES} for section in SECTIONS}
    facts = {
        "format": FORMAT,
        "version": VERSION,
        "public_suffix_list": ledger.list_date,
        "columns": {name: list(of) for name, of in ledger.columns.items()},
        "meanings": MEANINGS,
        "caches": [_cache(cache) for cache in caches],
        "splits": [asdict(split) for split in ledger.splits],
        "runs": ledger.runs,
        "epochs": [asdict(epoch) for epoch in ledger.epochs],
        "totals": {section: as_dict(ledger.tables[section]["source"].total) for section in SECTIONS},
        "tables": tables,
    }
    return {**facts, "draft": draft_of(ledger, caches)}


def _cache(cache: AccountedCache) -> Facts:
    source = cache.meta.get("source")
    return {
        "name": cache.name,
        "family": cache.family,
        "kind": source.get("kind") if isinstance(source, dict) else None,
        "config": cache.meta.get("dataset_config"),
        "revision": cache.meta.get("dataset_revision"),
        "content_sha256": cache.meta.get("content_sha256"),
        "meta_sha256": cache.meta.get("meta_sha256"),
    }


def _table(ledger: Ledger, section: str, name: str) -> Facts:
    """Return a table: its largest values, and one row for all others, so that its sum is the total."""
    rows = [*ledger.tables[section][name].rows()]
    others = [figures for _, figures in rows[_ROWS:]]
    found = [{"value": value, **figures} for value, figures in rows[:_ROWS]]
    if others:
        found.append({"value": OTHERS, **{column: sum(each[column] for each in others) for column in others[0]}})
    return {"values": len(rows), "rows": found}


def write_account(folder: Path, facts: Facts, ledger: Ledger) -> list[Path]:
    """Write the files, and return their paths. Each replaces an earlier one of an account in one step.

    Raises:
        NielsCacheError: If the folder has another account.json, or a file cannot be written.
    """
    page = load_beside("pages", "page")
    with _explain_unwritable(folder):
        _require_ours(folder / JSON_NAME)
        page.require_page(folder / PAGE_NAME)
        written = [folder / JSON_NAME]
        write_file(written[0], json.dumps(facts, indent=1, ensure_ascii=False) + "\n")
        for section in SECTIONS:
            for name in TABLES:
                path = folder / TABLES_NAME / f"{section}_{name}.csv"
                if len(ledger.tables[section][name]):
                    write_file(path, "".join(_csv_lines(ledger, section, name)))
                    written.append(path)
                else:
                    path.unlink(missing_ok=True)
    used = {section: [name for name, total in totals.items() if total] for section, totals in facts["totals"].items()}
    rendered = page.render_template("account.html", account=facts, used=used, rows=_ROWS_OF_PAGE, UNKNOWN=UNKNOWN)
    page.write_page(folder / PAGE_NAME, rendered)
    return [*written, folder / PAGE_NAME]


def _csv_lines(ledger: Ledger, section: str, name: str) -> Iterator[str]:
    columns = ["documents", "tokens", *COLUMNS[1:]]
    rows = ([value, *(figures[column] for column in columns)] for value, figures in ledger.tables[section][name].rows())
    header: list[Any] = [name, *columns]
    for row in chain([header], rows):
        line = io.StringIO()
        csv.writer(line, lineterminator="\n").writerow(row)
        yield line.getvalue()


def write_file(path: Path, content: str) -> None:
    """Write a file in one step, in a folder that is made for it.

    Raises:
        NielsCacheError: If it cannot be written.
    """
    spare = path.with_name(f".{path.name}.{os.getpid()}")
    with _explain_unwritable(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            spare.write_text(content, encoding="utf-8", errors="backslashreplace", newline="\n")
            os.replace(spare, path)
        finally:
            spare.unlink(missing_ok=True)


@contextmanager
def _explain_unwritable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise NielsCacheError(f"{error.filename or path}: cannot be written: {error.strerror or error}; name another --out") from error


def _require_ours(path: Path) -> None:
    if not path.exists():
        return
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        is_ours = isinstance(found, Mapping) and found.get("format") == FORMAT
    except ValueError:
        is_ours = False
    if not is_ours:
        raise NielsCacheError(f"{path}: is there already, and is no account; name another --out")
