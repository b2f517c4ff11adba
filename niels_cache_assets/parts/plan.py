"""The plan of a data set in parts: which part reads which files, and the token budget of each part.

The plan is made once, from the list of files of one revision. It is one JSON file, without timestamps and without paths on this machine.
Everything that is built afterwards reads this file, and nothing lists the files again. Making a plan costs a listing of the files. With
val_frac, it also reads all text once to count the documents, and a file beside the plan says which of them go to val.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

from niels_cache_assets.base.fingerprint import Identity
from niels_cache_assets.disk.space import BYTES_PER_TOKEN
from niels_cache_assets.parts.layout import part_name
from niels_cache_assets.sources.types import ListedFile
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.meta import Meta

CODE_VERSION = "1"  # increment if the same files are divided differently, or if parts write different bytes
MAX_SHARDS = 20_000
_EXPANSION = 2.5  # bytes of text for one byte of a compressed file, roughly
_COMPRESSED_ENDINGS = (".parquet", ".gz", ".bz2", ".xz", ".zst")
_SHARD_BYTES_STEP = 2**22  # a proposed shard size is a multiple of 4 MiB


@dataclass(frozen=True, kw_only=True)
class PlannedPart:
    """A part in a plan.

    Attributes:
        number: The number of the part, from 0.
        plan: The fingerprint of the group of parts that this part belongs to.
        revision: The revision of that group (see `PlannedGroup`).
        text_field: The text field of that group (see `PlannedGroup`).
        files: Its files. Those that upstream assigns to val come first.
        train_tokens: Its share of the train budget, or None without a budget.
        val_tokens: Its share of the val budget, or None without a budget.
        val: With val_frac, the file of its group (see `PlannedGroup`), and the numbers of its own documents in the group. Otherwise None.
    """

    number: int
    plan: str
    revision: str | None
    text_field: str | None
    files: tuple[ListedFile, ...]
    train_tokens: int | None
    val_tokens: int | None
    val: tuple[str, range] | None = None

    @property
    def name(self) -> str:
        """The name of the part's folder."""
        return part_name(self.number)

    def seed(self, seed: int) -> int:
        """Return the seed of this part's shuffle, below 2^48. It depends only on the seed in the configuration and the part's number."""
        return int.from_bytes(hashlib.sha256(f"{seed}\0{self.number}".encode()).digest()[:6])


