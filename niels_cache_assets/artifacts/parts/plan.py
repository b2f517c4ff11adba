"""The plan of a data set in parts: `pretrain/.parts/NAME/plan.json`. It lies beside the parts, so only this file is replaced."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from niels_cache_assets.artifacts.base import Artifact, Work, Written
from niels_cache_assets.artifacts.holding import Held, Log, under_lease
from niels_cache_assets.artifacts.parts.growth import Growth
from niels_cache_assets.config.fingerprint import fingerprint_of, settings_that_count
from niels_cache_assets.config.registry import Registry
from niels_cache_assets.config.tables import BuildSettings
from niels_cache_assets.disk.made_of import differences, recordable
from niels_cache_assets.parts.attempts import scratch_of_attempt
from niels_cache_assets.parts.layout import PLAN_NAME, PLAN_STAGED, parts_dir
from niels_cache_assets.parts.plan import CODE_VERSION, Plan, PlannedGroup, entry_of_group, plan_parts, proposed_shard_bytes
from niels_cache_assets.sources.hub.data import HubData
from niels_cache_assets.sources.notes import notes_on_source
from niels_cache_assets.sources.reading.part_stream import planned_text_field
from niels_cache_assets.sources.text_column import TEXT, chosen_note
from niels_cache_assets.sources.types import FilesOfGroup, SourceWithParts, patterns_without_folders
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.commit import sync
from niels_cache_runtime.format.layout import TOKEN_DTYPES, dataset_dir, token_dtype_name
from niels_cache_runtime.format.meta import Meta, read_meta


@dataclass(frozen=True, kw_only=True)
class PartsPlan(Artifact):
    """The plan of a data set with `parts` above 1."""

    registry: Registry
    root: Path
    name: str
    source: SourceWithParts
    build: BuildSettings

    version = CODE_VERSION
    record = PLAN_NAME
    noun = "plan"
    is_shared = True

    @property
    def key(self) -> str:
        return f"plan/{self.name}"

    @property
    def directory(self) -> Path:
        return parts_dir(self.root, self.name)

    @property
    def place(self) -> Path:
        """The file of the plan. The folder around it stays."""
        return self.directory / PLAN_NAME

    @property
    def network_patience(self) -> float:
        return self.registry.build.network_patience

    def finished(self) -> Meta | None:
        try:
            meta = read_meta(str(self.place))
            Plan.of(meta)
        except NielsCacheError:
            return None
        return meta

    def is_settled(self, meta: Meta) -> bool:
        """Return whether the plan has these settings and lists files of other machines. Such files are listed only once, because everybody
        reads the plan.
        """
        if not self._lists_other_machines or meta.get("added_patterns", self._added_patterns) != self._added_patterns:
            return False
        return self.is_made_of(meta, self.identity(meta.get("dataset_revision")))

    @property
    def _lists_other_machines(self) -> bool:
        patterns = getattr(self.source, "files", None)
        return not patterns or any("://" in pattern for pattern in patterns)

    @property
    def _added_patterns(self) -> list[list[str]]:
        """The patterns of each table `added`, without addresses on this machine."""
        return [patterns_without_folders(each) for each in self.source.added]

    @property
    def _uncounted(self) -> tuple[str, ...]:
        """The keys of a table `added` that its identity leaves out. The revision of the user's files covers their names; a commit of the
        hub does not tell which of its files were chosen.
        """
        return () if isinstance(self.source, HubData) else ("files",)

    def revision(self) -> str | None:
        return self.source.revision(self.registry.pretrain)

    def identity(self, revision: str | None) -> dict[str, Any]:
        added = [settings_that_count(each, "added", without=self._uncounted) for each in self.source.added]
        return {**self.identity_of_group(0, revision), **({"added": added} if added else {})}

    def identity_of_group(self, number: int, revision: str | None) -> dict[str, Any]:
        """Return everything that decides a group of parts. number: 0 for the first parts, then the tables `added`.

        The first parts have the identity of a data set that never grew. `revision`: that of the files of the group.
        """
        source = {key: value for key, value in self.source.identity().items() if key != "exclude"}  # it counts for each part on its own
        identity: dict[str, Any] = {
            "source": source,
            "seed": self.build.seed,
            "shard_bytes": self.build.shard_bytes,
            "revision": revision,
            "code_version": self.version,
        }
        if number:
            added = self.source.added[number - 1]
            of_first = ("parts", "train_tokens", "val_tokens", "val_frac")
            identity["source"] = {key: value for key, value in source.items() if key not in of_first}
            own = settings_that_count(added, "added", without=(*self._uncounted, "revision"))
            identity["added"] = {**own, "val_frac": self.source.seeded_val_frac}
            # A part is found by its number. So a group whose numbers move must not look like the group that had them before.
            identity["first_part"] = self.source.parts + sum(each.parts for each in self.source.added[: number - 1])
        return identity

    def read(self) -> Plan:
        """Return the plan of these settings. Raises NielsCacheError if it is missing, damaged, or of other settings."""
        meta = read_meta(str(self.place))
        then, now = meta.get("made_of", {}), recordable(self.identity(meta.get("dataset_revision")))
        if then != now:
            told = "; ".join(differences(then, now)) or "other settings"
            raise NielsCacheError(f"{self.place}: is not the plan of these settings ({told}); make it again: {self.how_to_make}")
        return Plan.of(meta)

    @property
    def how_to_make(self) -> str:
        """The command that makes the plan, and everything after it."""
        return f"niels-cache build-all --only {self.name}"

    def lock(self, *, wait: bool, log: Log) -> AbstractContextManager[Held]:
        return under_lease(self.staged, self.registry, owns=self.owns, wait=wait, log=log)

    @contextmanager
    def stage(self, held: Held, *, log: Log) -> Iterator[Path]:
        assert held.lease is not None
        try:
            with scratch_of_attempt(held.lease) as partial:
                yield partial
                held.lease.check()
                os.replace(partial / PLAN_NAME, self.place)
                sync(self.directory)
        except OSError as error:
            raise NielsCacheError(f"{self.place}: cannot be written: {error.strerror or error}; the last plan is unchanged") from error

    @property
    def staged(self) -> Path:
        """The path whose lease, lock and staging directory the plan uses. Nothing is ever at this path."""
        return self.directory / PLAN_STAGED

    def write(self, work: Work) -> Written:
        for note in notes_on_source(self.source):
            work.log(note)
        source = self.source
        groups = self.grown(work) if source.added else [self.group(0, work.revision)]
        field = groups[0].text_field
        if field not in (None, TEXT) and getattr(source, "text_field", None) is None:
            work.log(chosen_note(field))
        files = [file for group in groups for file in group.listed]
        budgets = [source.train_tokens, *(each.train_tokens for each in source.added)]
        proposed = proposed_shard_bytes(
            files,
            train_tokens=None if None in budgets else sum(filter(None, budgets)),
            val_tokens=source.val_tokens,
            token_bytes=TOKEN_DTYPES[self.build.token_dtype or token_dtype_name(self.registry.tokenizer.vocab_size)].itemsize,
            shard_bytes=self.build.shard_bytes,
        )
        meta = {
            "kind": "plan",
            "dataset_name": self.name,
            "dataset_revision": work.revision,
            "text_field": field,
            "shard_bytes": self.build.shard_bytes,
            "proposed_shard_bytes": proposed,
            "seed": self.build.seed,
            "made_of": recordable(work.made_of),
            "fingerprint": work.fingerprint,
            **({"added_patterns": self._added_patterns} if source.added else {}),
            "groups": [*map(entry_of_group, groups)],
        }
        return Written(meta=meta)

    def grown(self, work: Work) -> list[PlannedGroup]:
        """Return the groups of a data set that grows: those of the last plan, and new ones."""
        growth = Growth(
            name=self.name,
            source=self.source,
            place=self.place,
            last=None if work.force else self.finished(),
            cache=dataset_dir(self.root, "pretrain", self.name),
            how_to_make=self.how_to_make,
        )
        if work.force:
            groups = [self.group(0, work.revision)]
            numbers = range(1, 1 + len(self.source.added))
            groups += [self.group(number, work.revision, text_field=groups[0].text_field) for number in numbers]
            growth.check(groups)
            return groups
        return growth.groups(lambda number, text_field: self.group(number, work.revision, text_field=text_field), log=work.log)

    def group(self, number: int, revision: str | None, *, text_field: str | None = None, hashed: bool = True) -> PlannedGroup:
        """Return a group of parts for the files of upstream at `revision`. number: 0 for the first parts, then the tables `added`.

        text_field: that of the first parts, for the tables `added`. hashed: if False, only sizes and names are read, for an estimate.
        Raises NielsCacheError if the files cannot be divided.
        """
        source = self.source
        files, parts = source.list_files(revision, group=number, hashed=hashed), source.parts
        if number:
            added = source.added[number - 1]
            parts = added.parts
            budgets: dict[str, int | None] = {"train_tokens": added.train_tokens, "val_tokens": None}
        else:
            budgets = {"train_tokens": source.train_tokens, "val_tokens": source.val_tokens}
        if source.prepare:  # budgets apply to the joined corpus
            budgets = dict.fromkeys(budgets)
        own = source.revision_of_files(number, revision) if hashed else revision
        if hashed and text_field is None:
            text_field = planned_text_field(source, files, own)
        made_of = recordable({**self.identity_of_group(number, own), **({"text_field": text_field} if number else {})})
        return plan_parts(
            files, parts, **budgets, fingerprint=fingerprint_of(made_of), made_of=made_of, revision=own, text_field=text_field
        )

    def warning(self) -> str | None:
        meta = self.finished()
        proposed = None if meta is None else meta.get("proposed_shard_bytes")
        if proposed is None:
            return None
        return f"{self.name} may have more than 20,000 shards; set shard_bytes = {proposed} in [build], so that it opens quickly"


class PlanOfMember:
    """A `sources.types.MemberPlan`. Reads the plan on disk once, when it is needed."""

    def __init__(self, artifact: PartsPlan) -> None:
        self._artifact = artifact
        self._found: tuple[str | None, tuple[FilesOfGroup, ...]] | None = None

    def revision(self) -> str | None:
        return None if self._on_disk is None else self._on_disk.revision

    def settled_revision(self) -> str | None:
        meta = self._artifact.finished()
        return meta["dataset_revision"] if meta is not None and self._artifact.is_settled(meta) else None

    def groups(self, revision: str | None) -> tuple[FilesOfGroup, ...]:
        if self._found is None or self._found[0] != revision:
            on_disk = self._on_disk
            plan = on_disk if on_disk is not None and on_disk.revision == revision else self._made_in_memory(revision)
            self._found = (
                revision,
                tuple(
                    FilesOfGroup(
                        listed=group.listed,
                        revision=group.revision,
                        text_field=group.text_field,
                        parts=tuple((part.files, part.val_tokens or 0) for part in group.parts),
                    )
                    for group in plan.groups
                ),
            )
        return self._found[1]

    @cached_property
    def _on_disk(self) -> Plan | None:
        try:
            return self._artifact.read()
        except NielsCacheError:  # missing, or of other settings
            return None

    def _made_in_memory(self, revision: str | None) -> Plan:
        work = Work(directory=Path(), revision=revision, made_of={}, force=False, progress=None, log=lambda message: None)
        return Plan.of(self._artifact.write(work).meta)  # a plan writes no file itself
