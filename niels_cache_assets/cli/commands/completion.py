"""`completion SHELL`: what a shell has to read once, so that TAB asks completion.py."""

from __future__ import annotations

import argparse

from niels_cache_assets.cli.completion_options import SHELLS
from niels_cache_assets.cli.console import PROGRAM
from niels_cache_assets.cli.exit_codes import DONE
from niels_cache_assets.cli.overrides import WHERE


def run(arguments: argparse.Namespace) -> int:
    from argcomplete import shellcode

    from niels_cache_assets.registry import refuse_choice

    if arguments.shell not in SHELLS:
        refuse_choice(WHERE, "no shell", arguments.shell, SHELLS)
    print(shellcode([PROGRAM], shell=arguments.shell))
    return DONE
