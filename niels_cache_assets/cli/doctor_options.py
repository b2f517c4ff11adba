"""Options and help of `doctor`."""

from __future__ import annotations

import argparse

from niels_cache_assets.cli.command import Command


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--offline", action="store_true", help="leave the hub out: ask nothing of the network")


COMMAND = Command(
    name="doctor",
    module="doctor",
    summary="check this environment, and say how to mend what is wrong",
    description="""\
Check what a build needs: the system, the versions of what is installed, the configuration, the files
that its data sets name, the cache directory (writing, space, locks, exchange of directories),
DAGSTER_HOME, and the hub with each data set that is configured to come from it. What is wrong is said
with how to mend it. Nothing is built and nothing stays behind.

exit codes: 0 all is well (notes are no problem), 1 something has to be mended.""",
    examples="""\
  niels-cache doctor
  niels-cache doctor --offline
  niels-cache doctor --profile quickstart --json""",
    add_options=_add_options,
    has_json=True,
)
