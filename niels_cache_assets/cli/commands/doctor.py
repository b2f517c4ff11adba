"""`doctor`: what a build needs of this machine, checked one after the other. What is checked is in diagnosis.py."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from rich.text import Text

from niels_cache_assets.cli.console import new_table, output, print_json
from niels_cache_assets.cli.diagnosis import examine
from niels_cache_assets.cli.exit_codes import DONE, FAILED
from niels_cache_assets.wording import counted

_STYLES = {"ok": "green", "note": "yellow", "problem": "bold red"}


def run(arguments: argparse.Namespace) -> int:
    """Print what was found, and return 1 if anything has to be mended."""
    findings = list(examine(arguments))
    problems = sum(finding.state == "problem" for finding in findings)
    if arguments.json:
        print_json({"findings": [asdict(finding) for finding in findings]})
        return FAILED if problems else DONE
    console = output()
    table = new_table("", "what", "found", shrinking=["found"])
    table.columns[2].overflow = "fold"
    for finding in findings:
        table.add_row(Text(finding.state, style=_STYLES[finding.state]), finding.what, finding.found)
    console.print(table)
    mends = [finding for finding in findings if finding.mend]
    if mends:
        console.print()
    for finding in mends:
        console.print(Text(f"{finding.what}: ", style=_STYLES[finding.state]), end="")
        console.print(finding.mend, soft_wrap=True)
    console.print(f"\n{counted(problems, 'problem') if problems else 'no problems'}", style=_STYLES["problem" if problems else "ok"])
    return FAILED if problems else DONE
