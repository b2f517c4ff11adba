"""The commands by group, and the parser, whose error for wrong use is one line with the nearest valid choice.

The help and options of a command are in its own module, which is loaded when the command is typed. The list of all commands is printed
without loading these modules.
"""

import argparse
import os
import shlex
from collections.abc import Container, Sequence
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any, NoReturn

from niels_cache_assets.cli.command import MEANINGS, Command, Options, option, raise_invalid, switch
from niels_cache_assets.cli.console import PROGRAM
from niels_cache_runtime.errors import NielsCacheError

COMMANDS: dict[str, dict[str, str]] = {
    "set up": {
        "init": "write a commented niels_cache.toml, or list the data sets that ship with niels-cache",
        "doctor": "check your environment and show how to fix any problems",
    },
    "build": {
        "build-all": "build the tokenizer and every data set",
        "part": "build, join, add or remove parts of a data set under any scheduler",
        "prebuild-index": "build the indices of a blend before training starts",
        "plan": "show how full rows of packed documents are for several T, and write their plans",
    },
    "check the status": {
        "status": "list all caches with their counts, and explain what is incomplete",
        "verify": "rehash every file and check the invariants of the format",
        "report": "write an HTML report on all caches, or on the cleaning thresholds of a corpus",
        "ui": "start the web UI on this machine",
    },
    "inspect the content": {
        "show": "show the counts, dropped documents, revision and files of a cache",
        "sample": "print random windows (pretrain), examples (SFT) or documents as text",
        "trace": "show which documents a training batch came from",
        "why": "explain which step dropped a document of a data set, and why",
        "find": "find a text or tokens in all caches, with the source of each document",
        "diff": "compare the settings, documents and tokens of two builds",
    },
    "answer for the data": {
        "account": "count tokens by source, domain, licence, language and year, as planned and as read",
        "erase": "erase documents from everything that was built, with a receipt, or check a receipt",
    },
    "clean text": {
        "clean": "run the cleaning chain on files, or show what it dropped from a data set and why",
        "classifier": "train a classifier of good and bad documents, or evaluate one, with a report on its thresholds",
        "duplicates": "show duplicate documents and the words in which they differ",
    },
    "choose a tokenizer": {"tokenizer": "compare tokenizers by characters per token, or prove that fast engines produce the same ids"},
    "share a cache": {
        "push": "publish a cache to an object store or the hub",
        "pull": "download a published cache, or inspect the local copy of a loader",
    },
    "exchange data with other projects": {
        "export": "export a cache for Megatron-LM, nanoGPT, llm.c, datatrove, OLMo-core or NumPy",
        "import": "create a cache from Megatron-LM token files",
    },
}

_DESCRIPTION = """\
Turn text into token caches, with lineage and sha256 for every file, and inspect them.

Your niels_cache.toml names the data sets; `niels-cache init` writes one. More data sets ship with the
package; `niels-cache init --list` shows them. Without that file, build-all uses a profile (default:
gigabytes from the hub; quickstart: Python's documentation, without network access)."""

_EXAMPLES = """\
examples:
  niels-cache init data/                               write a niels_cache.toml for your data
  niels-cache build-all --profile quickstart           build a small cache offline in about a minute
  niels-cache build-all                                build everything that niels_cache.toml names
  niels-cache status                                   show which caches are complete, and why others are not
  niels-cache sample python_docs --profile quickstart  show the text that training will see
  niels-cache trace --state checkpoint.pt --step 1200  show the documents that training saw in that batch

`niels-cache COMMAND --help` explains one command."""

_NAME_WIDTH = 16

_WHERE = (
    option("--cache-dir", "DIR", "root folder of the caches (default: NIELS_CACHE_ROOT, else [build] cache_dir)"),
    option(
        "--profile",
        "PROFILE",
        "default or quickstart; your settings override it (default: NIELS_CACHE_PROFILE, else `profile` in the file, else none)",
    ),
    option("--config", "FILE", "your settings (default: NIELS_CACHE_CONFIG, else ./niels_cache.toml if it exists)"),
)
_JSON = switch("--json", "print JSON for use by programs")
_VERBOSITY = [
    switch("-q --quiet", "print only results, warnings and errors"),
    switch("-v --verbose", "also print the settings in use, time and memory, and a traceback for errors"),
]


class _Parser(argparse.ArgumentParser):
    """A parser that raises NielsCacheError for wrong use.

    Abbreviated options are not accepted, so the message for a typo can suggest the nearest option.
    """

    def __init__(self, **settings: Any) -> None:
        formatter = partial(argparse.RawDescriptionHelpFormatter, max_help_position=32)
        super().__init__(allow_abbrev=False, formatter_class=formatter, **settings)

    def error(self, message: str) -> NoReturn:
        raise NielsCacheError(f"{message} (see {self.prog} --help)")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            raise_invalid(", ".join(action.option_strings) or f"{self.prog} {action.metavar}", "unknown value", value, action.choices)


