"""Charts of measures as SVG, with colors of a style sheet. So they are light or dark like the reader's system.

chart.html draws them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from niels_cache_assets.show.wording import counted

WIDTH, HEIGHT = 720.0, 170.0  # of the area of a chart, without its labels
MARGIN = 46.0
_LABELS = 8
_APART = 54.0  # the least distance of the last label from the one before


class Bar(NamedTuple):
    """A bar of a chart, in the units of the drawing. `tone`: a class of the style sheet. `said`: what it shows, in words."""

    x: float
    y: float
    width: float
    height: float
    tone: str
    said: str


class Chart(NamedTuple):
    """A chart. `limit`: the place of the limit. `labels`: (place, text) below, and `heights`: (place, text) at the left."""

    bars: list[Bar]
    limit: float
    labels: list[tuple[float, str]]
    heights: list[tuple[float, str]]
    said: str


def shown(value: float, form: str = "number") -> str:
    """Return a measure as text: a whole number for a count, otherwise four digits."""
    return f"{value:,.0f}" if form == "count" else f"{value:.4g}"


def rule_chart(rule: Mapping[str, Any]) -> Chart:
    """Return the histogram of a measure, on a logarithmic scale. Documents that no other rule drops are drawn over all documents."""
    bins, form = rule["bins"], rule["form"]
    scale = _Scale(max((row["alone"] + row["anyway"] for row in bins), default=0))
    width = WIDTH / len(bins)
    bars: list[Bar] = []
    for number, row in enumerate(bins):
        place = _range(row["from"], row["to"], form)
        for tone, count, what in (
            ("anyway", row["alone"] + row["anyway"], "with those that other rules drop"),
            ("dropped" if row["drops"] else "kept", row["alone"], "that no other rule drops"),
        ):
            if count:
                height = scale.height(count)
                said = f"{place}: {counted(count, 'document')} {what}"
                bars.append(Bar(number * width, HEIGHT - height, max(width - 0.6, 0.5), height, tone, said))
    first = next(number for number, row in enumerate(bins) if row["drops"] != (rule["side"] == "below"))
    edges = [(number * width, row["from"]) for number, row in enumerate(bins) if row["from"] is not None]
    labels = _few([(at, shown(value, form)) for at, value in edges])
    if bins[-1]["to"] is None and edges:  # the last bar has everything from there on, so it may be the highest one
        last, value = edges[-1]
        labels = [label for label in labels if label[0] <= last - _APART] + [(last, f"{shown(value, form)}+")]
    return Chart(
        bars=bars,
        limit=first * width,
        labels=labels,
        heights=scale.labels(),
        said=f"Histogram of the measure of {rule['key']}, with the limit {shown(rule['limit'], form)}",
    )


def similarity_chart(duplicates: Mapping[str, Any]) -> Chart:
    """Return the histogram of the similarity of documents to their most similar earlier document, on a logarithmic scale."""
    rows, threshold = duplicates["histogram"], duplicates["threshold"]
    return _chart(
        [(row["from"], row["documents"], f"{row['from']:.2f} to {row['to']:.2f}") for row in rows],
        threshold,
        said=f"Histogram of the similarity of pairs, with the threshold {threshold}",
    )


def loss_chart(duplicates: Mapping[str, Any]) -> Chart:
    """Return the number of documents that are lost at each threshold, on a logarithmic scale."""
    rows, threshold = duplicates["lost"], duplicates["threshold"]
    return _chart(
        [(row["threshold"], row["documents"], f"threshold {row['threshold']:.2f}") for row in rows],
        threshold,
        said=f"Documents lost as near duplicates at each threshold, with the threshold {threshold}",
    )


def _chart(rows: Sequence[tuple[float, int, str]], threshold: float, *, said: str) -> Chart:
    scale, width = _Scale(max((count for _, count, _ in rows), default=0)), WIDTH / len(rows)
    bars = [
        Bar(
            number * width,
            HEIGHT - scale.height(count),
            max(width - 0.6, 0.5),
            scale.height(count),
            "dropped" if value >= threshold - 1e-9 else "kept",
            f"{place}: {counted(count, 'document')}",
        )
        for number, (value, count, place) in enumerate(rows)
        if count
    ]
    first = rows[0][0]
    return Chart(
        bars=bars,
        limit=(threshold - first) / (1 - first) * WIDTH,
        labels=_few([(number * width, f"{value:.2f}") for number, (value, _, _) in enumerate(rows)]),
        heights=scale.labels(),
        said=said,
    )


class _Scale:
    """A logarithmic scale from 0 to the largest count."""

    def __init__(self, most: int) -> None:
        self._most = most

    def height(self, count: int) -> float:
        return HEIGHT * math.log1p(count) / math.log1p(self._most) if self._most else 0.0

    def labels(self) -> list[tuple[float, str]]:
        """Return (place from the top, text) for 0, and for powers of ten."""
        powers = [10**power for power in range(len(str(self._most)))] if self._most else []
        return [(HEIGHT - self.height(count), f"{count:,}") for count in (0, *powers)]


def _range(low: float | None, high: float | None, form: str) -> str:
    if low is None or high is None:
        return f"below {shown(high or 0, form)}" if low is None else f"from {shown(low, form)}"
    return f"{shown(low, form)} to {shown(high, form)}"


def _few(labels: Iterable[tuple[float, str]]) -> list[tuple[float, str]]:
    found = list(labels)
    return found[:: max(1, math.ceil(len(found) / _LABELS))]
