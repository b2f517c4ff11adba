"""The pictures of caches, tokenizers, corpora, mixtures and limits, as data (drawing.py), from facts that are already computed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from niels_cache_assets.base.wording import by_count, format_count, format_share, label
from niels_cache_assets.plots.drawing import Panel, Picture, Series, short_number, thin_ticks
from niels_cache_assets.plots.measures import CONTEXT, LENGTH_EDGES, MAX_TURNS, SHARE_BINS, CacheMeasures, ConversationMeasures
from niels_cache_runtime.format.layout import SIDES, Family

if TYPE_CHECKING:
    from niels_cache_assets.facts.mixture import MixturePlan

MAX_SOURCES = 20  # more bars are not legible
MAX_MIXED = 10  # each has three bars
MAX_REASONS = 15
_STAGE_TONES = {"source": "rest", "cleaning": "main", "duplicates": "warn"}


def cache_pictures(measures: CacheMeasures, family: Family, *, dropped: Mapping[str, int]) -> list[Picture]:
    """Return the pictures of one cache.

    Args:
        measures: Counts of the cache.
        family: Its family.
        dropped: Number of dropped documents or examples for each reason, from meta.json.
    """
    pictures = [_lengths(measures, cut=family == "sft")]
    if measures.conversations is not None:
        pictures.append(_conversations(measures.conversations, measures))
    kept, noun = (measures.items // len(SIDES), "pairs") if measures.noun == "sides" else (measures.items, measures.noun)
    reasons = [(reason, count, "cleaning") for reason, count in by_count(dropped)]
    return [*pictures, _frequency(measures), _reasons("dropped", reasons, kept + sum(dropped.values()), noun)]


def _lengths(measures: CacheMeasures, *, cut: bool) -> Picture:
    """Return a histogram of items by length in tokens, with half an octave per column.

    Items that are too long for a row of CONTEXT tokens have a color of their own.
    """
    filled, row = np.flatnonzero(measures.lengths).tolist(), int(np.searchsorted(LENGTH_EDGES, CONTEXT))
    around = [row - 2, row + 1] if cut else []
    first, end = min([*filled, *around], default=0), max([*filled, *around], default=-1) + 1
    edges = LENGTH_EDGES[first : end + 1].tolist()
    note = f"; T = {CONTEXT:,} cuts {format_share(measures.cut / measures.items) if measures.cut else 'none'}" if cut else ""
    panel = Panel(
        kind="columns",
        title=f"{measures.items:,} {measures.noun} by length{note}",
        series=[
            Series(measures.lengths[first:end].tolist(), ["warn" if cut and edge >= CONTEXT else "main" for edge in edges], measures.noun)
        ],
        names=[f"{low:,} to {high - 1:,} tokens" for low, high in pairwise(edges)],
        ticks=thin_ticks([(place, short_number(edge)) for place, edge in enumerate(edges) if edge.bit_count() == 1]),
        limit=(row - first, f"T = {CONTEXT:,}") if cut else None,
        across="tokens",
        empty_text=f"there are no {measures.noun}",
    )
    return Picture(title="lengths", alternative="Histogram of its documents or examples by length", panels=[panel])


def _frequency(measures: CacheMeasures) -> Picture:
    """Return how often the vocabulary piece of each rank 1, 2, 4, ... is used, on logarithmic axes.

    Zipf's law is a straight line on these axes.
    """
    counts = np.sort(measures.token_counts)[::-1]
    ranks = [2**power for power in range(measures.pieces_used.bit_length())]
    part = "" if measures.counted == measures.tokens else f" (of {format_share(measures.counted / measures.tokens)} of the tokens)"
    half = int(np.searchsorted(np.cumsum(counts), measures.counted / 2)) + 1
    panel = Panel(
        kind="columns",
        title=f"how often each piece is used: {measures.pieces_used_text} are used{part}",
        series=[Series([int(counts[rank - 1]) for rank in ranks], meaning="times")],
        names=[f"piece of rank {rank:,}" for rank in ranks],
        ticks=thin_ticks([(place + 0.5, short_number(rank)) for place, rank in enumerate(ranks)]),
        limit=(math.log2(half) + 0.5, f"{half:,} {'piece is' if half == 1 else 'pieces are'} half of all tokens") if ranks else None,
        across="rank of the piece",
        is_logarithmic=True,
        empty_text="there are no tokens",
    )
    alternative = "How often the piece of each rank is used, on logarithmic axes, on which Zipf's law is a straight line"
    return Picture(title="token frequency", alternative=alternative, panels=[panel])


def _conversations(conversations: ConversationMeasures, measures: CacheMeasures) -> Picture:
    """Return two panels: examples (or sides of pairs) by number of turns, and by their share of target tokens."""
    most = max(conversations.turns, default=1)
    turns = [*map(str, range(1, most + 1))]
    if most == MAX_TURNS:
        turns[-1] += "+"
    by_turns = Panel(
        kind="columns",
        title=f"{measures.noun} by {conversations.counted}",
        series=[Series([conversations.turns[turn] for turn in range(1, most + 1)], meaning=measures.noun)],
        names=[f"{turn} {conversations.counted}" for turn in turns],
        ticks=[
            (place + 0.5, turn) for place, turn in enumerate(turns) if most < 12 or place == 0 or (place + 1) % 5 == 0 or place == most - 1
        ],
        across=conversations.counted,
    )
    share = conversations.target_tokens / max(1, measures.counted)
    by_share = Panel(
        kind="columns",
        title=f"{measures.noun} by share of targets",
        series=[Series(conversations.target_shares.tolist(), meaning=measures.noun)],
        names=[f"{place / SHARE_BINS:.0%} to {(place + 1) / SHARE_BINS:.0%}" for place in range(SHARE_BINS)],
        ticks=[(place, f"{place / SHARE_BINS:.0%}") for place in range(0, SHARE_BINS + 1, SHARE_BINS // 4)],
        limit=(share * SHARE_BINS, f"{format_share(share)} of all tokens"),
        across=f"tokens of the {measures.noun.removesuffix('s')} that are targets",
    )
    alternative = "Histograms of its examples by turns and by the share of their tokens that are targets"
    return Picture(title="conversations", alternative=alternative, panels=[by_turns, by_share])


def _reasons(title: str, reasons: Sequence[tuple[str, int, str]], total: int, noun: str) -> Picture:
    """Return a bar for each (reason, count, stage) with its share of the `given` items. Reasons after the first MAX_REASONS share one."""
    shown = [(label(reason), count, _STAGE_TONES[stage]) for reason, count, stage in reasons[:MAX_REASONS]]
    if rest := reasons[MAX_REASONS:]:
        shown.append((f"{len(rest)} more", sum(count for _, count, _ in rest), "rest"))
    stages = {stage for *_, stage in reasons}
    panel = Panel(
        kind="bars",
        title=f"dropped, by reason (of {total:,} {noun})",
        series=[Series([count for _, count, _ in shown], [tone for *_, tone in shown], noun)],
        names=[reason for reason, *_ in shown],
        labels=[f"{count:,} ({format_share(count / total)})" for _, count, _ in shown],
        legend={tone: stage for stage, tone in _STAGE_TONES.items() if stage in stages} if len(stages) > 1 else {},
        empty_text="nothing was dropped",
    )
    return Picture(title=title, alternative="Bars: dropped documents or examples, by reason; the table has the figures", panels=[panel])


def ratios_picture(characters_per_token: Mapping[str, float]) -> Picture:
    """Return the characters per token of each source, of which the lowest are shown if there are many.

    A short bar means that the tokenizer suits the source badly.
    """
    rows = sorted(characters_per_token.items(), key=lambda row: (-row[1], row[0]))[-MAX_SOURCES:]
    of = f", the {len(rows)} lowest of {len(characters_per_token):,}" if len(rows) < len(characters_per_token) else ""
    panel = Panel(
        kind="bars",
        title=f"characters per token, by source{of} (newlines count, EOT does not)",
        series=[Series([value for _, value in rows])],
        names=[name for name, _ in rows],
        labels=[f"{value:.2f}" for _, value in rows],
        empty_text="nothing is built with it yet",
    )
    return Picture(title="characters per token", alternative="Bars: characters per token of each data set", panels=[panel])


def corpus_pictures(report: Mapping[str, Any]) -> list[Picture]:
    """Return the pictures of the report of a corpus (artifacts/corpus_facts.py): stages, reasons, lengths and, if searched, duplicates."""
    stages, rows = report["funnel"], report["lengths"]
    panels = list[Panel]()
    for key, title in (("documents", "documents"), ("bytes", "bytes of text")):
        values = [stage[key] for stage in stages]
        panels.append(
            Panel(
                kind="bars",
                title=title,
                series=[Series(values, ["rest", *["main"] * (len(stages) - 1)])],
                names=[stage["stage"] for stage in stages] if not panels else (),
                labels=[f"{short_number(value)} ({format_share(value, values[0])})" for value in values],
            )
        )
    lengths = Panel(
        kind="columns",
        title="documents by length",
        series=[
            Series([row["before"] for row in rows], "rest", "read"),
            Series([row["after"] for row in rows], "warn", stages[1]["stage"]),
        ],
        names=[f"{row['from']:,} to {row['below'] - 1:,} characters" for row in rows],
        ticks=thin_ticks([(place, short_number(row["from"])) for place, row in enumerate(rows)], 12),
        across="characters",
        legend={"rest": "read", "warn": stages[1]["stage"]},
    )
    reasons = [(row["reason"], row["documents"], row["stage"]) for row in report["reasons"]]
    pictures = [
        Picture(title="funnel", alternative="Bars: documents and bytes after each stage", panels=panels, shares=(3, 2)),
        _reasons("reasons", reasons, report["documents"]["given"], "documents"),
        Picture(title="lengths", alternative="Histogram of its documents by length, before and after cleaning", panels=[lengths]),
    ]
    if found := report["duplicates"]:
        across = sum(found["cluster_sizes_across"].values())
        bins = _binned(sorted((int(size), count) for size, count in found["cluster_sizes"].items()))
        clusters = Panel(
            kind="columns",
            title=f"clusters of duplicates by size, {across:,} across data sets",
            series=[Series([count for _, count in bins], "warn", "clusters")],
            names=[f"{label} documents" for label, _ in bins],
            ticks=[(place + 0.5, label) for place, (label, _) in enumerate(bins)],
            across="documents in the cluster",
            empty_text="no document has a duplicate",
        )
        pictures.append(Picture(title="duplicates", alternative="Clusters of duplicates by size", panels=[clusters]))
    return pictures


def _binned(sizes: Sequence[tuple[int, int]]) -> list[tuple[str, int]]:
    """Return (label, count) of each bin of cluster sizes.

    Sizes 2, 3 and 4 have their own bins. The bins of larger sizes end at powers of two, so that the axis stays legible.
    """
    bins: dict[tuple[int, int], int] = {}
    for size, count in sizes:
        low = size if size < 5 else max(5, 2 ** (size.bit_length() - 1))
        high = low if size < 5 else 2 ** size.bit_length() - 1
        bins[low, high] = bins.get((low, high), 0) + count
    return [
        (f"{low}" if low == high else f"{short_number(low)}-{short_number(high)}", count) for (low, high), count in sorted(bins.items())
    ]


def mixture_picture(mixture: MixturePlan) -> Picture:
    """Return three bars of shares and a bar of epochs for each source.

    If there are more than MAX_MIXED sources, those that repeat too often are shown, then the largest ones.
    """
    shown = sorted(mixture.sources, key=lambda source: (source.repeats_from is None, -source.actual))[:MAX_MIXED]
    shown = sorted(shown, key=mixture.sources.index)
    of = f" ({len(shown)} of {len(mixture.sources)})" if len(shown) < len(mixture.sources) else ""
    epochs = [source.epochs for source in shown]
    has_limit = mixture.max_epochs < 1.25 * max([*epochs, 1.0])
    shares = Panel(
        kind="bars",
        title=f"share of each data set{of}",
        series=[
            Series([source.available for source in shown], "rest", "available"),
            Series([source.configured for source in shown], "second", "configured"),
            Series([source.actual for source in shown], meaning="read"),
        ],
        names=[source.name for source in shown],
        labels=[format_share(source.actual) for source in shown],
        legend={"rest": "available", "second": "configured", "main": "read"},
    )
    times = Panel(
        kind="bars",
        title="times that it is read",
        series=[Series(epochs, ["main" if each.repeats_from is None else "warn" for each in shown])],
        labels=[f"{value:,.2f}" for value in epochs],
        limit=(mixture.max_epochs, f"max_epochs {mixture.max_epochs:g}") if has_limit else None,
    )
    alternative = f"{mixture.name}. Bars: shares of each data set, and how often each is read; the table has the figures."
    return Picture(title="shares and epochs", alternative=alternative, panels=[shares, times], shares=(3, 2))


def format_measure(value: float, form: str = "number") -> str:
    """Return a measure as text: a whole number for a count, otherwise four digits."""
    return f"{value:,.0f}" if form == "count" else f"{value:.4g}"


def limit_picture(rule: Mapping[str, Any]) -> Picture:
    """Return the histogram of a measure, on a logarithmic scale. Documents that no other rule drops are drawn over all documents."""
    bins, form, limit = rule["bins"], rule["form"], format_measure(rule["limit"], rule["form"])
    first = next(number for number, row in enumerate(bins) if row["drops"] != (rule["side"] == "below"))
    edges = [(number, format_measure(row["from"], form)) for number, row in enumerate(bins) if row["from"] is not None]
    ticks = thin_ticks(edges)
    if bins[-1]["to"] is None and edges:  # the last column has everything from there on, so it may be the highest one
        last, text = edges[-1]
        ticks = [tick for tick in ticks if tick[0] <= last - len(bins) / 12] + [(last, f"{text}+")]
    panel = Panel(
        kind="columns",
        title="documents by this measure, on a logarithmic scale",
        series=[
            Series([row["alone"] + row["anyway"] for row in bins], "rest", "documents with those that other rules drop"),
            Series(
                [row["alone"] for row in bins], ["warn" if row["drops"] else "main" for row in bins], "documents that no other rule drops"
            ),
        ],
        names=[_range(row["from"], row["to"], form) for row in bins],
        ticks=ticks,
        limit=(first, limit),
        legend={"main": "stays", "warn": "only this rule drops it", "rest": "another rule drops it"},
        is_logarithmic=True,
    )
    return Picture(title=rule["key"], alternative=f"Histogram of the measure of {rule['key']}, with the limit {limit}", panels=[panel])


def _range(low: float | None, high: float | None, form: str) -> str:
    if low is None or high is None:
        return f"below {format_measure(high or 0, form)}" if low is None else f"from {format_measure(low, form)}"
    return f"{format_measure(low, form)} to {format_measure(high, form)}"


def similarity_pictures(duplicates: Mapping[str, Any]) -> list[Picture]:
    """Return documents by the similarity to their most similar earlier document, and the documents lost at each threshold."""
    similar = [(row["from"], row["documents"], f"{row['from']:.2f} to {row['to']:.2f}") for row in duplicates["histogram"]]
    lost = [(row["threshold"], row["documents"], f"threshold {row['threshold']:.2f}") for row in duplicates["lost"]]
    return [
        _by_similarity(similar, duplicates["threshold"], "documents by similarity"),
        _by_similarity(lost, duplicates["threshold"], "documents lost as near duplicates at each threshold"),
    ]


def _by_similarity(rows: Sequence[tuple[float, int, str]], threshold: float, title: str) -> Picture:
    first = rows[0][0]
    panel = Panel(
        kind="columns",
        title=f"{title}, on a logarithmic scale",
        series=[Series([row[1] for row in rows], ["warn" if row[0] >= threshold - 1e-9 else "main" for row in rows], "documents")],
        names=[row[2] for row in rows],
        ticks=thin_ticks([(place, f"{row[0]:.2f}") for place, row in enumerate(rows)]),
        limit=((threshold - first) / (1 - first) * len(rows), f"threshold {threshold:g}"),
        is_logarithmic=True,
    )
    alternative = f"Histogram: {title}; {format_count(sum(row[1] for row in rows), 'document')}, with the threshold {threshold}"
    return Picture(title=title, alternative=alternative, panels=[panel])
