"""The page about a classifier (niels_cache_cleaning/classifier_report.py): its thresholds, its curve, and documents with their scores."""

from collections.abc import Mapping, Sequence
from typing import Any

from niels_cache_assets.base.wording import file_size, format_count, format_share
from niels_cache_pages.drawing import MAIN, REST, WARNED, Picture
from niels_cache_pages.page import render_template

# The curve of precision and recall, in points.
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 300, 50, 20, 32, 36


def render(report: Mapping[str, Any]) -> str:
    """Return the page."""
    return render_template(
        "classifier.html",
        report=report,
        lines=_facts(report),
        file_size=file_size,
        share_of=format_share,
        stays=report["stays"],
        unit=report["stays"]["unit"],
        histograms=_histograms(report["histogram"]),
        tokens=_tokens(report["stays"]),
        curve=[{**point, **_place(point["recall"], point["precision"])} for point in report["curve"]],
        marks=[{**row, **_place(row["recall"], row["precision"])} for row in report["thresholds"] if row["precision"] is not None],
        area={"width": WIDTH, "height": HEIGHT, "left": LEFT, "top": TOP, "right": WIDTH - RIGHT, "bottom": HEIGHT - BOTTOM},
        steps=[{"label": f"{step / 5:.1f}", **_place(step / 5, step / 5)} for step in range(6)],
    )


def _place(recall: float, precision: float) -> dict[str, float]:
    """Return where a point of the curve is drawn."""
    bottom = HEIGHT - BOTTOM
    return {"x": round(LEFT + recall * (WIDTH - RIGHT - LEFT), 1), "y": round(bottom - precision * (bottom - TOP), 1)}


def _histograms(bins: Sequence[Mapping[str, Any]]) -> list[Picture]:
    ticks = [(place, f"{each['from']:g}") for place, each in enumerate(bins) if place % 4 == 0] + [(len(bins), "1")]
    return [
        Picture(
            title=f"{sum(each[side] for each in bins):,} {side} documents by score, on a logarithmic scale",
            names=[f"{side} documents, {each['from']:g} to {each['to']:g}" for each in bins],
            values=[each[side] for each in bins],
            colors=color,
            ticks=ticks,
            is_logarithmic=True,
        )
        for side, color in (("good", MAIN), ("bad", WARNED))
    ]


def _tokens(stays: Mapping[str, Any]) -> Picture:
    rows = [{"threshold": 0, **stays}, *stays["thresholds"]]
    return Picture(
        title=f"{stays['unit']} that stay at each threshold",
        names=[f"above {row['threshold']:.2f}" if row["threshold"] else "all" for row in rows],
        values=[row["unique_tokens"] for row in rows],
        rest=[row["tokens"] - row["unique_tokens"] for row in rows],
        ticks=[(place + 0.5, f"{row['threshold']:g}" if place else "all") for place, row in enumerate(rows)],
        legend={MAIN: "unique", REST: "copies"},
    )


def _facts(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    facts = [("label of good documents", report["label"]), ("sha256", report["sha256"])]
    unreadable = [f"{count:,} {reason} ({side})" for side, row in report["sides"].items() for reason, count in row["unreadable"].items()]
    if unreadable:
        facts.append(("dropped when read", ", ".join(unreadable)))
    if report["in_both"]:
        facts.append(("in both good and bad", f"{format_count(report['in_both'], 'text')}, left out"))
    if training := report.get("training"):
        names = ("dim", "epochs", "word_ngrams", "lr", "buckets", "seed")
        facts += [("learned from", training["note"]), ("settings", ", ".join(f"{name} {training[name]}" for name in names))]
    return facts
