"""What the steps of a build read, write and take: estimates from one table of costs, and from one sample of each source or corpus.

The sample measures reading and encoding (sample.py). Everything else is in the table. Every number is approximate.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from niels_cache_assets.artifacts.base import Artifact
from niels_cache_assets.artifacts.cache_identity import is_prepared
from niels_cache_assets.artifacts.corpus import Corpus
from niels_cache_assets.artifacts.dataset import DatasetSpec, PretrainCache
from niels_cache_assets.artifacts.forecast.sample import Volume, measure
from niels_cache_assets.artifacts.graph import Graph
from niels_cache_assets.artifacts.input_problems import NO_RETRY_SECONDS
from niels_cache_assets.artifacts.parts.part import GrownPart, PartCache, ValPart
from niels_cache_assets.artifacts.parts.plan import PartsPlan
from niels_cache_assets.artifacts.parts.seal import DatasetCache, JoinedCache
from niels_cache_assets.artifacts.tokenizer import Tokenizer
from niels_cache_assets.artifacts.tokenizer_sample import spool_sample
from niels_cache_assets.base.processes import cpu_seconds
from niels_cache_assets.build_cache.base import choose_token_dtype
from niels_cache_assets.corpus.prepared import PreparedCorpus, document_files
from niels_cache_assets.disk.space import corpus_need
from niels_cache_assets.facts.disjoint import SAMPLE_TOKENS
from niels_cache_assets.parts.plan import Plan
from niels_cache_assets.project.registry import Registry
from niels_cache_assets.sources.errors import SourceUnavailableError
from niels_cache_assets.sources.hub.data import HubData, hub_files
from niels_cache_assets.sources.net.retries import retry_at_most
from niels_cache_assets.sources.parquet import Parquet
from niels_cache_assets.sources.reading.file_source import list_files_for_plan
from niels_cache_assets.sources.reading.files import SourceFile
from niels_cache_assets.sources.types import ListedFile
from niels_cache_assets.tokenizer.encoder import BuildEncoder
from niels_cache_assets.tokenizer.kinds import BuildTokenizer, load_tokenizer, local_settings, open_configured_model, view_tokenizer
from niels_cache_assets.tokenizer.training import train
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import TOKEN_DTYPES, TOKENIZER_MODEL_NAMES
from niels_cache_runtime.format.reading import available_threads


class Cost(NamedTuple):
    """What a kind of step costs, however much it reads.

    Attributes:
        seconds: Core-seconds.
        memory: Bytes of memory.
        item_bytes: Bytes of disk for each document or conversation.
    """

    seconds: float
    memory: int
    item_bytes: int = 0


# Measured on two cores on 29 November 2026 (docs/benchmarks.md).
COSTS = {
    "tokenizer": Cost(3.7, 270_000_000),  # with the start of the command
    "plan": Cost(0.5, 270_000_000),
    "part": Cost(1.5, 540_000_000, 27),  # in a process of its own, beside that of the command
    "pretrain": Cost(2.3, 270_000_000, 27),  # with its reports
    "sft": Cost(0.5, 270_000_000, 17),
}
TOKEN_SECONDS = 0.06e-6  # of writing: hashing and the journal
ITEM_SECONDS = 40e-6  # of writing a document or conversation: lineage and rows
CHECK_SECONDS = 0.07e-6  # for each token of the splits that are compared
CHECK_MEMORY = 290_000_000
SEAL_SECONDS = 1e-3  # for each part
COUNT_MEMORY = 5  # for each document that val_frac splits
THREAD_MEMORY = 50_000_000
PIECE_MEMORY = 1_500  # for each piece of the vocabulary
PIECE_BYTES = 16  # of disk, for each piece of a trained tokenizer
ENGINE_SECONDS = 4.0  # of an imported tokenizer, besides the proof of its engine
TRAINED_BYTES = 3_000_000  # of text, for a trial of training
TRAINING_EXPONENT = 1.16  # of the time of training, by the size of the text
TRAINING_MEMORY = 30  # for each byte of the text that a tokenizer is trained on


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """An estimate of what one step reads, writes and takes. None stands for unknown.

    Attributes:
        basis: Where the numbers come from, in words.
        core_seconds: The processor time of all processes on this machine.
        memory_bytes: The peak memory of all processes of the step together.
        bytes_to_read: The number of bytes of the files, on their disk. A pass that only counts documents is not included.
        tokens: The number of tokens of train and val.
        disk_bytes: The disk space of the result.
    """

    basis: str
    core_seconds: float | None
    memory_bytes: int | None
    bytes_to_read: int | None = 0
    tokens: int | None = 0
    disk_bytes: int | None = 0


def parts_at_once(registry: Registry, *, force: bool) -> int:
    """Return how many parts of a data set a build makes on this machine at a time: one if it is forced, or if options change settings."""
    in_turn = force or registry.overrides or registry.cluster.command
    return 1 if in_turn else registry.cluster.parts_at_once(available_threads())


class Estimator:
    """The estimates of the steps that are built. Each plan and each sample is made once, when it is needed, and so is the tokenizer.

    Args:
        graph: The graph.
        actions: What happens to each earlier step, by key.
        trains: Whether a tokenizer is trained.
        force: Whether the build is forced.
    """

    def __init__(self, graph: Graph, actions: Mapping[str, str], *, trains: bool, force: bool) -> None:
        self._graph, self._registry, self._actions, self._trains, self._force = graph, graph.registry, actions, trains, force
        self._volumes: dict[str, Volume] = {}  # by data set, or by key of its corpus
        self._plans: dict[str, Plan | None] = {}
        self.grown: dict[str, Plan] = {}  # the new plans of data sets that grow, with which the parts that stay are found
        self._at_once = parts_at_once(graph.registry, force=force)

    def estimate(self, artifact: Artifact) -> Estimate | None:
        """Return the estimate of a step that is built, or None for a kind of step that has none.

        Raises:
            NielsCacheError: If a file cannot be read, or the files cannot be divided into parts.
        """
        if isinstance(artifact, Tokenizer):
            return self._of_tokenizer()
        if isinstance(artifact, PartsPlan):
            return self._of_plan(artifact)
        if isinstance(artifact, Corpus):
            return self._of_corpus(artifact)
        if isinstance(artifact, ValPart):
            return self._of_val_part(artifact)
        return self._of_cache(artifact) if isinstance(artifact, DatasetCache) else None

    def _of_tokenizer(self) -> Estimate:
        settings, cost, opened = local_settings(self._registry.tokenizer), COSTS["tokenizer"], self._opened
        memory, seconds = cost.memory + PIECE_MEMORY * self._vocab_size, None if opened is None else cost.seconds + opened.seconds
        read, disk, basis = 0, PIECE_BYTES * self._vocab_size, "from training on a part of the text"
        if settings.model is not None:
            read = disk = os.path.getsize(settings.model)
            basis = "from a proof of its engine"
            if seconds is not None and settings.model_kind != "sentencepiece":  # whose engine waits for much text
                seconds += ENGINE_SECONDS
        elif opened is not None:
            names = settings.train_on or self._registry.partition_keys()
            sizes = (self._source_volume(name).text_bytes or settings.sample_bytes for name in names)
            read = sum(min(size, settings.sample_bytes) for size in sizes)
            seconds = cost.seconds + opened.seconds * max(1.0, read / opened.trained_bytes) ** TRAINING_EXPONENT
            memory += TRAINING_MEMORY * read
        return Estimate(basis=basis, bytes_to_read=read, core_seconds=seconds, memory_bytes=memory, disk_bytes=disk)

    def _of_plan(self, artifact: PartsPlan) -> Estimate | None:
        """Make the plan in memory, and return the estimate of counting the documents that val_frac has not split yet."""
        source, plan, cost = artifact.source, self._make_plan(artifact), COSTS["plan"]
        if plan is None or source.has_corpus or not source.seeded_val_frac:
            return None
        counted = [file for group in plan.groups[source.parts == 1 :] if not group.val for file in group.listed]
        read = self._source_volume(artifact.name).scaled(self._share(artifact.name, counted))
        return Estimate(
            basis="all text is read once, to count the documents that val_frac splits",
            core_seconds=None if read.read_seconds is None else cost.seconds + read.read_seconds,
            memory_bytes=cost.memory + COUNT_MEMORY * read.items,
        )

    def _of_corpus(self, corpus: Corpus) -> Estimate | None:
        """Return the estimate of all parts of a corpus together."""
        if corpus.is_part:
            return None
        volume = self._source_volume(corpus.name)
        need = corpus_need(volume.text_bytes)
        return Estimate(
            basis="all of the source is prepared; the time and the memory of cleaning are not estimated",
            bytes_to_read=volume.file_bytes,
            core_seconds=None,
            memory_bytes=None,
            disk_bytes=None if need is None else need.bytes,
        )

    def _of_val_part(self, part: ValPart) -> Estimate:
        spec, volume, frac = part.spec, self._source_volume(part.spec.name), part.spec.source.seeded_val_frac
        if frac is None:
            return self._of_tokens("part", volume, spec, budget=spec.source.val_tokens)
        of_val = volume.scaled(frac).noted("decontaminate needs val first, so all text is read once to find the val_frac")
        rest = (1 - frac) * (volume.read_seconds or 0.0)
        return self._of_tokens("part", replace(of_val, file_bytes=volume.file_bytes), spec, seconds_before=rest)

    def _of_cache(self, artifact: DatasetCache) -> Estimate | None:
        """Return the estimate of a cache, of a part of one, or of the join of parts."""
        spec, name, seconds_before = artifact.spec, artifact.spec.name, 0.0
        source: Any = spec.source
        budget = None if getattr(source, "train_tokens", None) is None else source.train_tokens + (source.val_tokens or 0)
        has_corpus = is_prepared(source) and all(self._actions.get(key) != "build" for key in spec.inputs()[1:])
        volume = self._corpus_volume(spec.corpus) if has_corpus else self._source_volume(name)
        if is_prepared(source) and not has_corpus:
            volume = volume.noted("cleaning and duplicates are not taken off yet")
        plan = self.plan(name) if artifact.is_part or isinstance(artifact, JoinedCache) else None
        if isinstance(artifact, PartCache):
            if plan is None or (isinstance(artifact, GrownPart) and spec.parts_plan.single_process_build() is not None):
                return None  # the cache that joins the parts has the estimate, or the files are linked
            planned = plan.parts[artifact.number]
            if has_corpus:
                share = len(spec.corpus.parts[artifact.number]) / spec.corpus.meta["documents"]["kept"]
            else:
                share = self._share(name, planned.files)
            budget = budget and round(budget * share) if source.has_corpus else planned.train_tokens
            return self._of_tokens("part", volume.scaled(share), spec, budget=budget)
        if isinstance(artifact, PretrainCache) and not source.has_corpus and source.seeded_val_frac:
            seconds_before = volume.read_seconds or 0.0  # of counting
        whole = self._of_tokens(spec.family, volume, spec, budget=budget, seconds_before=seconds_before)
        if plan is None:
            return whole
        seconds = COSTS["pretrain"].seconds + SEAL_SECONDS * source.total_parts + _check_seconds(spec, whole.tokens or 0)
        return Estimate(basis="links to the parts, whose splits are compared", core_seconds=seconds, memory_bytes=whole.memory_bytes)

    def _of_tokens(
        self, kind: str, volume: Volume, spec: DatasetSpec[Any], *, budget: int | None = None, seconds_before: float = 0.0
    ) -> Estimate:
        """Return the estimate of reading text and writing its tokens.

        Args:
            kind: The kind of step. The splits of a part are compared later, by the seal.
            volume: The size of what is read.
            spec: The data set.
            budget: The maximum number of tokens. None for no limit.
            seconds_before: The time of an earlier pass over the source.
        """
        cost, is_part, seconds = COSTS[kind], kind == "part", None
        read = volume if budget is None or not volume.tokens else volume.scaled(min(1.0, budget / volume.tokens))
        tokens, items = budget if read.tokens is None else read.tokens, read.items
        threads = spec.build.threads or max(1, available_threads() // (self._at_once if is_part else 1))
        memory = cost.memory + THREAD_MEMORY * threads + PIECE_MEMORY * self._vocab_size
        memory += 0 if is_part or not _has_check(spec) else CHECK_MEMORY
        if items and read.text_bytes:
            memory += read.text_bytes // items * min(getattr(spec.source, "shuffle_buffer", 0), items)
        if tokens is not None and read.seconds is not None:
            seconds = cost.seconds + seconds_before + read.seconds + TOKEN_SECONDS * tokens + ITEM_SECONDS * items
            seconds += 0.0 if is_part else _check_seconds(spec, tokens)
        token_bytes = TOKEN_DTYPES[choose_token_dtype(self._vocab_size, spec.build.token_dtype)].itemsize
        return Estimate(
            basis=read.basis,
            bytes_to_read=read.file_bytes,
            tokens=tokens,
            core_seconds=seconds,
            memory_bytes=memory,
            disk_bytes=None if tokens is None else tokens * token_bytes + cost.item_bytes * items,
        )

    # What is read

    def plan(self, name: str) -> Plan | None:
        """Return the plan that was made in memory, or else the plan on disk. Return None if the list of files cannot be reached now.

        Raises:
            NielsCacheError: If the plan on disk is missing, or has other settings.
        """
        if name not in self._plans:
            self._plans[name] = self._graph.plan(name).read()
        return self._plans[name]

    def _make_plan(self, artifact: PartsPlan) -> Plan | None:
        """Make the plan of a data set in memory, from the names and sizes of its files.

        Raises:
            NielsCacheError: If its files cannot be divided.
        """
        name, source = artifact.name, artifact.source
        if self._plans.get(name) is not None:
            self._volumes.pop(name, None)  # of the files of the last plan
        self._plans[name] = None
        with suppress(SourceUnavailableError), retry_at_most(seconds=NO_RETRY_SECONDS):
            revision = source.revision({}) if isinstance(source, HubData) and not source.local_key else None
            groups = artifact.groups(revision, force=self._force, log=lambda message: None, hashed=False)
            plan = Plan.of({"fingerprint": "", "dataset_revision": revision, "groups": [group.entry for group in groups]})
            self._plans[name] = plan
            self.grown |= {name: plan} if source.added and not self._force else {}
        return self._plans[name]

    def _share(self, name: str, files: Sequence[ListedFile]) -> float:
        """Return the share of files of a plan in the bytes of all, or that of an average part if no size is known."""
        size, plan = self._source_volume(name).file_bytes, self.plan(name)
        return sum(file.bytes for file in files) / size if size else 1 / len(plan.parts if plan else files)

    def _source_volume(self, name: str) -> Volume:
        """Return the size of the source of a data set. Only a data set of the hub without a plan takes a request.

        Raises:
            NielsCacheError: If a file cannot be read.
        """
        if name not in self._volumes:
            source, plan = self._registry.source(name), self._plans.get(name)
            located = source.every_file()
            files = [file for part in plan.parts for file in part.files] if plan else list_files_for_plan(located, None, hashed=False)
            if not files and isinstance(source, HubData):
                with suppress(SourceUnavailableError), retry_at_most(seconds=NO_RETRY_SECONDS):
                    files = hub_files(source, source.revision({}))
            self._volumes[name] = measure(source, files, located, self._encoder)
        return self._volumes[name]

    def _corpus_volume(self, corpus: PreparedCorpus) -> Volume:
        """Return the size of a corpus that is on disk, without duplicates. Its files are sampled as those of a source."""
        if (key := f"corpus/{corpus.name}") not in self._volumes:
            files = [SourceFile(str(path), path.name) for path in document_files(corpus.directory, corpus.meta)]
            reader, text_bytes = Parquet(files=["*"], max_document_mib=1 << 20), corpus.meta["bytes"]["after"]
            volume = measure(reader, list_files_for_plan(files, None, hashed=False), files, self._encoder, text_bytes=text_bytes)
            self._volumes[key] = volume.scaled(corpus.kept / corpus.meta["documents"]["kept"])
        return self._volumes[key]

    # The tokenizer

    @property
    def _encoder(self) -> BuildTokenizer | None:
        return self._opened and self._opened.encoder

    @property
    def _vocab_size(self) -> int:
        return (self._encoder or self._registry.tokenizer).vocab_size

    @cached_property
    def _opened(self) -> _Opened | None:
        """The tokenizer of the build, or one that is trained on less text now. None if there is no text, or no model to import."""
        if self._actions.get("tokenizer") == "fail":
            return None
        settings, began, trained_bytes, model = self._registry.tokenizer, cpu_seconds(), 0, None
        with TemporaryDirectory() as folder:
            if self._trains:
                sample, model = Path(folder, "sample"), Path(folder, TOKENIZER_MODEL_NAMES[settings.model_kind])
                short = settings.model_copy(update={"sample_bytes": min(settings.sample_bytes, TRAINED_BYTES)})
                try:
                    used = spool_sample(replace(self._registry, tokenizer=short), self._graph.root, sample, {}, lambda message: None)
                    began, trained_bytes = cpu_seconds(), used["bytes"]
                    train(settings, sample, model)
                except NielsCacheError:
                    return None
            is_built = settings.model is None and model is None
            tokenizer = load_tokenizer(settings, self._graph.root) if is_built else open_configured_model(settings, model)
        tokenizer.engine, tokenizer.proofs = "reference" if model else settings.engine, None  # nothing is written
        view = view_tokenizer(tokenizer)
        encoder = BuildEncoder(view, tokenizer)
        encoder.start([], lambda message: None)
        encoder.encode_flat([""], None)  # proves the engine before the time of a sample is measured
        return _Opened(replace(view, encode_batch=encoder.encode_flat), cpu_seconds() - began, trained_bytes)


class _Opened(NamedTuple):
    """A tokenizer for samples.

    Attributes:
        encoder: The tokenizer, which encodes as a build does.
        seconds: The time of training it, or of proving its engine.
        trained_bytes: The bytes of the text that it was trained on now.
    """

    encoder: BuildTokenizer
    seconds: float
    trained_bytes: int


def _has_check(spec: DatasetSpec[Any]) -> bool:
    source = spec.source
    return spec.family == "pretrain" and bool(source.has_own_splits or source.seeded_val_frac or source.val_tokens)


def _check_seconds(spec: DatasetSpec[Any], tokens: float) -> float:
    """Return the time of comparing the splits of a data set of so many tokens."""
    return CHECK_SECONDS * (tokens if spec.build.near_check == "all" else min(tokens, SAMPLE_TOKENS)) * _has_check(spec)
