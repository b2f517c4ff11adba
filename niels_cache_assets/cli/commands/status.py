"""The command `status [NAME ...]`, which prints the state of caches, which builds can be resumed, and what to do.

A cache is complete, stale, broken or being built. artifacts/state.py and artifacts/unfinished.py determine the status, and this module puts
it into words. Each cache costs a few small reads, and one look at a lock and a journal.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from niels_cache_assets.base.wording import format_count
from niels_cache_assets.cli.command import CACHES, DONE, FAILED, WHERE, Command, option, switch
from niels_cache_assets.cli.console import PROGRAM, display, new_table, output, print_facts, stdout
from niels_cache_runtime.errors import NielsCacheError

if TYPE_CHECKING:
    from niels_cache_assets.artifacts.graph import Graph
    from niels_cache_assets.artifacts.state import CacheState
    from niels_cache_assets.artifacts.unfinished import UnfinishedBuild
    from niels_cache_assets.disk.build_lock import BuildStatus
    from niels_cache_assets.project.registry import Registry
    from niels_cache_runtime.format.meta import Meta

_WATCH_SECONDS = 5.0  # between two looks
_STYLES = {"complete": "green", "off": "dim", "broken": "red"}


COMMAND = Command(
    options=(
        option("names", "NAME", "data sets, `tokenizer`, `corpus/NAME` (default: everything)", nargs="*"),
        switch("--all", "also list disabled data sets; without a niels_cache.toml, list the whole default profile"),
        switch("--watch", "follow the build of one data set in parts, on any machine, until it is done"),
    ),
    usage="[NAME ...] ",
    description="""\
List the tokenizer, corpora, duplicates and caches, each with counts, status, the reason for that status,
and what to do. status does not contact upstream; build-all checks whether upstream text has changed.

  complete      built with the current settings; every file has the size in meta.json
  stale         built with different settings, a different tokenizer or a different corpus
  missing       not built yet
  broken        meta.json is unreadable or belongs to a different data set, or a file is missing or has
                the wrong size; `niels-cache verify` also reads the content of files
  off           a setting is missing, or enabled = false (listed with --all)
  resumable     the next build resumes an unfinished build
  stale build   the settings, tokenizer, data (local files of up to 256 MB) or code version of an
                unfinished build changed; the next build starts again
  being built   another process is building it (process id, machine and start time are shown)

--watch shows what each step of one data set in parts is doing and what it has cost, every 5 seconds,
until all steps are done or you press Ctrl-C. It reads the leases of the steps (docs/cluster.md), so it
works on any machine that shares the cache directory or the store, whatever started the builds. With
--json, it prints one line of JSON each time.

Data sets that are not in niels_cache.toml are listed if their cache exists. The columns train and val
show a percentage if the source ended before its token budget was met. For a corpus, the train column is
the number of documents after cleaning.

