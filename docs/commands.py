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


# Who types each command, and when. A command that nobody would miss goes.
USES = {
    "init": ("everyone", "once for each project, and to look up what ships with the package"),
    "doctor": ("everyone", "before a long build, and after an error of the machine; before a takedown, for the places of text"),
    "build-all": ("everyone, CI", "every day: after each change of data or settings"),
    "part": ("a scheduler of a cluster", "once for each part; people to add files and to join parts"),
    "prebuild-index": ("who trains with Megatron's order", "before a run, on a machine without GPUs"),
    "status": ("everyone, CI", "every day: what is there, and why something is not"),
    "verify": ("everyone, CI, the training machine", "before a run, after a copy or a crash"),
    "report": ("who owns the data", "to send others a page, and to choose limits of cleaning"),
    "ui": ("who owns the data", "every day, to watch builds and look at lineage"),
    "show": ("everyone", "to read the counts, hashes and settings of one cache"),
    "sample": ("who trains", "before a run: the text that training will see"),
    "trace": ("who trains", "after a strange loss: the documents of a batch"),
    "diff": ("who owns the data", "when two builds should be the same, and are not"),
    "clean": ("who prepares text", "before a build on a few files, and afterwards to see what went"),
    "duplicates": ("who prepares text", "to see if the threshold is right"),
    "tokenizer": ("who chooses a tokenizer", "once for each project, and for a model with a fast engine"),
    "push": ("who owns the data", "after a build, to share it"),
    "pull": ("who trains", "before a run on another machine; to trim the copy of a loader"),
    "export": ("who trains with another program", "once for each cache"),
    "import": ("who has tokens of Megatron-LM", "once for each data set"),
}


def page() -> str:
    _, parsers = build_parsers()
    lines = [INTRODUCTION, "## Which command do I need?", "", "| command | who types it | when |", "|---|---|---|"]
    for name in parsers:
        who, when = USES[name]
        lines.append(f"| [`{name}`](#{PROGRAM}-{name}) | {who} | {when} |")
    lines += ["", "## Exit codes", "", "| code | meaning |", "|---|---|"]
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
