"""The page of `niels-cache tune` as one self-contained HTML file, from the facts of corpus/tuning."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from niels_cache_assets.show.reports.charts import loss_chart, rule_chart, shown, similarity_chart
from niels_cache_assets.show.reports.page import rendered
from niels_cache_assets.show.wording import counted, label, reason, share_of

_LANGUAGES = 15


def tuning_path(root: Path, name: str) -> Path:
    """Return the default path of the page of a data set."""
    return root / "reports" / "tune" / f"{name}.html"


def render_tuning(found: Mapping[str, Any]) -> str:
    """Return the page. found: what `tuning` of corpus/tuning returned."""
    cleaning, duplicates = found["cleaning"], found["duplicates"]
    languages = list(cleaning["languages"].items()) if cleaning else []
    languages.sort(key=lambda each: (-each[1], each[0]))
    few = languages if len(languages) <= _LANGUAGES else languages[: _LANGUAGES - 1]
    others = sum(count for _, count in languages[len(few) :])
    return rendered(
        "tuning.html",
        ["page.css", "charts.css", "tuning.css"],
        found=found,
        charts={rule["key"]: rule_chart(rule) for rule in cleaning["rules"]} if cleaning else {},
        histogram=similarity_chart(duplicates) if duplicates else None,
        losses=loss_chart(duplicates) if duplicates else None,
        languages=[*few, *([("all others", others)] if others else [])],
        asked=sum(count for _, count in languages),
        shown=shown,
        counted=counted,
        label=label,
        reason=reason,
        share_of=share_of,
    )
