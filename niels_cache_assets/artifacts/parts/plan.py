"""The plan of a data set in parts: `pretrain/.parts/NAME/plan.json`. Only this file and its val-*.npy are replaced.

`check_addition` checks files to add before the table is written. It lists the new files, and reads none of them.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from niels_cache_assets.artifacts.base import BuildJob, Log, ReportedProgress, RootArtifact, WriteResult
from niels_cache_assets.artifacts.stored import in_store
from niels_cache_assets.base.fingerprint import Identity, fingerprint_of, identity_settings
from niels_cache_assets.base.wording import format_count, format_list
from niels_cache_assets.disk.identity import as_recorded, differences, without_keys
from niels_cache_assets.facts.lineage import files_of_lineage
from niels_cache_assets.facts.published import address_in_store, finished_cache, folder_with
from niels_cache_assets.parts.attempts import attempt_scratch
from niels_cache_assets.parts.layout import PLAN_NAME, PLAN_STAGED, VAL_BITS, parts_dir
from niels_cache_assets.parts.plan import CODE_VERSION, Plan, PlannedGroup, group_of, plan_parts, proposed_shard_bytes
from niels_cache_assets.project.registry import Registry, load_registry
from niels_cache_assets.project.tables import BuildSettings
from niels_cache_assets.sources.hub.data import HubData
from niels_cache_assets.sources.notes import notes_on_source
from niels_cache_assets.sources.reading.part_stream import count_unsplit, part_stream, planned_text_field
from niels_cache_assets.sources.text_column import TEXT, chosen_note
from niels_cache_assets.sources.types import GroupFiles, ListedFile, SourceWithParts, patterns_without_folders
from niels_cache_assets.sources.val_share import FractionSplitter
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.commit import remove, sync
from niels_cache_runtime.format.layout import META_NAME, SPLITS, TOKEN_DTYPES, dataset_dir, documents_name, token_dtype_name, tokenizer_dir
from niels_cache_runtime.format.meta import Meta, read_meta
from niels_cache_runtime.format.reading import available_threads


@dataclass(frozen=True, kw_only=True)
class PartsPlan(RootArtifact):
    """The plan of a data set with `parts` above 1."""

    name: str
    source: SourceWithParts
    build: BuildSettings

    version = CODE_VERSION
    record = PLAN_NAME
    noun = "plan"
    uses_network = True
    is_shared = True

    @property
    def key(self) -> str:
        return f"plan/{self.name}"

    @property
    def directory(self) -> Path:
        return parts_dir(self.root, self.name)

    @property
    def target(self) -> Path:
        """The file of the plan. The folder around it stays."""
        return self.record_path

    def finished(self) -> Meta | None:
        try:
            meta = read_meta(self.target)
            Plan.of(meta)
        except NielsCacheError:
            return None
        return meta

    def is_frozen(self, meta: Meta) -> bool:
        """Return whether the plan has these settings and lists files of other machines.

        Such files are listed only once, because every machine reads the plan.
        """
        patterns = getattr(self.source, "files", None)
        lists_other_machines = not patterns or any("://" in pattern for pattern in patterns)
        if not lists_other_machines or not self._has_same_patterns(meta):
            return False
        return self.matches(meta, self.identity(meta.get("dataset_revision")))

    def _has_same_patterns(self, meta: Meta) -> bool:
        return bool(meta.get("added_patterns", self._added_patterns) == self._added_patterns)

    @property
    def _added_patterns(self) -> list[list[str]]:
        """The patterns of each table `added`, without addresses on this machine."""
        return [patterns_without_folders(each) for each in self.source.added]

    @property
    def _uncounted(self) -> tuple[str, ...]:
        """The keys of a table `added` that its identity leaves out.

        The revision of the user's files covers their names; a commit of the hub does not say which of its files were chosen.
        """
        return () if isinstance(self.source, HubData) else ("files",)

    def revision(self) -> str | None:
        return self.source.revision(self.registry.pretrain)

    def identity(self, revision: str | None) -> Identity:
        added = [identity_settings(each, "added", without=self._uncounted) for each in self.source.added]
        return {**self.identity_of_group(0, revision), **({"added": added} if added else {})}

    def identity_of_group(self, number: int, revision: str | None) -> Identity:
        """Return everything that decides a group of parts.

        The first parts have the identity of a data set that never grew.

        Args:
            number: 0 for the first parts, then the tables `added`.
            revision: The revision of the files of the group.
        """
        source = without_keys(self.source.identity(), "exclude")  # it counts for each part on its own
        identity: Identity = {
            "source": source,
            "seed": self.build.seed,
            "shard_bytes": self.build.shard_bytes,
            "revision": revision,
            "code_version": self.version,
        }
        if number:
            added = self.source.added[number - 1]
            identity["source"] = without_keys(source, "parts", "train_tokens", "val_tokens", "val_frac")
            own = identity_settings(added, "added", without=(*self._uncounted, "revision"))
            identity["added"] = {**own, "val_frac": self.source.seeded_val_frac}
            # A part is found by its number. So a group whose numbers move must not look like the group that had them before.
            identity["first_part"] = self.source.parts + sum(each.parts for each in self.source.added[: number - 1])
        return identity

    def matches(self, meta: Meta, identity: Identity) -> bool:
        return super().matches(meta, identity) and not self._encoding_changes(meta)

    def current(self) -> Meta:
        return self.read().meta

    def read(self, *, files_only: bool = False) -> Plan:
        """Return the plan of these settings.

        Args:
            files_only: Whether only the files and their division are used, so that the tokenizer does not matter.

        Raises:
            NielsCacheError: If the plan is missing or damaged, or has other settings or another tokenizer.
        """
        meta = read_meta(self.target)
        recorded, current = meta.get("made_of", {}), as_recorded(self.identity(meta.get("dataset_revision")))
        changes = [] if recorded == current else differences(recorded, current) or ["other settings"]
        if changes := [*changes, *([] if files_only else self._encoding_changes(meta))]:
            raise NielsCacheError(
                f"{self.target}: is not the plan of these settings ({'; '.join(changes)}); make it again: {self.build_command}"
            )
        return Plan.of(meta)

    def _encoding(self) -> dict[str, Any]:
        """Return what decides the tokens of the parts beside the plan. Values that are unknown before there is a tokenizer are left out."""
        settings = {"token_dtype": self.build.token_dtype, "decontaminate": self.source.decontaminate}
        with suppress(NielsCacheError):
            meta = read_meta(tokenizer_dir(self.root) / META_NAME)
            tokenizer = {key: meta.get(key) for key in ("vocab_size", "special_token_ids")}
            return as_recorded({**settings, "tokenizer_sha256": meta.get("sha256"), **tokenizer})
        return settings

    def _encoding_changes(self, meta: Meta) -> list[str]:
        """Return what has changed since this plan was made, of what decides the tokens of the parts, as far as it is known."""
        then, now = meta.get("encoding", {}), self._encoding()
        both = then.keys() & now.keys()
        return differences({key: then[key] for key in both}, {key: now[key] for key in both})

    @property
    def build_command(self) -> str:
        """The command that makes the plan, and everything after it."""
        return f"niels-cache build-all --only {self.name}"

    @contextmanager
    def stage(self, work: BuildJob) -> Iterator[Path]:
        assert work.lease is not None
        try:
            with attempt_scratch(work.lease) as partial:
                yield partial
                work.lease.check()
                for path in partial.glob(VAL_BITS):
                    os.replace(path, self.directory / path.name)
                os.replace(partial / PLAN_NAME, self.target)
        except OSError as error:
            raise NielsCacheError(f"{self.target}: cannot be written: {error.strerror or error}; the last plan is unchanged") from error
        with suppress(OSError):  # the next plan removes what stays
            sync(self.directory)
            plan = self.target.read_text()
            for path in self.directory.glob(VAL_BITS):
                if path.name not in plan:
                    remove(path)

    @property
    def lease_target(self) -> Path:
        """The path whose lease, lock and staging directory the plan uses. Nothing is ever at this path."""
        return self.directory / PLAN_STAGED

    def write(self, work: BuildJob) -> WriteResult:
        for note in notes_on_source(self.source):
            work.log(note)
        source, last = self.source, None if work.force else self.finished()
        if last is not None and last["fingerprint"] == work.fingerprint and self._has_same_patterns(last):  # only the tokenizer is another
            proposed = self._proposed_shard_bytes(Plan.of(last).groups)
            changed = {"encoding": self._encoding(), "proposed_shard_bytes": proposed}
            return WriteResult(meta=without_keys(last, "meta_sha256") | changed)
        found = self.groups(work.revision, force=work.force, log=work.log)
        groups = [self._with_val(number, group, work) for number, group in enumerate(found)]
        for group in groups:
            if empty := [part.name for part in group.parts if not part.files]:
                files, parts = format_count(len(group.listed), "file"), format_count(len(group.parts), "part")
                work.log(f"{self.name}: there are only {files} for {parts}, so these parts are empty: {format_list(empty)}")
        field = groups[0].text_field
        if field not in (None, TEXT) and getattr(source, "text_field", None) is None:
            work.log(chosen_note(field))
        meta = {
            "kind": "plan",
            "dataset_name": self.name,
            "dataset_revision": work.revision,
            "text_field": field,
            "shard_bytes": self.build.shard_bytes,
            "proposed_shard_bytes": self._proposed_shard_bytes(groups),
            "seed": self.build.seed,
            "made_of": as_recorded(work.identity),
            "fingerprint": work.fingerprint,
            **({} if source.has_corpus else {"encoding": self._encoding()}),
            **({"added_patterns": self._added_patterns} if source.added else {}),
            "groups": [group.entry for group in groups],
        }
        return WriteResult(meta=meta)

    def _proposed_shard_bytes(self, groups: Sequence[PlannedGroup]) -> int | None:
        """Return a `shard_bytes` for fewer shards, or None if the configured one is large enough."""
        budgets = [self.source.train_tokens, *(each.train_tokens for each in self.source.added)]
        vocab_size = self._encoding().get("vocab_size") or self.registry.tokenizer.vocab_size
        return proposed_shard_bytes(
            [file for group in groups for file in group.listed],
            train_tokens=None if None in budgets else sum(filter(None, budgets)),
            val_tokens=self.source.val_tokens,
            token_bytes=TOKEN_DTYPES[self.build.token_dtype or token_dtype_name(vocab_size)].itemsize,
            shard_bytes=self.build.shard_bytes,
        )

    def _with_val(self, number: int, group: PlannedGroup, work: BuildJob) -> PlannedGroup:
        """Return the group with the choice of val among its documents, which are counted, unless it needs none or has one already.

        The first files of a data set with one part need none, because one process counts them.
        """
        share = self.source.seeded_val_frac
        if not share or self.source.has_corpus or group.val or (not number and self.source.parts == 1):
            return group
        work.log(f"counting documents in {format_count(len(group.listed), 'file')}, to split them by val_frac")
        stream = part_stream(self.source, group.listed, revision=group.revision, text_field=group.text_field)
        counts = list[int]()
        with closing(count_unsplit(stream, processes=self.build.threads or available_threads())) as found:
            for count in found:
                counts.append(count)
                work.report(ReportedProgress(counts={"files": len(counts)}, share=len(counts) / len(stream.files)))
        splitter = FractionSplitter.of(sum(counts), val_frac=share, seed=self.build.seed + number)
        return group_of({**group.entry, "documents": counts, "val": splitter.save(work.directory)})

    def groups(self, revision: str | None, *, force: bool, log: Log, hashed: bool = True) -> list[PlannedGroup]:
        """Return the groups of a new plan. If the data set grows, those of the last plan stay as they are, and new ones come after them.

        The table and upstream decide everything else. So a plan that is made from nothing gives the same parts, if the older files are
        unchanged.

        Args:
            revision: The revision of upstream.
            force: Whether the plan is forced. Then nothing of the last plan stays.
            log: Called with each message.
            hashed: See `group`.

        Raises:
            NielsCacheError: If files of built parts were changed or deleted, unless the plan is forced.
        """
        grows = bool(self.source.added) and not force
        last = self.finished() if grows else None
        then = () if last is None else Plan.of(last).groups
        found: list[PlannedGroup] = []
        for number in range(1 + len(self.source.added)):
            now = self.group(number, revision, text_field=found[0].text_field if found else None, hashed=hashed)
            if number < len(then):
                now = self._reuse_group(then[number], now, log, hashed=hashed)
            elif number == 0 and self.source.parts == 1 and grows and hashed:
                self._refuse_other_files(now)
            found.append(now)
        if self.source.decontaminate != "off" and any(file.split == "val" for group in found[1:] for file in group.listed):
            raise NielsCacheError(
                f"{self.name}: the added files have documents for val, so decontaminate would have to read all parts again; "
                'set decontaminate = "off", or make a data set of these files'
            )
        return found

    def _reuse_group(self, then: PlannedGroup, now: PlannedGroup, log: Log, *, hashed: bool) -> PlannedGroup:
        """Return the group of the last plan, unless its settings have changed. If nothing is hashed, only sizes of files are compared."""
        if _settings_of_group(then.identity) != _settings_of_group(now.identity):
            return now
        old, current = ({file.name: file if hashed else file.bytes for file in group.listed} for group in (then, now))
        changed = [name for name in old if name in current and old[name] != current[name]]
        deleted = [name for name in old if name not in current]
        if changed or deleted:
            raise NielsCacheError(
                f"{self.target}: {_describe_files(changed=changed, deleted=deleted)} since these parts were planned; "
                f"put the files back, or build the parts again: {self.build_command} --force"
            )
        if new := [name for name in current if name not in old]:
            log(f"{self.name}: {_describe_files(new=new)}, which no part reads; add them: niels-cache part {self.name} --add PATTERN")
        return then

    def _refuse_other_files(self, now: PlannedGroup) -> None:
        """Raise NielsCacheError if one process has built the data set from files other than those of the first group now."""
        meta = self.single_process_build()
        if meta is None or meta["dataset_revision"] == now.revision:
            return
        built_from, current = self.files_of_build(), {file.name for file in now.listed}
        changes = _describe_files(deleted=sorted(built_from - current), new=sorted(current - built_from)) or "a changed file"
        raise NielsCacheError(
            f"{dataset_dir(self.root, 'pretrain', self.name)}: {changes} since this cache was built; put the files back, "
            f"name new ones with niels-cache part --add, or build everything again: {self.build_command} --force"
        )

    def single_process_build(self) -> Meta | None:
        """Return the meta.json of the cache that one process has built for the data set, or None."""
        meta = finished_cache(self.registry, self.root, "pretrain", self.name)
        is_whole = meta is not None and meta.get("built") and "parts" not in meta and meta.get("dataset_name") == self.name
        return meta if is_whole else None

    def files_of_build(self) -> set[str]:
        """Return the names of the files that one process has read for this cache."""
        lineage, cache = [*map(documents_name, SPLITS)], dataset_dir(self.root, "pretrain", self.name)
        with folder_with(lineage, cache, address_in_store(self.registry, "pretrain", self.name)) as folder:
            return {name for each in lineage for name in files_of_lineage(folder / each)}

    def group(self, number: int, revision: str | None, *, text_field: str | None = None, hashed: bool = True) -> PlannedGroup:
        """Return a group of parts for the files of upstream at `revision`.

        Args:
            number: 0 for the first parts, then the tables `added`.
            revision: The revision of upstream.
            text_field: The text field of the first parts, for the tables `added`. None: it is found in the files.
            hashed: Whether the files are hashed. If not, only sizes and names are read, for an estimate.

        Raises:
            NielsCacheError: If the files cannot be divided.
        """
        source = self.source
        files = source.list_files(revision, group=number, hashed=hashed)
        table: Any = source.added[number - 1] if number else source
        budgets: dict[str, int | None] = {"train_tokens": table.train_tokens, "val_tokens": None if number else source.val_tokens}
        if source.has_corpus:  # budgets apply to the joined corpus
            budgets = dict.fromkeys(budgets)
        own = source.revision_of_files(number, revision) if hashed else revision
        if hashed and text_field is None:
            text_field = planned_text_field(source, files, own)
        identity = as_recorded({**self.identity_of_group(number, own), **({"text_field": text_field} if number else {})})
        return plan_parts(
            files, table.parts, **budgets, fingerprint=fingerprint_of(identity), identity=identity, revision=own, text_field=text_field
        )

    def warning(self) -> str | None:
        meta = self.finished()
        proposed = None if meta is None else meta.get("proposed_shard_bytes")
        if proposed is None:
            return None
        return f"{self.name} may have more than 20,000 shards; set shard_bytes = {proposed} in [build], so that it opens quickly"


def _settings_of_group(identity: Identity) -> Identity:
    """Return the settings of a group without the revision and the pinned commit. The files themselves are compared instead."""
    values = as_recorded(identity)
    values.pop("revision", None)
    return {**values, "source": without_keys(values.get("source", {}), "pinned_revision")}


def _describe_files(**files: Sequence[str]) -> str:
    return ", ".join(f"{format_count(len(names), f'{kind} file')} ({format_list(names)})" for kind, names in files.items() if names)


class MemberPlanOnDisk:
    """The plan of a member of a mixture (`sources.types.MemberPlan`), which is read from the disk once, when it is needed."""

    def __init__(self, artifact: PartsPlan) -> None:
        self._artifact = artifact
        self._groups: dict[str | None, tuple[GroupFiles, ...]] = {}

    def revision(self) -> str | None:
        return None if self._on_disk is None else self._on_disk.revision

    def frozen_revision(self) -> str | None:
        meta = self._artifact.finished()
        return meta["dataset_revision"] if meta is not None and self._artifact.is_frozen(meta) else None

    def groups(self, revision: str | None) -> tuple[GroupFiles, ...]:
        if revision not in self._groups:
            with TemporaryDirectory() as made:  # bits that are mapped outlive it
                plan = self._on_disk
                if plan is None or plan.revision != revision:
                    work = BuildJob(
                        directory=Path(made), revision=revision, identity={}, force=False, progress=None, log=lambda message: None
                    )
                    plan = Plan.of(self._artifact.write(work).meta)
                self._groups[revision] = tuple(
                    GroupFiles(
                        listed=group.listed,
                        revision=group.revision,
                        text_field=group.text_field,
                        parts=tuple((part.files, part.val_tokens or 0) for part in group.parts),
                        # A plan that is made here keeps groups of the one on disk, and their bits.
                        val=FractionSplitter.load(
                            Path(made) if group.val and Path(made, group.val[0]).exists() else self._artifact.directory, group.val
                        ),
                    )
                    for group in plan.groups
                )
        return self._groups[revision]

    @cached_property
    def _on_disk(self) -> Plan | None:
        try:
            return self._artifact.read(files_only=True)
        except NielsCacheError:  # missing, or of other settings
            return None


_OPTION = "part --add"
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, kw_only=True)
class Addition:
    """Files that can be added.

    Attributes:
        entry: The new table.
        keys: Other keys that the table of the data set needs.
        files: The new files.
    """

    entry: Mapping[str, Any]
    keys: Mapping[str, Any]
    files: Sequence[ListedFile]


def check_addition(
    registry: Registry, root: Path, name: str, existing_tables: Sequence[Mapping[str, Any]], new_table: Mapping[str, Any]
) -> Addition | None:
    """Return the table to write for files that are added to a data set, or None if the same table exists already.

    Args:
        registry: The configuration.
        root: The folder of the caches.
        name: The name of the data set.
        existing_tables: The tables `added` in the file of the configuration.
        new_table: The new table, without a commit of the hub.

    Raises:
        NielsCacheError: If a pattern has no files, the data set already has some of the files, or there are more parts than files. Also if
            one process has built a data set of the hub, and its pinned commit is not the one that was built.
    """
    for entry in existing_tables:
        if entry.get("files") == new_table["files"]:
            if without_keys(entry, "revision") == dict(new_table):
                return None
            raise NielsCacheError(
                f"{_OPTION}: {format_list(new_table['files'])} is in [[pretrain.{name}.added]] of {registry.origin} already, with other "
                "settings; change the table there"
            )
    source = registry.pretrain[name]
    entry, keys = dict(new_table), dict[str, Any]()
    if isinstance(source, HubData) and not source.local_key:
        entry["revision"] = source.model_copy(update={"pinned_revision": None}).revision({})
        built = PartsPlan(registry, root, name=name, source=source, build=registry.build).single_process_build()
        if source.parts == 1 and built is not None:
            keys |= _pinned(registry, name, source, built["dataset_revision"])
    grown = _grown(registry, name, {**keys, "added": [*existing_tables, entry]})
    plan = PartsPlan(registry, root, name=name, source=grown, build=registry.build)
    revision = grown.revision({}) if isinstance(grown, HubData) else None
    group = plan.group(len(grown.added), revision, hashed=False)
    if source.parts == 1:
        grown.list_files(revision, hashed=False)  # raises an error if one process would read the new files
    assert isinstance(source, SourceWithParts)
    known = _existing_files(plan, source)
    new = grown.located(group.listed, None)
    if known_names := [file.name for file, location in zip(group.listed, new, strict=True) if _address(file, location.url) in known]:
        raise NielsCacheError(
            f"{_OPTION}: {format_count(len(known_names), 'file')} of {format_list(new_table['files'])} ({format_list(known_names)}) are in "
            f"{name} already; name only new files"
        )
    return Addition(entry=entry, keys=keys, files=group.listed)


def _pinned(registry: Registry, name: str, source: HubData, built: str) -> dict[str, str]:
    """Return the key that pins the commit that one process has built, unless the table names this commit already.

    Without a pin, or with a branch that has moved, the first files would now be those of a later commit, with the new files among them.
    """
    pinned = source.pinned_revision
    if pinned is None or (pinned != built and source.revision({}) != built and not _COMMIT.fullmatch(pinned)):
        return {"pinned_revision": built}
    if _COMMIT.fullmatch(pinned) and pinned != built:
        raise NielsCacheError(
            f"{_OPTION}: {name} was built from commit {built}, but pinned_revision in {registry.origin} is {pinned}; "
            f"build that commit first (niels-cache build-all --only {name}), or pin the commit that was built"
        )
    return {}


def _grown(registry: Registry, name: str, keys: Mapping[str, Any]) -> SourceWithParts:
    """Return the table of a data set with these keys.

    Raises:
        NielsCacheError: If it cannot have them.
    """
    options = {f"pretrain.{name}.{key}": _OPTION for key in keys} | {f"pretrain.{name}": _OPTION}
    loaded = load_registry(profile=registry.profile, config=registry.origin, overrides={"pretrain": {name: dict(keys)}}, options=options)
    grown = loaded.pretrain[name]
    assert isinstance(grown, SourceWithParts)  # other kinds refuse `added`
    return grown


def _existing_files(plan: PartsPlan, source: SourceWithParts) -> set[str]:
    """Return the addresses of the files that the plan has, or that one process has read if there is no plan."""
    planned = in_store(plan).finished()
    if planned is not None:
        names = {file.name for group in Plan.of(planned).groups for file in group.listed}
    elif plan.single_process_build() is not None:
        names = plan.files_of_build()
    else:
        return set()
    if isinstance(source, HubData):
        return names
    return {_comparable_location(file.url) for file in source.every_file() if file.name in names}


def _address(file: ListedFile, url: str) -> str:
    """Return what distinguishes a file from others: its name on the hub, or else its path or address."""
    return file.name if url.startswith("hf://") else _comparable_location(url)


def _comparable_location(url: str) -> str:
    """Return an address, or a path with links resolved, because a link may lead to a file that is in the data set already."""
    return url if "://" in url else os.path.realpath(url)
