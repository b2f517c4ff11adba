"""The parts of a command, the exit codes, and the helpers and help texts that several commands share.

The module of a command has `COMMAND`, and `run(arguments)`, which returns the exit code; None is DONE. Help and completion import the
module of every command, so such a module imports nothing heavy at the top. Its functions import everything that the command needs to run.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from niels_cache_runtime.errors import NielsCacheError, NotWrittenError

if TYPE_CHECKING:
    from niels_cache_assets.project.registry import Registry

WHERE = "command line"
TOKENIZER = "tokenizer"  # the name of its cache
HOME_VARIABLE = "DAGSTER_HOME"
MAX_SEED = 2**63 - 1


# The exit codes, which do not change. The code, the help and the documentation share their meanings.
DONE = 0
FAILED = 1
WRONG_USE = 2
BUG = 70  # EX_SOFTWARE of sysexits.h
BUSY = 75  # EX_TEMPFAIL of sysexits.h
INTERRUPTED = 130  # 128 + SIGINT
BROKEN_PIPE = 141  # 128 + SIGPIPE, as a shell reports for `niels-cache status | head -1`
TERMINATED = 143  # 128 + SIGTERM

MEANINGS = {
    DONE: "success",
    FAILED: "a data set failed; a disk, database or object store operation failed; `verify`, `doctor` or `diff` found a problem or "
    "difference; or `status` lists something incomplete",
    WRONG_USE: "wrong usage, invalid configuration or a missing input; nothing was changed",
    BUG: "a bug in niels-cache; the traceback shows its location",
    BUSY: "another process is building this part (only with `part --no-wait`); try again later",
    INTERRUPTED: "interrupted by Ctrl-C; finished caches are unchanged",
    BROKEN_PIPE: "the program that reads the output, such as `head`, exited early",
    TERMINATED: "terminated by SIGTERM; finished caches are unchanged",
}

Offered = Callable[[argparse.Namespace], Iterable[str]]  # called with the options typed so far
Option = tuple[str, dict[str, Any]]  # the names, with a blank between them, and the other arguments of argparse's add_argument
Options = Sequence[Option | list[Option]]  # of a list, at most one may be given


@dataclass(frozen=True, kw_only=True)
class Command:
    """Help and options of a command, whose name and one-line summary are in the table in parser.py.

    Attributes:
        examples: One line each, "niels-cache NAME ...   purpose". Tests parse these lines.
        options: The arguments and options that only this command has.
        groups: More of them, by the heading that the help gives them.
        usage: The positional arguments and required options.
        description: Longer than the summary; by default the summary in the table.
        offers: Values for TAB, by argparse's `dest`. Options with `choices` need none.
        has_caches: Whether it takes --cache-dir, --profile and --config.
        has_json: Whether it takes --json.
    """

    examples: str
    options: Options = ()
    groups: Mapping[str, Options] = field(default_factory=dict)
    usage: str = ""
    description: str | None = None
    offers: Mapping[str, Sequence[str] | Offered] = field(default_factory=dict)
    has_caches: bool = True
    has_json: bool = True


def option(name: str, metavar: str, help: str, **settings: Any) -> Option:
    """Return an argument, or an option with a value."""
    return name, {"metavar": metavar, "help": help, **settings}


def switch(name: str, help: str) -> Option:
    """Return an option without a value."""
    return name, {"action": "store_true", "help": help}


def offer_configured_names(names_of: Callable[[Registry], Iterable[str]]) -> Offered:
    """Return a function that offers names of the configuration to TAB, or no names if the configuration is wrong."""

    def offered(arguments: argparse.Namespace) -> list[str]:
        from niels_cache_assets.project.registry import load_registry

        return list(names_of(load_registry(profile=getattr(arguments, "profile", None), config=getattr(arguments, "config", None))))

    return offered


PRETRAIN = offer_configured_names(lambda registry: registry.pretrain)
DATA_SETS = offer_configured_names(lambda registry: registry.sources)
CACHES = offer_configured_names(lambda registry: [TOKENIZER, *registry.sources])


def catalog_names(arguments: argparse.Namespace) -> Iterable[str]:
    """Return the names of the data sets that ship with the package."""
    from niels_cache_assets.project.shipped import catalog

    return catalog()


def raise_invalid(option: str, problem: str, given: str, choices: Iterable[str]) -> NoReturn:
    """Raise an error for an invalid value that suggests the nearest valid value.

    Args:
        option: The option, empty for a positional argument.
        problem: What is wrong with the value.
        given: The value.
        choices: The valid values.

    Raises:
        NielsCacheError: Always.
    """
    from niels_cache_assets.base.choices import raise_unknown_choice

    raise_unknown_choice(f"{WHERE}: {option}" if option else WHERE, problem, given, choices)


def refuse_options(arguments: argparse.Namespace, names: Iterable[str], reason: str) -> None:
    """Refuse options that do not apply here.

    Args:
        arguments: The arguments.
        names: Names of the options in `arguments`.
        reason: Why they do not apply, and what to do.

    Raises:
        NielsCacheError: If one of them is given.
    """
    for name in names:
        value = getattr(arguments, name)
        if value is not None and value is not False:
            raise NielsCacheError(f"{WHERE}: --{name.replace('_', '-')}: {reason}")


class BuildFailedError(NielsCacheError):
    """A failure of a build or of an export. Any other NielsCacheError is wrong use, a wrong setting, or a missing input."""


@contextmanager
def failing() -> Iterator[None]:
    """Let the command exit with FAILED for an error of the block, which follows the checks of the command line.

    Raises:
        BuildFailedError: For a NielsCacheError.
    """
    try:
        yield
    except NielsCacheError as error:
        raise BuildFailedError(str(error)) from error


def exit_code(error: NielsCacheError) -> int:
    """Return the exit code of a command that ends with this error."""
    return FAILED if isinstance(error, NotWrittenError | BuildFailedError) else WRONG_USE


def draw_seed(given: int | None) -> int:
    """Return the given seed, or a random one.

    Raises:
        NielsCacheError: If the seed is not in 0..MAX_SEED.
    """
    if given is None:
        from secrets import randbits

        return randbits(MAX_SEED.bit_length())
    if not 0 <= given <= MAX_SEED:
        raise NielsCacheError(f"{WHERE}: --seed must be from 0 to {MAX_SEED}, not {given}")
    return given


def whole_number(text: str) -> int:
    """Return an integer of at most 64 bits. Underscores may separate digits: 200_000_000."""
    with suppress(ValueError):  # also raised for more than 4,300 digits
        number = int(text)
        if number.bit_length() <= 64:
            return number
    raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a whole number of 64 bits")


SEED = option("--seed", "N", "seed for a reproducible selection (default: a new seed every time)", type=whole_number)


def integer_at_least(least: int) -> Callable[[str], int]:
    """Return a `type` for argparse: a whole number of `least` or more."""

    def number(text: str) -> int:
        found = whole_number(text)
        if found < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}, not {found}")
        return found

    return number


def fraction(text: str) -> float:
    """Return a number, such as a share from 0 to 1. The range is not checked here."""
    try:
        return float(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from error
