"""A program that reads sources and prints their items as JSON: `python -m tests.helpers.read_sources '[{"source": "wikitext"}, ...]'`.

Tests of the hub use it as a child process, because `HF_ENDPOINT` counts only before the first import. Each table gives {revision, items,
dropped, facts} or {error, unavailable}.
"""

import bz2
import gzip
import json
import lzma
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import zstandard

from niels_cache_assets.sources import PRETRAIN_SOURCES, SFT_SOURCES
from niels_cache_assets.sources.errors import SourceUnavailableError
from niels_cache_assets.sources.types import SftSource, StreamContext
from niels_cache_runtime.errors import NielsCacheError
from tests.helpers import programs
from tests.helpers.loopback_hub import LoopbackHub

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": lambda content: bz2.compress(content, 1),  # in blocks of 100 kB
    ".xz": lambda content: lzma.compress(content, preset=0),
    ".zst": zstandard.compress,
}


def one_file(folder: Path, name: str, content: bytes) -> list[str]:
    """Write a file. Return the `files` of a source that reads it."""
    (folder / name).write_bytes(content)
    return [str(folder / name)]


def read(source: Any, seed: int = 42, **context: Any) -> tuple[list[Any], StreamContext]:
    """Return all items that a source yields, and the context with its report."""
    stream = StreamContext(seed=seed, **context)
    batches = list(source.conversations(stream) if isinstance(source, SftSource) else source.documents(stream))
    assert all(0 < len(batch) <= 256 for batch in batches)
    return [item for batch in batches for item in batch], stream


def read_from(hub: LoopbackHub, *tables: dict[str, Any]) -> list[dict[str, Any]]:
    """Read tables in a child process that uses the loopback hub. Return the results in order."""
    done = programs.run("-m", "tests.helpers.read_sources", json.dumps(tables), env=hub.env)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def _result(table: dict[str, Any]) -> dict[str, Any]:
    try:
        source = {**PRETRAIN_SOURCES, **SFT_SOURCES}[table["source"]](**table)
        revision = source.revision({})
        items, context = read(source, revision=revision)
        return {
            "revision": revision,
            "items": [item._asdict() for item in items],
            "dropped": context.report.dropped,
            "facts": context.report.facts,
        }
    except NielsCacheError as error:
        return {"error": str(error), "unavailable": isinstance(error, SourceUnavailableError)}


if __name__ == "__main__":
    json.dump([_result(table) for table in json.loads(sys.argv[1])], sys.stdout)
