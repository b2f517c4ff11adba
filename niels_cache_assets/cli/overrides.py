"""The flags of build-all, and `--set`, which become nested tables that override the configuration (`load_registry`).

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
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from niels_cache_assets.base import defaults
from niels_cache_assets.base.defaults import BOS, ROLE_KEYS
from niels_cache_assets.base.toml import parse_toml
from niels_cache_assets.cli.command import WHERE, Option, fraction, option, whole_number
from niels_cache_runtime.errors import NielsCacheError

if TYPE_CHECKING:
    from niels_cache_assets.project.registry import Registry

_REQUIRED_KEYS = ("source", "weights")  # the required key of a data set, or of a blend


@dataclass(frozen=True)
class Overrides:
    """Overrides for `load_registry`.

    Attributes:
        tables: The nested tables.
        options: For each key such as "build.seed", the option that set this key.
    """

    tables: dict[str, dict[str, Any]] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)

    def put(self, table: Sequence[str], key: str, value: Any, option: str) -> None:
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


class Flag(NamedTuple):
    """An option of build-all that sets a key.

    Attributes:
        option: The option.
        key: A key of [build], of [tokenizer], of FAMILY.NAME, or of all data sets (`sft.*`).
        metavar: N, SHARE, ROLE=TEXT, or anything else for text, which determines the type.
        help: Text in the help.
        default: Default that the help shows.
    """

    option: str
    key: str
    metavar: str
    help: str
    default: Any = None

    def declared(self) -> Option:
        """Return the option as `Command` declares it."""
        default = f"{self.default:_}" if isinstance(self.default, int) and self.default > 9_999 else self.default
        return option(
            self.option,
            self.metavar,
            self.help if default is None else f"{self.help} (default: {default})",
            type=_TYPES.get(self.metavar, str),
            nargs="+" if self.metavar == ROLE_TEXT else None,
            dest=self.key,  # it cannot clash with options of the command
        )


ROLE_TEXT = "ROLE=TEXT"
_TYPES: Mapping[str, Callable[[str], Any]] = {"N": whole_number, "SHARE": fraction, ROLE_TEXT: role_and_token}
_FINEWEB = "pretrain.fineweb_edu"

FLAGS = {  # by their heading in the help
    "every data set": (
        Flag("--seed", "build.seed", "N", "seed for shuffles and splits", defaults.SEED),
        Flag("--shard-bytes", "build.shard_bytes", "N", "size of a full shard in bytes, a whole number of tokens", defaults.SHARD_BYTES),
        Flag("--threads", "build.threads", "N", "number of encoding threads; does not affect the bytes (default: all cores)"),
        Flag(
            "--shuffle-buffer",
            "pretrain.*.shuffle_buffer",
            "N",
            "size of the shuffle buffer in documents, for data sets that shuffle",
            defaults.SHUFFLE_BUFFER,
        ),
        Flag("--sft-val-frac", "sft.*.val_frac", "SHARE", "share of SFT examples for val", defaults.VAL_FRAC),
    ),
    "tokenizer": (
        Flag(
            "--tokenizer-model",
            "tokenizer.model",
            "MODEL",
            "import this model instead of training one: SentencePiece, tokenizer.json, ranks, or OWNER/NAME of the hub",
        ),
        Flag("--vocab-size", "tokenizer.vocab_size", "N", "vocabulary size, including special tokens", defaults.VOCAB_SIZE),
        Flag("--model-type", "tokenizer.model_type", "TEXT", "unigram, bpe or bytelevel_bpe", "unigram"),
        Flag(
            "--character-coverage",
            "tokenizer.character_coverage",
            "SHARE",
            "share of characters that get their own piece; all others are encoded as bytes",
            1.0,
        ),
        Flag(
            "--special-tokens",
            "tokenizer.special_tokens",
            ROLE_TEXT,
            "strings for the special tokens: eot=TEXT; for SFT also sys=TEXT usr=TEXT asst=TEXT; with bos=TEXT, every document begins "
            "with it",
        ),
    ),
    "data sets of the catalog, if niels_cache.toml names them": (
        Flag("--fineweb-dataset", f"{_FINEWEB}.dataset", "TEXT", "data set on the hub", "HuggingFaceFW/fineweb-edu"),
        Flag("--fineweb-config", f"{_FINEWEB}.config", "TEXT", "configuration of that data set", "CC-MAIN-2024-10"),
        Flag("--fineweb-train-tokens", f"{_FINEWEB}.train_tokens", "N", "token budget for train", defaults.FINEWEB_TRAIN_TOKENS),
        Flag("--fineweb-val-tokens", f"{_FINEWEB}.val_tokens", "N", "token budget for val; 0 for no val", defaults.FINEWEB_VAL_TOKENS),
        Flag("--wikitext-config", "pretrain.wikitext.config", "TEXT", "configuration of Salesforce/wikitext", "wikitext-103-raw-v1"),
        Flag("--roam-dir", "pretrain.roam.path", "DIR", "folder with *.md notes; without it, roam is skipped"),
        Flag("--roam-val-frac", "pretrain.roam.val_frac", "SHARE", "share of notes for val", defaults.VAL_FRAC),
        Flag(
            "--gutenberg-dir", "pretrain.gutenberg.path", "DIR", "folder with *.txt books to use instead of the hub; switches gutenberg on"
        ),
    ),
}


def collect_overrides(arguments: argparse.Namespace, registry: Registry) -> Overrides:
    """Return the overrides of the flags and of --set, of which --set has priority.

    Args:
        arguments: The parsed command line.
        registry: The configuration without overrides.

    Raises:
        NielsCacheError: If a flag is for a data set that is not configured, or if a --set lacks a table, key or value.
    """
    overrides = Overrides()
    for flag in chain.from_iterable(FLAGS.values()):
        if (value := getattr(arguments, flag.key)) is None:
            continue
        *table, key = flag.key.split(".")
        for path in _tables(flag, table, registry, value):
            overrides.put(path, key, dict(value) if flag.metavar == ROLE_TEXT else value, flag.option)
        if flag.option == "--gutenberg-dir":
            overrides.put(table, "enabled", True, flag.option)
    for target, value in _parse_settings(arguments.settings, registry):
        overrides.put(target[:-1], target[-1], value, "--set")
    return overrides


def _tables(flag: Flag, table: list[str], registry: Registry, value: Any) -> list[list[str]]:
    """Return the tables that a flag changes. `*` stands for every SFT data set, and for every pretrain data set that shuffles."""
    family, *name = table
    if name == ["*"]:
        found = registry.sft if family == "sft" else [each for each, source in registry.pretrain.items() if source.shuffle_buffer]
        if not found:
            hint = f"set it for one data set: --set {flag.key.replace('*', 'NAME')}={value}"
            raise NielsCacheError(f"{WHERE}: {flag.option}: no {family} data set uses it; {hint}")
        return [[family, each] for each in found]
    if name and name[0] not in registry.pretrain:
        registry.refuse_data_set(f"{WHERE}: {flag.option}", "no data set", name[0])
    return [table]


def parse_value(text: str) -> Any:
    """Return a TOML value (`true`, `0.1`, `200_000`, `["a", "b"]`, `{a = 0.5}`), or the text itself if it is not valid TOML.

    Raises:
        NielsCacheError: If the value is an integer of more than 64 bits.
    """
    try:
        value = parse_toml(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    except ValueError as error:
        raise NielsCacheError(f"{WHERE}: --set: {text[:40]!r} ...: {error}") from error
    return text if isinstance(value, (datetime.date, datetime.time)) else value  # no setting is a date, but a name may be 2024-01-01


def _parse_settings(settings: Iterable[str], registry: Registry) -> list[tuple[tuple[str, ...], Any]]:
    """Return the path and the value of each --set. A path is the table, then the data set or blend if there is one, then the key.

    If the value of a key is a table, a path may select one entry, such as `pretrain.notes.cleaning.min_words`. The other entries of this
    table are unchanged.
    """
    from niels_cache_assets.base.choices import raise_unknown_choice

    parsed: dict[tuple[str, ...], Any] = {}
    named: dict[str, Mapping[str, Any]] = {"pretrain": registry.pretrain, "sft": registry.sft, "blend": registry.blend}
    for setting in settings:
        path, equals, value = setting.partition("=")
        section, *parts = path.strip().split(".")
        tables = named.get(section)
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
    new = {target[:2] for target in parsed if target[-1] in _REQUIRED_KEYS}  # the key that creates a new table
    for target in parsed:
        known = named.get(target[0])
        if known is not None and target[1] not in known and target[:2] not in new:
            where = f"{WHERE}: --set {'.'.join(target)}"
            if target[0] == "blend":
                raise_unknown_choice(where, "no blend", target[1], known, registry.elsewhere)
            registry.refuse_data_set(where, "no data set", target[1], known)
    return list(parsed.items())


def _longest_name(parts: Sequence[str], known: Container[str]) -> str:
    """Return the longest configured name at the start of these parts, or all parts except the last if there is none.

    Names may have dots.
    """
    names = [".".join(parts[:count]) for count in range(len(parts), 0, -1)]
    return next((name for name in names if name in known), ".".join(parts[:-1]))
