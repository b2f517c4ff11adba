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

`{PROGRAM}` alone lists the commands, and `{PROGRAM} COMMAND --help` explains one command.
Results go to stdout.
Progress, warnings and errors go to stderr.
An error is one line that says what to do.

* `--json` prints the results of a command as one JSON document on stdout, in ASCII.
  It does not change the exit code, and progress stays on stderr.
  All commands have this option, except {WITHOUT_JSON}.
* On a terminal, the output has tables, colours and bars.
  Without a terminal, it has plain lines.
  `NO_COLOR` turns colours off.
* `--quiet` prints only results, warnings and errors.
  `--verbose` also prints the settings in use, time and memory, and the traceback of an error.
* If there is a typo in a command, an option, a data set or a key, the message offers the nearest choice.
* TAB completes commands, options and the data sets of your configuration.
  Set this up once: `eval "$(register-python-argcomplete {PROGRAM})"` in `~/.bashrc` or, after `compinit`, in `~/.zshrc`;
  `register-python-argcomplete --shell fish {PROGRAM} > ~/.config/fish/completions/{PROGRAM}.fish` for fish.
* niels-cache is made for Linux and tested on Linux.
  macOS should work too, but is not tested.
  Windows lacks functions that niels-cache needs, and the command says so; use WSL 2 on Windows.
  Two things work only on Linux.
  A rebuilt cache replaces the old cache in one step, and the progress of a build shows how much memory the build uses now.
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
