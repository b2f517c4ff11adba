"""The settings of a loader, and the sources that the settings name. All settings are checked here, before a file is opened.

Every error message names the setting and the nearest valid choice. `batch` makes the batches.
"""

import math
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

from niels_cache_runtime.cache.checks import as_int, check_choice, check_positive, check_whole
from niels_cache_runtime.cache.opening import Verify, short_sha256
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import SPLITS, tokens_name
from niels_cache_runtime.loader.batch import FIELDS
from niels_cache_runtime.loader.blocks.machines import resolve_machines
from niels_cache_runtime.loader.blocks.order import MAX_LANES
from niels_cache_runtime.loader.order import MAX_SEED
from niels_cache_runtime.loader.packing.rows import LossOn, Overflow, PackedExamples
from niels_cache_runtime.loader.preference.rows import PackedPairs
from niels_cache_runtime.loader.source import Source
from niels_cache_runtime.loader.windows import PretrainWindows

_CHOICES = {
    "order": ("split", "blocks"),
    "on_exhausted": ("restart", "stop", "raise"),
    "loss_on": ("assistant", "last_assistant", "all"),
    "overflow": ("truncate_right", "truncate_left", "drop"),
    "weigh_by": ("tokens", "examples"),
    "kind": ("tokens", "preference"),
}
_PARTS = 1 << 16
_MOST_WEIGHT = 10**100  # so small that all later products fit into a float
_OF_SAMPLES = ("T", "seed", "shuffle", "stride", "loss_on", "overflow", "weigh_by")
_OF_BLOCKS = ("order", "block_shards", "lanes")
_OF_PAIRS = ("kind", "packing")
_BLOCK_SHARDS = 64
_OF_RUN = ("epochs", "on_exhausted", "drop_last", "fields", "mask_cross_document_targets")


@dataclass(frozen=True, kw_only=True)
class LoaderSettings:
    """The checked keyword arguments of TokenLoader. TokenLoader's docstring explains them."""

    T: int
    B: int
    seed: int
    weights: list[tuple[int, dict[str, float]]]
    shuffle: bool
    rank: int
    world_size: int
    stride: int | None
    epochs: int | None
    on_exhausted: str
    drop_last: bool
    fields: tuple[str, ...]
    mask_cross_document_targets: bool
    loss_on: LossOn
    overflow: Overflow
    weigh_by: Literal["tokens", "examples"]
    order: Literal["split", "blocks"]
    block_shards: int
    lanes: int
    machines: int
    kind: Literal["tokens", "preference"]
    packing: bool

    @classmethod
    def checked(
        cls,
        names: Collection[str],
        *,
        weights: Mapping[str, float] | Sequence[tuple[int, Mapping[str, float]]] | None,
        epochs: int | None,
        on_exhausted: str | None,
        ranks_per_machine: int | None,
        **given: Any,
    ) -> "LoaderSettings":
        """Check the arguments and return the settings. Raises NielsCacheError for an unknown setting, and for a value out of range.

        The number of machines comes from torchrun's environment variables if the order is in blocks and the arguments do not give it.
        """
        _refuse_fraction(given["B"], given["world_size"])
        for name in ("T", "B", "world_size"):
            given[name] = check_positive(name, given[name])
        given["stride"] = None if given["stride"] is None else check_positive("stride", given["stride"])
        given["seed"] = check_whole("seed", given["seed"], most=MAX_SEED)
        given["rank"] = check_whole("rank", given["rank"], most=given["world_size"] - 1)
        for name in ("shuffle", "drop_last", "mask_cross_document_targets", "packing"):
            if given[name] not in (True, False):
                raise NielsCacheError(f"{name}={given[name]!r}: must be True or False")
            given[name] = bool(given[name])
        if given["B"] * given["T"] >= 1 << 31:
            raise NielsCacheError(f"B={given['B']}, T={given['T']}: a batch of 2**31 tokens or more; use a smaller B")
        if not isinstance(given["fields"], Collection):
            raise NielsCacheError(f"fields={given['fields']!r:.40}: must be names among {', '.join(FIELDS)}")
        fields = (given["fields"],) if isinstance(given["fields"], str) else tuple(given["fields"])
        for field in fields:
            check_choice("fields", field, FIELDS)
        on_exhausted = on_exhausted or ("restart" if epochs is None else "stop")
        for name in _CHOICES:
            check_choice(name, on_exhausted if name == "on_exhausted" else given[name], _CHOICES[name])
        given |= _checked_blocks(given, ranks_per_machine)
        if not given["packing"] and given["kind"] != "preference":
            raise NielsCacheError("packing=False: is for kind='preference'; SFTExampleDataset has one example a row")
        if on_exhausted == "restart":
            if epochs is not None:
                raise NielsCacheError(f"epochs={epochs!r}, on_exhausted='restart': contradict each other; leave out one of them")
        else:
            epochs = 1 if epochs is None else check_positive("epochs", epochs)
        return cls(**given | {"fields": fields}, weights=_schedule(names, weights), epochs=epochs, on_exhausted=on_exhausted)

    def of_samples(self) -> dict[str, Any]:
        """Return the settings that decide every sample and its place in the run. A run can resume only with the same values of these
        settings.
        """
        names = (*_OF_SAMPLES, *(_OF_BLOCKS if self.order == "blocks" else ("order",)), *(_OF_PAIRS if self.kind == "preference" else ()))
        return {name: getattr(self, name) for name in names}

    def of_constructor(self) -> dict[str, Any]:
        """Return the keyword arguments that build an equal loader, as JSON-able values, without B, rank, world_size, machines, device and
        weights. The order is included only if it is in blocks, and the kind only for preference pairs, so that earlier releases read all
        other states.
        """
        of_samples = {name: value for name, value in self.of_samples().items() if self.order == "blocks" or name != "order"}
        return of_samples | {name: getattr(self, name) for name in _OF_RUN} | {"fields": list(self.fields)}


