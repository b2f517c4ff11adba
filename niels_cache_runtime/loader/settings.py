"""The settings of a loader, and the sources that the settings name. All settings are checked here, before a file is opened.

Every error message names the setting and the nearest valid choice. `batch` makes the batches.
"""

import dataclasses
import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from niels_cache_runtime.cache.checks import (
    NamesArguments,
    as_int,
    check_choice,
    check_positive,
    check_target_weight,
    check_whole,
)
from niels_cache_runtime.cache.opening import Verify, check_same_build, open_meta, short_sha256
from niels_cache_runtime.errors import NielsCacheError, did_you_mean
from niels_cache_runtime.format.layout import FAMILIES, SPLITS, Split, built_names, copies_of, has_pairs, shard_name, tokens_name
from niels_cache_runtime.format.meta import Meta
from niels_cache_runtime.format.path_kind import describe
from niels_cache_runtime.loader.batch import FIELDS
from niels_cache_runtime.loader.blend import Schedule
from niels_cache_runtime.loader.blocks import MAX_LANES, resolve_machines
from niels_cache_runtime.loader.lots import LotWindows
from niels_cache_runtime.loader.order import MAX_SEED
from niels_cache_runtime.loader.packing.documents import DocumentPacking, PackedDocuments
from niels_cache_runtime.loader.packing.fim import FIM
from niels_cache_runtime.loader.packing.rows import LossOn, Overflow, PackedExamples
from niels_cache_runtime.loader.preference.rows import PackedPairs
from niels_cache_runtime.loader.source import NamedSources, SampleSource
from niels_cache_runtime.loader.windows import PretrainWindows
from niels_cache_runtime.remote.store import is_address

_WEIGHT_PARTS = 1 << 16
_MAX_WEIGHT = 10**100  # so small that all later products fit into a float
_SFT_SETTINGS = {"loss_on": get_args(LossOn), "overflow": get_args(Overflow), "weigh_by": ("tokens", "examples")}
_SAMPLE_SETTINGS = ("T", "seed", "shuffle", "stride")
_PACKINGS = ("best_fit",)
_MAX_PACKED = 1 << 20  # so that the number of a piece in its row has 20 bits
Averages = Mapping[str, Sequence[int]]
_BEST_FIT_SETTINGS = ("bos_on_pieces", "pad_documents_to")  # the fields of BestFit that change rows
PLAN_SETTINGS = (*_BEST_FIT_SETTINGS, "max_documents", "fim")  # those of packed rows, in a state only if they are set
_RUN_SETTINGS = ("epochs", "on_exhausted", "drop_last", "fields", "mask_cross_document_targets")
WEIGHT_SETTINGS = ("loss_weights", "goldfish", "mask_repetitive")  # in a state only if they are set
_MOST_TOKENS = 1 << 16


@dataclass(frozen=True, kw_only=True)
class SFT(NamesArguments):
    """Settings of TokenLoader for SFT data sets.

    For preference pairs, `loss_on` and `overflow` apply to each side, and a pair always stays whole.

    Attributes:
        loss_on: The tokens to learn: "assistant", "last_assistant" (the last reply of each example) or "all".
        overflow: The treatment of examples longer than T+1 tokens: "truncate_right" keeps the first T+1 tokens, "truncate_left" keeps the
            last T+1, and "drop" leaves the example out.
        packing: With False, each row holds one preference pair. Only for data sets of preference pairs.
        weigh_by: The unit of the weights of a blend: "tokens", or "examples" if all sources are SFT.

    Raises:
        NielsCacheError: For any other value.
    """

    loss_on: LossOn = "assistant"
    overflow: Overflow = "truncate_right"
    packing: bool = True
    weigh_by: Literal["tokens", "examples"] = "tokens"

    def __post_init__(self) -> None:
        for name, choices in _SFT_SETTINGS.items():
            check_choice(name, getattr(self, name), choices)
        object.__setattr__(self, "packing", _check_bool("packing", self.packing))


