"""The command `why NAME ID`, which explains why a document of a data set was dropped, or what was cut out of it.

The corpus answers for documents that passed all steps. Any other document is read from its source again, and passes through the steps.
"""

from __future__ import annotations

import argparse
from typing import Any

from niels_cache_assets.base.wording import file_size, format_count
from niels_cache_assets.cli.command import PRETRAIN, Command, option
from niels_cache_assets.cli.console import diagnostics, display, excerpt, print_facts, title_of

CHARACTERS = 500  # of the text

COMMAND = Command(
    options=(
        option("name", "NAME", "a data set with prepare or steps"),
        option("document", "ID", "the id of a document, as `clean --dropped NAME --json`, `trace` and lineage have it"),
    ),
    usage="NAME ID ",
    description="""\
Explain what happened to a document of a prepared data set: which step dropped it, and why; the
copy that is kept instead of it; or the repeated text that was cut out of it. A document that a step
has dropped is read from the source again.""",
    examples="""\
  niels-cache why web crawl-00000.warc.gz#12@3456  the fate of a page
  niels-cache why web 7a1f --json                  the same for a program""",
    offers={"name": PRETRAIN},
)


def run(arguments: argparse.Namespace) -> None:
    """Print the explanation."""
    from niels_cache_assets.base.reasons import explain
    from niels_cache_assets.cli.context import open_registry
    from niels_cache_inspection.explanation import explain_document

    registry, root = open_registry(arguments)
    with diagnostics().status(f"looking for {arguments.document}"):
        found = explain_document(registry, arguments.name, arguments.document, root=root)
    if print_facts(arguments, {"name": arguments.name, "id": arguments.document, **found}):
        return
    reason, value, split = found["reason"], found.get("value"), found.get("split")
    display(f"{arguments.name}: {_title(found['document'])}", style="bold")
    for step in found.get("steps", ()):
        display(f"  {step['step']}: passed, {format_count(step['characters'], 'character')}")
    if reason is not None:
        display(f"dropped: {reason}{'' if value is None else f' {value:.4g}'}: {explain(reason)}", style="red")
    else:
        display(f"kept{f' for {split}' if split else ''}", style="green")
    for step, cut in found.get("cuts", {}).items():
        if cut["places"]:
            shown = f"`niels-cache duplicates {arguments.name} --cuts {step} --document ID` shows them"
            display(f"repeated {step}: {file_size(cut['bytes'])} cut in {format_count(cut['places'], 'place')}; {shown}")
    if because := found.get("because"):
        display(f"kept instead: {because['dataset']}, {because['source_id']}, {_title(because)}")
    display(f"\n{excerpt(found['document']['text'], CHARACTERS)}")


def _title(document: dict[str, Any]) -> str:
    return title_of(document["title"], document["file"], document["row"])