@dataclass(frozen=True, kw_only=True)
class PlannedGroup:
    """The parts that were planned together: the first ones, or those of one table `added`. Later additions never change a group.

    Attributes:
        fingerprint: The sha256 over everything that determined the group.
        identity: The values that the fingerprint hashes.
        revision: The revision of upstream that was listed.
        text_field: The text field in every file, or None if no file contains rows.
        listed: The files, in the order of the listing.
        parts: The parts, in order.
        val: With val_frac, the name of the file beside the plan that says which documents go to val, and the numbers of these documents.
            Otherwise None.
        entry: The group as an entry in the file of a plan. With val_frac, its `documents` are the number of documents of each file that
            have no split of their own.
    """

    fingerprint: str
    identity: Identity
    revision: str | None
    text_field: str | None
    listed: tuple[ListedFile, ...]
    parts: tuple[PlannedPart, ...]
    val: tuple[str, range] | None
    entry: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A plan that was read from its file.

    Attributes:
        meta: The content of the file.
        groups: The first parts, then those of each table `added`. A data set that never grew has one group.
    """

    meta: Meta
    groups: tuple[PlannedGroup, ...]

    @classmethod
    def of(cls, meta: Meta) -> Plan:
        """Return the plan in the content of its file.

        Raises:
            NielsCacheError: If the content has a different form.
        """
        try:
            groups = list[PlannedGroup]()
            for entry in meta["groups"]:
                groups.append(group_of(entry, first=sum(len(group.parts) for group in groups)))
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise NielsCacheError(f"the plan of {meta.get('dataset_name')} has an unknown form ({error!r}); make it again") from error
        return cls(meta=meta, groups=tuple(groups))

    @property
    def fingerprint(self) -> str:
        """The sha256 over everything that determined the plan."""
        return str(self.meta["fingerprint"])

    @property
    def first(self) -> PlannedGroup:
        """The parts that the data set had before it grew."""
        return self.groups[0]

    @cached_property
    def parts(self) -> tuple[PlannedPart, ...]:
        """The parts of all groups, in order."""
        return tuple(part for group in self.groups for part in group.parts)

    @property
    def revision(self) -> str | None:
        """The revision of upstream that was listed."""
        return self.meta["dataset_revision"]


def group_of(entry: Mapping[str, Any], *, first: int = 0) -> PlannedGroup:
    """Return a group from its entry in the file of a plan. `first` is the number of its first part."""
    listed = tuple(ListedFile(**file) for file in entry["listed"])
    shared: dict[str, Any] = {"revision": entry["dataset_revision"], "text_field": entry["text_field"]}
    val, before = entry["val"], [*accumulate(entry["documents"] or (), initial=0)]
    parts = tuple(
        PlannedPart(
            number=number,
            plan=entry["fingerprint"],
            files=tuple(listed[index] for begin, stop in part["files"] for index in range(begin, stop)),
            train_tokens=part["train_tokens"],
            val_tokens=part["val_tokens"],
            val=(val, range(before[part["files"][0][0]], before[part["files"][-1][1]])) if val and part["files"] else None,
            **shared,
        )
        for number, part in enumerate(entry["parts"], start=first)
    )
    shared |= {"val": val and (val, range(before[-1])), "entry": entry}
    return PlannedGroup(fingerprint=entry["fingerprint"], identity=entry["made_of"], listed=listed, parts=parts, **shared)


def runs(indices: Sequence[int]) -> list[list[int]]:
    """Return these ascending or separate indices as runs [first, stop]."""
    found: list[list[int]] = []
    for index in indices:
        if found and found[-1][1] == index:
            found[-1][1] += 1
        else:
            found.append([index, index + 1])
    return found


def plan_parts(
    files: Sequence[ListedFile],
    parts: int,
    *,
    train_tokens: int | None,
    val_tokens: int | None,
    fingerprint: str = "",
    identity: Identity | None = None,
    revision: str | None = None,
    text_field: str | None = None,
) -> PlannedGroup:
    """Return a group of parts. Each part has a contiguous run of the files of each split, balanced by bytes.

    With fewer files than parts, some parts have no file.

    Args:
        files: The files of all parts.
        parts: The number of parts.
        train_tokens: The train budget of the group, or None.
        val_tokens: The val budget of the group, or None.
        fingerprint: See `PlannedGroup`.
        identity: See `PlannedGroup`.
        revision: See `PlannedGroup`.
        text_field: See `PlannedGroup`.

    Raises:
        NielsCacheError: If a part with files gets no token of the train budget.
    """
    divided: list[list[int]] = [[] for _ in range(parts)]  # the indices of the files of each part
    for split in dict.fromkeys(file.split for file in files):
        chosen = [index for index, file in enumerate(files) if file.split == split]
        for part, run in zip(divided, contiguous_runs([files[index].bytes for index in chosen], parts), strict=True):
            part += chosen[run.start : run.stop]
    weights = [sum(files[index].bytes for index in part) for part in divided]
    if not any(weights):  # no size is known
        weights = [bool(part) for part in divided]
    budgets: list[list[Any]] = [
        [None] * parts if total is None else divide_in_proportion(total, weights) for total in (train_tokens, val_tokens or None)
    ]
    train, val = budgets
    starved = [number for number, part in enumerate(divided) if part and train[number] == 0]
    if starved:
        number = starved[0]
        unknown_size = next((files[index].name for index in divided[number] if not files[index].bytes), None)
        why = "" if unknown_size is None else f" ({unknown_size} is empty, or its server tells no size)"
        raise NielsCacheError(
            f"{part_name(number)} has so few bytes that it gets no share of the {train_tokens:,} train_tokens{why}; lower parts"
        )
    entry = {
        "fingerprint": fingerprint,
        "made_of": dict(identity or {}),
        "dataset_revision": revision,
        "text_field": text_field,
        "listed": [file._asdict() for file in files],
        "documents": None,
        "val": None,
        "parts": [
            {"files": runs(part), "train_tokens": of_train or None, "val_tokens": of_val}
            for part, of_train, of_val in zip(divided, train, val, strict=True)
        ],
    }
    return group_of(entry)


def is_compressed(name: str) -> bool:
    """Return whether the text in a file of this name is larger than the file."""
    return name.endswith(_COMPRESSED_ENDINGS)


def estimated_text_bytes(files: Sequence[ListedFile]) -> int:
    """Return an estimate of the text in these files in bytes, from their sizes."""
    return int(sum(file.bytes * (_EXPANSION if is_compressed(file.name) else 1) for file in files))


def proposed_shard_bytes(
    files: Sequence[ListedFile], *, train_tokens: int | None, val_tokens: int | None, token_bytes: int, shard_bytes: int
) -> int | None:
    """Return a `shard_bytes` with which the data set has fewer than 20,000 shards, or None if the given one is large enough.

    The number of tokens is estimated from the sizes of the files, unless there is a smaller budget.
    """
    tokens = estimated_text_bytes(files) // BYTES_PER_TOKEN
    if train_tokens is not None:
        tokens = min(tokens or train_tokens, train_tokens + (val_tokens or 0))
    if tokens * token_bytes <= MAX_SHARDS * shard_bytes:
        return None
    return -(-tokens * token_bytes // (MAX_SHARDS * _SHARD_BYTES_STEP)) * _SHARD_BYTES_STEP


def contiguous_runs(sizes: Sequence[int], parts: int) -> list[range]:
    """Return a range of files for each part, balanced by size. The ranges are consecutive and cover all files.

    Every range has at least one file, if there are as many files as parts. Each cut is at the start of the file that is nearest to the
    ideal cut. If all sizes are 0 (unknown), all files count the same.

    Args:
        sizes: The size of each file.
        parts: The number of parts.
    """
    weights = list(sizes) if any(sizes) else [1] * len(sizes)
    before = [0, *accumulate(weights)]
    total, count = before[-1], len(weights)
    cuts = [0]
    for number in range(1, parts):
        ideal = total * number  # in units of 1/parts, like before[...] * parts
        cut = bisect_left(before, ideal, key=lambda size: size * parts)
        if cut > 0 and ideal - before[cut - 1] * parts <= before[min(cut, count)] * parts - ideal:
            cut -= 1
        has_enough = count >= parts
        least, most = (cuts[-1] + 1, count - (parts - number)) if has_enough else (cuts[-1], count)
        cuts.append(min(max(cut, least), most))
    return [range(first, stop) for first, stop in zip(cuts, [*cuts[1:], count], strict=True)]


def divide_in_proportion(total: int, weights: Sequence[int]) -> list[int]:
    """Return `total` divided in proportion to the weights, by the largest remainder method. The shares add up to `total` exactly.

    Of equal remainders, the first one counts as larger. If all weights are 0, they count as equal.
    """
    weights = list(weights) if any(weights) else [1] * len(weights)
    whole = sum(weights)
    found = [total * weight // whole for weight in weights]
    order = sorted(range(len(weights)), key=lambda index: -(total * weights[index] % whole))
    for index in order[: total - sum(found)]:
        found[index] += 1
    return found