@dataclass(frozen=True, kw_only=True)
class Blocks(NamesArguments):
    """An order that shuffles blocks of consecutive shards, and the windows inside each block, so that a machine reads few shards at a time.

    Attributes:
        shards: The number of shards of a block. An SFT split is one block.
        lanes: How many blocks are read at the same time. It decides the order, so a run cannot change it.
        machines: A divisor of `lanes`. Machine m has the ranks m * world_size / machines and following, and reads the lanes m, m +
            machines, ... only. None means that torchrun's variables decide.

    Raises:
        NielsCacheError: For a value out of range.
    """

    shards: int = 64
    lanes: int = 1
    machines: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "shards", check_positive("shards", self.shards))
        object.__setattr__(self, "lanes", check_whole("lanes", self.lanes, least=1, most=MAX_LANES))
        if self.machines is not None:
            object.__setattr__(self, "machines", check_positive("machines", self.machines))


@dataclass(frozen=True, kw_only=True)
class Lots(Blocks):
    """The order of one phase of a PhasedLoader, which decides all of this: blocks are lots, and the phase reads some of them.

    Attributes:
        tokens: The tokens of a lot.
        phase: `tokens` and `weights` of the Phase, and for each of the `sources` the number of lots that earlier phases have read, over all
            epochs, and how many inputs they should have read but have not.
    """

    tokens: int
    phase: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class BestFit(NamesArguments):
    """Settings of `TokenLoader(packing=...)`: documents of pretrain splits are packed whole into rows.

    Attributes:
        plans: The folder in which the plans of the rows are kept. None means `index` in the cache root, or beside a data set that is not
            in one.
        bos_on_pieces: Whether a piece that does not begin its document gets a BOS token before it, as the documents of a cache with BOS
            have. The BOS takes a place in the row, and the token after it is no target there.
        pad_documents_to: Each piece gets padding up to a multiple of this number of inputs, at least 2. T is a multiple of it. Context
            parallelism needs a multiple of 2 * cp_size. None means no padding between pieces.

    Raises:
        NielsCacheError: For a value out of range.
    """

    plans: str | None = None
    bos_on_pieces: bool = False
    pad_documents_to: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "plans", None if self.plans is None else os.fspath(self.plans))
        object.__setattr__(self, "bos_on_pieces", _check_bool("bos_on_pieces", self.bos_on_pieces))
        if self.pad_documents_to is not None:
            object.__setattr__(self, "pad_documents_to", check_whole("pad_documents_to", self.pad_documents_to, least=2))


