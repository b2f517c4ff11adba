"""The plan of a data set in parts: which part reads which files, and how many tokens it may have.

The plan is made once, from the list of files of one revision. It is one JSON file, without a clock and without addresses on this machine.
Everything that is built afterwards reads this file, and no one lists the files again. Making a plan costs no more than the list of files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from niels_cache_assets.disk.space import BYTES_PER_TOKEN
from niels_cache_assets.parts.layout import part_name
from niels_cache_assets.parts.shares import contiguous_runs, shares
from niels_cache_assets.sources.types import ListedFile
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import Split
from niels_cache_runtime.format.meta import Meta

CODE_VERSION = "1"  # raise this by hand if a plan of the same files divides them in a different way, or if parts write different bytes
MOST_SHARDS = 20_000
_UNPACKED = 2.5  # bytes of text for one byte of a compressed file, roughly
_PACKED = (".parquet", ".gz", ".bz2", ".xz", ".zst")
_EVEN = 2**22  # a proposed shard size is a multiple of 4 MiB


@dataclass(frozen=True, kw_only=True)
class PlannedPart:
    """A part in a plan.

    plan: the fingerprint of the group of parts that this part belongs to. revision, text_field: those of this group; see PlannedGroup.
    files: its files; those that upstream puts into val come first.
    train_tokens, val_tokens: its share of the budgets; None without a budget.
    """

    number: int
    plan: str
    revision: str | None
    text_field: str | None
    files: tuple[ListedFile, ...]
    train_tokens: int | None
    val_tokens: int | None

    @property
    def name(self) -> str:
        """The name of the part's folder."""
        return part_name(self.number)

    def seed(self, seed: int) -> int:
        """Return the seed of this part's shuffle, below 2^48. It depends only on the seed of the configuration and the number."""
        return int.from_bytes(hashlib.sha256(f"{seed}\0{self.number}".encode()).digest()[:6])


