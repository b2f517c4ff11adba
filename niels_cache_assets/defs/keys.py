"""Names that the definitions share: asset keys, groups, ops, jobs, pools and partitions. Nothing is defined here."""

from collections.abc import Mapping, Sequence

from dagster import (
    AssetDep,
    AssetKey,
    DagsterRunStatus,
    StaticPartitionMapping,
    StaticPartitionsDefinition,
)

from niels_cache_assets.artifacts.graph import graph
from niels_cache_assets.project.registry import Registry
from niels_cache_assets.project.tables import DagsterSettings
from niels_cache_assets.sources.types import REPEATS, PrepareStep
from niels_cache_runtime.format.layout import FAMILIES, SPLITS, Family

STREAM_POOL = "source_stream"
PARTITION_TAG = "dagster/partition"
IN_PROGRESS = [DagsterRunStatus.STARTING, DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING]


class DefinitionNames:
    """The names of the definitions of one registry. All begin with the prefix of [dagster], so that several registries fit in one location.

    Args:
        settings: Settings in [dagster].

    Attributes:
        location: Name of the code location.
        parts_pool: A pool whose limit is the number of parts that are built at a time.
        stream_pool: A pool whose limit is the number of streams at the same time. No op is in the pool (stream_slots.py).
        cuts: By step, the asset of its cuts.
        cache_root: Key of the resource with the folder of all caches.
        progress_sink: Key of the resource with the progress sink.
        resources: Both keys.
        assets: By key or by kind of artifact, the asset that records it.
    """

    def __init__(self, settings: DagsterSettings) -> None:
        self._prefix = settings.key_prefix.split("/") if settings.key_prefix else []
        self._group, self.location = settings.group, settings.location
        self.parts_pool = settings.pools.get("parts", self.name("parts"))
        self.stream_pool = settings.pools.get("source_stream", self.name(STREAM_POOL))
        self.cache_root, self.progress_sink = self.name("cache_root"), self.name("progress_sink")
        self.resources = {self.cache_root, self.progress_sink}
        self.stream_ops: dict[str, str] = {family: self.name(f"stream_{family}_dataset") for family in FAMILIES}
        self.tokenizer = self.key("tokenizer")
        files: dict[Family, str] = {"pretrain": "shards", "sft": "pair"}
        self.splits = {family: {split: self.key(family, f"{split}_{kind}") for split in SPLITS} for family, kind in files.items()}
        self.meta: dict[str, AssetKey] = {family: self.key(family, "meta_json") for family in FAMILIES}
        self.upstream = {family: self.key("upstream", family) for family in FAMILIES}
        self.published = {family: self.key("published", family) for family in FAMILIES}
        self.plan, self.val_part, self.parts = (self.key("pretrain", name) for name in ("plan", "val_part", "parts"))
        self.documents, self.duplicates, self.kept = (self.key("corpus", name) for name in ("documents", "duplicates", "kept"))
        self.cuts = {step: self.key("corpus", step) for step in REPEATS}
        self.corpus_parts, self.hashes, self.ranges = (self.key("corpus", name) for name in ("parts", "hashes", "ranges"))
        self.report, self.index = self.key("corpus", "report"), self.key("index", "gpt")
        self.suffixes = self.key("index", "suffixes")
        self.mixture, self.cache_report = self.key("reports", "mixture"), self.key("reports", "cache")
        self.assets = {
            "tokenizer": self.tokenizer,
            "corpus": self.documents,
            "corpus/duplicates": self.duplicates,
            **{f"repeats/{step}": key for step, key in self.cuts.items()},
            "corpus_part": self.corpus_parts,
            "hashes": self.hashes,
            "range": self.ranges,
            "report": self.report,
            "plan": self.plan,
            "val_part": self.val_part,
            "part": self.parts,
            **self.meta,
            "index": self.index,
            "suffixes": self.suffixes,
        }

    def key(self, *path: str) -> AssetKey:
        """Return the key of an asset."""
        return AssetKey([*self._prefix, *path])

    def name(self, plain: str) -> str:
        """Return the name of an op, a job, a sensor, a schedule, a resource or a pool."""
        return self.key(plain).to_python_identifier()

    def kind_of(self, asset: AssetKey) -> str:
        """Return the first part of an asset's key below the prefix, such as `pretrain`."""
        return asset.path[len(self._prefix)]

    def group(self, asset: AssetKey) -> str:
        """Return the group of an asset: that of [dagster], otherwise the first part of its key, or `reports` for those of corpora."""
        return self._group or self.name("reports" if asset == self.report else self.kind_of(asset))

    def recorded_as(self, key: str) -> tuple[AssetKey, str | None]:
        """Return the asset and the partition that record the artifact with this key. An artifact that exists once has no partition."""
        kind, _, name = key.partition("/")
        return (self.assets[key], None) if key in self.assets else (self.assets[kind], name)

    def family_keys(self, family: Family) -> list[AssetKey]:
        """Return the three assets that one pass over a data set writes, in topological order."""
        return [*self.splits[family].values(), self.meta[family]]


def names_of(registry: Registry) -> DefinitionNames:
    """Return the names of the definitions of a registry."""
    return DefinitionNames(registry.dagster)


def partitions(registry: Registry, family: Family) -> StaticPartitionsDefinition:
    """Return one partition for each data set that can be built. The result may be empty, and the definitions still load."""
    return StaticPartitionsDefinition(registry.partition_keys(family))


def corpus_partitions(registry: Registry) -> StaticPartitionsDefinition:
    """Return one partition for each data set with a corpus."""
    return StaticPartitionsDefinition(registry.prepared())


def cuts_of(registry: Registry, *, before: PrepareStep | None = None) -> list[AssetKey]:
    """Return the assets of the cuts that exist, or only those of the steps before a step."""
    steps = REPEATS[: REPEATS.index(before) if before else None]
    return [names_of(registry).cuts[step] for step in steps if registry.prepared(step)]


def mapped(key: AssetKey, readers: Mapping[str, str | list[str]] | Sequence[str]) -> AssetDep:
    """Return the dependency on an asset.

    Args:
        key: Key of the asset.
        readers: For each of its partitions, the dependent partition or partitions. A list names partitions that both assets have.
    """
    mapping = readers if isinstance(readers, Mapping) else {name: name for name in readers}
    return AssetDep(key, partition_mapping=StaticPartitionMapping(mapping))


def deps_on(registry: Registry, below: str, *above: str) -> list[AssetDep]:
    """Return the dependencies of the asset of one kind of artifacts on those of other kinds, as the inputs of each artifact say.

    What reads a corpus depends on `documents` and on its own list of duplicates (`kept`), and not on all of corpus/duplicates (see
    assets/corpus.py).
    """
    names, found = names_of(registry), list[AssetDep]()
    buildable, prepared = {*registry.partition_keys("pretrain")}, registry.prepared()
    for kind in above:
        readers = {
            each: [reader for reader in readers if reader.partition("/")[0] in buildable]
            for each, readers in graph(registry, "").readers(kind, below).items()
            if kind != "corpus" or each in prepared
        }
        assets = [names.documents, names.kept] if kind == "corpus" else [names.assets[kind]]
        found += [mapped(asset, readers) for asset in assets if readers]
    return found


def datasets_with_plan(registry: Registry) -> list[str]:
    """Return the data sets that a plan divides, in order."""
    plans = {*registry.in_parts(), *registry.corpora_in_parts()}
    return [name for name in registry.partition_keys("pretrain") if name in plans]
