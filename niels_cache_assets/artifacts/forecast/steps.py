"""The steps of `build-all` in their order, each with what a build would do with it, and why.

The reasons are those of artifacts/state.py. As there, upstream on other machines is not asked for a newer revision. Local files of up to
256 MB are hashed, so changed files are noticed, except those of a mixture's members. If an input is built first and has the same bytes
afterwards, the step is a cache hit after all. Cost: the states, the sizes of the files, and a sample of some seconds for each data set to
build.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from niels_cache_assets.artifacts.base import Artifact, kind_of, listed_name
from niels_cache_assets.artifacts.cache_identity import is_prepared
from niels_cache_assets.artifacts.corpus import Corpus
from niels_cache_assets.artifacts.dataset import DatasetSpec, PretrainCache, SftCache, SwitchedOff
from niels_cache_assets.artifacts.duplicates import SearchStep
from niels_cache_assets.artifacts.forecast.estimates import Estimate, Estimator
from niels_cache_assets.artifacts.graph import Graph
from niels_cache_assets.artifacts.index import BlendIndex
from niels_cache_assets.artifacts.input_problems import input_problems, require_inputs
from niels_cache_assets.artifacts.parts.part import PartCache, ValPart
from niels_cache_assets.artifacts.parts.plan import PartsPlan
from niels_cache_assets.artifacts.parts.seal import DatasetCache, JoinedCache
from niels_cache_assets.artifacts.prepared_corpora import with_corpus_readers
from niels_cache_assets.artifacts.state import CacheState, State, state_of
from niels_cache_assets.artifacts.tokenizer import Tokenizer
from niels_cache_assets.artifacts.unfinished import revision_on_this_machine
from niels_cache_assets.base.wording import format_list
from niels_cache_assets.disk.build_lock import build_status
from niels_cache_assets.sources.types import Source
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import FAMILIES
from niels_cache_runtime.format.meta import load_meta

Action = Literal["build", "cache_hit", "disabled", "skip", "fail"]


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step of a build of everything.

    Attributes:
        key: The key of the artifact.
        action: What a build would do.
        state: The state of the existing files, as `niels-cache status` finds it.
        why: The reason for the action, in words.
        estimate: What the step reads, writes and takes. None unless the step would build a corpus or a cache.
    """

    key: str
    action: Action
    state: State
    why: str
    estimate: Estimate | None = None

    @property
    def name(self) -> str:
        """The name of the step in the results of a build."""
        return listed_name(self.key)


def forecast(graph: Graph, *, only: Sequence[str] | None = None, force: bool = False) -> list[Step]:
    """Return the steps of a build, in order. Data sets that are switched off come last. Nothing is written.

    Args:
        graph: The graph.
        only: The data sets and blends to build. None: everything.
        force: Whether the build would be forced.

    Raises:
        NielsCacheError: If a name is unknown.
        InputsError: If a tokenizer would be trained and a data set cannot be read.
    """
    order, registry = graph.order(only), graph.registry
    planner = _StepPlanner(graph, force=force, retrains=force and (only is None or "tokenizer" in only))
    if planner.trains:
        require_inputs(registry, [key.partition("/")[2] for key in order if kind_of(key) in FAMILIES])
    off = [f"{registry.family_of(name)}/{name}" for name in (registry.switched_off() if only is None else ())]
    for key in (*order, *off):
        planner.add(key)
    return planner.steps


def peak_memory(steps: Sequence[Step], *, at_once: int) -> int:
    """Return the peak memory of a build, as far as it is known. Steps run one after the other, except the parts of a data set.

    Args:
        steps: The steps.
        at_once: How many parts are built at a time.
    """
    parts, others = [0], [0]
    for step in steps:
        if step.estimate is not None:
            (parts if step.key.startswith("part/") else others).append(step.estimate.memory_bytes or 0)
    return max(*others, sum(sorted(parts)[-at_once:]))


