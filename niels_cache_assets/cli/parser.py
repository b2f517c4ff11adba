"""The commands by group, and wrong use in one line with the nearest valid choice. A command's own options and help stand beside it."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Sequence
from typing import Any, NoReturn

from niels_cache_assets.cli import (
    build_all_options,
    catalog_options,
    comparing_options,
    completion_options,
    corpus_options,
    differing_options,
    doctor_options,
    exchange_options,
    init_options,
    looking_options,
    prebuild_options,
    reporting_options,
    status_options,
    tracing_options,
    ui_options,
    verify_options,
)
from niels_cache_assets.cli.command import Command, add_settings_options
from niels_cache_assets.cli.console import PROGRAM
from niels_cache_assets.cli.exit_codes import MEANINGS
from niels_cache_runtime.errors import NielsCacheError

COMMANDS: dict[str, tuple[Command, ...]] = {
    "set up": (catalog_options.COMMAND, init_options.COMMAND, doctor_options.COMMAND, completion_options.COMMAND),
    "build": (build_all_options.COMMAND, prebuild_options.COMMAND),
    "see how it stands": (
        looking_options.LIST,
        status_options.COMMAND,
        verify_options.COMMAND,
        reporting_options.COMMAND,
        ui_options.COMMAND,
    ),
    "see what is in it": (looking_options.SHOW, looking_options.SAMPLE, tracing_options.COMMAND, differing_options.COMMAND),
    "clean text": (corpus_options.CLEAN, corpus_options.REJECTED, corpus_options.DUPLICATES),
    "choose a tokenizer": (comparing_options.COMMAND,),
    "meet other projects": (exchange_options.EXPORT, exchange_options.IMPORT),
}

_DESCRIPTION = """\
Turn text into token caches, with lineage and sha256 for every file, and look at what is there.

