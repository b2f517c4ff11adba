"""The pictures of caches, tokenizers, corpora, mixtures and limits, as data (drawing.py), from facts that are already computed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from niels_cache_assets.base.wording import by_count, format_share, label
from niels_cache_pages.drawing import MAIN, REST, SECOND, WARNED, Picture, short_number
from niels_cache_pages.measures import CONTEXT, LENGTH_EDGES, MAX_TURNS, SHARE_BINS, CacheMeasures, ConversationMeasures
from niels_cache_runtime.format.layout import SIDES, Family

if TYPE_CHECKING:
    from niels_cache_assets.facts.mixture import MixturePlan

MAX_SOURCES = 20  # more bars are not legible
MAX_MIXED = 10  # each has three bars
MAX_REASONS = 15
_STAGE_COLORS = {"source": REST, "cleaning": MAIN, "duplicates": WARNED}


def cache_pictures(measures: CacheMeasures, family: Family, *, dropped: Mapping[str, int]) -> list[Picture]:
    """Return the pictures of one cache.

    Args:
        measures: Counts of the cache.
        family: Its family.
        dropped: Number of dropped documents or examples for each reason, from meta.json.
    """
    pictures = [_lengths(measures, cut=family == "sft")]
    if measures.conversations is not None:
        pictures += _conversations(measures.conversations, measures)
    kept, noun = (measures.items // len(SIDES), "pairs") if measures.noun == "sides" else (measures.items, measures.noun)
    reasons = [(reason, count, "cleaning") for reason, count in by_count(dropped)]
    return [*pictures, _frequency(measures), _reasons(reasons, kept + sum(dropped.values()), noun)]


def _lengths(measures: CacheMeasures, *, cut: bool) -> Picture:
    """Return a histogram of items by length, with half an octave per column.

    Items that are too long for a row of CONTEXT tokens have a color of their own.
    """
    filled, row = np.flatnonzero(measures.lengths).tolist(), int(np.searchsorted(LENGTH_EDGES, CONTEXT))
    around = [row - 2, row + 1] if cut else []
    first, end = min([*filled, *around], default=0), max([*filled, *around], default=-1) + 1
    edges = LENGTH_EDGES[first : end + 1].tolist()
    note = f"; T = {CONTEXT:,} cuts {format_share(measures.cut / measures.items) if measures.cut else 'none'}" if cut else ""
    return Picture(
        title=f"{measures.items:,} {measures.noun} by length in tokens{note}",
        names=[f"{low:,} to {high - 1:,} tokens" for low, high in pairwise(edges)],
        values=measures.lengths[first:end].tolist(),
        colors=[WARNED if cut and edge >= CONTEXT else MAIN for edge in edges[:-1]],
        ticks=[(place, short_number(edge)) for place, edge in enumerate(edges) if edge.bit_count() == 1],
        limit=(row - first, f"T = {CONTEXT:,}") if cut else None,
    )


def _frequency(measures: CacheMeasures) -> Picture:
    """Return how often the vocabulary piece of each rank 1, 2, 4, ... is used, on logarithmic axes.

    Zipf's law is a straight line on these axes.
    """
    counts = np.sort(measures.token_counts)[::-1]
    ranks = [2**power for power in range(measures.pieces_used.bit_length())]
    part = "" if measures.counted == measures.tokens else f" in {format_share(measures.counted / measures.tokens)} of the tokens"
    half = int(np.searchsorted(np.cumsum(counts), measures.counted / 2)) + 1
    return Picture(
        title=f"uses of the piece of each rank; {measures.pieces_used_text} are used{part}",
        names=[f"piece of rank {rank:,}" for rank in ranks],
        values=[int(counts[rank - 1]) for rank in ranks],
        ticks=[(place + 0.5, short_number(rank)) for place, rank in enumerate(ranks)],
        limit=(math.log2(half) + 0.5, f"{half:,} {'piece is' if half == 1 else 'pieces are'} half of all tokens") if ranks else None,
        is_logarithmic=True,
    )


def _conversations(conversations: ConversationMeasures, measures: CacheMeasures) -> list[Picture]:
    """Return examples (or sides of pairs) by number of turns, and by their share of target tokens."""
    most = max(conversations.turns, default=1)
    turns = [f"{turn}{'+' if turn == MAX_TURNS else ''}" for turn in range(1, most + 1)]
    share = conversations.target_tokens / max(1, measures.counted)
    return [
        Picture(
            title=f"{measures.noun} by {conversations.counted}",
            names=[f"{turn} {conversations.counted}" for turn in turns],
            values=[conversations.turns[turn] for turn in range(1, most + 1)],
            ticks=[(place + 0.5, turn) for place, turn in enumerate(turns)],
        ),
        Picture(
            title=f"{measures.noun} by the share of their tokens that are targets",
            names=[f"{place / SHARE_BINS:.0%} to {(place + 1) / SHARE_BINS:.0%}" for place in range(SHARE_BINS)],
            values=conversations.target_shares.tolist(),
            ticks=[(place, f"{place / SHARE_BINS:.0%}") for place in range(0, SHARE_BINS + 1, SHARE_BINS // 4)],
            limit=(share * SHARE_BINS, f"{format_share(share)} of all tokens"),
        ),
    ]


def _reasons(reasons: Sequence[tuple[str, int, str]], total: int, noun: str) -> Picture:
    """Return a bar for each (reason, count, stage) with its share of the `total` items. Reasons after the first MAX_REASONS share one."""
    shown = [*reasons[:MAX_REASONS]]
    if rest := reasons[MAX_REASONS:]:
        shown.append((f"{len(rest)} more", sum(count for _, count, _ in rest), "source"))
    stages = {stage for *_, stage in reasons}
    return Picture(
        kind="bars",
        title=f"dropped, by reason (of {total:,} {noun})",
        names=[label(reason) for reason, *_ in shown],
        values=[count for _, count, _ in shown],
        colors=[_STAGE_COLORS[stage] for *_, stage in shown],
        labels=[f"{count:,} ({format_share(count / total)})" for _, count, _ in shown],
        legend={color: stage for stage, color in _STAGE_COLORS.items() if stage in stages} if len(stages) > 1 else {},
    )


def ratios_picture(characters_per_token: Mapping[str, float]) -> Picture:
    """Return the characters per token of each source, of which the lowest are shown if there are many.

    A short bar means that the tokenizer suits the source badly.
    """
    rows = sorted(characters_per_token.items(), key=lambda row: (-row[1], row[0]))[-MAX_SOURCES:]
    of = f", the {len(rows)} lowest of {len(characters_per_token):,}" if len(rows) < len(characters_per_token) else ""
    return Picture(
        kind="bars",
        title=f"characters per token, with newlines and without EOT{of}",
        names=[name for name, _ in rows],
        values=[value for _, value in rows],
        labels=[f"{value:.2f}" for _, value in rows],
    )


def corpus_pictures(report: Mapping[str, Any]) -> list[Picture]:
    """Return the pictures of the report of a corpus (artifacts/corpus_report.py): stages, reasons, lengths and, if searched, duplicates."""
    stages, rows = report["funnel"], report["lengths"]
    pictures = [
        Picture(
            kind="bars",
            title=f"{title} after each stage",
            names=[stage["stage"] for stage in stages],
            values=[stage[key] for stage in stages],
            colors=[REST, *[MAIN] * (len(stages) - 1)],
            labels=[f"{short_number(stage[key])} ({format_share(stage[key], stages[0][key])})" for stage in stages],
        )
        for key, title in (("documents", "documents"), ("bytes", "bytes of text"))
    ]
    reasons = [(row["reason"], row["documents"], row["stage"]) for row in report["reasons"]]
    lengths = Picture(
        title="documents by length in characters",
        names=[f"{row['from']:,} to {row['below'] - 1:,} characters" for row in rows],
        values=[row["after"] for row in rows],
        rest=[row["before"] - row["after"] for row in rows],
        ticks=[(place, short_number(row["from"])) for place, row in enumerate(rows)],
        legend={MAIN: stages[1]["stage"], REST: "dropped"},
    )
    pictures += [_reasons(reasons, report["documents"]["given"], "documents"), lengths]
    if found := report["duplicates"]:
        across = sum(found["cluster_sizes_across"].values())
        bins: dict[tuple[int, int], int] = {}  # sizes 2, 3 and 4 alone, and then up to powers of two, so that the axis stays legible
        for size, count in sorted((int(size), count) for size, count in found["cluster_sizes"].items()):
            low = size if size < 5 else max(5, 2 ** (size.bit_length() - 1))
            high = low if size < 5 else 2 ** size.bit_length() - 1
            bins[low, high] = bins.get((low, high), 0) + count
        labels = [f"{low}" if low == high else f"{short_number(low)}-{short_number(high)}" for low, high in bins]
        pictures.append(
            Picture(
                title=f"clusters of duplicates by number of documents, {across:,} across data sets",
                names=[f"{label} documents" for label in labels],
                values=[*bins.values()],
                colors=WARNED,
                ticks=[(place + 0.5, label) for place, label in enumerate(labels)],
            )
        )
    return pictures


def mixture_pictures(mixture: MixturePlan) -> list[Picture]:
    """Return three bars of shares for each source, and a bar of epochs.

    If there are more than MAX_MIXED sources, those that repeat too often are shown, then the largest ones.
    """
    shown = sorted(mixture.sources, key=lambda source: (source.repeats_from is None, -source.actual))[:MAX_MIXED]
    shown = sorted(shown, key=mixture.sources.index)
    of = f" ({len(shown)} of {len(mixture.sources)})" if len(shown) < len(mixture.sources) else ""
    epochs = [source.epochs for source in shown]
    has_limit = mixture.max_epochs < 1.25 * max([*epochs, 1.0])
    shares = [share for source in shown for share in (source.available, source.configured, source.actual)]
    return [
        Picture(
            kind="bars",
            title=f"share of each data set{of}",
            names=[source.name for source in shown for _ in range(3)],
            values=shares,
            colors=[REST, SECOND, MAIN] * len(shown),
            labels=[format_share(share) for share in shares],
            ticks=[(3 * place, source.name) for place, source in enumerate(shown)],
            legend={REST: "available", SECOND: "configured", MAIN: "read"},
        ),
        Picture(
            kind="bars",
            title=f"times that each data set is read{of}",
            names=[source.name for source in shown],
            values=epochs,
            colors=[MAIN if source.repeats_from is None else WARNED for source in shown],
            labels=[f"{value:,.2f}" for value in epochs],
            limit=(mixture.max_epochs, f"max_epochs {mixture.max_epochs:g}") if has_limit else None,
        ),
    ]


def format_measure(value: float, form: str = "number") -> str:
    """Return a measure as text: a whole number for a count, otherwise four digits."""
    return f"{value:,.0f}" if form == "count" else f"{value:.4g}"


def limit_picture(rule: Mapping[str, Any]) -> Picture:
    """Return the histogram of a measure, on a logarithmic scale. Documents that another rule drops are stacked on those that none does."""
    bins, form = rule["bins"], rule["form"]
    first = next(number for number, row in enumerate(bins) if row["drops"] != (rule["side"] == "below"))
    ticks = [(number, format_measure(row["from"], form)) for number, row in enumerate(bins) if row["from"] is not None]
    if bins[-1]["to"] is None and ticks:  # the last column has everything from there on, so it may be the highest one
        place, text = ticks.pop()
        ticks.append((place, f"{text}+"))
    return Picture(
        title=f"documents by the measure of {rule['key']}, on a logarithmic scale",
        names=[" ".join(f"{word} {format_measure(row[word], form)}" for word in ("from", "to") if row[word] is not None) for row in bins],
        values=[row["alone"] for row in bins],
        rest=[row["anyway"] for row in bins],
        colors=[WARNED if row["drops"] else MAIN for row in bins],
        ticks=ticks,
        limit=(first, f"limit {format_measure(rule['limit'], form)}"),
        legend={MAIN: "stays", WARNED: "only this rule drops it", REST: "another rule drops it"},
        is_logarithmic=True,
    )


def similarity_pictures(duplicates: Mapping[str, Any]) -> Iterator[Picture]:
    """Yield documents by the similarity to their most similar earlier document, and the documents lost at each threshold."""
    threshold = duplicates["threshold"]
    for title, key, rows in (
        ("documents by similarity", "from", duplicates["histogram"]),
        ("documents lost as near duplicates at each threshold", "threshold", duplicates["lost"]),
    ):
        steps = [row[key] for row in rows]
        yield Picture(
            title=f"{title}, on a logarithmic scale",
            names=[f"{key} {step:.2f}" for step in steps],
            values=[row["documents"] for row in rows],
            colors=[WARNED if step >= threshold - 1e-9 else MAIN for step in steps],
            ticks=[(place, f"{step:.2f}") for place, step in enumerate(steps) if place % 10 == 0],
            limit=((threshold - steps[0]) / (1 - steps[0]) * len(steps), f"threshold {threshold:g}"),
            is_logarithmic=True,
        )
