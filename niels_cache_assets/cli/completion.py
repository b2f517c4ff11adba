"""The answer to the shell when the user presses TAB, made by argcomplete.

`register-python-argcomplete niels-cache` prints the code that the shell reads once. Each TAB runs this program. The program loads only the
typed command, and loads pydantic only to list names of the configuration.
"""

import argparse
import os
from collections.abc import Callable, Iterable
from typing import NoReturn

from niels_cache_assets.cli.command import DATA_SETS, Command
from niels_cache_assets.cli.parser import build_parsers, import_command

PROFILES = ("default", "quickstart")

_FILES = ("FILE", "DIR", "PATH", "PREFIX", "NAME=FOLDER", "MODEL")  # the shell itself completes files


def complete() -> NoReturn:
    """Answer the shell that started this process, and exit."""
    from argcomplete import autocomplete

    typed = os.environ.get("COMP_LINE", "").replace("'", " ").replace('"', " ").split()
    top, commands = build_parsers(typed)
    for name in set(typed) & commands.keys():
        for action in commands[name]._actions:
            values = values_of(import_command(name).COMMAND, action)
            if values is not None:
                action.completer = values  # type: ignore[attr-defined]
    autocomplete(top, always_complete_options=False)
    raise SystemExit  # not reached: autocomplete exits


def values_of(command: Command, action: argparse.Action) -> Callable[..., Iterable[str]] | None:
    """Return a function that gives argcomplete the possible values, or None if the shell should offer files."""
    offered = command.offers.get(action.dest, PROFILES if action.dest == "profile" else None)
    if offered is None and (action.choices is not None or action.metavar in _FILES):  # argcomplete itself knows the choices
        return None
    if offered is None:
        offered = DATA_SETS if action.metavar == "NAME" else ()
    return lambda *, parsed_args, **_: offered(parsed_args) if callable(offered) else offered