def saved_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the constructor's keyword arguments that `of_constructor` put into a state. Raises NielsCacheError for missing or unknown
    keys.
    """
    expected = {*_OF_SAMPLES, *_OF_RUN, *(_OF_BLOCKS if "order" in settings else ()), *(_OF_PAIRS if "kind" in settings else ())}
    if set(settings) != expected:
        other = sorted(set(settings) ^ expected)[0]
        raise NielsCacheError(f"state: its settings have {'an unknown' if other in settings else 'no'} {other!r:.40}; it was cut or edited")
    return dict(settings)


def _checked_blocks(given: Mapping[str, Any], ranks_per_machine: Any) -> dict[str, Any]:
    """Return the checked settings of the order in blocks, with their defaults."""
    if given["order"] == "blocks":
        block_shards = check_positive("block_shards", _BLOCK_SHARDS if given["block_shards"] is None else given["block_shards"])
        lanes = check_whole("lanes", 1 if given["lanes"] is None else given["lanes"], least=1, most=MAX_LANES)
        machines = resolve_machines(
            lanes=lanes,
            world_size=given["world_size"],
            machines=given["machines"],
            ranks_per_machine=ranks_per_machine,
            environment=os.environ,
        )
        return {"block_shards": block_shards, "lanes": lanes, "machines": machines}
    for name in ("block_shards", "lanes", "machines", "ranks_per_machine"):
        value = ranks_per_machine if name == "ranks_per_machine" else given[name]
        if value is not None:
            raise NielsCacheError(f"{name}={value!r:.60}: belongs to order='blocks'; give this order, or leave {name} out")
    return {"block_shards": _BLOCK_SHARDS, "lanes": 1, "machines": 1}


def _refuse_fraction(B: Any, world_size: Any) -> None:
    """Raise NielsCacheError if B is a float and B * world_size is (nearly) a whole number. The message suggests a valid B.

    Such a B usually comes from dividing a global batch by the number of ranks.
    """
    if not isinstance(B, float) or not 1 <= B < 1 << 31:
        return
    if B.is_integer():
        raise NielsCacheError(f"B={B!r}: must be a whole number, not a float; write B={int(B)}")
    rows = B * (as_int(world_size) or 1)
    if round(rows) > 0 and abs(rows - round(rows)) < 1e-6 * rows:
        cannot = f"world_size={world_size} ranks cannot share {round(rows)} rows evenly; B is the rows of each"
        raise NielsCacheError(f"B={B!r}: {cannot}: write B={int(B)} or B={int(B) + 1}")


def name_sources(sources: str | Mapping[str, str]) -> dict[str, str]:
    """Return a dict from the sources' names to their folders. If a single folder is given, its name is that of its data set."""
    if not isinstance(sources, Mapping | str | os.PathLike):
        raise NielsCacheError(f"sources={sources!r}: must be a split's folder, or a mapping of names to folders")
    if isinstance(sources, Mapping):
        if not sources:
            raise NielsCacheError("sources={}: no cache is named; give a split's folder, or names to folders")
        return {str(name): str(folder) for name, folder in sources.items()}
    folder = str(sources)
    return {Path(folder).absolute().parent.name: folder}


def _schedule(
    names: Collection[str], weights: Mapping[str, float] | Sequence[tuple[int, Mapping[str, float]]] | None
) -> list[tuple[int, dict[str, float]]]:
    if weights is None:
        if len(names) > 1:
            raise NielsCacheError(f"weights=None: {len(names)} sources need weights, for example {dict.fromkeys(names, 1.0)}")
        return [(0, dict.fromkeys(names, 1.0))]
    if isinstance(weights, Mapping):
        return [(0, check_shares(weights))]
    try:
        segments = [(first, dict(shares)) for first, shares in weights]
    except (TypeError, ValueError) as error:
        raise NielsCacheError(f"weights={weights!r}: must be {{name: weight}} or [(first sample, {{name: weight}}), ...]") from error
    return [(first if (whole := as_int(first)) is None else whole, check_shares(shares)) for first, shares in segments]