@dataclass(frozen=True, kw_only=True)
class LoaderSettings:
    """The checked arguments of TokenLoader that decide its samples and its steps, under the same names. TokenLoader explains them.

    Some fields differ. `packing` is a BestFit or None, `fim` has the fields of a FIM, and `weights` is always a schedule. `order` is None
    for an order of the whole split, and its number of machines is known. `on_exhausted` may also be "restart". `pairs` says whether the
    sources hold preference pairs.
    """

    T: int
    B: int
    seed: int
    epochs: int | None
    weights: list[tuple[int, dict[str, float]]]
    shuffle: bool
    rank: int
    world_size: int
    fields: tuple[str, ...]
    sft: SFT
    order: Blocks | None
    stride: int | None
    on_exhausted: str
    drop_last: bool
    mask_cross_document_targets: bool
    packing: BestFit | None
    loss_weights: dict[str, float] | None = None
    goldfish: list[int] | None = None
    mask_repetitive: list[int] | None = None
    max_documents: int | None = None
    cp_rank: int = 0
    cp_size: int = 1
    fim: dict[str, Any] | None = None
    pairs: bool = False

    @classmethod
    def checked(cls, names: Collection[str], arguments: Mapping[str, Any]) -> "LoaderSettings":
        """Check the arguments of TokenLoader, and return the settings.

        The number of machines comes from torchrun's environment variables if `order` does not give it.

        Args:
            names: The names of the sources.
            arguments: The arguments of TokenLoader, by name.

        Raises:
            NielsCacheError: For a value out of range.
        """
        given = {field.name: arguments[field.name] for field in dataclasses.fields(cls) if field.name in arguments}
        _refuse_fraction(given["B"], given["world_size"])
        for name in ("T", "B", "world_size", "cp_size"):
            given[name] = check_positive(name, given[name])
        for name in ("stride", "epochs", "max_documents"):
            given[name] = None if given[name] is None else check_positive(name, given[name])
        given["seed"] = check_whole("seed", given["seed"], most=MAX_SEED)
        for name, size in (("rank", "world_size"), ("cp_rank", "cp_size")):
            given[name] = check_whole(name, given[name], most=given[size] - 1)
        for name in ("shuffle", "drop_last", "mask_cross_document_targets"):
            given[name] = _check_bool(name, given[name])
        if given["B"] * given["T"] >= 1 << 31:
            raise NielsCacheError(f"B={given['B']}, T={given['T']}: a batch of 2**31 tokens or more; use a smaller B")
        fields = given["fields"]
        if not isinstance(fields, Collection):
            raise NielsCacheError(f"fields={fields!r:.40}: must be names among {', '.join(FIELDS)}")
        given["fields"] = (fields,) if isinstance(fields, str) else tuple(fields)
        for field in given["fields"]:
            check_choice("fields", field, FIELDS)
        check_choice("on_exhausted", given["on_exhausted"], ("stop", "raise"))
        if given["epochs"] is None:
            if given["on_exhausted"] == "raise":
                raise NielsCacheError("on_exhausted='raise': without epochs, a source is never exhausted; give epochs, such as epochs=1")
            given["on_exhausted"] = "restart"
        if not isinstance(given["sft"], SFT):
            raise NielsCacheError(f"sft={given['sft']!r:.60}: must be SFT(...), such as SFT(loss_on='all')")
        given["order"] = _checked_order(given["order"], given["world_size"])
        given["packing"] = _checked_packing(given["packing"], T=given["T"], stride=given["stride"])
        if given["fim"] is not None and not (isinstance(given["fim"], FIM) and given["packing"]):
            raise NielsCacheError(
                f"fim={given['fim']!r:.60}: must be FIM(...), and needs packing='best_fit', because a window cannot grow by three tokens"
            )
        given["fim"] = given["fim"] and dict(vars(given["fim"]))
        pad_to, needed = given["packing"] and given["packing"].pad_documents_to, 2 * given["cp_size"]
        if given["cp_size"] > 1 and (pad_to or 1) % needed:
            raise NielsCacheError(
                f"cp_size={given['cp_size']}: each document is cut into {needed} equal parts, but pad_documents_to={pad_to}; "
                f"use packing=BestFit(pad_documents_to={needed}), or a multiple of {needed}"
            )
        given["loss_weights"] = _checked_loss_weights(names, given["loss_weights"])
        for name, least in (("goldfish", (2, 1)), ("mask_repetitive", (1, 2))):
            given[name] = _checked_mask(name, given[name], least)
        return cls(**given | {"weights": _schedule(names, given["weights"])})

    @property
    def head(self) -> int:
        """The number of tokens before a row that decide which of its targets count."""
        return self.goldfish[1] - 1 if self.goldfish else 0

    @property
    def weighs(self) -> bool:
        """Whether targets have weights, or masks that depend on the tokens."""
        return "weights" in self.fields or any(getattr(self, name) is not None for name in WEIGHT_SETTINGS)

    @property
    def lanes(self) -> int:
        """The number of lanes; 1 for an order of the whole split."""
        return (self.order or Blocks()).lanes

    @property
    def machines(self) -> int:
        """The number of machines that divide the lanes; 1 for an order of the whole split."""
        return (self.order or Blocks()).machines or 1

    def sample_settings(self) -> dict[str, Any]:
        """Return the settings that decide every sample and its place in the run, as the entries of a state.

        A run can resume only with the same values of these settings.
        """
        found = {name: getattr(self, name) for name in _SAMPLE_SETTINGS} | {name: getattr(self.sft, name) for name in _SFT_SETTINGS}
        of_order = {"order": "split"} if self.order is None else _entries_of(self.order)
        found |= {"document_packing": _PACKINGS[0], **self.plan_settings()} if self.packing else {}
        return found | of_order | ({"kind": "preference", "packing": self.sft.packing} if self.pairs else {})

    def plan_settings(self) -> dict[str, Any]:
        """Return the settings that change the plan of packed rows, by name. Only those that are set."""
        of_packing = {} if self.packing is None else vars(self.packing)
        return {name: of[name] for name in PLAN_SETTINGS for of in (of_packing, vars(self)) if of.get(name)}

    def state_settings(self) -> dict[str, Any]:
        """Return the entries of a state, from which `saved_arguments` builds an equal loader. They are JSON-able.

        The order is included only if it is in blocks, the kind only for preference pairs, and settings of weights only if they are set.
        """
        of_samples = {name: value for name, value in self.sample_settings().items() if (name, value) != ("order", "split")}
        of_weights = {name: copy(value) for name in WEIGHT_SETTINGS if (value := getattr(self, name)) is not None}
        of_run = {name: getattr(self, name) for name in _RUN_SETTINGS} | {"fields": list(self.fields)}
        return of_samples | self.plan_settings() | of_run | of_weights