exit codes: 0 everything is complete or off, 1 otherwise.""",
    examples="""\
  niels-cache status                  everything
  niels-cache status wikitext         one data set and its corpus
  niels-cache status --watch web      the parts of web, until they are built""",
    offers={"names": CACHES},
)


@dataclass(frozen=True)
class StatusRow:
    """A row of the table. `meta` is empty if its counts cannot be shown, and `unfinished` is None while the cache is being built."""

    state: CacheState
    work: BuildStatus
    meta: Meta
    unfinished: UnfinishedBuild | None = None

    @property
    def is_fine(self) -> bool:
        return self.state.condition in ("complete", "off")

    @property
    def words(self) -> str:
        """State in words: `complete`, `stale, resumable at 43%`, or `missing, being built (43%)`.

        With an unfinished build beside a complete cache, the text is `complete, an unfinished build exists (43%)`. If the next build cannot
        resume the unfinished build, it is `missing, an unfinished build is stale (43%)`. If the share is not known, it has the number of
        documents so far: `missing, resumable (12,345 documents)`.
        """
        share, documents = self.work.share, self.work.documents
        words: list[str] = [self.state.condition]
        how_far = ""
        if share is not None:
            how_far = f" ({share:.0%})"
        elif documents is not None:
            how_far = f" ({format_count(documents, 'conversation' if self.state.kind == 'sft' else 'document')})"
        if self.work.writer is not None:
            words.append(f"being built{how_far}")
        elif self.work.is_resumable and self.state.condition == "complete":
            words.append(f"an unfinished build exists{how_far}")
        elif self._stale_reason is not None:
            words.append(f"an unfinished build is stale{how_far}")
        elif self.work.is_resumable:
            words.append(f"resumable{how_far}" if share is None else f"resumable at {share:.0%}")
        return ", ".join(words)

    @property
    def reason(self) -> str:
        """Why this cache is not complete, the process that builds it, and what to do."""
        if self.work.writer is not None:
            return f"by {self.work.writer}"
        reasons = [text for text in (self.state.advice, self.state.note) if text]
        if self._stale_reason is not None:
            next_build = "removes it" if self.state.condition in ("complete", "off") else "starts again"
            reasons.append(f"the unfinished build is stale: {self._stale_reason}; the next build {next_build}")
        elif self.work.is_resumable and self.state.condition == "complete":
            reasons.append(
                "the unfinished build has other settings or data, or was started with --force; "
                "the next build resumes it only if all of these match"
            )
        elif self.work.is_resumable:
            same = "the data" if self.unfinished is not None and self.unfinished.is_certain else "settings and data"
            reasons.append(f"the next build resumes the unfinished one if {same} are the same")
        return "; ".join(reasons)

    @property
    def _stale_reason(self) -> str | None:
        return self.unfinished.stale if self.unfinished is not None and self.work.is_resumable else None

    def as_json(self, registry: Registry) -> dict[str, Any]:
        from niels_cache_assets.facts.contents import all_counts, budget_shortfall, content_hash
        from niels_cache_assets.tokenizer.engines import read_record
        from niels_cache_assets.tokenizer.kinds import PROOFS_NAME

        state, work = self.state, self.work
        configured = registry.sources.get(state.name)
        how_far = {"share": work.share, "documents": work.documents}
        is_unfinished = work.is_resumable and work.writer is None
        return {
            "name": state.name,
            "kind": state.kind,
            "source": configured and configured.source,
            "directory": str(state.directory),
            "condition": state.condition,
            "state": state.state,
            "advice": state.advice,
            "note": state.note,
            "counts": all_counts(self.meta),
            "shortfall": budget_shortfall(self.meta),
            "sha256": content_hash(self.meta),
            "encoder": read_record(state.directory.parent / PROOFS_NAME)["encoders"].get(str(content_hash(self.meta))),
            "building": {**asdict(work.writer), **how_far} if work.writer else None,
            "resumable": how_far if is_unfinished and self._stale_reason is None else None,
            "stale_build": {**how_far, "why": self._stale_reason} if is_unfinished and self._stale_reason is not None else None,
        }


def run(arguments: argparse.Namespace) -> int:
    """Print the table or JSON, and return 1 if at least one row is not complete."""
    from niels_cache_assets.artifacts.graph import graph
    from niels_cache_assets.artifacts.parts.watch import steps_json
    from niels_cache_assets.cli.context import count_note, is_listed, open_registry, print_advice

    registry, root = open_registry(arguments)
    artifacts = graph(registry, root)
    if arguments.watch:
        return _watch(arguments, artifacts)
    known = artifacts.states()
    states = _chosen(registry, known, arguments.names)
    print_advice(registry)
    if not arguments.names and not arguments.all:
        states = [state for state in states if is_listed(state, registry)]
    rows = [_row(artifacts, state) for state in states]
    in_parts = registry.in_parts() + registry.corpora_in_parts() if arguments.json else []
    parts = {name: steps_json(artifacts.watch(name)) for name in arguments.names if name in in_parts}
    if not print_facts(arguments, {"root": root, "data_sets": [row.as_json(registry) for row in rows], "parts": parts}):
        left_out = 0 if arguments.names else len(known) - len(states)
        more = f"; {count_note(left_out, registry)}" if left_out else ""
        _print(rows, f"{registry.settings_origin}; caches in {root}{'' if root.exists() else ' (this folder does not exist yet)'}{more}")
    return DONE if all(row.is_fine for row in rows) else FAILED


def _watch(arguments: argparse.Namespace, artifacts: Graph) -> int:
    """Show the steps of a data set in parts again and again, until all are done."""
    from niels_cache_assets.artifacts.parts.watch import WAITING, describe_steps, steps_json
    from niels_cache_assets.parts.lease import DONE as BUILT

    if len(arguments.names) != 1:
        raise NielsCacheError(f"{WHERE}: --watch: give the name of one data set in parts")
    while True:
        steps = artifacts.watch(arguments.names[0])
        if arguments.json:
            print(json.dumps(steps_json(steps)), file=stdout(), flush=True)
        else:
            console, table = output(), new_table("step", "state", "progress", shrinking=["progress"])
            for step in steps:
                if step.state not in (WAITING, BUILT):
                    table.add_row(step.key, step.state, step.reason)
            console.clear()
            console.print(describe_steps(steps), table, sep="\n\n")
        if all(step.state == BUILT for step in steps):
            return DONE
        time.sleep(min(_WATCH_SECONDS, artifacts.registry.cluster.renew_seconds))


def _row(artifacts: Graph, state: CacheState) -> StatusRow:
    from niels_cache_assets.artifacts.parts.watch import build_status_in_store
    from niels_cache_assets.artifacts.unfinished import unfinished_build
    from niels_cache_assets.disk.build_lock import build_status

    work = (build_status_in_store(artifacts[state.key]) if state.key in artifacts.keys else None) or build_status(state.directory)
    is_unfinished = work.is_resumable and work.writer is None
    meta = state.meta if state.condition in ("complete", "stale") else {}
    return StatusRow(state, work, meta, unfinished_build(artifacts.registry, state, root=artifacts.root) if is_unfinished else None)


def _chosen(registry: Registry, states: list[CacheState], names: Iterable[str]) -> list[CacheState]:
    """Return the named states. The name of a data set also selects its corpus. The name of a blend selects its index."""
    from niels_cache_assets.cli.context import refuse_path

    known = [*dict.fromkeys(each for state in states for each in (state.name, state.name.removeprefix("index/")))]
    for name in names:
        if name not in known:
            refuse_path(name)
            registry.refuse_data_set(WHERE, "no data set", name, known)
    return [
        state for state in states if not names or state.name in names or state.name.removeprefix("corpus/").removeprefix("index/") in names
    ]


def _print(rows: list[StatusRow], where: str) -> None:
    """Print the table and a summary.

    Args:
        rows: The rows.
        where: The settings, the folder of the caches, and a note about omitted rows.
    """
    from rich.text import Text

    from niels_cache_assets.facts.contents import all_counts, budget_shares, content_cells

    table = new_table(
        *("data set", "kind", "status", "train", "val", "why, and what to do"),
        right=["train", "val"],
        shrinking=["why, and what to do"],
    )
    for row in rows:
        kind = "" if row.state.kind == "tokenizer" else row.state.kind
        status = Text(row.words, style="cyan" if row.work.writer else _STYLES.get(row.state.condition, "yellow"))
        table.add_row(row.state.name, kind, status, *content_cells(all_counts(row.meta), budget_shares(row.meta)), row.reason)
    display(table)
    behind = [row for row in rows if not row.is_fine]
    expected = sum(row.state.condition != "off" for row in rows)
    count = f"{len(behind)} of {expected} {'is' if len(behind) == 1 else 'are'}"
    if not behind:
        summary = "everything is complete"
    elif all(row.work.writer for row in behind):
        summary = f"{count} being built"
    else:
        summary = f"{count} not complete; to build them, run {PROGRAM} build-all"
    display(f"\n{summary}; {where}")
