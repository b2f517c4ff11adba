"""Options and help of `ui`."""

from __future__ import annotations

import argparse

from niels_cache_assets.cli.command import Command, add_settings_options

DEFAULT_PORT = 3000


def _add_ui_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", metavar="N", type=_port, default=DEFAULT_PORT, help=f"where to listen (default: {DEFAULT_PORT})")
    parser.add_argument("--host", metavar="ADDRESS", default="127.0.0.1", help="127.0.0.1 or ::1: any other address is refused")
    parser.add_argument("--read-only", action="store_true", help="show, and change nothing; also beside another UI")
    add_settings_options(parser)


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port (1 to 65535, or 0 for any that is free)")
    return int(text)


COMMAND = Command(
    name="ui",
    module="ui",
    summary="serve the web UI on this machine",
    description="""\
Serve the Dagster UI on this machine: assets, lineage, counts, sha256, checks, live logs, and buttons
that build. It has no login; web pages of others, though open in the same browser, can neither start
nor read anything (docs/ui.md says how, and how to reach it from afar).""",
    examples="""\
  niels-cache ui                        on http://127.0.0.1:3000, until Ctrl-C
  niels-cache ui --profile quickstart --port 3001
  niels-cache ui --read-only            to watch what a command line builds: no button works

Ctrl-C cancels the runs that were started here; the next one goes on where they were.""",
    add_options=_add_ui_options,
    has_caches=False,
)
