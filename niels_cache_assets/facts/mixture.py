"""The report `reports/mixture` about the part of each pretrain data set that a planned run would read.

The report gives shares, tokens and epochs, and warns about too many repetitions. It counts in the order in which TokenLoader takes samples
(niels_cache_runtime.loader.blend), so the counts are exact. The cost does not depend on the number of steps. Counting takes milliseconds,
or a second if the weights have a period of a million samples. The report reads the sizes of caches, but no token. Megatron-LM's order for
the same weights differs by single samples.
"""

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from niels_cache_assets.base.wording import format_share
from niels_cache_assets.facts.published import finished_cache
from niels_cache_assets.project.registry import Registry
from niels_cache_assets.project.tables import ALL_TRAIN
from niels_cache_runtime.cache.checks import check_has_window
from niels_cache_runtime.cache.opening import open_split
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import META_NAME, dataset_dir
from niels_cache_runtime.format.meta import check_location, read_meta

CODE_VERSION = "1"  # raise this by hand when a report changes for the same caches and settings
ALL = "all pretrain data sets"


@dataclass(frozen=True, kw_only=True)
class PlannedSource:
    """A data set of a mixture. Shares are from 0 to 1, and add up to 1 over all data sets of a mixture.

    Attributes:
        name: Name of the data set.
        weight: Configured weight, or the number of samples if the mixture is by size.
        configured: Its share by weight.
        tokens: Number of tokens of its train split.
        available: Its share by `tokens`.
        samples: Number of samples that the run reads from it.
        tokens_read: Number of tokens that the run reads from it.
        actual: Its share by `samples`.
        epochs: How often the run reads its train split.
        repeats_from: Step after which the run has read this data set more than max_epochs times, or None.
    """

    name: str
    weight: float
    configured: float
    tokens: int
    available: float
    samples: int
    tokens_read: int
    actual: float
    epochs: float
    repeats_from: int | None


@dataclass(frozen=True, kw_only=True)
class MixturePlan:
    """A planned run.

    Attributes:
        name: Name of the blend.
        samples: Number of samples in the run.
        batch_size: Number of samples per step.
        sequence_length: Number of tokens per sample.
        max_epochs: Number of epochs of a data set above which a warning is given.
        sources: Its data sets. A blend with a data set that cannot be read has none.
        left_out: Reason for each data set that cannot be read.
        note: Remark about the mixture.
    """

    name: str
    samples: int
    batch_size: int
    sequence_length: int
    max_epochs: float
    sources: tuple[PlannedSource, ...]
    left_out: Mapping[str, str]
    note: str

    @property
    def steps(self) -> int:
        return -(-self.samples // self.batch_size)

    @property
    def warnings(self) -> list[str]:
        return [_warning(source, self) for source in self.sources if source.repeats_from is not None]

    @property
    def plan(self) -> str:
        """Size of the run, such as `3,125 steps of 32 samples of 1,024 tokens: 102,400,000 tokens`."""
        total = self.samples * self.sequence_length
        of = f"{self.steps:,} steps of {self.batch_size:,} samples" if self.samples > self.batch_size else f"{self.samples:,} samples"
        return f"{of} of {self.sequence_length:,} tokens: {total:,} tokens"

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "steps": self.steps, "warnings": self.warnings}


def share(part: float) -> str:
    """Return a share with two digits, because a hundredth of a percent may be many tokens."""
    return format_share(part, digits=2)


def all_mixtures(registry: Registry, *, root: Path) -> list[MixturePlan]:
    """Return a mixture for each [blend.NAME].

    Without blends, return one mixture of all pretrain data sets by size, or none if there are no pretrain data sets.
    """
    if not registry.blend:
        return [_by_size(registry, root=root)] if registry.partition_keys("pretrain") else []
    mixtures = []
    for name, blend in registry.blend.items():
        opened, left_out = _open(registry, blend.weights, root=root, sequence_length=blend.sequence_length)
        ignored = f"Computed from whole train splits; `split` and `part` ({blend.split}, {blend.part}) are ignored."
        note = "" if blend.split == ALL_TRAIN else ignored
        plan = _Plan(name, blend.num_samples, blend.sequence_length, note)
        mixtures.append(_mixture(plan, {} if left_out else opened, left_out, blend.weights, registry))
    return mixtures


