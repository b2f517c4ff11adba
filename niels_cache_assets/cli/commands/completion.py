"""`completion SHELL`: what a shell has to read once, so that TAB asks cli/completion.py."""

from __future__ import annotations

import argparse

from niels_cache_assets.cli.command import Command, refuse
from niels_cache_assets.cli.console import PROGRAM
from niels_cache_assets.cli.exit_codes import DONE

SHELLS = ("bash", "zsh", "fish")


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", metavar="SHELL", help="bash, zsh or fish")


COMMAND = Command(
    usage="SHELL ",
    description="""\
Print what a shell has to read so that TAB completes commands, options, and the data sets of your
configuration. It holds for the niels-cache that is found on PATH.

  bash   in ~/.bashrc:                   eval "$(niels-cache completion bash)"
  zsh    in ~/.zshrc, after compinit:    eval "$(niels-cache completion zsh)"
  fish   once:   niels-cache completion fish > ~/.config/fish/completions/niels-cache.fish""",
    examples="""\
  niels-cache completion bash
  niels-cache completion zsh
  niels-cache completion fish""",
    add_options=_add_options,
    offers={"shell": SHELLS},
    has_caches=False,
)


def run(arguments: argparse.Namespace) -> int:
    from argcomplete import shellcode

    if arguments.shell not in SHELLS:
        refuse("", "no shell", arguments.shell, SHELLS)
    print(shellcode([PROGRAM], shell=arguments.shell))
    return DONE