def check_shares(shares: Mapping[str, float]) -> dict[str, float]:
    """Return the weights as Python's own numbers, which are JSON-able. Raises NielsCacheError for an invalid or too large weight."""
    numbers: dict[str, float] = {}
    for name, weight in shares.items():
        whole = as_int(weight)
        if whole is None and (isinstance(weight, bool | str) or not hasattr(weight, "__float__") or not math.isfinite(weight)):
            raise NielsCacheError(f"weights: {name} has {weight!r}; a weight must be a positive number")
        if abs(weight) > _MOST_WEIGHT:
            raise NielsCacheError(f"weights: {name} has {weight!r:.40}; only their ratios matter; give smaller numbers")
        numbers[str(name)] = float(weight) if whole is None else whole
    return numbers


def open_source(folder: str, settings: LoaderSettings, *, verify: Verify = "size") -> Source:
    """Open a folder as a source: PretrainWindows for a pretrain split, PackedExamples for an SFT split, PackedPairs for preference pairs.

    Raises NielsCacheError for the reasons that these classes list, and for a folder that is no such split.
    """
    path = Path(folder)
    try:
        os.stat(path.parent / tokens_name(path.name))  # type: ignore[arg-type]
    except (FileNotFoundError, NotADirectoryError):
        if splits := [split for split in SPLITS if (path / tokens_name(split)).exists()]:
            raise NielsCacheError(f"{folder}: is an SFT data set; name the split: {path / splits[0]}") from None
        if settings.kind == "preference":
            raise NielsCacheError(
                f"{folder}: is no split of preference pairs; leave out kind='preference', or give cache/sft/NAME/train"
            ) from None
        return PretrainWindows(folder, T=settings.T, stride=settings.stride, verify=verify)
    except (OSError, ValueError) as error:  # no permission, or an invalid name
        raise NielsCacheError(f"{folder!r:.200}: cannot be opened: {error}; give the folder of a split") from error
    of_rows: dict[str, Any] = {"T": settings.T, "seed": settings.seed, "loss_on": settings.loss_on, "overflow": settings.overflow}
    of_rows |= {"shuffle": settings.shuffle, "verify": verify}
    return PackedPairs(folder, pack=settings.packing, **of_rows) if settings.kind == "preference" else PackedExamples(folder, **of_rows)


def check_one_tokenizer(names: Sequence[str], sources: Sequence[Source]) -> None:
    """Raise NielsCacheError if two sources have different tokenizers. A source whose meta.json does not name its tokenizer is accepted."""
    said = {name: (source.meta or {}).get("tokenizer_sha256") for name, source in zip(names, sources, strict=True)}
    used = {sha256: name for name, sha256 in said.items() if isinstance(sha256, str)}
    if len(used) > 1:
        told = " and ".join(f"{name} with {short_sha256(sha256)}" for sha256, name in used.items())
        raise NielsCacheError(f"sources: built with different tokenizers, so ids differ in meaning: {told}; build them with one tokenizer")


def row_weights(names: Sequence[str], sources: Sequence[Source], settings: LoaderSettings) -> list[tuple[int, dict[str, float]]]:
    """Return the schedule of weights, converted from shares of tokens or examples to shares of rows.

    Each weight is divided by the average number of tokens or examples in a row of its source. Raises NielsCacheError if weigh_by is
    "examples" and a source has documents instead of examples.
    """
    contents = {}
    for name, source in zip(names, sources, strict=True):
        held = source.tokens if settings.weigh_by == "tokens" else source.examples
        if held is None:
            raise NielsCacheError(f"weigh_by='examples': {name} has documents, not SFT examples; use weigh_by='tokens'")
        contents[name] = Fraction(held, source.samples)
    return [(first, _shares_of_rows(shares, contents)) for first, shares in settings.weights]


def _shares_of_rows(shares: dict[str, float], contents: Mapping[str, Fraction]) -> dict[str, float]:
    """Convert shares of tokens or of examples to shares of rows.

    contents: for each source, the average number of tokens or examples in a row. If this average is the same for all used sources, `shares`
    is returned unchanged. The weights are then exact, and a source that is added later does not change them.
    """
    used = {contents.get(name) for name, weight in shares.items() if weight}
    if len(used) <= 1 or any(weight < 0 for weight in shares.values()):
        return shares
    of_rows = {name: weight / contents.get(name, Fraction(1)) for name, weight in shares.items()}
    total = sum(of_rows.values())
    # Each share becomes a whole number of 2**16 parts, at least 1. Averages are not more precise, and the blend's period stays short.
    return {name: max(1, round(_PARTS * share / total)) if share > 0 else share for name, share in of_rows.items()}