class _StepPlanner:
    """A walk through the steps in order, which knows what happens to the earlier ones.

    Args:
        graph: The graph.
        force: Whether the build would be forced.
        retrains: Whether `force` covers the tokenizer.
    """

    def __init__(self, graph: Graph, *, force: bool, retrains: bool) -> None:
        self._graph, self._registry, self._force, self._retrains = graph, graph.registry, force, retrains
        self.trains = graph.tokenizer().needs_training(force=retrains)
        self._actions: dict[str, Action] = {}
        self._new: set[str] = set()  # keys that are built after the artifacts that use existing inputs
        self._done: dict[str, bool] = {}
        self._specs: dict[str, DatasetSpec[Any]] = {}  # by data set: the spec that its parts share, so that they read nothing again
        self._estimator = Estimator(graph, self._actions, trains=self.trains, force=force)
        self.steps: list[Step] = []

    def add(self, key: str) -> None:
        """Add the next step, unless it is built again and no input of it is new."""
        artifact = self._with_plan(self._graph[key])
        if key in self._actions and self._new.isdisjoint(artifact.inputs()):
            return
        if not self._force and self._is_done(artifact):
            return
        cache_state, estimate = state_of(artifact), None
        try:
            cache_state = self._with_revision(cache_state, artifact)
            action, why = self._decide(artifact, cache_state)
            if action == "build":
                read = [] if _own_source(artifact) is None else [key.split("/")[1]]
                if problem := next(input_problems(self._registry, read, offline=True), None):
                    raise NielsCacheError(problem.message)
                estimate = self._estimator.estimate(artifact)
        except NielsCacheError as error:
            action, why = "fail", str(error)
        self.steps.append(Step(key=key, action=action, state=cache_state.state, why=why, estimate=estimate))
        self._actions[key] = action
        if action == "build":
            self._new.add(key)
        if artifact.builds_from_partial_inputs and not isinstance(artifact, SearchStep):  # the drop lists use the same inputs after it
            self._new.difference_update(artifact.inputs())

    def _with_plan(self, artifact: Artifact) -> Artifact:
        """Return the artifact with what the parts of a data set share, so that each of them does not read it again."""
        if isinstance(artifact, PretrainCache | ValPart | JoinedCache):
            name = artifact.spec.name
            if name not in self._specs:
                self._specs[name] = replace(artifact.spec, given_plan=self._estimator.grown.get(name))
            return artifact.with_spec(self._specs[name])
        if isinstance(artifact, Corpus) and artifact.number is not None and self._actions.get(artifact.parts_plan.key) == "cache_hit":
            plan = self._estimator.plan(artifact.name)
            return artifact if plan is None else replace(artifact, given=plan.parts[artifact.number])
        return artifact

    def _is_done(self, artifact: Artifact) -> bool:
        """Return whether nothing needs this part or range, because the corpus or the drop lists exist, and no input is built."""
        shared = artifact.key.rpartition("/")[0] or artifact.key  # by all parts of a corpus, and by all ranges
        if shared not in self._done:
            self._done[shared] = self._graph.is_done(artifact.key)
        return self._done[shared] and not self._built(artifact.inputs())

    def _built(self, keys: Sequence[str]) -> list[str]:
        """Return those of these artifacts that are built before."""
        return [key for key in keys if self._actions.get(key) == "build"]

    def _decide(self, artifact: Artifact, cache_state: CacheState) -> tuple[Action, str]:
        """Return what a build would do with an artifact, and why.

        Raises:
            NielsCacheError: If the build would fail.
        """
        if isinstance(artifact, SwitchedOff):
            return "disabled", cache_state.advice or "enabled = false"
        if cache_state.state == "not configured":
            return "skip", cache_state.advice
        if missing := self._missing_inputs(artifact):
            return "skip", f"{format_list(missing)} cannot be built"
        forced = self._retrains if isinstance(artifact, Tokenizer) else self._force and not isinstance(artifact, BlendIndex)
        if isinstance(artifact, DatasetCache | ValPart | Corpus) and not forced:
            artifact.finished()  # raises for files that a build does not replace without force
        rebuilt = self._built(_rebuild_inputs(artifact))
        if not (forced or rebuilt or cache_state.needs_build):
            return "cache_hit", cache_state.state
        if isinstance(artifact, Tokenizer):
            artifact.identity()  # raises if the model to import is missing
        if cache_state.state == "missing":
            why = "missing"
        elif forced:
            why = "--force"
        elif rebuilt:
            why = f"{format_list(rebuilt)} {'is' if len(rebuilt) == 1 else 'are'} built first"
        else:
            why = f"{cache_state.state}: {cache_state.advice.removeprefix('build it: ').removeprefix('build it again: ')}"
        if build_status(artifact.target).is_resumable and not forced:
            why += "; an unfinished build exists, which may be resumed"
        return "build", why

    def _missing_inputs(self, artifact: Artifact) -> list[str]:
        if artifact.builds_from_partial_inputs:
            return []
        buildable = self._registry.partition_keys("pretrain") if isinstance(artifact, BlendIndex) else None
        return [
            each
            for each in artifact.inputs()
            if self._actions.get(each) in ("fail", "skip") or (buildable is not None and each.partition("/")[2] not in buildable)
        ]

    def _with_revision(self, cache_state: CacheState, artifact: Artifact) -> CacheState:
        """Return the state after checking the files on this machine.

        Raises:
            NielsCacheError: If a file is missing.
        """
        source = _own_source(artifact)
        if source is None or cache_state.condition != "complete":
            return cache_state
        revision = revision_on_this_machine(source, with_corpus_readers(self._registry, self._graph.root))
        if revision is None or revision[0] == load_meta(artifact.record_path).get("dataset_revision"):
            return cache_state
        return replace(cache_state, state="other revision", advice="its files have changed since")


def _rebuild_inputs(artifact: Artifact) -> list[str]:
    """Return the inputs with which the artifact must be built again. A tokenizer stays, and so does a cache whose parts are built again."""
    if isinstance(artifact, Tokenizer):
        return []
    left_out = ["part", "val_part", "corpus_part"]
    if isinstance(artifact, PartCache | ValPart) and artifact.spec.given_plan is not None:
        left_out.append("plan")  # the state of the part compares it with the new plan
    return [each for each in artifact.inputs() if kind_of(each) not in left_out]


def _own_source(artifact: Artifact) -> Source | None:
    """Return the source that this step reads itself, or None. A part reads the files of its plan, and a prepared cache its corpus."""
    if isinstance(artifact, Corpus | PartsPlan) and not artifact.is_part:
        return artifact.source
    if isinstance(artifact, PretrainCache | SftCache) and not artifact.is_part and not is_prepared(artifact.spec.source):
        return artifact.spec.source
    return None