def saved_arguments(settings: Mapping[str, Any], *, machines: int | None) -> dict[str, Any]:
    """Return those arguments of TokenLoader that `state_settings` put into a state.

    Args:
        settings: The settings in the state.
        machines: The number of machines of the run, or None to find it again.

    Raises:
        NielsCacheError: For missing or unknown keys, and for a value that no loader has saved.
    """
    of_blocks, of_pairs = _entries_of(Blocks()) if "order" in settings else {}, ("kind", "packing") if "kind" in settings else ()
    of_packing = ("document_packing", *_BEST_FIT_SETTINGS) if "document_packing" in settings else ()
    optional = {*of_packing, "max_documents", "fim", *WEIGHT_SETTINGS} & settings.keys()
    expected = {*_SAMPLE_SETTINGS, *_SFT_SETTINGS, *_RUN_SETTINGS, *of_blocks, *of_pairs, *optional}
    if set(settings) != expected:
        other = sorted(set(settings) ^ expected)[0]
        raise NielsCacheError(f"state: its settings have {'an unknown' if other in settings else 'no'} {other!r:.40}; it was cut or edited")
    for name, value in (("order", "blocks"), ("kind", "preference"), ("document_packing", _PACKINGS[0])):
        if settings.get(name, value) != value:
            raise NielsCacheError(f"state: its settings have {name}={settings[name]!r:.40}; it was edited")
    if (settings["epochs"] is None) != (settings["on_exhausted"] == "restart"):
        raise NielsCacheError(f"state: epochs={settings['epochs']!r:.40} and {settings['on_exhausted']!r:.40} contradict; it was edited")
    given = {name: settings[name] for name in (*_SAMPLE_SETTINGS, *_RUN_SETTINGS)}
    given |= {name: settings[name] for name in (*WEIGHT_SETTINGS, "max_documents") if name in settings}
    if given["on_exhausted"] == "restart":
        del given["on_exhausted"]
    given["sft"] = SFT(**{name: settings[name] for name in (*_SFT_SETTINGS, "packing") if name in settings})
    if "fim" in settings:
        try:
            given["fim"] = FIM(**settings["fim"])
        except TypeError as error:
            raise NielsCacheError(f"state: its settings have fim={settings['fim']!r:.80}; it was edited") from error
    if "document_packing" in settings:
        given["packing"] = BestFit(**{name: settings[name] for name in _BEST_FIT_SETTINGS if name in settings})
    if of_blocks:
        given["order"] = Blocks(shards=settings["block_shards"], lanes=settings["lanes"], machines=machines)
    return given


def _entries_of(order: Blocks) -> dict[str, Any]:
    """Return the entries of a state for an order in blocks. Its machines may change during a run."""
    entries = {"order": "blocks", "block_shards": order.shards, "lanes": order.lanes}
    if isinstance(order, Lots):
        entries |= {"lot_tokens": order.tokens, "phase": dict(order.phase)}
    return entries


def _checked_order(order: Any, world_size: int) -> Blocks | None:
    """Return the order with its number of machines, or None for an order of the whole split."""
    if isinstance(order, Blocks):
        return replace(order, machines=resolve_machines(order.machines, lanes=order.lanes, world_size=world_size, environment=os.environ))
    if order != "split":
        raise NielsCacheError(f"order={order!r:.60}: must be 'split' or Blocks(...), such as Blocks(shards=64, lanes=1)")
    return None