@dataclass(frozen=True, kw_only=True)
class PlannedGroup:
    """The parts that were planned together: the first ones, or those of one table `added`. Nothing that is added later changes a group.

    fingerprint: sha256 over everything that decided the group; `made_of` has the values. revision: the revision of upstream that was
    listed. text_field: the field of the text in every file; None if no file holds rows. listed: the files, in the order of the listing.
    """

    fingerprint: str
    made_of: Mapping[str, Any]
    revision: str | None
    text_field: str | None
    listed: tuple[ListedFile, ...]
    parts: tuple[PlannedPart, ...]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A plan that was read from its file.

    meta: its content. groups: the first parts, and then those of each table `added`. A data set that never grew has one group.
    """

    meta: Meta
    groups: tuple[PlannedGroup, ...]

    @classmethod
    def of(cls, meta: Meta) -> Plan:
        """Return the plan in the content of its file. Raises NielsCacheError if the content has a different form."""
        try:
            groups, first, listed = [], 0, 0
            whole = {**meta, "parts": len(meta["parts"]), "files": len(meta["listed"])}
            for group in meta.get("groups", [whole]):
                entries, files = meta["parts"][first : first + group["parts"]], meta["listed"][listed : listed + group["files"]]
                groups.append(_group(group, entries, files, first_part=first, first_file=listed))
                first, listed = first + len(entries), listed + len(files)
            if (first, listed) != (len(meta["parts"]), len(meta["listed"])):
                raise ValueError(f"{first} parts of {listed} files")
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise NielsCacheError(f"the plan of {meta.get('dataset_name')} has an unknown form ({error!r}); make it again") from error
        return cls(meta=meta, groups=tuple(groups))

    @property
    def fingerprint(self) -> str:
        """The sha256 over everything that decided the plan."""
        return str(self.meta["fingerprint"])

    @property
    def first(self) -> PlannedGroup:
        """The parts that the data set had before it grew."""
        return self.groups[0]

    @property
    def parts(self) -> tuple[PlannedPart, ...]:
        """All parts."""
        return tuple(part for group in self.groups for part in group.parts)

    @property
    def revision(self) -> str | None:
        """The revision of upstream that was listed."""
        revision: str | None = self.meta["dataset_revision"]
        return revision


def _group(
    group: Mapping[str, Any], entries: Sequence[Mapping[str, Any]], listed: Sequence[Mapping[str, Any]], *, first_part: int, first_file: int
) -> PlannedGroup:
    """Return a group from its entry, from the entries of its parts, and from its files."""
    files = tuple(ListedFile(**entry) for entry in listed)
    of_all: dict[str, Any] = {"revision": group["dataset_revision"], "text_field": group["text_field"]}
    parts = tuple(
        PlannedPart(
            number=number,
            plan=group["fingerprint"],
            files=tuple(files[index - first_file] for first, stop in entry["files"] for index in range(first, stop)),
            train_tokens=entry["train_tokens"],
            val_tokens=entry["val_tokens"],
            **of_all,
        )
        for number, entry in enumerate(entries, start=first_part)
    )
    return PlannedGroup(fingerprint=group["fingerprint"], made_of=group.get("made_of", {}), listed=files, parts=parts, **of_all)


def joined_groups(groups: Sequence[PlannedGroup]) -> dict[str, Any]:
    """Return the keys `listed` and `parts` of a plan, and `groups` if there are several."""
    listed: list[dict[str, Any]] = []
    parts: list[dict[str, Any]] = []
    for group in groups:
        number = {id(file): index for index, file in enumerate(group.listed, start=len(listed))}
        for part in group.parts:
            parts.append(
                {
                    "files": _runs([number[id(file)] for file in part.files]),
                    "train_tokens": part.train_tokens,
                    "val_tokens": part.val_tokens,
                }
            )
        listed += [file._asdict() for file in group.listed]
    described = [
        {
            "parts": len(group.parts),
            "files": len(group.listed),
            "fingerprint": group.fingerprint,
            "made_of": dict(group.made_of),
            "dataset_revision": group.revision,
            "text_field": group.text_field,
        }
        for group in groups
    ]
    return {"listed": listed, "parts": parts, **({"groups": described} if len(groups) > 1 else {})}


def _runs(indices: Sequence[int]) -> list[list[int]]:
    """Return these ascending or separate indices as runs [first, stop]."""
    runs: list[list[int]] = []
    for index in indices:
        if runs and runs[-1][1] == index:
            runs[-1][1] += 1
        else:
            runs.append([index, index + 1])
    return runs


def plan_parts(files: Sequence[ListedFile], parts: int, *, train_tokens: int | None, val_tokens: int | None) -> dict[str, Any]:
    """Return the keys `listed` and `parts` of a plan. Each part has a contiguous run of the files of each split, balanced by bytes.

    Raises NielsCacheError if there are fewer files than parts, or if a part gets no token of a budget.
    """
    splits: list[Split | None] = list(dict.fromkeys(file.split for file in files))
    main = "train" if "train" in splits else None
    count = sum(file.split == main for file in files)
    if parts > count:
        raise NielsCacheError(f"parts is {parts}, but there are only {count} files to divide; set parts to at most {count}")
    runs: list[list[tuple[int, int]]] = [[] for _ in range(parts)]
    for split in splits:
        chosen = [index for index, file in enumerate(files) if file.split == split]  # the files of a split are listed together
        for number, run in enumerate(contiguous_runs([files[index].bytes for index in chosen], parts)):
            if len(run):
                runs[number].append((chosen[run.start], chosen[run.stop - 1] + 1))
    weights = [sum(file.bytes for first, stop in run for file in files[first:stop]) for run in runs]
    budgets = {name: None if total is None else shares(total, weights) for name, total in _budgets(train_tokens, val_tokens).items()}
    for name, of_parts in budgets.items():
        if of_parts is not None and name == "train_tokens" and not all(of_parts):
            number = of_parts.index(0)
            untold = next((file.name for first, stop in runs[number] for file in files[first:stop] if not file.bytes), None)
            why = "" if untold is None else f" ({untold} is empty, or its server tells no size)"
            raise NielsCacheError(
                f"{part_name(number)} has so few bytes that it gets no share of the {sum(of_parts):,} {name}{why}; lower parts"
            )
    return {
        "listed": [file._asdict() for file in files],
        "parts": [
            {"files": run, **{name: None if of_parts is None else of_parts[number] for name, of_parts in budgets.items()}}
            for number, run in enumerate(runs)
        ],
    }


def _budgets(train_tokens: int | None, val_tokens: int | None) -> Mapping[str, int | None]:
    return {"train_tokens": train_tokens, "val_tokens": val_tokens or None}


def is_compressed(name: str) -> bool:
    """Return whether the text in a file of this name is larger than the file."""
    return name.endswith(_PACKED)


def estimated_text_bytes(files: Sequence[ListedFile]) -> int:
    """Return a guess of the bytes of text in these files, from their sizes."""
    return int(sum(file.bytes * (_UNPACKED if is_compressed(file.name) else 1) for file in files))


def proposed_shard_bytes(
    files: Sequence[ListedFile], *, train_tokens: int | None, val_tokens: int | None, token_bytes: int, shard_bytes: int
) -> int | None:
    """Return a `shard_bytes` with which the data set stays below 20,000 shards. Return None if `shard_bytes` is enough.

    The number of tokens is a guess from the sizes of the files, unless there is a smaller budget.
    """
    tokens = estimated_text_bytes(files) // BYTES_PER_TOKEN
    if train_tokens is not None:
        tokens = min(tokens or train_tokens, train_tokens + (val_tokens or 0))
    if tokens * token_bytes <= MOST_SHARDS * shard_bytes:
        return None
    return -(-tokens * token_bytes // (MOST_SHARDS * _EVEN)) * _EVEN
