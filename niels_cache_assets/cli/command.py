"""What is known of a command before it runs: its words, its help, its options. One `Command` stands beside each command's options.

Imports nothing heavy: help and completion are made of these alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

ALL_HELP = "what is switched off, too; without a niels_cache.toml, all of the default profile"


@dataclass(frozen=True, kw_only=True)
class Command:
    """`module` of this package has its `run(arguments) -> exit code`; `add_options` gives a parser what is the command's own."""

    name: str
    module: str
    summary: str  # in the list of commands
    examples: str  # "niels-cache NAME ...   what for", a line each: tests parse them
    usage: str = ""  # its positionals and required options
    description: str | None = None  # None: the summary as a sentence
    add_options: Callable[[argparse.ArgumentParser], None] | None = None
    has_caches: bool = True  # takes --cache-dir, --profile and --config
    has_json: bool = False  # takes --json: prints data

    @property
    def text(self) -> str:
        return self.description or f"{self.summary[0].upper()}{self.summary[1:]}."


def add_settings_options(group: argparse._ActionsContainer) -> None:
    """Which configuration."""
    group.add_argument(
        "--profile",
        metavar="PROFILE",
        help="default or quickstart, below your settings (default: NIELS_CACHE_PROFILE, else `profile` of the file, else none)",
    )
    group.add_argument(
        "--config", metavar="FILE", help="your settings (default: NIELS_CACHE_CONFIG, else ./niels_cache.toml if there is one)"
    )