def _checked_packing(packing: Any, *, T: int, stride: int | None) -> BestFit | None:
    """Return the settings of the packing of documents, or None for windows."""
    if packing is None:
        return None
    if stride is not None:
        raise NielsCacheError(f"stride={stride}: is for windows; packing reads every document once, so leave stride out")
    if T > _MAX_PACKED:
        raise NielsCacheError(f"T={T}: packed rows have at most {_MAX_PACKED} inputs; use a smaller T, or leave packing out")
    if not isinstance(packing, BestFit):
        check_choice("packing", packing, _PACKINGS)
        return BestFit()
    DocumentPacking(seed=None, changes=tuple(vars(packing).items())).pieces(T)  # checks T
    return packing


def document_packing(settings: LoaderSettings, packing: BestFit) -> DocumentPacking:
    """Return how a source packs its documents."""
    files, changes = settings.order.shards if settings.order else None, tuple(settings.plan_settings().items())
    return DocumentPacking(seed=settings.seed if settings.shuffle else None, block_files=files, plans=packing.plans, changes=changes)


def _checked_loss_weights(names: Collection[str], given: Any) -> dict[str, float] | None:
    """Return the weights as Python's own floats, which are JSON-able, or None if all are 1."""
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise NielsCacheError(f"loss_weights={given!r:.60}: must be {{name: weight}}, for example {dict.fromkeys(names, 1.0)}")
    for name in given:
        check_choice("loss_weights", name, list(names))
    return {name: check_target_weight(f"loss_weights: {name}", weight) for name, weight in given.items()}


def _checked_mask(name: str, given: Any, least: tuple[int, int]) -> list[int] | None:
    """Return the two numbers of a mask as a list, which is JSON-able."""
    if given is None:
        return None
    if not isinstance(given, Sequence) or len(given) != 2:
        raise NielsCacheError(f"{name}={given!r:.60}: must be two whole numbers, of at least {least[0]} and {least[1]}")
    return [check_whole(name, value, least=each, most=_MOST_TOKENS) for value, each in zip(given, least, strict=True)]


def _check_bool(name: str, value: Any) -> bool:
    if value not in (True, False):
        raise NielsCacheError(f"{name}={value!r:.60}: must be True or False")
    return bool(value)


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
        problem = f"world_size={world_size} ranks cannot share {round(rows)} rows evenly; B is the rows of each"
        raise NielsCacheError(f"B={B!r}: {problem}: write B={int(B)} or B={int(B) + 1}")


def find_sources(root: Any, names: Sequence[str]) -> Any:
    """Return the folders of data sets in a cache root, in the form of TokenLoader's `sources`.

    Args:
        root: The cache root, or without names any `sources`, which are returned unchanged.
        names: The names of data sets, such as `wikitext`, or `sft/wikitext` if both families have one of this name.

    Raises:
        NielsCacheError: For another folder than a cache root, and for a name that is not there or is there twice.
    """
    folders = {name: f"{root}/{name}" if is_address(str(root)) else _find_dataset(str(root), name) for name in names}
    return folders if len(folders) > 1 else folders.get(names[0]) if names else root


def _find_dataset(root: str, name: Any) -> str:
    datasets = {f"{family}/{each}": each for family in FAMILIES for each in built_names(Path(root) / family)}
    found_at = [path for path, each in datasets.items() if name in (path, each)]
    if len(found_at) == 1:
        return f"{root}/{found_at[0]}"
    known = f"write {' or '.join(found_at or datasets)}" if datasets else describe(root).clause
    hint = did_you_mean(name, () if found_at else datasets.values(), known)
    raise NielsCacheError(f"{root}: {len(found_at) or 'no'} data sets {name!r}; {hint}")


def name_sources(sources: str | Mapping[str, str], split: Split) -> dict[str, str]:
    """Return a dict from the sources' names to the folders or addresses of their splits.

    If a single folder is given, its name is that of its data set.

    Args:
        sources: A folder or an address, or a mapping of names to such.
        split: The split of those folders that are the folder of a data set.

    Raises:
        NielsCacheError: For another type, an empty mapping, or a data set without this split.
    """
    check_choice("split", split, SPLITS)
    if not isinstance(sources, Mapping | str | os.PathLike):
        raise NielsCacheError(f"sources={sources!r}: must be the folder of a data set or a split, or a mapping of names to folders")
    if isinstance(sources, Mapping):
        if not sources:
            raise NielsCacheError("sources={}: no cache is named; give a folder, or names to folders")
        return {str(name): _split_folder(str(folder), split) for name, folder in sources.items()}
    folder = _split_folder(str(sources), split)
    return {Path(folder).absolute().parent.name: folder}


