"""The report `reports/cache` about all caches below a cache root, with Dagster's records and the mixtures that runs would read.

A report takes the small reads of artifacts/state.py and facts/mixture.py, and reads 8 bytes for each document of pretrain caches
(inspection/shared_texts.py). No file is hashed, and the network is not used. `niels_cache_pages` writes the report as text.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, get_args

from niels_cache_assets.artifacts.corpus_report import duplicates_matrix
from niels_cache_assets.artifacts.graph import graph
from niels_cache_assets.artifacts.index import index_folder
from niels_cache_assets.artifacts.state import CacheState, index_state
from niels_cache_assets.base.wording import by_count, format_count, label
from niels_cache_assets.facts.contents import all_counts, budget_shortfall, content_hash, counts_per_split, total_bytes
from niels_cache_assets.facts.disjoint import SplitOverlap
from niels_cache_assets.facts.drops import DropSummary, summarize_drops
from niels_cache_assets.facts.mixture import MixturePlan, all_mixtures
from niels_cache_assets.inspection.shared_texts import SharedTexts, advice_against, shared_texts
from niels_cache_assets.project.registry import Registry
from niels_cache_assets.reports.history import CheckOutcome, FolderHistory, History
from niels_cache_assets.sources.text_column import reading_warning
from niels_cache_runtime.format.layout import Family, built_names

CODE_VERSION = "2"  # raise this by hand when a report or the drawing of a picture changes for the same caches and settings


class SplitCount(NamedTuple):
    """A count for each split, of a unit such as "tokens"."""

    unit: str
    train: int
    val: int

    @property
    def total(self) -> int:
        return self.train + self.val


class CacheItem(CacheState):
    """The state of a folder of the cache, which may not be built yet, with what a report says about it."""

    @property
    def status(self) -> str:
        """Condition with its cause, such as `complete` or `stale: other settings`."""
        plain = self.condition in ("complete", "missing") or self.state == self.condition
        return self.condition if plain else f"{self.condition}: {self.state}"

    @property
    def is_expected(self) -> bool:
        """Whether the folder is switched on and has all its settings."""
        return self.condition != "off"

    @property
    def is_built(self) -> bool:
        return bool(self.meta.get("built", bool(self.meta)))

    @property
    def bytes(self) -> int:
        return total_bytes(self.meta.get("files", {}))

    @property
    def sha256(self) -> str | None:
        return content_hash(self.meta)

    @property
    def revision(self) -> str | None:
        return self.meta.get("dataset_revision") if self.is_built else None

    @property
    def counts(self) -> dict[str, int]:
        """Counts in meta.json, such as `train_tokens` and `documents`."""
        return all_counts(self.meta)

    @property
    def splits(self) -> list[SplitCount]:
        """Counts that meta.json has for both splits: documents or examples, tokens, characters."""
        found = counts_per_split(self.meta) if self.is_built else {}
        return [SplitCount(unit, **found[unit]) for unit in ("documents", "examples", "tokens", "characters") if unit in found]

    @property
    def balance(self) -> str | None:
        """`40 documents kept and 20 dropped: 60 in all`, or None if meta.json has no such counts."""
        unit = "examples" if self.kind == "sft" else "documents"
        kept = next((row.total for row in self.splits if row.unit == unit), self.counts.get(unit))
        if kept is None:
            return None
        dropped = sum(self.dropped.values())
        return f"{format_count(kept, unit[:-1])} kept and {dropped:,} dropped: {kept + dropped:,} in all"

    @property
    def drops(self) -> DropSummary:
        return summarize_drops(self.meta)

    @property
    def duplicates(self) -> list[dict[str, Any]]:
        """Rows of `duplicates_matrix` if the folder has the drop lists, otherwise empty."""
        return duplicates_matrix(self.meta["datasets"]) if self.is_built and self.meta.get("kind") == "duplicates" else []

    @property
    def dropped(self) -> dict[str, int]:
        """Number of dropped documents or examples for each reason, most frequent reason first."""
        return dict(by_count(self.meta.get("dropped", {}) if self.is_built else {}))


@dataclass(frozen=True, kw_only=True)
class Notice:
    """A problem that needs attention.

    Attributes:
        name: The item or mixture with this problem.
        text: The problem.
    """

    name: str
    text: str


@dataclass(frozen=True, kw_only=True)
class CacheReport:
    """The report about everything below a cache root, in build order.

    Attributes:
        root: The cache root.
        settings: Configuration that the caches are compared with.
        items: The folders.
        mixtures: The planned runs.
        history: Records of Dagster.
        shared: Texts of train that are in the val of another data set.
        remedies: By the name of such a data set, what keeps these texts out.
    """

    root: Path
    settings: str
    items: tuple[CacheItem, ...]
    mixtures: tuple[MixturePlan, ...]
    history: History
    shared: SharedTexts
    remedies: Mapping[str, str]

    @property
    def bytes(self) -> int:
        return sum(item.bytes for item in self.items)

    @property
    def expected(self) -> list[CacheItem]:
        """All items, except those that are switched off or lack a setting."""
        return [item for item in self.items if item.is_expected]

    @property
    def complete(self) -> int:
        return sum(item.condition == "complete" for item in self.items)

    def recorded(self, item: CacheItem) -> FolderHistory:
        """Return the records of an item.

        The checks of an item that is switched off are left out, because they pass without verifying anything.
        """
        found = self.history.of_folder(item.directory)
        return found if item.is_expected else replace(found, checks=())

    def total(self, count: str, family: Family) -> int:
        """Return the sum of a count, such as `train_tokens`, over all data sets of a family."""
        return sum(item.counts.get(count, 0) for item in self.items if item.kind == family)

    @property
    def outcomes(self) -> Counter[str]:
        """Number of checks of each outcome, of every expected folder and of all data sets of a family."""
        every = [*(self.recorded(item).checks for item in self.items), self.history.checks]
        return Counter(check.outcome for checks in every for check in checks)

    @property
    def outcome_counts(self) -> str:
        """Number of checks for each outcome, such as `12 passed, 1 warning`."""
        outcomes = self.outcomes
        return ", ".join(f"{outcomes[each]:,} {each}" for each in get_args(CheckOutcome) if outcomes[each]) or "none recorded"

    @cached_property
    def notices(self) -> list[Notice]:
        """All problems, in build order, not by severity."""
        found = []
        names = {item.name for item in self.items}
        for item in self.items:
            found += [Notice(name=item.name, text=text) for text in self._item_notices(item, has_corpus=f"corpus/{item.name}" in names)]
        for mixture in self.mixtures:
            texts = [*mixture.warnings, *(f"{name}: {reason}" for name, reason in mixture.left_out.items() if not mixture.sources)]
            found += [Notice(name=mixture.name, text=text) for text in texts]
        for each in self.shared.found:
            sentence = f"{format_count(each.documents, 'document')} of train equal one in the val of {each.val}"
            remedy = f"; {self.remedies[each.train]}" if each.train in self.remedies else ""
            first = f"the first is {each.first.file}:{each.first.row} ({each.first.source_id})"
            found.append(Notice(name=each.train, text=f"{sentence}, {first}{remedy}"))
        return found

    def _item_notices(self, item: CacheItem, *, has_corpus: bool) -> list[str]:
        """Return the problems of an item.

        Args:
            item: The item.
            has_corpus: Whether the item has a corpus, whose notices then report the revision and the encoding.
        """
        recorded = self.recorded(item)
        texts = [f"{item.status}; {item.advice}"] if item.needs_build else []
        texts += [
            f"{label(check.name)}: {check.said or check.outcome}" for check in recorded.checks if check.outcome in ("failed", "warning")
        ]
        overlap = SplitOverlap.recorded(item.meta)
        for found in (budget_shortfall(item.meta), overlap and overlap.describe()) if item.is_expected else ():
            if found and not any(found in (check.said or "") for check in recorded.checks):  # the cache may be older than the check
                texts.append(found)
        newest = recorded.newest_revision
        if item.revision is not None and newest not in (None, item.revision) and not has_corpus:
            texts.append(f"built from revision {item.revision}; upstream was last observed at {newest}")
        if not has_corpus and (warning := reading_warning(item.meta)):
            texts.append(warning)
        return [*texts, *item.drops.warnings]

    def as_json(self) -> dict[str, Any]:
        """Return the report as data. Times are seconds since 1970."""
        return {
            "root": str(self.root),
            "settings": self.settings,
            "history": self.history.source,
            "bytes": self.bytes,
            "items": [self._item_json(item) for item in self.items],
            "mixtures": [mixture.as_json() for mixture in self.mixtures],
            "priors": self._priors,
            "family_checks": [asdict(check) for check in self.history.checks],
            "shared_texts": asdict(self.shared),
            "notices": [asdict(notice) for notice in self.notices],
        }

    @property
    def _priors(self) -> dict[str, Mapping[str, float]]:
        """The sizes of the train splits of built pretrain data sets, under the keys of a configuration of olmix."""
        counts = {item.name: tokens for item in self.items if item.kind == "pretrain" and (tokens := item.counts.get("train_tokens", 0))}
        return {"relative_sizes": {name: tokens / sum(counts.values()) for name, tokens in counts.items()}, "token_counts": counts}

    def _item_json(self, item: CacheItem) -> dict[str, Any]:
        return {
            "name": item.name,
            "kind": item.kind,
            "directory": str(item.directory),
            "condition": item.condition,
            "state": item.state,
            "advice": item.advice,
            "note": item.note,
            "counts": item.counts,
            "dropped": item.dropped,
            "left_out": item.drops.requested,
            **({"duplicates_matrix": item.duplicates} if item.duplicates else {}),
            "bytes": item.bytes,
            "sha256": item.sha256,
            "meta_sha256": item.meta.get("meta_sha256"),
            "revision": item.revision,
            **asdict(self.recorded(item)),
        }


def find_items(registry: Registry, *, root: Path) -> list[CacheItem]:
    """Return all items in build order, with the indices of blends last."""
    states = [state for state in graph(registry, root).states() if state.state != "disabled" and state.kind != "index"]
    indices = [index_state(index_folder(root) / name) for name in built_names(index_folder(root))]  # one item per folder
    return [CacheItem(**vars(state)) for state in (*states, *indices)]


def cache_report(registry: Registry, items: Sequence[CacheItem], *, root: Path, history: History) -> CacheReport:
    """Return the report about items (from `find_items`) with Dagster's records."""
    mixtures = tuple(all_mixtures(registry, root=root))
    shared = shared_texts({item.name: item.directory for item in items if item.kind == "pretrain" and item.is_built})
    others: dict[str, list[str]] = {}
    for each in shared.found:
        others.setdefault(each.train, []).append(each.val)
    remedies = {
        name: advice
        for name, named in others.items()
        if name in registry.pretrain and (advice := advice_against(registry, name, named)) is not None
    }
    return CacheReport(
        root=root.absolute(),
        settings=registry.settings_origin,
        items=tuple(items),
        mixtures=mixtures,
        history=history,
        shared=shared,
        remedies=remedies,
    )