Your niels_cache.toml names the data sets: `niels-cache init` writes one. Others ship with the
package: `niels-cache catalog` lists them. Without a file build-all takes a profile of these
(default: the hub, gigabytes; quickstart: Python's own documentation, no network)."""

_EXAMPLES = """\
examples:
  niels-cache init data/                               a niels_cache.toml for your data
  niels-cache build-all --profile quickstart           a small cache in about a minute, without network
  niels-cache build-all                                all that niels_cache.toml names
  niels-cache status                                   what is complete, what is not and why
  niels-cache sample python_docs --profile quickstart  what training will see
  niels-cache trace --state checkpoint.pt --step 1200  what training saw in that batch, and whence

`niels-cache COMMAND --help` explains one command."""

_NAME_WIDTH = 16


def _formatter(prog: str) -> argparse.HelpFormatter:
    return argparse.RawDescriptionHelpFormatter(prog, max_help_position=32)


class _Parser(argparse.ArgumentParser):
    """argparse, but an error is a NielsCacheError, and options are not abbreviated: a typo is refused with the nearest choice."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=_formatter, **settings)

    def error(self, message: str) -> NoReturn:
        raise NielsCacheError(f"{message} ({self.prog} --help explains)")


class _TopParser(_Parser):
    """Whose help lists the commands by group, as argparse cannot."""

    def format_help(self) -> str:
        def listed(title: str, rows: dict[str, str]) -> str:
            return "\n".join([f"{title}:", *(f"  {name:<{_NAME_WIDTH}}{words}" for name, words in rows.items())])

        groups = [listed(title, {command.name: command.summary for command in commands}) for title, commands in COMMANDS.items()]
        options = listed("options", {"-h, --help": "print this help and exit", "--version": "print the version and exit"})
        codes = listed("exit codes", {str(code): meaning for code, meaning in MEANINGS.items()})
        return "\n\n".join([f"usage: {PROGRAM} COMMAND [options]", _DESCRIPTION, *groups, options, _EXAMPLES, codes]) + "\n"


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace | None:
    """The parsed command line; `.module` of this package runs it. None where there is no command: its help is printed.

    Raises NielsCacheError for wrong use, SystemExit after --help and --version.
    """
    top, commands = build_parsers()
    if not argv:
        top.print_help()
        return None
    if argv[0].startswith("-") and argv[0] not in top._option_string_actions:
        _refuse_first(argv, top, commands)
    if not argv[0].startswith("-") and argv[0] not in commands:
        _refuse("no command", argv[0], commands)
    arguments, unknown = top.parse_known_args(argv)
    if unknown:
        options = [word for word in unknown if word.startswith("-")]
        if not options:
            hint = _meant_as_root(arguments, unknown[0]) or _meant_as_only(arguments, unknown)
            raise NielsCacheError(f"{PROGRAM} {arguments.command}: unexpected argument {unknown[0]!r}{hint}")
        _refuse(f"{arguments.command} has no option", options[0].partition("=")[0], commands[arguments.command]._option_string_actions)
    return arguments


def _meant_as_root(arguments: argparse.Namespace, given: str) -> str:
    """How to name a folder of caches, which is no argument of its own."""
    takes_root = hasattr(arguments, "cache_dir") and os.path.isdir(given)
    return f"; for the caches in this folder, type {PROGRAM} {arguments.command} --cache-dir {shlex.quote(given)}" if takes_root else ""


def _meant_as_only(arguments: argparse.Namespace, given: Sequence[str]) -> str:
    """How to choose data sets, of a command that takes all by itself."""
    names = " ".join(shlex.quote(name) for name in given)
    return f"; to choose data sets, type {PROGRAM} {arguments.command} --only {names}" if hasattr(arguments, "only") else ""


def _refuse_first(argv: Sequence[str], top: argparse.ArgumentParser, commands: dict[str, argparse.ArgumentParser]) -> NoReturn:
    """An option before the command: one that has to follow it, or a misspelt one."""
    option = argv[0].partition("=")[0]
    name = next((word for word in argv if word in commands), None)
    if any(option in parser._option_string_actions for parser in commands.values()):
        raise NielsCacheError(f"{argv[0]}: options come after the command: {PROGRAM} {name or 'COMMAND'} {argv[0]} ...")
    _refuse("no option", option, [*top._option_string_actions, *(commands[name]._option_string_actions if name else ())])


def _refuse(problem: str, given: str, choices: Any) -> NoReturn:
    from niels_cache_assets.registry import refuse_choice

    refuse_choice("command line", problem, given, choices)


def build_parsers() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """The parser of the whole command line, and those of its commands by name."""
    top = _TopParser(prog=PROGRAM)
    top.add_argument("--version", action=_Version)
    subparsers = top.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser)
    parsers: dict[str, argparse.ArgumentParser] = {}
    for command in (command for commands in COMMANDS.values() for command in commands):
        parser = subparsers.add_parser(
            command.name,
            help=command.summary,
            description=command.text,
            epilog=f"examples:\n{command.examples}",
            usage=f"{PROGRAM} {command.name} {command.usage}[options]",
        )
        parser.set_defaults(module=command.module)
        if command.add_options is not None:
            command.add_options(parser)
        _add_common_options(parser, command)
        parsers[command.name] = parser
    return top, parsers


def _add_common_options(parser: argparse.ArgumentParser, command: Command) -> None:
    if command.has_caches:
        where = parser.add_argument_group("where")
        where.add_argument("--cache-dir", metavar="DIR", help="root of the caches (default: NIELS_CACHE_ROOT, else [build] cache_dir)")
        add_settings_options(where)
    output = parser.add_argument_group("output")
    if command.has_json:
        output.add_argument("--json", action="store_true", help="print JSON, for programs")
    loudness = output.add_mutually_exclusive_group()
    loudness.add_argument("-q", "--quiet", action="store_true", help="no progress and no advice: results, warnings and errors alone")
    loudness.add_argument("-v", "--verbose", action="store_true", help="say what is used and what it cost; of an error, where it arose")


class _Version(argparse.Action):
    """--version, without importing importlib.metadata for any other command."""

    def __init__(self, option_strings: Sequence[str], dest: str) -> None:
        super().__init__(option_strings, dest, nargs=0, help="print the version and exit")

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        from importlib.metadata import PackageNotFoundError, version

        try:
            print(f"{PROGRAM} {version(PROGRAM)}")
        except PackageNotFoundError:
            print(f"{PROGRAM} (not installed: run from its sources)")
        parser.exit()
