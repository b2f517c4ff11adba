"""The drops of a build in words: a neutral line about those that the settings request, and a warning for each other reason.

A reason is worth a warning if it takes more than 1% of the items, or if all unrequested reasons together take more than 5%. Items of val
count on their own as far as their split is known, because a val of few documents could lose most of them unnoticed. A file that gave
nothing is always reported. All of it comes from meta.json.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from niels_cache_assets.base.documents import DROPPED_OF_VAL, FILES_WITHOUT_ITEMS, FIRST_DROPPED
from niels_cache_assets.base.reasons import explain, is_asked
from niels_cache_assets.base.wording import by_count, format_count, format_list, format_share, label
from niels_cache_runtime.format.layout import SPLITS
from niels_cache_runtime.format.meta import Meta

MAX_OF_ONE_REASON = 0.01
MAX_OF_ALL_REASONS = 0.05


@dataclass(frozen=True, kw_only=True)
class DropSummary:
    """The drops of a build.

    Attributes:
        requested: A line about those that the settings request, or None.
        warnings: A line for each other reason.
    """

    requested: str | None = None
    warnings: tuple[str, ...] = ()


NO_DROPS = DropSummary()


def summarize_drops(meta: Meta, *, already_reported: Mapping[str, int] | None = None) -> DropSummary:
    """Return what the build with this meta.json left out: nothing for a folder that is neither a data set nor a corpus.

    Args:
        meta: The meta.json.
        already_reported: Counts of which another build has already warned, such as the corpus of a data set; by default none.
    """
    kept = _kept(meta)
    if kept is None or not isinstance(meta.get("dropped"), Mapping):
        return NO_DROPS
    noun, facts = "conversation" if meta["kind"] == "sft" else "document", meta.get("facts") or {}
    dropped: dict[str, int] = {reason: count for reason, count in meta["dropped"].items() if count}
    of_val: Mapping[str, int] = facts.get(DROPPED_OF_VAL, {})
    first_examples: Mapping[str, str] = facts.get(FIRST_DROPPED, {})
    unasked = {reason: count - (already_reported or {}).get(reason, 0) for reason, count in dropped.items() if not is_asked(reason)}
    given = {"val": kept["val"] + sum(of_val.values()), "train": kept["train"] + sum(dropped.values()) - sum(of_val.values())}
    by_split = {
        "train": {reason: count - of_val.get(reason, 0) for reason, count in unasked.items()},
        "val": {reason: count for reason, count in of_val.items() if unasked.get(reason)},
    }
    if not of_val:  # the splits of the dropped items are not known
        given, by_split = {"all": sum(kept.values()) + sum(dropped.values())}, {"all": unasked}
    warnings = [line for split, counts in by_split.items() for line in _warnings(counts, given[split], split, noun, first_examples)]
    return DropSummary(
        requested=_requested_line(dropped, meta, sum(kept.values()), noun), warnings=(*warnings, *_files_without_items_line(facts, noun))
    )


def _kept(meta: Meta) -> dict[str, int] | None:
    """Return the number of items of each split, or None if the folder has none. A corpus has no splits yet."""
    if not meta.get("built", True) or meta.get("kind") not in ("pretrain", "sft", "corpus"):
        return None
    documents = meta.get("documents") or {}
    found: dict[str, Any] = {split: meta.get(f"{split}_examples", documents.get(split)) for split in SPLITS}
    found = {"train": documents["kept"], "val": 0} if "kept" in documents else found
    return None if None in found.values() else found


def _requested_line(dropped: Mapping[str, int], meta: Meta, kept: int, noun: str) -> str | None:
    requested = [(reason, count) for reason, count in by_count(dropped) if is_asked(reason)]
    cut = sum((meta.get("cut") or {}).values())
    parts = []
    if requested:
        total, given = sum(count for _, count in requested), kept + sum(dropped.values())
        parts.append(
            f"{total:,} of {format_count(given, noun)} ({format_list([f'{label(reason)} {count:,}' for reason, count in requested])})"
        )
    if cut:
        parts.append(f"{format_count(cut, noun)} cut by token budgets")
    return f"left out as the settings ask: {'; '.join(parts)}" if parts else None


def _warnings(counts: Mapping[str, int], given: int, split: str, noun: str, first_examples: Mapping[str, str]) -> list[str]:
    """Return a line for each reason that takes too much of a split, and one line for all others if all together take too much."""

    def example(reason: str) -> str:
        return f", first in {first_examples[reason]}" if reason in first_examples else ""

    ordered = [(reason, count) for reason, count in by_count(counts) if count > 0]
    items = format_count(given, noun)
    frequent = [(reason, count) for reason, count in ordered if count > MAX_OF_ONE_REASON * given]
    lines = []
    for reason, count in frequent:
        share = f"{count:,} of {items}{'' if split == 'all' else f' of {split}'} ({format_share(count, given)})"
        lines.append("; ".join(filter(None, [f"left out {share} as {label(reason)}{example(reason)}", explain(reason)])))
    rare = [f"{label(reason)} {count:,}{example(reason)}" for reason, count in ordered[len(frequent) :]]
    if rare and sum(counts.values()) > MAX_OF_ALL_REASONS * given:
        of = f"of {'' if split == 'all' else f'{split}: '}{items}"
        reasons = f"{'other ' if frequent else ''}reasons of less than {MAX_OF_ONE_REASON:.0%} each"
        lines.append(f"left out, {of}, for {reasons}: {format_list(rare)}")
    return lines


def _files_without_items_line(facts: Mapping[str, Any], noun: str) -> list[str]:
    found = facts.get(FILES_WITHOUT_ITEMS)
    if not found:
        return []
    others = f" and {format_count(found['files'] - 1, 'other file')}" if found["files"] > 1 else ""
    return [f"{found['first']}{others} gave no {noun} at all; check the settings of the data set, or leave such files out"]
