"""build-all's flags and `--set` as nested overrides for `load_registry`.

A flag is one line of `FLAGS`: an option and the key that it sets. Values are only shaped here; whether they make sense is decided by the
registry, which knows every key's type and range.

The table is not made from the models of the settings: flags have names and words of their own, few keys have one, and help must not wait
for pydantic.
"""

from __future__ import annotations

import argparse
import datetime
import tomllib
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from niels_cache_assets.cli.command import WHERE, fraction, whole_number
from niels_cache_assets.config import defaults
from niels_cache_assets.config.defaults import ROLE_KEYS
from niels_cache_assets.config.toml import parse_toml
from niels_cache_runtime.errors import NielsCacheError

if TYPE_CHECKING:
    from niels_cache_assets.config.registry import Registry

_OF_NEW_TABLES = ("source", "weights")  # the keys that every data set, or blend, needs


@dataclass(frozen=True)
class Overrides:
    """Nested tables, and for each of their keys ("build.seed") which option said it: what `load_registry` wants to know."""

    tables: dict[str, dict[str, Any]] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)

    def put(self, table: tuple[str, ...], key: str, value: Any, option: str) -> None:
        target: dict[str, Any] = self.tables
        for part in table:
            target = target.setdefault(part, {})
        target[key] = value
        self.options[".".join((*table, key))] = f"{WHERE}: {option}"


def role_and_token(text: str) -> tuple[str, str]:
    """`eot=<|end|>` to its two halves."""
    role, equals, token = text.partition("=")
    if role not in ROLE_KEYS or not equals or not token:
        raise argparse.ArgumentTypeError(f"{text!r} is not ROLE=TEXT with a role of {', '.join(ROLE_KEYS)}")
    return role, token


@dataclass(frozen=True, kw_only=True)
class Flag:
    """An option of build-all and what it sets: `key` of `table`, which is build, tokenizer or FAMILY.NAME. `default` is for the help."""

    option: str
    table: str
    key: str
    help: str
    type: Callable[[str], Any] = str
    metavar: str = "TEXT"
    nargs: str | None = None
    default: Any = None

    @property
    def dest(self) -> str:
        """Where argparse puts the value; unlike the option's own name it can never clash with a command's other options."""
        return f"{self.table}.{self.key}"

    @property
    def group(self) -> str:
        """Its heading in the help."""
        if self.table == "tokenizer":
            return "tokenizer"
        return "every data set" if self.table == "build" or self.table.endswith(".*") else "data sets of the catalog, if they are named"


def _count(option: str, table: str, key: str, help: str, default: int | None = None) -> Flag:
    return Flag(option=option, table=table, key=key, help=help, type=whole_number, metavar="N", default=default)


def _text(
    option: str, table: str, key: str, help: str, default: str | None = None, *, metavar: str = "TEXT", nargs: str | None = None
) -> Flag:
    return Flag(option=option, table=table, key=key, help=help, default=default, metavar=metavar, nargs=nargs)


def _share(option: str, table: str, key: str, help: str, default: float) -> Flag:
    return Flag(option=option, table=table, key=key, help=help, type=fraction, metavar="SHARE", default=default)


FLAGS: tuple[Flag, ...] = (
    _count("--seed", "build", "seed", "seed of shuffles and splits", defaults.SEED),
    _count("--shard-bytes", "build", "shard_bytes", "size of a full shard, even", defaults.SHARD_BYTES),
    _count("--threads", "build", "threads", "encoding threads; never changes the bytes (default: every core)"),
    _text("--tokenizer-model", "tokenizer", "model", "import this SentencePiece model instead of training one", metavar="FILE"),
    _count("--vocab-size", "tokenizer", "vocab_size", "pieces in all, special tokens included", defaults.VOCAB_SIZE),
    _text("--model-type", "tokenizer", "model_type", "unigram or bpe", "unigram"),
    _share(
        "--character-coverage",
        "tokenizer",
        "character_coverage",
        "share of characters with a piece of their own; others fall to bytes",
        1.0,
    ),
    _count("--tokenizer-sample-bytes", "tokenizer", "sample_bytes", "text to train on, of each data set", defaults.TOKENIZER_SAMPLE_BYTES),
    _text(
        "--train-on",
        "tokenizer",
        "train_on",
        "data sets to train the tokenizer on (default: every configured one)",
        metavar="NAME",
        nargs="+",
    ),
    Flag(
        option="--special-tokens",
        table="tokenizer",
        key="special_tokens",
        help="the strings of all four special tokens: sys=TEXT usr=TEXT asst=TEXT eot=TEXT",
        type=role_and_token,
        metavar="ROLE=TEXT",
        nargs="+",
    ),
    _text("--fineweb-dataset", "pretrain.fineweb_edu", "dataset", "hub data set", "HuggingFaceFW/fineweb-edu"),
    _text("--fineweb-config", "pretrain.fineweb_edu", "config", "its configuration", "CC-MAIN-2024-10"),
    _count("--fineweb-train-tokens", "pretrain.fineweb_edu", "train_tokens", "train budget", defaults.FINEWEB_TRAIN_TOKENS),
    _count("--fineweb-val-tokens", "pretrain.fineweb_edu", "val_tokens", "val budget; 0 for no val", defaults.FINEWEB_VAL_TOKENS),
    _text("--wikitext-config", "pretrain.wikitext", "config", "configuration of Salesforce/wikitext", "wikitext-103-raw-v1"),
    _text("--roam-dir", "pretrain.roam", "path", "folder of *.md notes; without it roam is skipped", metavar="DIR"),
    _share("--roam-val-frac", "pretrain.roam", "val_frac", "share of notes that go to val", defaults.VAL_FRAC),
    _text("--gutenberg-dir", "pretrain.gutenberg", "path", "folder of *.txt books instead of the hub; turns gutenberg on", metavar="DIR"),
)

