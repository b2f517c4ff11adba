"""The graph of artifacts: everything that a root folder can hold, by key, in build order.

    tokenizer   corpus/NAME   corpus/duplicates   repeats/lines   repeats/spans   report/NAME   pretrain/NAME   sft/NAME   index/BLEND

A data set in parts also has plan/NAME, val_part/NAME (with a budget for val) and part/NAME/part-00017. If it has a corpus, this corpus is
in parts instead: plan/NAME and corpus_part/NAME/part-00017. A search for duplicates in ranges also has hashes and range/range-00003.

Edges come only from the method `inputs` of each artifact. The command line, the launcher, the states and Dagster's checks use this graph.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from niels_cache_assets.artifacts.base import Artifact, kind_of
from niels_cache_assets.artifacts.corpus import Corpus
from niels_cache_assets.artifacts.corpus_report import CorpusReport
from niels_cache_assets.artifacts.dataset import DatasetSpec, PretrainCache, SftCache, SwitchedOff
from niels_cache_assets.artifacts.duplicates import Duplicates
from niels_cache_assets.artifacts.index import BlendIndex
from niels_cache_assets.artifacts.parts.plan import PartsPlan
from niels_cache_assets.artifacts.parts.seal import DatasetCache, JoinedCache
from niels_cache_assets.artifacts.parts.watch import STATES, StoreReads, WatchedStep, watch_parts, watch_steps
from niels_cache_assets.artifacts.prepared_corpora import with_corpus_readers
from niels_cache_assets.artifacts.repeats import Repeats
from niels_cache_assets.artifacts.state import CacheState, state_of, unlisted_corpus_state, unlisted_state
from niels_cache_assets.artifacts.stored import StorePlace, in_store
from niels_cache_assets.artifacts.suffixes import SuffixIndex
from niels_cache_assets.artifacts.tokenizer import Tokenizer
from niels_cache_assets.base.choices import raise_unknown_choice
from niels_cache_assets.corpus.layout import HASHES, range_name
from niels_cache_assets.disk.attempts import lease_path
from niels_cache_assets.disk.journal import real_path
from niels_cache_assets.parts.layout import PART_KINDS, number_in
from niels_cache_assets.parts.lease import DONE
from niels_cache_assets.project.registry import Registry, apply_run_settings
from niels_cache_assets.project.tables import BuildSettings
from niels_cache_assets.sources.types import REPEATS, PrepareStep, PretrainSource, SourceWithParts
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import FAMILIES, META_NAME, built_names, tokenizer_dir


def graph(registry: Registry, root: str | Path) -> Graph:
    """Return the graph of a configuration. This reads no file until you use an artifact."""
    return Graph(registry=registry, root=Path(root))


@dataclass(frozen=True, kw_only=True)
class Graph:
    """The artifacts of a configuration in one root."""

    registry: Registry
    root: Path

    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer.

        Machines share it if they share a data set. They may have shared one earlier and have left an unfinished attempt, so this counts as
        well.
        """
        was_shared = lease_path(real_path(tokenizer_dir(self.root))).is_dir()
        return Tokenizer(self.registry, self.root, is_shared=self.registry.has_parts or was_shared)

    def corpus(self, name: str) -> Corpus:
        """Return the corpus of a data set."""
        siblings = partial(with_corpus_readers, self.registry, self.root)
        return Corpus(self.registry, self.root, name=name, siblings=siblings)

    def joined_corpus(self, name: str) -> Corpus:
        """Return the corpus of a data set whose corpus is in parts.

        Raises:
            NielsCacheError: If the corpus of the data set is not in parts.
        """
        corpus = self.corpus(name)
        if not corpus.is_joined:
            raise NielsCacheError(f"{self.registry.origin}: the corpus of {name} is not in parts; set parts in [pretrain.{name}]")
        return corpus

    def plan(self, name: str) -> PartsPlan:
        """Return the plan of a data set in parts.

        Raises:
            NielsCacheError: If the data set is not in parts.
        """
        return self.joined_corpus(name).parts_plan if name in self.registry.corpora_in_parts() else self.sealed(name).spec.parts_plan

    def duplicates(self) -> Duplicates:
        """Return the drop lists (lists of the duplicates in each corpus)."""
        return Duplicates(self.registry, self.root)

    def repeats(self, step: PrepareStep) -> Repeats:
        """Return the cuts of a step, lines or spans."""
        return Repeats(self.registry, self.root, step=step)

    def dataset(self, name: str, run_settings: Mapping[str, Any] | None = None) -> DatasetCache:
        """Return the cache of a data set.

        Args:
            name: The name of the data set.
            run_settings: Values that replace keys of the data set's table or of [build] (seed, shard_bytes, threads) for one run. None
                replaces nothing.

        Raises:
            NielsCacheError: If the name is unknown or a setting is invalid.
        """
        given = run_settings or {}
        shared = {key: value for key, value in given.items() if key in BuildSettings.model_fields}
        own = {key: value for key, value in given.items() if key not in BuildSettings.model_fields}
        build = apply_run_settings(self.registry.build, shared)
        source = apply_run_settings(self.registry.source(name), own)
        spec: DatasetSpec[Any] = DatasetSpec(registry=self.registry, root=self.root, name=name, source=source, build=build)
        if isinstance(source, SourceWithParts) and source.is_in_parts:
            return JoinedCache(spec=spec)
        return PretrainCache(spec=spec) if isinstance(source, PretrainSource) else SftCache(spec=spec)

    def cache(self, name: str) -> Artifact:
        """Return the artifact that a build of a data set makes: its cache, or an empty cache if the data set is switched off.

        Args:
            name: The name of the data set.

        Raises:
            NielsCacheError: If the name is unknown.
        """
        dataset = self.dataset(name)
        return dataset if dataset.spec.source.enabled else SwitchedOff(spec=dataset.spec, split_rule=dataset.split_rule)

    def sealed(self, name: str) -> JoinedCache:
        """Return the cache of a data set in parts.

        Raises:
            NielsCacheError: If the data set is not in parts.
        """
        dataset = self.dataset(name)
        if not isinstance(dataset, JoinedCache):
            raise NielsCacheError(f"{self.registry.origin}: {name} is not in parts; set parts in [pretrain.{name}]")
        return dataset

    def watch(self, name: str) -> list[WatchedStep]:
        """Return what happens now to each step of a data set that has a lease: first what needs attention, and otherwise in build order.

        Raises:
            NielsCacheError: If there is no data set in parts with this name.
        """
        for each in (self.tokenizer(), self.plan(name)):
            if isinstance(place := in_store(each), StorePlace):
                place.finished()  # copies it to this machine, which needs it to name the parts
        order, known = [*dict.fromkeys(self.order([name]))], self._known_in_store
        in_parts = [key.removeprefix("plan/") for key in order if key.startswith("plan/")]
        joined: list[Corpus | JoinedCache] = [self.joined_corpus(each) for each in in_parts if each in self.registry.corpora_in_parts()]
        joined += [self.sealed(each) for each in in_parts if each in self.registry.in_parts()]
        found = {step.key: step for each in joined for step in watch_parts(each, known)}
        others = [artifact for key in order if key not in found and (artifact := self[key]).is_shared]
        found |= {step.key: step for step in watch_steps(others, known)}
        kinds = {key[: key.rfind("/") + 1] or key: key for key, step in found.items() if step.state != DONE}
        done = tuple(kind for kind, key in kinds.items() if self.is_done(key))  # the same for all parts of a corpus, and for all ranges
        steps = [found[key]._replace(state=DONE) if key.startswith(done) else found[key] for key in order if key in found]
        return sorted(steps, key=lambda step: STATES.index(step.state))

    @cached_property
    def _known_in_store(self) -> StoreReads:
        return {}

    @cached_property
    def keys(self) -> list[str]:
        """The keys of all artifacts in the configuration, including artifacts that are switched off."""
        registry = self.registry
        keys = [
            "tokenizer",
            *(step.key for name in registry.corpora_in_parts() for step in self.joined_corpus(name).steps()),
            *(f"corpus/{name}" for name in registry.prepared()),
            *([HASHES] if registry.search_ranges else []),
            *(f"range/{range_name(number)}" for number in range(registry.search_ranges)),
            *(["corpus/duplicates"] if registry.prepared("dedup") else []),
            *(f"repeats/{step}" for step in REPEATS if registry.prepared(step)),
            *(f"report/{name}" for name in registry.prepared()),
            *(key for name in registry.in_parts() for key in self.sealed(name).inputs() if key != "tokenizer"),
            *(f"{source.family}/{name}" for name, source in registry.sources.items()),
            *(f"index/{name}" for name in registry.blend),
            *(f"suffixes/{name}" for name in registry.indexed()),
        ]
        return [*dict.fromkeys(keys)]  # a corpus is also an input of caches

    @cached_property
    def _known(self) -> frozenset[str]:
        return frozenset(self.keys)

    def is_done(self, key: str) -> bool:
        """Return whether nothing needs this step any more: a part of a current joined corpus, or a step of current drop lists."""
        kind, _, name = key.partition("/")
        if kind in (HASHES, "range"):
            return self.state("corpus/duplicates").state == "in sync"
        if kind != "corpus_part":
            return False
        joined = self.joined_corpus(name.rpartition("/")[0])
        try:
            return bool(joined.current()["dataset_revision"] == joined.parts_plan.read().revision)
        except NielsCacheError:
            return False

    def readers(self, above: str, below: str) -> dict[str, list[str]]:
        """Return the artifacts of one kind that are built from inputs of another kind.

        Args:
            above: The kind of the inputs.
            below: The kind of the artifacts.

        Returns:
            A mapping from each input to the artifacts that are built from it, all by name, without the kind.
        """
        found: dict[str, list[str]] = {}
        for key in self.keys:
            if key.startswith(f"{below}/"):
                for each in self[key].inputs():
                    if each.startswith(f"{above}/"):
                        found.setdefault(each.removeprefix(f"{above}/"), []).append(key.removeprefix(f"{below}/"))
        return found

    def __getitem__(self, key: str) -> Artifact:
        """Return the artifact with this key.

        Raises:
            NielsCacheError: If the key is unknown.
        """
        kind, _, name = key.partition("/")
        owner = name.rpartition("/")[0]  # the data set of a part
        if key == "corpus/duplicates":
            return self.duplicates()
        kinds: dict[str, Callable[[str], Artifact]] = {
            "tokenizer": lambda name: self.tokenizer(),
            "corpus": self.corpus,
            "repeats": lambda name: self.repeats(name),  # type: ignore[arg-type]  # a known step
            "report": lambda name: CorpusReport(self.registry, self.root, name=name),
            "corpus_part": lambda name: self.joined_corpus(owner).part(number_in(name)),
            HASHES: lambda name: self.duplicates().hashes(),
            "range": lambda name: self.duplicates().range(number_in(name)),
            "plan": self.plan,
            "val_part": lambda name: self.sealed(name).val_part(),
            "part": lambda name: self.sealed(owner).part(number_in(name)),
            "pretrain": self.cache,
            "sft": self.cache,
            "index": lambda name: BlendIndex(self.registry, self.root, name=name),
            "suffixes": lambda name: SuffixIndex(self.registry, self.root, name=name),
        }
        if key not in self._known:
            raise_unknown_choice(self.registry.origin, "no artifact", key, self.keys)
        return kinds[kind](name)

    def state(self, key: str) -> CacheState:
        """Return the state of an artifact.

        Raises:
            NielsCacheError: If the key is unknown.
        """
        return state_of(self[key])

    def dataset_state(self, name: str) -> CacheState:
        """Return the state of a data set's cache.

        Raises:
            NielsCacheError: If the name is unknown.
        """
        return state_of(self.dataset(name))

    def states(self) -> list[CacheState]:
        """Return the state of every artifact, and of folders that belong to another configuration, in build order."""
        registry, root = self.registry, self.root
        states = [self.state("tokenizer"), *(self.state(f"corpus/{name}") for name in registry.prepared())]
        states += [unlisted_corpus_state(name, root=root) for name in built_names(root / "corpus") if name not in registry.prepared()]
        if registry.prepared("dedup") or os.path.exists(self.duplicates().directory / META_NAME):
            states.append(state_of(self.duplicates()))
        found = [self.repeats(step) for step in REPEATS]
        states += [state_of(each) for each in found if registry.prepared(each.step) or os.path.exists(each.record_path)]
        states += [self.dataset_state(name) for name in registry.sources]
        states += [self.state(f"index/{name}") for name in registry.blend_keys()]
        states += [self.state(f"suffixes/{name}") for name in registry.indexed()]
        for family in FAMILIES:
            names = [name for name in built_names(root / family) if name not in registry.datasets(family)]
            states += [unlisted_state(family, name, root=root) for name in names]
        return states

    def order(self, only: Sequence[str] | None = None) -> list[str]:
        """Return the keys to build, in order.

        Some artifacts, such as the drop lists, need not wait for all of their inputs. Such an artifact is built after its first inputs, and
        again after later inputs. So a key may appear twice. The tokenizer is always included.

        Args:
            only: The data sets and blends to build, with their inputs. None: everything that is switched on.

        Raises:
            NielsCacheError: If a name is unknown.
        """
        registry = self.registry
        for name in only or ():
            if name != "tokenizer" and name not in registry.blend:
                registry.family_of(name)
        chosen = {name: source for name, source in registry.sources.items() if (source.enabled if only is None else name in only)}
        caches = [f"{source.family}/{name}" for name, source in chosen.items()]
        read, left = set[str](), list(caches)  # all that these caches need, by any number of steps
        while left:
            artifact = self[left.pop()]
            if not artifact.builds_from_partial_inputs:
                new = set(artifact.inputs()) - read
                read |= new
                left += new
        tokenizer = self.tokenizer()
        corpora = [key for key in self.keys if key in read and key.startswith(("corpus/", "repeats/"))]
        steps = ["tokenizer", *corpora] if tokenizer.is_imported else [*corpora, "tokenizer"]
        prepared = [each for key in self._in_order(steps) for each in (*self.before(key), key)]
        reports = [key.replace("corpus/", "report/") for key in corpora if kind_of(key) == "corpus" and key != "corpus/duplicates"]
        blends = [f"index/{name}" for name in registry.blend if only is None or name in only]
        indices = [f"suffixes/{name}" for name in registry.indexed() if only is None or name in only]
        built = [each for key in caches for each in (*self.before(key), key)]
        return [*prepared, *reports, *built, *blends, *indices]

    def before(self, key: str) -> list[str]:
        """Return the steps that only this artifact needs, in build order.

        They are the plan, the val part and the parts of a cache or of a corpus, and the hashes and ranges of the drop lists. The list is
        empty if the artifact is made in one piece.
        """
        if key == "corpus/duplicates":
            return [each for each in self.keys if kind_of(each) in (HASHES, "range")]
        return [each for each in self[key].inputs() if kind_of(each) in (*PART_KINDS, "corpus_part")]

    def _in_order(self, keys: Sequence[str]) -> list[str]:
        inputs = {key: [each for each in self[key].inputs() if each in keys] for key in keys}
        order: list[str] = []
        last: dict[str, int] = {}  # the latest place of each key
        left = list(keys)

        def is_due(key: str) -> bool:
            """Return whether an input of this artifact was built after the artifact."""
            return key in left and any(last.get(each, -1) > last.get(key, -1) for each in inputs[key])

        while left:
            if ready := [key for key in left if all(each in last and not is_due(each) for each in inputs[key])]:
                left.remove(ready[0])
            step = ready[0] if ready else next(key for key in left if is_due(key) and self[key].builds_from_partial_inputs)
            last[step] = len(order)
            order.append(step)
        return order