class _TopParser(_Parser):
    """A parser whose help lists the commands by group, which argparse itself cannot do."""

    def format_help(self) -> str:
        def listed(title: str, rows: dict[str, str]) -> str:
            return "\n".join([f"{title}:", *(f"  {name:<{_NAME_WIDTH}}{words}" for name, words in rows.items())])

        groups = [listed(title, rows) for title, rows in COMMANDS.items()]
        options = listed("options", {"-h, --help": "print this help and exit", "--version": "print the version and exit"})
        codes = listed("exit codes", {str(code): meaning for code, meaning in MEANINGS.items()})
        return "\n\n".join([f"usage: {PROGRAM} COMMAND [options]", _DESCRIPTION, *groups, options, _EXAMPLES, codes]) + "\n"


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace | None:
    """Return the parsed command line; the module of its `.command` runs it. Without a command, print help and return None.

    Raises:
        NielsCacheError: If the use is wrong.
        SystemExit: After --help and --version.
    """
    top, commands = build_parsers(argv[:1])
    if not argv:
        top.print_help()
        return None
    if argv[0] == "--version":
        from importlib.metadata import PackageNotFoundError, version  # slow, and not needed for anything else

        try:
            print(f"{PROGRAM} {version(PROGRAM)}")
        except PackageNotFoundError:
            print(f"{PROGRAM} (not installed; running from source)")
        raise SystemExit
    if argv[0].startswith("-") and argv[0] not in top._option_string_actions:
        _raise_option_before_command(argv, *build_parsers())
    arguments, unknown = top.parse_known_args(argv)
    options = [word for word in unknown if word.startswith("-")]
    if unknown and not options:  # argparse looks for an optional argument only before the options, as in `part web --no-wait 17`
        arguments, unknown = commands[argv[0]].parse_known_intermixed_args(argv[1:], argparse.Namespace(command=argv[0]))
    if unknown:
        if not options:
            raise NielsCacheError(f"{PROGRAM} {arguments.command}: unexpected argument {unknown[0]!r}; {_hint(arguments, unknown)}")
        raise_invalid(
            "", f"{arguments.command} has no option", options[0].partition("=")[0], commands[arguments.command]._option_string_actions
        )
    return arguments


def _hint(arguments: argparse.Namespace, given: Sequence[str]) -> str:
    """Return what to type instead of arguments that the command does not take: a folder of caches, names of data sets, or others."""
    command = f"{PROGRAM} {arguments.command}"
    if hasattr(arguments, "cache_dir") and os.path.isdir(given[0]):
        return f"for the caches in this folder, type {command} --cache-dir {shlex.quote(given[0])}"
    if hasattr(arguments, "only"):
        return f"to choose data sets, type {command} --only {shlex.join(given)}"
    return f"see {command} --help"


def _raise_option_before_command(
    argv: Sequence[str], top: argparse.ArgumentParser, commands: dict[str, argparse.ArgumentParser]
) -> NoReturn:
    """Refuse an option before the command, which belongs after the command or is misspelt.

    Raises:
        NielsCacheError: Always.
    """
    option = argv[0].partition("=")[0]
    name = next((word for word in argv if word in commands), None)
    if any(option in parser._option_string_actions for parser in commands.values()):
        raise NielsCacheError(f"{argv[0]}: options come after the command: {PROGRAM} {name or 'COMMAND'} {argv[0]} ...")
    raise_invalid("", "no option", option, [*top._option_string_actions, *(commands[name]._option_string_actions if name else ())])


def import_command(name: str) -> ModuleType:
    """Import the module of a command. Those that inspect the content or answer for it are in niels_cache_inspection."""
    is_beside = name in COMMANDS["inspect the content"] | COMMANDS["answer for the data"]
    package = "niels_cache_inspection" if is_beside else "niels_cache_assets.cli"
    return import_module(f"{package}.commands.{name.replace('-', '_')}")


def build_parsers(wanted: Container[str] | None = None) -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """Return the parser of the whole command line, and the parsers of its commands by name.

    Args:
        wanted: Names of the commands to load; by default all. A command that is not loaded has a parser without options.
    """
    top = _TopParser(prog=PROGRAM)
    top.add_argument("--version", action="store_true")
    subparsers = top.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser)
    parsers: dict[str, argparse.ArgumentParser] = {}
    for name, summary in (row for rows in COMMANDS.values() for row in rows.items()):
        parsers[name] = parser = subparsers.add_parser(name, help=summary)
        if wanted is None or name in wanted:
            _describe(parser, name, summary, import_command(name))
    return top, parsers


def _describe(parser: argparse.ArgumentParser, name: str, summary: str, module: ModuleType) -> None:
    command: Command = module.COMMAND
    parser.description = command.description or f"{summary[0].upper()}{summary[1:]}."
    parser.epilog = f"examples:\n{command.examples}"
    parser.usage = f"{PROGRAM} {name} {command.usage}[options]"
    _add_options(parser, command.options)
    for title, options in command.groups.items():
        _add_options(parser.add_argument_group(title), options)
    if command.has_caches:
        _add_options(parser.add_argument_group("where"), _WHERE)
    _add_options(parser.add_argument_group("output"), [*([_JSON] if command.has_json else []), _VERBOSITY])


def _add_options(group: argparse._ActionsContainer, options: Options) -> None:
    for each in options:
        if isinstance(each, list):
            _add_options(group.add_mutually_exclusive_group(), each)
        else:
            group.add_argument(*each[0].split(), **each[1])