def _split_folder(folder: str, split: Split) -> str:
    """Return the folder of a split: this folder, or that of the split in this folder of a data set. An address is returned unchanged.

    The tokens of an SFT split are beside the folder of that name, which need not exist.
    """
    if is_address(folder):
        return folder
    path = Path(folder)
    if not any(map(os.path.exists, (path / shard_name(0), path.parent / f"{path.name}_tokens.bin"))):
        found = [name for name in SPLITS if os.path.isdir(path / name) or os.path.exists(path / tokens_name(name))]
        if split in found:
            return str(path / split)
        if found:
            raise NielsCacheError(f"{folder}: this data set has no {split} split; choose from {', '.join(found)}")
    check_named(path.absolute().name, split, folder)
    return folder


def check_named(named: str | None, split: Split, folder: str) -> None:
    """Raise NielsCacheError if a folder or an address names a split and `split` asks for the other one. The default asks for none."""
    if split != SPLITS[0] and named in SPLITS and named != split:
        raise NielsCacheError(f"{folder}: is the split {named!r}, but split={split!r}; give the folder of the data set, or leave split out")


def _schedule(names: Collection[str], weights: Mapping[str, float] | Schedule | None) -> list[tuple[int, dict[str, float]]]:
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
    """Return the weights as Python's own numbers, which are JSON-able.

    Raises:
        NielsCacheError: For an invalid or too large weight.
    """
    weights: dict[str, float] = {}
    for name, weight in shares.items():
        whole = as_int(weight)
        if whole is None and (isinstance(weight, bool | str) or not hasattr(weight, "__float__") or not math.isfinite(weight)):
            raise NielsCacheError(f"weights: {name} has {weight!r}; a weight must be a positive number")
        number = float(weight) if whole is None else whole
        if abs(number) > _MAX_WEIGHT:
            raise NielsCacheError(f"weights: {name} has {weight!r:.40}; only their ratios matter; give smaller numbers")
        weights[str(name)] = number
    return weights


def open_source(folder: str, settings: LoaderSettings, *, verify: Verify = "size") -> SampleSource:
    """Open a split: PretrainWindows or PackedDocuments for a pretrain split, PackedExamples or PackedPairs for an SFT split.

    Raises:
        NielsCacheError: For the reasons that these classes list, and for a folder that is no such split.
    """
    path = Path(folder)
    try:
        os.stat(path.parent / f"{path.name}_tokens.bin")
    except (FileNotFoundError, NotADirectoryError):
        lots = settings.order.tokens if isinstance(settings.order, Lots) else None
        if settings.packing is None:
            windows = LotWindows if lots else PretrainWindows
            opened: Callable[[str], PretrainWindows] = partial(
                windows, T=settings.T, stride=settings.stride, verify=verify, head=settings.head, lot_tokens=lots
            )
        else:
            packing = document_packing(settings, settings.packing)
            opened = partial(PackedDocuments, T=settings.T, packing=packing, verify=verify, head=settings.head, lot_tokens=lots)
        source = opened(folder)
        if names := copies_to_read(folder, source.meta, settings):
            source.copies = [opened(str(path.parent / name)) for name in names]
            for copy in source.copies:
                check_same_build(folder, opened=source.meta, reopened=copy.meta)
        return source
    except (OSError, ValueError) as error:  # no permission, or an invalid name
        raise NielsCacheError(f"{folder!r:.200}: cannot be opened: {error}; give the folder of a split") from error
    if isinstance(settings.order, Lots):
        raise NielsCacheError(f"{folder}: is an SFT split, and phases read pretrain splits; give it to a TokenLoader of its own")
    sft = settings.sft
    of_rows: dict[str, Any] = {"T": settings.T, "seed": settings.seed, "loss_on": sft.loss_on, "overflow": sft.overflow}
    of_rows |= {"shuffle": settings.shuffle, "verify": verify, "head": settings.head}
    has_pairs_here = has_pairs(open_meta(path.parent, verify=verify))
    return PackedPairs(folder, pack=sft.packing, **of_rows) if has_pairs_here else PackedExamples(folder, **of_rows)


