"""The options of build-all that override the configuration: `--set` for any key, and `--seed`. They become nested tables (`load_registry`).

This module only parses values. The registry checks the type and range of every value.
"""

from __future__ import annotations

import argparse
import datetime
import tomllib
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from niels_cache_assets.cli.command import WHERE
from niels_cache_assets.config.toml import parse_toml
from niels_cache_runtime.errors import NielsCacheError

if TYPE_CHECKING:
    from niels_cache_assets.config.registry import Registry

_OF_NEW_TABLES = ("source", "weights")  # the required key of a data set, or of a blend


@dataclass(frozen=True)
class Overrides:
    """Overrides for `load_registry`. `tables`: the nested tables. `options`: for each key such as "build.seed", the option that set this
    key.
    """

    tables: dict[str, dict[str, Any]] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)

    def put(self, table: Sequence[str], key: str, value: Any, option: str) -> None:
        target: dict[str, Any] = self.tables
        for part in table:
            target = target.setdefault(part, {})
        target[key] = value
        self.options[".".join((*table, key))] = f"{WHERE}: {option}"


def collect_overrides(arguments: argparse.Namespace, registry: Registry) -> Overrides:
    """Return the overrides of --seed and --set; --set has priority. `registry` is the configuration without overrides.

    Raise NielsCacheError for a --set without table, key or value.
    """
    overrides = Overrides()
    if arguments.seed is not None:
        overrides.put(("build",), "seed", arguments.seed, "--seed")
    for (*table, key), value in _parse_settings(arguments.settings, registry).items():
        overrides.put(table, key, value, "--set")
    return overrides


def parse_value(text: str) -> Any:
    """Return a TOML value (`true`, `0.1`, `200_000`, `["a", "b"]`, `{a = 0.5}`), or the text itself if it is not valid TOML.

    Raise NielsCacheError for an integer of more than 64 bits.
    """
    try:
        value = parse_toml(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    except ValueError as error:
        raise NielsCacheError(f"{WHERE}: --set: {text[:40]!r} ...: {error}") from error
    return text if isinstance(value, (datetime.date, datetime.time)) else value  # no setting is a date, but a name may be 2024-01-01


def _parse_settings(settings: Iterable[str], registry: Registry) -> dict[tuple[str, ...], Any]:
    """Return the value of each --set by its path. A path is the table, then the data set or blend if there is one, then the key.

    If the value of a key is a table, a path may select one entry, such as `pretrain.notes.cleaning.min_words`. The remaining entries of
    this table stay unchanged.
    """
    from niels_cache_assets.config.problems import refuse_choice

    parsed: dict[tuple[str, ...], Any] = {}
    for setting in settings:
        path, equals, value = setting.partition("=")
        section, *parts = path.strip().split(".")
        tables = {"pretrain": registry.pretrain, "sft": registry.sft, "blend": registry.blend}.get(section)
        name = None if tables is None else _longest_name(parts, tables)
        head = (section,) if name is None else (section, name)
        key, *inner = (parts if name is None else parts[name.count(".") + 1 :]) or [""]
        if not equals or not all((*head, key)):
            raise NielsCacheError(f"{WHERE}: --set {setting!r} is not TABLE.KEY=VALUE, for example pretrain.wikitext.enabled=false")
        target, parsed_value = (*head, key), parse_value(value.strip())
        if inner:
            table = getattr(registry, section, None) if tables is None or name is None else tables.get(name)
            now = parsed.get(target, getattr(table, key, None))
            parsed_value = {**(now if isinstance(now, Mapping) else {}), ".".join(inner): parsed_value}
        parsed[target] = parsed_value
    new = {target[:2] for target in parsed if target[-1] in _OF_NEW_TABLES}  # the key that creates a new table
    for target in parsed:
        known = {"pretrain": registry.pretrain, "sft": registry.sft, "blend": registry.blend}.get(target[0])
        if known is not None and target[1] not in known and target[:2] not in new:
            where = f"{WHERE}: --set {'.'.join(target)}"
            if target[0] == "blend":
                refuse_choice(where, "no blend", target[1], known, registry.elsewhere)
            registry.refuse_data_set(where, "no data set", target[1], known)
    return parsed


def _longest_name(parts: Sequence[str], known: Container[str]) -> str:
    """Return the longest configured name at the start of these parts. If there is none, return all parts except the last. Names may have
    dots.
    """
    names = [".".join(parts[:count]) for count in range(len(parts), 0, -1)]
    return next((name for name in names if name in known), ".".join(parts[:-1]))
