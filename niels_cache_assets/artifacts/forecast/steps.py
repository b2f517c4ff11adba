"""The steps of `build-all` in their order, each with what a build would do with it, and why.

The reasons are those of artifacts/state.py. As there, upstream on other machines is not asked for a newer revision. Local files of up to
256 MB are hashed, so changed files are noticed, except those of a mixture's members. If an input is built first and has the same bytes
afterwards, the step is a cache hit after all. Cost: the states, the sizes of the files, and a sample of some seconds for each data set to
build.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any, Literal

from niels_cache_assets.artifacts.base import Artifact, listed_name
from niels_cache_assets.artifacts.cache_identity import is_prepared
from niels_cache_assets.artifacts.corpus import Corpus
from niels_cache_assets.artifacts.dataset import DatasetSpec, PretrainCache, SftCache, SwitchedOff
from niels_cache_assets.artifacts.duplicates import SearchStep
from niels_cache_assets.artifacts.forecast.volumes import (
    TRAINED_BYTES,
    TRAINING_EXPONENT,
    Estimate,
    SourceSize,
    SourceSizes,
    encoder_view,
    estimate_cache,
    estimate_corpus,
    estimate_seal,
    estimate_tokenizer,
)
from niels_cache_assets.artifacts.graph import Graph
from niels_cache_assets.artifacts.index import BlendIndex
from niels_cache_assets.artifacts.input_problems import input_problems, require_inputs
from niels_cache_assets.artifacts.parts.part import GrownShare, ValPart
from niels_cache_assets.artifacts.parts.plan import PartsPlan
from niels_cache_assets.artifacts.parts.seal import DatasetCache, JoinedCache
from niels_cache_assets.artifacts.prepared_corpora import with_corpus_readers
from niels_cache_assets.artifacts.state import CacheState, State, state_of
from niels_cache_assets.artifacts.tokenizer import Tokenizer
from niels_cache_assets.artifacts.tokenizer_sample import spool_sample
from niels_cache_assets.artifacts.unfinished import revision_on_this_machine
from niels_cache_assets.base.wording import format_list
from niels_cache_assets.disk.build_lock import build_status
from niels_cache_assets.sources.types import Source
from niels_cache_assets.tokenizer.kinds import BuildTokenizer, TextTokenizer, load_tokenizer, open_configured_model
from niels_cache_assets.tokenizer.training import train
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import FAMILIES, META_NAME, TOKENIZER_MODEL_NAMES
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
    order = graph.order(only)
    tokenizer = graph.tokenizer()
    retrains = force and (only is None or tokenizer.key in only)
    trains = tokenizer.needs_training(force=retrains)
    if trains:
        require_inputs(graph.registry, [key.partition("/")[2] for key in order if key.partition("/")[0] in FAMILIES])
    planner = _StepPlanner(graph, force=force, retrains=retrains, trains=trains)
    for key in order:
        planner.add(key)
    off = [f"{graph.registry.family_of(name)}/{name}" for name in (graph.registry.switched_off() if only is None else ())]
    return [*planner.steps, *(_disabled(graph.state(key), key) for key in off)]


def _disabled(cache_state: CacheState, key: str) -> Step:
    return Step(key=key, action="disabled", state=cache_state.state, why=cache_state.advice or "enabled = false")


class _StepPlanner:
    """A walk through the steps in order, which knows which earlier steps are built, and which cannot be.

    Args:
        graph: The graph.
        force: Whether the build would be forced.
        retrains: Whether `force` covers the tokenizer.
        trains: Whether a tokenizer is trained.
    """

    def __init__(self, graph: Graph, *, force: bool, retrains: bool, trains: bool) -> None:
        self._graph, self._registry, self._root = graph, graph.registry, graph.root
        self._force, self._retrains, self._trains = force, retrains, trains
        self._seen: set[str] = set()
        self._building: set[str] = set()
        self._new: set[str] = set()  # keys that are built after the artifacts that use existing inputs
        self._unavailable: set[str] = set()
        self._done: dict[str, bool] = {}  # by the key of the cache or corpus that parts belong to
        self._specs: dict[str, DatasetSpec[Any]] = {}  # by data set: the spec that its parts share, so that they read nothing again
        self._volumes = SourceSizes(graph, lambda: self._encoder)
        self.steps: list[Step] = []

    def add(self, key: str) -> None:
        """Add the next step, unless it is built again and no input of it is new."""
        artifact = self._graph[key]
        if isinstance(artifact, PretrainCache | ValPart | JoinedCache):
            artifact = artifact.with_spec(self._specs.setdefault(artifact.spec.name, artifact.spec))
        if key in self._seen and self._new.isdisjoint(artifact.inputs()):
            return
        if not self._force and self._is_done(artifact):
            return
        self._seen.add(key)
        try:
            step = self._step(key, artifact)
        except NielsCacheError as error:
            step = Step(key=key, action="fail", state=state_of(artifact).state, why=str(error))
        self.steps.append(step)
        if step.action in ("fail", "skip"):
            self._unavailable.add(key)
        if step.action == "build":
            self._building.add(key)
            self._new.add(key)
        if artifact.builds_from_partial_inputs and not isinstance(
            artifact, SearchStep
        ):  # the drop lists follow the hashes, and use the same inputs
            self._new.difference_update(artifact.inputs())

    def _is_done(self, artifact: Artifact) -> bool:
        """Return whether nothing needs this part or range, because the corpus or the drop lists exist, and no input is built."""
        is_corpus_part = isinstance(artifact, Corpus) and artifact.is_part
        owner = artifact.key.rpartition("/")[0] if is_corpus_part else "ranges"
        if not (is_corpus_part or isinstance(artifact, SearchStep)) or not self._building.isdisjoint(artifact.inputs()):
            return False
        if owner not in self._done:
            self._done[owner] = self._graph.is_done(artifact.key)
        return self._done[owner]

    def _step(self, key: str, artifact: Artifact) -> Step:
        grown = self._with_new_plan_of_growth(artifact)
        artifact = grown or artifact
        cache_state = state_of(artifact)
        if isinstance(artifact, SwitchedOff):
            return _disabled(cache_state, key)
        if cache_state.state == "not configured":
            return Step(key=key, action="skip", state=cache_state.state, why=cache_state.advice)
        unavailable = self._missing_inputs(artifact)
        if unavailable:
            return Step(key=key, action="skip", state=cache_state.state, why=f"{format_list(unavailable)} cannot be built")
        forced = self._retrains if isinstance(artifact, Tokenizer) else self._force and not isinstance(artifact, BlendIndex)
        if isinstance(artifact, DatasetCache | ValPart | Corpus) and not forced:
            artifact.finished()  # raises for files that a build does not replace without force
        cache_state = self._with_revision(cache_state, artifact)
        rebuilt = [each for each in _rebuild_inputs(artifact) if each in self._building and not (grown and each.startswith("plan/"))]
        if not (forced or rebuilt or cache_state.needs_build):
            return Step(key=key, action="cache_hit", state=cache_state.state, why=cache_state.state)
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
        step = Step(key=key, action="build", state=cache_state.state, why=why)
        if isinstance(artifact, Tokenizer):
            artifact.identity()  # raises if the model to import is missing
        return replace(step, estimate=self._estimate(artifact))

    def _with_new_plan_of_growth(self, artifact: Artifact) -> Artifact | None:
        """Return a part of a data set that grows, with the plan that was made in memory. None: it is another artifact."""
        if not isinstance(artifact, PretrainCache | ValPart) or not artifact.is_part:
            return None
        spec: DatasetSpec[Any] = artifact.spec
        if not spec.source.added or spec.parts_plan.key not in self._building:
            return None
        if spec.given_plan is None:
            spec = self._specs[spec.name] = replace(spec, given_plan=self._volumes.plan(spec.name))
        return None if spec.given_plan is None else artifact.with_spec(spec)

    def _missing_inputs(self, artifact: Artifact) -> list[str]:
        if artifact.builds_from_partial_inputs:
            return []
        missing = [each for each in artifact.inputs() if each in self._unavailable]
        if isinstance(artifact, BlendIndex):
            can_be_built = self._registry.partition_keys("pretrain")
            missing += [each for each in artifact.inputs() if each not in missing and each.partition("/")[2] not in can_be_built]
        return missing

    def _with_revision(self, cache_state: CacheState, artifact: Artifact) -> CacheState:
        """Return the state after checking the files on this machine.

        Raises:
            NielsCacheError: If a file is missing.
        """
        source = _own_source(artifact)
        if source is None or cache_state.condition != "complete":
            return cache_state
        revision = revision_on_this_machine(source, with_corpus_readers(self._registry, self._root))
        record = artifact.record or META_NAME
        if revision is None or revision[0] == load_meta(str(artifact.directory / record)).get("dataset_revision"):
            return cache_state
        return replace(cache_state, state="other revision", advice="its files have changed since")

    # Estimates

    def _estimate(self, artifact: Artifact) -> Estimate | None:
        """Return the estimate of a step that is built.

        Raises:
            NielsCacheError: If a build would reject the data at once.
        """
        if isinstance(artifact, Tokenizer):
            self._building.add(artifact.key)
            return self._tokenizer_estimate()
        source = _own_source(artifact)
        if source is not None:
            name = artifact.key.partition("/")[2]
            problems = input_problems(self._registry, [name], offline=True)
            if problem := next(problems, None):
                raise NielsCacheError(problem.message)
        if isinstance(artifact, Corpus):  # the corpus that joins the parts has the estimate of all
            return None if artifact.is_part else estimate_corpus(self._volumes.of_source(artifact.name))
        if isinstance(artifact, PartsPlan):
            self._volumes.make_plan(artifact)
            return None
        if isinstance(artifact, ValPart):
            return self._val_part_estimate(artifact)
        if isinstance(artifact, PretrainCache) and artifact.is_part:
            if isinstance(artifact.share, GrownShare) and artifact.share.exists:
                return None  # hard links to the cache that one process built
            return self._part_estimate(artifact)
        if isinstance(artifact, PretrainCache | JoinedCache):
            source = artifact.spec.source
            budget = None if source.train_tokens is None else source.train_tokens + (source.val_tokens or 0)
            counts_first = not is_prepared(source) and source.seeded_val_frac is not None
            found = self._cache_estimate(artifact, self._volume_of_input(artifact), budget, counts_first=counts_first)
            is_joined = isinstance(artifact, JoinedCache) and self._volumes.plan(artifact.spec.name) is not None
            return estimate_seal(found, artifact.spec) if is_joined else found
        if isinstance(artifact, SftCache):
            return self._cache_estimate(artifact, self._volumes.of_source(artifact.spec.name), None)
        return None

    def _cache_estimate(
        self, artifact: DatasetCache | ValPart, volume: SourceSize, budget: int | None, *, counts_first: bool = False
    ) -> Estimate:
        return estimate_cache(
            volume, artifact.spec, is_part=artifact.is_part, budget=budget, vocab_size=self._vocab_size, counts_first=counts_first
        )

    def _val_part_estimate(self, artifact: ValPart) -> Estimate:
        volume, share = self._volumes.of_source(artifact.spec.name), artifact.spec.source.seeded_val_frac
        if share is None:
            return self._cache_estimate(artifact, volume, artifact.spec.source.val_tokens)
        remark = "decontaminate needs val first, so all text is read once to find the val_frac"
        found = self._cache_estimate(artifact, replace(volume.scaled(share), remark=remark), None)
        seconds = None if found.core_seconds is None else found.core_seconds + (1 - share) * volume.read_seconds
        return replace(found, bytes_to_read=volume.file_bytes, core_seconds=seconds)

    def _part_estimate(self, part: PretrainCache) -> Estimate | None:
        plan = self._volumes.plan(part.spec.name)
        if plan is None:  # the cache that joins the parts has the estimate
            return None
        planned = plan.parts[part.share.number or 0]
        volume = self._volume_of_input(part).scaled(self._volumes.share(part.spec.name, planned))
        return self._cache_estimate(part, volume, planned.train_tokens)

    @property
    def _vocab_size(self) -> int:
        return self._registry.tokenizer.vocab_size if self._tokenizer is None else self._tokenizer.vocab_size

    @cached_property
    def _tokenizer(self) -> TextTokenizer | None:
        """The tokenizer of the build, or one that is trained on less text now. None if there is no text, or no model to import."""
        key, settings = self._graph.tokenizer().key, self._registry.tokenizer
        if key in self._unavailable:
            return None
        if self._trains:
            return self._trained
        if key in self._building:
            tokenizer = open_configured_model(settings)
            tokenizer.engine = settings.engine
        else:
            tokenizer = load_tokenizer(settings, self._root)
            tokenizer.proofs = None  # nothing is written
        return tokenizer

    @cached_property
    def _trained(self) -> TextTokenizer | None:
        settings = self._registry.tokenizer
        short = settings.model_copy(update={"sample_bytes": min(settings.sample_bytes, TRAINED_BYTES)})
        with TemporaryDirectory() as folder, suppress(NielsCacheError):
            sample, model = Path(folder, "sample"), Path(folder, TOKENIZER_MODEL_NAMES[settings.model_kind])
            used = spool_sample(replace(self._registry, tokenizer=short), self._root, sample, {}, lambda message: None)
            began = sum(getrusage(RUSAGE_CHILDREN)[:2])
            train(settings, sample, model)
            seconds = sum(getrusage(RUSAGE_CHILDREN)[:2]) - began
            self._training = used["bytes"], seconds
            tokenizer = open_configured_model(settings, model)
            tokenizer.engine = "reference"
            return tokenizer
        return None

    @cached_property
    def _encoder(self) -> BuildTokenizer | None:
        return None if self._tokenizer is None else encoder_view(self._tokenizer)

    def _tokenizer_estimate(self) -> Estimate:
        settings, began = self._registry.tokenizer, process_time()
        encoder = self._encoder  # trains it, or proves its engine
        seconds, read = process_time() - began, 0
        if settings.model is None and encoder is not None:
            trained, seconds = self._training
            chosen = settings.train_on or [*self._registry.partition_keys("pretrain"), *self._registry.partition_keys("sft")]
            sizes = (self._volumes.of_source(name).text_bytes or settings.sample_bytes for name in chosen)
            read = sum(min(size, settings.sample_bytes) for size in sizes)
            seconds *= max(1.0, read / trained) ** TRAINING_EXPONENT
        return estimate_tokenizer(settings.model, read, None if encoder is None else seconds, vocab_size=self._vocab_size)

    def _volume_of_input(self, artifact: PretrainCache | JoinedCache) -> SourceSize:
        """Return the volume of what a cache is built from: its source, or its corpus if the corpus exists."""
        if not is_prepared(artifact.spec.source):
            return self._volumes.of_source(artifact.spec.name)
        if not self._building.isdisjoint(artifact.inputs()[1:]):
            return replace(self._volumes.of_source(artifact.spec.name), remark="cleaning and duplicates are not taken off yet")
        return self._volumes.of_corpus(artifact.spec.corpus)


def _rebuild_inputs(artifact: Artifact) -> Sequence[str]:
    """Return the inputs with which the artifact must be built again. A tokenizer stays, and so does a cache whose parts are built again."""
    if isinstance(artifact, Tokenizer):
        return ()
    if isinstance(artifact, JoinedCache | ValPart) or (isinstance(artifact, PretrainCache) and artifact.is_part):
        return [each for each in artifact.inputs() if each.partition("/")[0] in ("tokenizer", "plan", "corpus")]
    return [each for each in artifact.inputs() if each.partition("/")[0] != "corpus_part"]


def _own_source(artifact: Artifact) -> Source | None:
    """Return the source that this step reads itself, or None. A part reads the files of its plan, and a prepared cache its corpus."""
    if isinstance(artifact, Corpus | PartsPlan) and not artifact.is_part:
        return artifact.source
    if isinstance(artifact, PretrainCache | SftCache) and not artifact.is_part and not is_prepared(artifact.spec.source):
        return artifact.spec.source
    return None