def _by_size(registry: Registry, *, root: Path) -> MixturePlan:
    """Return a mixture that reads every data set equally often. Data sets that are not built are left out."""
    settings = registry.reports
    opened, left_out = _open(registry, registry.partition_keys("pretrain"), root=root, sequence_length=settings.sequence_length)
    weights = {name: (tokens - 1) // settings.sequence_length for name, tokens in opened.items()}
    samples = settings.steps * settings.batch_size if settings.steps else sum(weights.values())
    note = "By size, because no [blend.NAME] is configured: the weight of a data set is its number of samples."
    return _mixture(_Plan(ALL, samples, settings.sequence_length, note), opened, left_out, weights, registry)


class _Plan(NamedTuple):
    name: str
    samples: int
    sequence_length: int
    note: str


def _open(registry: Registry, names: Iterable[str], *, root: Path, sequence_length: int) -> tuple[dict[str, int], dict[str, str]]:
    """Return the tokens of the train splits by name, and the reasons why the remaining data sets cannot be read, by name."""
    opened, left_out = {}, {}
    for name in names:
        folder = dataset_dir(root, "pretrain", name)
        try:
            is_here = registry.build.store is None and os.path.exists(folder / META_NAME)
            meta = read_meta(folder / META_NAME) if is_here else finished_cache(registry, root, "pretrain", name)
            if meta is None:
                left_out[name] = "is not built yet"
                continue
            check_location(meta, folder)
            if not meta.get("built", True):
                left_out[name] = "is switched off"
                continue
            if "train_tokens" not in meta:
                raise NielsCacheError(f"{folder / META_NAME}: has no train_tokens; build it again with --force")
            tokens, split = meta["train_tokens"], str(folder / "train")
            if is_here:
                tokens = int(open_split(split, doc_ends=True).tokens.shard_lengths.sum())
            check_has_window(split, tokens, T=sequence_length)
            opened[name] = tokens
        except NielsCacheError as error:
            left_out[name] = str(error)
    return opened, left_out


def _mixture(
    plan: _Plan, opened: Mapping[str, int], left_out: Mapping[str, str], weights: Mapping[str, float], registry: Registry
) -> MixturePlan:
    from niels_cache_runtime.loader.blend import Blend

    settings, sources = registry.reports, list[PlannedSource]()
    if opened:
        blend = Blend([*opened], [(0, weights)])
        read = blend.counts(plan.samples).tolist()
        total_weight, total_tokens = sum(weights.values()), sum(opened.values())
        for index, (member, tokens) in enumerate(opened.items()):
            taken = read[index]
            samples = (tokens - 1) // plan.sequence_length  # of an epoch
            most = math.floor(settings.max_epochs * samples)
            position = blend.position(index, most) if taken > most else None
            sources.append(
                PlannedSource(
                    name=member,
                    weight=weights[member],
                    configured=weights[member] / total_weight,
                    tokens=tokens,
                    available=tokens / total_tokens,
                    samples=taken,
                    tokens_read=taken * plan.sequence_length,
                    actual=taken / plan.samples,
                    epochs=taken / samples,
                    repeats_from=None if position is None else position // settings.batch_size,
                )
            )
    return MixturePlan(
        **plan._asdict(), batch_size=settings.batch_size, max_epochs=settings.max_epochs, sources=tuple(sources), left_out=left_out
    )


def _warning(source: PlannedSource, mixture: MixturePlan) -> str:
    """Return a warning with the step where repetition starts, and the share that would avoid repetition."""
    share = mixture.max_epochs / source.epochs * source.actual
    less = f", give it a share of at most {share:.2%}," if len(mixture.sources) > 1 else ""
    return (
        f"{source.name} is read {source.epochs:,.1f} times, more often than max_epochs ({mixture.max_epochs:g}) after "
        f"{source.repeats_from:,} of {mixture.steps:,} steps; plan at most that many steps{less} or add text"
    )
