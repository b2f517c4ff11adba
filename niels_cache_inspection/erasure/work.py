"""An erasure in steps, each of which may be repeated after a kill.

    exclude   the ids go into the files that `exclude` names, so that no later build reads the documents
    rebuild   builds replace the caches, corpora and mixtures that had them; each replaces its folder in one step. With a tombstone, the
              documents are struck out of the caches in place instead (striking.py)
    scan      everything is searched again
    delete    unfinished builds and pages of reports that still have pieces of the texts are deleted
    publish   published builds are replaced, and older ones deleted
    receipt   the receipt is written, and the state is deleted

RECEIPT.state has the state from the first step to the last: what is erased, the prints to look for, and what was done. It is as secret as
the documents, so only its owner may read it. A command with the same receipt goes on with it. Each step finds out itself what is left to
do, so a step that was killed in the middle is simply done again.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from niels_cache_assets.artifacts.suffixes import suffixes_dir
from niels_cache_assets.base.wording import format_count
from niels_cache_assets.disk.journal import write_atomically
from niels_cache_assets.project.registry import Registry
from niels_cache_assets.sources.interleave import Interleave
from niels_cache_inspection.erasure.excluding import config_of, exclude, missing_ids
from niels_cache_inspection.erasure.prints import TextPrints, WantedTexts, keyed, keyed_prints
from niels_cache_inspection.erasure.receipt import FORMAT, KEY_BYTES, KIND, Receipt, key_path, sign, write_private
from niels_cache_inspection.erasure.remains import Remaining, hub_copies, other_names, read_only, readers_of
from niels_cache_inspection.erasure.scanning import SOURCE, FoundDocument, Scan
from niels_cache_inspection.erasure.striking import strike_everywhere
from niels_cache_inspection.erasure.targets import ErasureRequest, Targets
from niels_cache_inspection.erasure.texts import cache_folders, meta_of
from niels_cache_inspection.erasure.trained import steps_that_read
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.commit import lock_owner

STEPS = ("exclude", "rebuild", "scan", "delete", "publish", "receipt")
Builder = Callable[[Registry, Path, Sequence[str]], Mapping[str, str]]
"""Builds data sets with these names, and returns the reason of each that failed, by name."""

_STATE_FORMAT = 1
_HASHES = ("meta_sha256", "content_sha256")  # of a build, in its meta.json


def state_path(receipt: Path) -> Path:
    """Return the path of the state of an unfinished erasure."""
    return receipt.with_name(f"{receipt.name}.state")


@dataclass(kw_only=True)
class ErasureState:
    """The state of an erasure, as RECEIPT.state has it.

    Attributes:
        root: The cache root.
        by: Who asked.
        why: Why.
        started: When it was confirmed, UTC.
        request: A keyed hash of what was asked for.
        key: The key of the receipt, in hexadecimal digits.
        step: The next step.
        tombstone: Whether documents are struck in place instead of building again.
        targets: The documents to erase.
        kept: (family, name, source id, file) of near copies that stay.
        texts: What is known of their texts: the prints in base64, and a short text in base64.
        before: The builds that had the documents: data set, folder relative to the root, and keyed hashes.
        read_by: The steps of trainings that had read the documents.
        remaining: What was found that cannot be erased.
        unread: What the last search could not read, and why.
        unread_sources: Sources that were not read, and why.
        left: What the last search has found.
        common: The prints that documents have, too, which stay, in base64.
        counts: How much the last search has read.
    """

    root: str
    by: str
    why: str
    started: str
    key: str
    request: str = ""
    step: str = STEPS[0]
    tombstone: bool = False
    targets: list[dict[str, Any]] = field(default_factory=list)
    kept: list[list[str]] = field(default_factory=list)
    texts: list[list[str]] = field(default_factory=list)
    before: list[dict[str, Any]] = field(default_factory=list)
    read_by: dict[str, Any] | None = None
    remaining: list[Remaining] = field(default_factory=list)
    unread: list[list[str]] = field(default_factory=list)
    unread_sources: list[list[str]] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    common: str = ""
    counts: dict[str, int] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> ErasureState:
        """Return the state in a file.

        Raises:
            NielsCacheError: If it cannot be read.
        """
        try:
            found = json.loads(path.read_bytes())
            if found.pop("format") != _STATE_FORMAT:
                raise NielsCacheError(f"{path}: is of another version of niels-cache; finish this erasure with that version")
            return cls(**found)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise NielsCacheError(f"{path}: cannot be read as the state of an erasure: {error}") from error

    def save(self, path: Path) -> None:
        """Write the state in one step."""
        write_private(path, json.dumps({"format": _STATE_FORMAT, **asdict(self)}, ensure_ascii=False).encode())

    @property
    def wanted(self) -> WantedTexts:
        """The texts to look for."""
        decoded = [[base64.b64decode(each) for each in pair] for pair in self.texts]
        return WantedTexts(tuple(TextPrints(prints=np.frombuffer(prints, "<u8"), short=short, is_whole=True) for prints, short in decoded))

    @property
    def ids(self) -> dict[tuple[str, str], list[str]]:
        """The ids to leave out, by family and name of the data set."""
        found: dict[tuple[str, str], list[str]] = {}
        for each in self.targets:
            if each["is_configured"]:
                found.setdefault((each["family"], each["name"]), []).append(each["source_id"])
        return found


@dataclass(frozen=True, kw_only=True)
class Erasure:
    """An erasure that is confirmed.

    Attributes:
        registry: Reads the configuration. It is called again after `exclude` has changed it.
        root: The cache root.
        receipt: The path of the receipt.
        build: Builds data sets.
        folders: See `Scan`.
        signing_key: The file of the key that signs the receipt, or None.
        published: Further addresses of published builds.
        progress: Called with a line about what is being done.
        on_step: Called with each step before it begins.
    """

    registry: Callable[[], Registry]
    root: Path
    receipt: Path
    build: Builder
    folders: tuple[Path, ...] = ()
    signing_key: Path | None = None
    published: tuple[str, ...] = ()
    progress: Callable[[str], None] = lambda line: None
    on_step: Callable[[str], None] = lambda step: None

    def begin(
        self, request: ErasureRequest, targets: Targets, *, near: bool, states: Sequence[str] = (), tombstone: bool = False
    ) -> ErasureState:
        """Write the state of a new erasure.

        Args:
            request: The request.
            targets: What it erases.
            near: Whether near copies are erased too.
            states: Files with the states of loaders, for the steps that had read the documents.
            tombstone: Whether to strike the documents in place instead of building again.

        Raises:
            NielsCacheError: If the state of the erasure cannot be written, or the state of a loader cannot be read.
        """
        registry = self.registry()
        config_of(registry)
        chosen = [*targets.sure, *(targets.near if near else [])]
        texts = [*targets.texts, *(each for every in targets.near_texts.values() for each in every if near)]
        keys = [each.key for each in chosen]
        found = [(each, key) for each, key in targets.found if key in keys]
        key = secrets.token_bytes(KEY_BYTES)
        state = ErasureState(
            root=str(self.root.absolute()),
            by=request.by,
            why=request.why,
            started=_now(),
            key=key.hex(),
            request=request.digest(key),
            tombstone=tombstone,
            targets=[asdict(each) | {"excerpt": ""} for each in chosen],
            kept=[] if near else [[each.family, each.name, each.source_id, each.file] for each in targets.near],
            texts=[
                [base64.b64encode(each.prints.astype("<u8").tobytes()).decode(), base64.b64encode(each.short).decode()] for each in texts
            ],
            unread_sources=[list(each) for each in targets.unread if each[0].startswith(SOURCE)],
            read_by=steps_that_read(states, found, keys, self.root) if states else None,
        )
        folders = self._folders_of(registry, state)
        for name, folder in folders:
            meta = meta_of(folder) or {}
            hashes: dict[str, Any] = {each: keyed(key, str(meta[each]).encode()) for each in _HASHES if each in meta}
            state.before.append({"data_set": name, "folder": folder.relative_to(self.root).as_posix(), **hashes})
        state.remaining += [*other_names([folder for _, folder in folders], self.root), *read_only([folder for _, folder in folders])]
        state.remaining += hub_copies(registry.sources.get(each.name) for each in chosen)
        in_sources = Counter(each.name for each in chosen if "source" in each.places)
        state.remaining += [
            Remaining(
                what="source",
                where=f"{name}: {format_count(count, 'document')}",
                advice="builds leave them out; `exclude` lists their ids, to remove them there yourself",
            )
            for name, count in in_sources.items()
        ]
        state.remaining += [
            Remaining(
                what="data set that is not configured",
                where=f"{each.family}/{each.name}",
                advice="no build can leave the document out; delete the folder, or configure the data set, and erase again",
            )
            for each in chosen
            if not each.is_configured
        ]
        state.save(state_path(self.receipt))
        return state

    def run(self, state: ErasureState) -> Receipt:
        """Do all steps that are left, and return the receipt.

        Raises:
            NielsCacheError: If a step fails. The same call goes on with it.
        """
        if Path(state.root) != self.root.absolute():
            raise NielsCacheError(f"{state_path(self.receipt)}: is about the caches in {state.root}; give --cache-dir {state.root}")
        write_private(key_path(self.receipt), f"{state.key}\n".encode())
        for step in STEPS[STEPS.index(state.step) :]:
            state.step = step
            state.save(state_path(self.receipt))
            self.on_step(step)
            if step == "receipt":
                return self._write_receipt(state)
            getattr(self, f"_{step}")(state)
        raise AssertionError

    def _exclude(self, state: ErasureState) -> None:
        for (family, name), ids in state.ids.items():
            self.progress(f"{name}: leaving out {format_count(len(ids), 'document')}")
            exclude(self.registry(), family, name, ids)

    def _rebuild(self, state: ErasureState) -> None:
        registry = self.registry()
        for (_, name), ids in state.ids.items():
            if missing := missing_ids(registry, name, ids):
                raise NielsCacheError(f"{name}: exclude does not have {missing[0]!r}; another profile or configuration may hide it")
        for name in {*self._names_to_build(registry, state), *(each["name"] for each in state.targets)}:
            shutil.rmtree(suffixes_dir(self.root, name), ignore_errors=True)  # its keys are pieces of documents; builds make it again
        if state.tombstone:
            strike_everywhere(registry, self.root, state.ids, progress=self.progress)
            return
        names = self._names_to_build(registry, state)
        self.progress(f"building {', '.join(names)}")
        failed = self.build(registry, self.root, names) if names else {}
        if failed:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in failed.items())
            raise NielsCacheError(f"{reasons}; correct it, and type the same command again: it goes on")

    def _scan(self, state: ErasureState) -> None:
        registry = self.registry()
        scan = Scan(
            registry=registry,
            root=self.root,
            wanted=state.wanted,
            folders=self.folders,
            ids={(family, name, each) for (family, name), ids in state.ids.items() for each in ids},
            kept=_kept_of(registry, state),
            progress=self.progress,
        ).run(sources=False)
        state.unread = [list(each) for each in scan.unread]
        state.counts = scan.counts
        state.common = base64.b64encode(scan.common.astype("<u8").tobytes()).decode()
        state.left = sorted({_place_of(each, self.root) for each in scan.documents} | {str(each.path.absolute()) for each in scan.files})

    def _delete(self, state: ErasureState) -> None:
        left = []
        for path in map(Path, state.left):
            doomed = _deletable(path, self.root)
            if doomed is None or lock_owner(_target_of(doomed)) is not None:
                left.append(str(path))
                continue
            self.progress(f"deleting {doomed}")
            with suppress(FileNotFoundError):
                if doomed.is_dir() and not doomed.is_symlink():
                    shutil.rmtree(doomed)
                else:
                    doomed.unlink()
        state.left = [each for each in left if os.path.lexists(each)]

    def _publish(self, state: ErasureState) -> None:
        from niels_cache_inspection.erasure.publishing import replace_published

        registry = self.registry()
        found = replace_published(registry, self.root, self._names_to_build(registry, state), self.published, progress=self.progress)
        state.remaining = [each for each in state.remaining if each["what"] not in {"published build", "older versions"}] + found

    def _write_receipt(self, state: ErasureState) -> Receipt:
        registry, key = self.registry(), bytes.fromhex(state.key)
        remaining = [*state.remaining, *readers_of(self.root)]
        if state.tombstone:
            names, later = self._names_to_build(registry, state), "the next build-all builds these data sets again without the documents"
            remaining += [Remaining(what="ids in lineage", where=", ".join(names), advice=later)]
        advice = "delete it, or build it again, and erase again with another --receipt"
        remaining += [Remaining(what="still there", where=each, advice=advice) for each in state.left]
        wanted, common = state.wanted, np.frombuffer(base64.b64decode(state.common), "<u8")
        receipt: Receipt = {
            "kind": KIND,
            "format": FORMAT,
            "requested_by": state.by,
            "reason": state.why,
            "confirmed": state.started,
            "finished": _now(),
            "is_absent": not (state.left or state.unread),
            "tombstone": state.tombstone,
            "val_chosen_again": [] if state.tombstone else [*self._with_other_val(registry, state)],
            "documents": [
                {
                    "family": each["family"],
                    "data_set": each["name"],
                    "relation": each["relation"],
                    "places": sorted({_kind_of_place(place) for place in each["places"]}),
                    "id": keyed(key, json.dumps([each["family"], each["name"], each["source_id"]]).encode()),
                }
                for each in state.targets
            ],
            "too_short_to_search": sum(not each.is_searchable for each in wanted.texts),
            "prints": [sorted(keyed_prints(key, np.setdiff1d(each.prints, common))) for each in wanted.texts if each.has_prints],
            "builds_before": state.before,
            "builds_after": [
                {
                    "data_set": name,
                    "folder": folder.relative_to(self.root).as_posix(),
                    **{each: meta[each] for each in _HASHES if each in meta},
                }
                for name, folder in self._folders_of(registry, state)
                if (meta := meta_of(folder)) is not None
            ],
            "read_by": state.read_by,
            "searched": state.counts,
            "not_searched": [{"what": what, "why": why} for what, why in [*state.unread_sources, *state.unread]],
            "remaining": remaining,
        }
        receipt = receipt if self.signing_key is None else sign(receipt, self.signing_key)
        write_atomically(self.receipt, json.dumps(receipt, indent=1, ensure_ascii=False).encode() + b"\n")
        state_path(self.receipt).unlink(missing_ok=True)
        return receipt

    def _names_to_build(self, registry: Registry, state: ErasureState) -> list[str]:
        """Return the data sets with the documents, and the mixtures that read them, in the order of the configuration."""
        names = {name for _, name in state.ids}
        mixed = {name for name, source in registry.pretrain.items() if isinstance(source, Interleave) and names & source.members.keys()}
        return [name for name, source in registry.sources.items() if name in names | mixed and source.enabled]

    def _with_other_val(self, registry: Registry, state: ErasureState) -> Iterator[str]:
        """Yield the data sets of which a build chooses val from the documents that are left, so that others may have moved."""
        for name in self._names_to_build(registry, state):
            source = registry.pretrain.get(name)
            if source is not None and (isinstance(source, Interleave) or source.prepare or source.val_tokens):
                yield name

    def _folders_of(self, registry: Registry, state: ErasureState) -> list[tuple[str, Path]]:
        """Return the builds of the data sets with the documents, with their parts and corpora, by data set."""
        names = {*self._names_to_build(registry, state), *(each["name"] for each in state.targets)}
        found = [(each.name, each.directory) for each in cache_folders(self.root) if each.name in names]
        corpora = [*(self.root / "corpus").glob("[!.]*/meta.json"), *(self.root / "corpus/.parts").glob("*/*/meta.json")]
        named = ((path.parent.parent.name if ".parts" in path.parts else path.parent.name, path.parent) for path in corpora)
        return found + sorted(each for each in named if each[0] in names)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _kept_of(registry: Registry, state: ErasureState) -> set[tuple[str, str, str, str]]:
    """Return the near copies that stay, also as the mixtures have them that read their data sets."""
    kept = {(family, name, source_id, file) for family, name, source_id, file in state.kept}
    mixtures = [(name, source.members) for name, source in registry.pretrain.items() if isinstance(source, Interleave)]
    return kept | {
        ("pretrain", mixture, source_id, f"{name}/{file}")
        for _, name, source_id, file in kept
        for mixture, members in mixtures
        if name in members
    }


def _place_of(each: FoundDocument, root: Path) -> str:
    return str((root / each.family / each.name if each.place == "cache" else root / each.place).absolute())


def _kind_of_place(place: str) -> str:
    return "source" if place == "source" else place.partition("/")[0].partition(" ")[0]


def _deletable(path: Path, root: Path) -> Path | None:
    """Return the unfinished build or the page of a report that a path belongs to, which may be deleted, or None."""
    root = root.absolute()
    if not path.is_relative_to(root):
        return None
    parts = path.relative_to(root).parts
    for index, part in enumerate(parts):
        if part.startswith(".") and any(end in part for end in (".partial", ".old", ".journal", ".gone")):
            return root.joinpath(*parts[: index + 1])
    return path if parts[0] == "reports" else None


def _target_of(doomed: Path) -> Path:
    """Return the folder that an unfinished build would replace."""
    return doomed.with_name(
        doomed.name.removeprefix(".").partition(".partial")[0].removesuffix(".old").removesuffix(".journal").removesuffix(".gone")
    )