def copies_to_read(folder: str, meta: Meta | None, settings: LoaderSettings, *, is_remote: bool = False) -> list[str]:
    """Return the names of the copies that later epochs of a pretrain split read.

    Raises:
        NielsCacheError: If there are copies, and the order is in blocks, or the source is an address.
    """
    names = copies_of(meta) if os.path.basename(os.path.abspath(folder)) == SPLITS[0] else []
    if names and (settings.order or is_remote):
        raise NielsCacheError(
            f"{folder}: has {len(names) + 1} copies of its documents for `fim`, one for each epoch, which only order='split' reads, from a "
            f"folder; pull it or leave order out, or read one copy in all epochs, such as {names[0]}"
        )
    return names


def have_pairs(sources: NamedSources, *, packing: bool) -> bool:
    """Return whether the sources hold preference pairs.

    Raises:
        NielsCacheError: If only some of them do, or if rows are not to be packed and they do not.
    """
    pairs = [name for name, source in sources.items() if isinstance(source, PackedPairs)]
    others = [name for name in sources if name not in pairs]
    if pairs and others:
        raise NielsCacheError(f"sources: {pairs[0]} holds preference pairs, and {others[0]} does not; give them to loaders of their own")
    if others and not packing:
        raise NielsCacheError("SFT(packing=False): is for preference pairs; SFTExampleDataset has one example a row")
    return bool(pairs)


def check_one_tokenizer(sources: NamedSources) -> None:
    """Raise NielsCacheError if two sources have different tokenizers.

    A source whose meta.json does not name its tokenizer is accepted.
    """
    recorded = {name: (source.meta or {}).get("tokenizer_sha256") for name, source in sources.items()}
    used = {sha256: name for name, sha256 in recorded.items() if isinstance(sha256, str)}
    if len(used) > 1:
        listed = " and ".join(f"{name} with {short_sha256(sha256)}" for sha256, name in used.items())
        raise NielsCacheError(
            f"sources: built with different tokenizers, so ids differ in meaning: {listed}; build them with one tokenizer"
        )


def row_weights(sources: NamedSources, settings: LoaderSettings, averages: Averages) -> list[tuple[int, dict[str, float]]]:
    """Return the schedule of weights, converted from shares of tokens or examples to shares of rows.

    Each weight is divided by the average number of tokens or examples in a row of its source.

    Args:
        sources: The open sources.
        settings: The loader's settings.
        averages: (tokens, rows) of some sources, which count instead of those that the source has now.

    Raises:
        NielsCacheError: If `weigh_by` is "examples" and a source has documents instead of examples.
    """
    contents = {}
    for name, source in sources.items():
        content = source.tokens if settings.sft.weigh_by == "tokens" else source.examples
        if content is None:
            raise NielsCacheError(f"weigh_by='examples': {name} has documents, not SFT examples; use weigh_by='tokens'")
        contents[name] = Fraction(*averages.get(name, (content, source.samples)))
    return [(first, _shares_of_rows(shares, contents)) for first, shares in settings.weights]


def _shares_of_rows(shares: dict[str, float], contents: Mapping[str, Fraction]) -> dict[str, float]:
    """Convert shares of tokens or of examples to shares of rows.

    If the average is the same for all used sources, `shares` is returned unchanged. The weights are then exact, and a source that is added
    later does not change them.

    Args:
        shares: The share of each source.
        contents: The average number of tokens or examples in a row of each source.
    """
    used = {contents.get(name) for name, weight in shares.items() if weight}
    if len(used) <= 1 or any(weight < 0 for weight in shares.values()):
        return shares
    of_rows = {name: weight / contents.get(name, Fraction(1)) for name, weight in shares.items()}
    total = sum(of_rows.values())
    # Each share becomes a whole number of 2**16 parts, at least 1. Averages are not more precise, and the blend's period stays short.
    return {name: max(1, round(_WEIGHT_PARTS * share / total)) if share > 0 else share for name, share in of_rows.items()}
