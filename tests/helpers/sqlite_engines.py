"""Engines of SQLAlchemy that Dagster's storages of runs and schedules use again. Import this module to save time in tests with runs.

Dagster makes an engine for each connection, and so compiles each statement each time. The engines have no pool, so an engine that is kept
holds no connection and no file open. The storage of events uses its engines again in the product, too (defs/home/instance.py).
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from dagster._core.storage.runs.sqlite import sqlite_run_storage
from dagster._core.storage.schedules.sqlite import sqlite_schedule_storage

_KEPT = 100


def _keeping(create_engine: Callable[..., Any]) -> Callable[..., Any]:
    """Return `create_engine` with a memory for the last arguments."""

    @lru_cache(maxsize=_KEPT)
    def kept(address: str, options: tuple[Any, ...], connect_args: tuple[Any, ...]) -> Any:
        return create_engine(address, **dict(options), connect_args=dict(connect_args))

    def create(address: str, *, connect_args: dict[str, Any] | None = None, **options: Any) -> Any:
        return kept(address, tuple(options.items()), tuple((connect_args or {}).items()))

    return create


for _storage in (sqlite_run_storage, sqlite_schedule_storage):
    _storage.create_engine = _keeping(_storage.create_engine)  # type: ignore[attr-defined]
