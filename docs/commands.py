"""Writes docs/commands.md from the command line itself, so that it cannot differ from it.

python docs/commands.py            (a test fails while the file is out of date)
"""

import argparse
from pathlib import Path

from niels_cache_assets.cli.console import PROGRAM
from niels_cache_assets.cli.exit_codes import MEANINGS
from niels_cache_assets.cli.parser import COMMANDS, build_parsers, load

TARGET = Path(__file__).with_suffix(".md")

WITHOUT_JSON = " and ".join(f"`{name}`" for commands in COMMANDS.values() for name in commands if not load(name).COMMAND.has_json)
INTRODUCTION = f"""\
# The command line

<!-- Made by docs/commands.py from the code; edit that. -->

`{PROGRAM}` alone lists the commands, `{PROGRAM} COMMAND --help` explains one. Results go to stdout; progress, warnings and errors to
stderr, an error as one line that says what to do.

* `--json` prints what a command found or wrote as one JSON document on stdout, in ASCII; the exit code is the same. Progress stays on
  stderr. Without it are {WITHOUT_JSON} alone.
* On a terminal there are tables, colours and bars; elsewhere plain lines. `NO_COLOR` turns colours off.
* `--quiet` leaves results, warnings and errors; `--verbose` adds which settings are used, time and memory, and where an error arose.
* A typo in a command, an option, a data set or a key is refused with the nearest choice.
* TAB completes commands, options and the data sets of your configuration: `{PROGRAM} completion --help` says how for bash, zsh and fish.
* It is made for Linux and tested there. macOS has what it needs, but that is not tested; Windows has not, and the command says so
  (WSL 2 has). Linux alone exchanges a rebuilt cache in one step, and tells how much memory a build takes.
"""


def page() -> str:
    _, parsers = build_parsers()
    lines = [INTRODUCTION, "## Exit codes", "", "| code | meaning |", "|---|---|"]
    lines += [f"| {code} | {meaning} |" for code, meaning in MEANINGS.items()]
    for title, commands in COMMANDS.items():
        lines += ["", f"## {title[0].upper()}{title[1:]}"]
        for name in commands:
            lines += ["", f"### {PROGRAM} {name}", "", "```text", help_of(parsers[name]), "```"]
    return "\n".join(lines) + "\n"


def help_of(parser: argparse.ArgumentParser) -> str:
    """As wide on every terminal."""
    parser.formatter_class = lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=32, width=120)
    return parser.format_help().rstrip()


if __name__ == "__main__":
    TARGET.write_text(page(), encoding="utf-8")
