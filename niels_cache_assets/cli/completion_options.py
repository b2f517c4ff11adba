"""Options and help of `completion`."""

from __future__ import annotations

import argparse

from niels_cache_assets.cli.command import Command

SHELLS = ("bash", "zsh", "fish")


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", metavar="SHELL", help="bash, zsh or fish")


COMMAND = Command(
    name="completion",
    module="completion",
    usage="SHELL ",
    summary="print what makes TAB complete commands, options and data sets",
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
    has_caches=False,
)
