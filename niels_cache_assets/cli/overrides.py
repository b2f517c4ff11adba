"""The flags of build-all, and `--set`. They become nested tables that override the configuration (`load_registry`).

A flag is one line of `FLAGS`, with an option and the key that this option sets. This module only parses values. The registry checks the
type and range of every value.

`FLAGS` is not generated from the pydantic models of the settings, for three reasons. Flags have their own names and texts. Only a few keys
have a flag. Help must not wait for the import of pydantic.
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
from niels_cache_assets.config.defaults import BOS, ROLE_KEYS
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

    def put(self, table: tuple[str, ...], key: str, value: Any, option: str) -> None:
        target: dict[str, Any] = self.tables
        for part in table:
            target = target.setdefault(part, {})
        target[key] = value
        self.options[".".join((*table, key))] = f"{WHERE}: {option}"


def role_and_token(text: str) -> tuple[str, str]:
    """Return the role and the token of a text such as `eot=<|end|>`."""
    role, equals, token = text.partition("=")
    roles = (*ROLE_KEYS, BOS)
    if role not in roles or not equals or not token:
        raise argparse.ArgumentTypeError(f"{text!r} is not ROLE=TEXT with a role of {', '.join(roles)}")
    return role, token


@dataclass(frozen=True, kw_only=True)
class Flag:
    """An option of build-all that sets `key` of `table`: build, tokenizer or FAMILY.NAME. `default` is shown in the help."""

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
        """The `dest` of argparse. It contains the table, so that it cannot clash with options of a command."""
        return f"{self.table}.{self.key}"

    @property
    def group(self) -> str:
        """The heading of this flag in the help."""
        if self.table == "tokenizer":
            return "tokenizer"
        return (
            "every data set"
            if self.table == "build" or self.table.endswith(".*")
            else "data sets of the catalog, if niels_cache.toml names them"
        )


def _count(option: str, table: str, key: str, help: str, default: int | None = None) -> Flag:
    return Flag(option=option, table=table, key=key, help=help, type=whole_number, metavar="N", default=default)


def _text(
    option: str, table: str, key: str, help: str, default: str | None = None, *, metavar: str = "TEXT", nargs: str | None = None
) -> Flag:
    return Flag(option=option, table=table, key=key, help=help, default=default, metavar=metavar, nargs=nargs)


def _share(option: str, table: str, key: str, help: str, default: float) -> Flag:
    return Flag(option=option, table=table, key=key, help=help, type=fraction, metavar="SHARE", default=default)


FLAGS: tuple[Flag, ...] = (
    _count("--seed", "build", "seed", "seed for shuffles and splits", defaults.SEED),
    _count("--shard-bytes", "build", "shard_bytes", "size of a full shard in bytes, a whole number of tokens", defaults.SHARD_BYTES),
    _count("--threads", "build", "threads", "encoding threads; the bytes do not depend on it (default: all cores)"),
    _text(
        "--tokenizer-model",
        "tokenizer",
        "model",
        "import this model instead of training one: SentencePiece, tokenizer.json, tiktoken ranks",
        metavar="FILE",
    ),
    _count("--vocab-size", "tokenizer", "vocab_size", "number of pieces, including special tokens", defaults.VOCAB_SIZE),
    _text("--model-type", "tokenizer", "model_type", "unigram, bpe or bytelevel_bpe", "unigram"),
    _share(
        "--character-coverage",
        "tokenizer",
        "character_coverage",
        "share of characters that get their own piece; all others become bytes",
        1.0,
    ),
    _count(
        "--tokenizer-sample-bytes",
        "tokenizer",
        "sample_bytes",
        "bytes of text to train on, from each data set",
        defaults.TOKENIZER_SAMPLE_BYTES,
    ),
    _text(
        "--train-on",
        "tokenizer",
        "train_on",
        "data sets to train the tokenizer on (default: all configured ones)",
        metavar="NAME",
        nargs="+",
    ),
    Flag(
        option="--special-tokens",
        table="tokenizer",
        key="special_tokens",
        help="the texts of the special tokens: eot=TEXT; for SFT also sys=TEXT usr=TEXT asst=TEXT; bos=TEXT begins each document",
        type=role_and_token,
        metavar="ROLE=TEXT",
        nargs="+",
    ),
    _text("--fineweb-dataset", "pretrain.fineweb_edu", "dataset", "data set on the hub", "HuggingFaceFW/fineweb-edu"),
    _text("--fineweb-config", "pretrain.fineweb_edu", "config", "configuration of that data set", "CC-MAIN-2024-10"),
    _count("--fineweb-train-tokens", "pretrain.fineweb_edu", "train_tokens", "token budget of train", defaults.FINEWEB_TRAIN_TOKENS),
    _count("--fineweb-val-tokens", "pretrain.fineweb_edu", "val_tokens", "token budget of val; 0 for no val", defaults.FINEWEB_VAL_TOKENS),
    _text("--wikitext-config", "pretrain.wikitext", "config", "configuration of Salesforce/wikitext", "wikitext-103-raw-v1"),
    _text("--roam-dir", "pretrain.roam", "path", "folder with *.md notes; without it, roam is skipped", metavar="DIR"),
    _share("--roam-val-frac", "pretrain.roam", "val_frac", "share of notes for val", defaults.VAL_FRAC),
    _text(
        "--gutenberg-dir",
        "pretrain.gutenberg",
        "path",
        "folder with *.txt books to use instead of the hub; switches gutenberg on",
        metavar="DIR",
    ),
)

# These two flags apply to all matching tables, so they are resolved when the registry is known.
SHUFFLE_BUFFER = _count(
    "--shuffle-buffer",
    "pretrain.*",
    "shuffle_buffer",
    "size of the shuffle buffer in documents, for data sets that shuffle",
    defaults.SHUFFLE_BUFFER,
)
SFT_VAL_FRAC = _share("--sft-val-frac", "sft.*", "val_frac", "share of SFT examples for val", defaults.VAL_FRAC)


def collect_overrides(arguments: argparse.Namespace, registry: Registry) -> Overrides:
    """Return the overrides of the flags and of --set; --set has priority. `registry` is the configuration without overrides.

    Raise NielsCacheError for a flag of a data set that is not configured, and for a --set without table, key or value.
    """
    overrides = Overrides()
    for flag in FLAGS:
        value = getattr(arguments, flag.dest)
        if value is None:
            continue
        if flag.key == "special_tokens":
            value = dict(value)
        overrides.put(_table_path(flag, registry), flag.key, value, flag.option)
        if flag.option == "--gutenberg-dir":
            overrides.put(("pretrain", "gutenberg"), "enabled", True, flag.option)
    for path, value in _parse_settings(arguments.settings, registry):
        overrides.put(path[:-1], path[-1], value, "--set")
    _spread(overrides, SHUFFLE_BUFFER, arguments, [name for name, source in registry.pretrain.items() if source.shuffle_buffer])
    _spread(overrides, SFT_VAL_FRAC, arguments, registry.sft)
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


def _table_path(flag: Flag, registry: Registry) -> tuple[str, ...]:
    family, _, name = flag.table.partition(".")
    if not name:
        return (family,)
    if name not in registry.pretrain:
        registry.refuse_data_set(f"{WHERE}: {flag.option}", "no data set", name)
    return family, name


def _parse_settings(settings: Iterable[str], registry: Registry) -> list[tuple[tuple[str, ...], Any]]:
    """Return the path and the value of each --set. A path is the table, then the data set or blend if there is one, then the key.

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
    return list(parsed.items())


def _longest_name(parts: Sequence[str], known: Container[str]) -> str:
    """Return the longest configured name at the start of these parts. If there is none, return all parts except the last. Names may have
    dots.
    """
    names = [".".join(parts[:count]) for count in range(len(parts), 0, -1)]
    return next((name for name in names if name in known), ".".join(parts[:-1]))


def _spread(overrides: Overrides, flag: Flag, arguments: argparse.Namespace, names: Iterable[str]) -> None:
    """Apply the value of a flag to all these data sets. Skip a data set if --set gives the same key for this data set."""
    value = getattr(arguments, flag.dest)
    if value is None:
        return
    names = list(names)
    family = flag.table.partition(".")[0]
    if not names:
        raise NielsCacheError(
            f"{WHERE}: {flag.option}: no {family} data set uses it; set it for one data set: --set {family}.NAME.{flag.key}={value}"
        )
    for name in names:
        if f"{family}.{name}.{flag.key}" not in overrides.options:
            overrides.put((family, name), flag.key, value, flag.option)