# Not for one table but for all that fit, so these wait until the registry is known.
SHUFFLE_BUFFER = _count("--shuffle-buffer", "pretrain.*", "shuffle_buffer", "documents, where a data set shuffles", defaults.SHUFFLE_BUFFER)
SFT_VAL_FRAC = _share("--sft-val-frac", "sft.*", "val_frac", "share of SFT examples that go to val", defaults.VAL_FRAC)


def collect_overrides(arguments: argparse.Namespace, registry: Registry) -> Overrides:
    """What the flags and --set of build-all say; --set wins. `registry` is the configuration without them.

    Raises NielsCacheError for a flag of a data set that this configuration does not have, and for a --set without a table, key and value.
    """
    overrides = Overrides()
    for flag in FLAGS:
        value = getattr(arguments, flag.dest)
        if value is None:
            continue
        if flag.key == "special_tokens":
            value = _four_tokens(dict(value))
        overrides.put(_table_path(flag, registry), flag.key, value, flag.option)
        if flag.option == "--gutenberg-dir":
            overrides.put(("pretrain", "gutenberg"), "enabled", True, flag.option)
    for path, value in _parse_settings(arguments.settings, registry):
        overrides.put(path[:-1], path[-1], value, "--set")
    _spread(overrides, SHUFFLE_BUFFER, arguments, [name for name, source in registry.pretrain.items() if source.shuffle_buffer])
    _spread(overrides, SFT_VAL_FRAC, arguments, registry.sft)
    return overrides


def parse_value(text: str) -> Any:
    """A TOML value (`true`, `0.1`, `200_000`, `["a", "b"]`, `{a = 0.5}`), or the text itself if it is not one.

    Raises NielsCacheError for a whole number of more than 64 bits.
    """
    try:
        value = parse_toml(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    except ValueError as error:
        raise NielsCacheError(f"{WHERE}: --set: {text[:40]!r} ...: {error}") from error
    return text if isinstance(value, (datetime.date, datetime.time)) else value  # no setting is a date, but 2024-01-01 may be a name


def _table_path(flag: Flag, registry: Registry) -> tuple[str, ...]:
    family, _, name = flag.table.partition(".")
    if not name:
        return (family,)
    if name not in registry.pretrain:
        registry.refuse_data_set(f"{WHERE}: {flag.option}", "no data set", name)
    return family, name


def _four_tokens(tokens: dict[str, str]) -> dict[str, str]:
    missing = [role for role in ROLE_KEYS if role not in tokens]
    if missing:
        raise NielsCacheError(f"{WHERE}: --special-tokens needs all four roles; add {' '.join(f'{role}=TEXT' for role in missing)}")
    return tokens


def _parse_settings(settings: Iterable[str], registry: Registry) -> list[tuple[tuple[str, ...], Any]]:
    """The path of each --set (table, then the data set or blend if it has one, then the key) and its value.

    A path may lead into a key that is a table itself (`pretrain.notes.cleaning.min_words`): the other entries of that table stay.
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
    new = {target[:2] for target in parsed if target[-1] in _OF_NEW_TABLES}  # what a table that is not there yet begins with
    for target in parsed:
        known = {"pretrain": registry.pretrain, "sft": registry.sft, "blend": registry.blend}.get(target[0])
        if known is not None and target[1] not in known and target[:2] not in new:
            where = f"{WHERE}: --set {'.'.join(target)}"
            if target[0] == "blend":
                refuse_choice(where, "no blend", target[1], known, registry.elsewhere)
            registry.refuse_data_set(where, "no data set", target[1], known)
    return list(parsed.items())


def _longest_name(parts: Sequence[str], known: Container[str]) -> str:
    """The configured name that these parts of a path begin with, of several the longest, else all but the last part: names have dots."""
    names = [".".join(parts[:count]) for count in range(len(parts), 0, -1)]
    return next((name for name in names if name in known), ".".join(parts[:-1]))


def _spread(overrides: Overrides, flag: Flag, arguments: argparse.Namespace, names: Iterable[str]) -> None:
    """Give a flag's value to all these data sets, unless --set says otherwise for one."""
    value = getattr(arguments, flag.dest)
    if value is None:
        return
    names = list(names)
    family = flag.table.partition(".")[0]
    if not names:
        raise NielsCacheError(
            f"{WHERE}: {flag.option} has no {family} data set to apply to; set it for one: --set {family}.NAME.{flag.key}={value}"
        )
    for name in names:
        if f"{family}.{name}.{flag.key}" not in overrides.options:
            overrides.put((family, name), flag.key, value, flag.option)
