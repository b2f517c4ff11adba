"""What a command is made of, and what several of them say or take.

The module of a command has `COMMAND` and `run(arguments) -> exit code`. Neither it nor this imports anything heavy: help and completion are
made of these alone. What a command needs to run, its functions import.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn, TypeVar

from niels_cache_runtime.errors import NielsCacheError

if TYPE_CHECKING:
    from niels_cache_assets.config.registry import Registry

WHERE = "command line"
HOME_VARIABLE = "DAGSTER_HOME"
MAX_SEED = 2**63 - 1

ALL_HELP = "what is switched off, too; without a niels_cache.toml, all of the default profile"
SEED_HELP = "the same seed shows the same; default: another choice every time"

Choice = TypeVar("Choice", bound=str)
Offered = Callable[[argparse.Namespace], Iterable[str]]  # of the options that are typed already


@dataclass(frozen=True, kw_only=True)
class Command:
    """Help and options of a command. Its name and what it does in a line stand in the table of parser.py."""

    examples: str  # "niels-cache NAME ...   what for", a line each: tests parse them
    usage: str = ""  # its positionals and required options
    description: str | None = None  # None: what the table says
    add_options: Callable[[argparse.ArgumentParser], None] | None = None  # the command's own
    offers: Mapping[str, Sequence[str] | Offered] = field(default_factory=dict)  # what TAB completes, by where argparse puts the value
    has_caches: bool = True  # takes --cache-dir, --profile and --config
    has_json: bool = False  # takes --json: prints data


def add_settings_options(group: argparse._ActionsContainer) -> None:
    """Which configuration."""
    group.add_argument(
        "--profile",
        metavar="PROFILE",
        help="default or quickstart, below your settings (default: NIELS_CACHE_PROFILE, else `profile` of the file, else none)",
    )
    group.add_argument(
        "--config", metavar="FILE", help="your settings (default: NIELS_CACHE_CONFIG, else ./niels_cache.toml if there is one)"
    )


def configured(names_of: Callable[[Registry], Iterable[str]]) -> Offered:
    """Make a function that offers names of the configuration, and nothing where the configuration is wrong."""

    def offered(arguments: argparse.Namespace) -> list[str]:
        from niels_cache_assets.config.registry import load_registry

        return list(names_of(load_registry(profile=getattr(arguments, "profile", None), config=getattr(arguments, "config", None))))

    return offered


PRETRAIN = configured(lambda registry: registry.pretrain)
DATA_SETS = configured(lambda registry: [*registry.pretrain, *registry.sft])
CACHES = configured(lambda registry: ["tokenizer", *registry.pretrain, *registry.sft])


def catalog_names(arguments: argparse.Namespace) -> Iterable[str]:
    """Offer the data sets that ship with the package."""
    from niels_cache_assets.config.shipped import catalog

    return catalog()


def refuse(option: str, problem: str, given: str, choices: Iterable[str]) -> NoReturn:
    """Raise NielsCacheError for a value that is not among the valid ones, with the nearest. `option` is empty for an argument."""
    from niels_cache_assets.config.problems import refuse_choice

    refuse_choice(f"{WHERE}: {option}" if option else WHERE, problem, given, choices)


def chosen(option: str, problem: str, given: str, choices: Sequence[Choice]) -> Choice:
    """Return the choice that was given. Raise NielsCacheError as `refuse` if it is none of them."""
    for choice in choices:
        if choice == given:
            return choice
    refuse(option, problem, given, choices)


def draw_seed(given: int | None) -> int:
    """Return the seed that was given, or one that differs every time. Raises NielsCacheError outside of 0..MAX_SEED."""
    if given is None:
        import torch

        return torch.Generator().seed() & MAX_SEED
    if not 0 <= given <= MAX_SEED:
        raise NielsCacheError(f"{WHERE}: --seed must be from 0 to {MAX_SEED}, not {given}")
    return given


def whole_number(text: str) -> int:
    """200_000_000 is welcome."""
    try:
        number = int(text)
    except ValueError as error:  # one of more than 4,300 digits is among them
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a whole number of 64 bits") from error
    if number.bit_length() > 64:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a whole number of 64 bits")
    return number


def at_least(least: int) -> Callable[[str], int]:
    """Return a type of argparse's: a whole number that is not smaller."""

    def number(text: str) -> int:
        found = whole_number(text)
        if found < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}, not {found}")
        return found

    return number


def fraction(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from error
