"""The pages of the search that `niels-cache ui` serves: the places of a text, and a document (niels_cache_inspection/web.py)."""

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

from niels_cache_assets.tokenizer.decoding import spell_controls
from niels_cache_pages.page import render_template

_DEFAULTS: dict[str, Any] = {"problem": None, "found": None, "root": None, "has_report": False}


def render(template: str, *, text: str, states: Sequence[str], **values: Any) -> str:
    """Return a page.

    Args:
        template: "search" or "document".
        text: The text that is searched for.
        states: The states of runs.
        **values: What the page shows.
    """
    state = "\n".join(states)

    def link(place: Any) -> str:
        address = {"cache": f"{place.family}/{place.dataset}", "split": place.split, "number": place.document}
        return f"/search/document?{urlencode(address | ({'state': state} if state else {}))}"

    defaults = _DEFAULTS if template == "search" else {}
    of_page = {"text": text, "state": state, "link": link, "spell": spell_controls, "steps_of": _steps_of}
    return render_template(f"{template}.html", forms="'self'", **{**defaults, **of_page, **values})


def _steps_of(steps: Any, number: int) -> dict[str, Any]:
    """Return the rows that have read a place, and the next ones."""
    rows = [row for row in steps.rows if row.place == number]
    return {
        "known": number in steps.known,
        "read": [row for row in rows if not row.is_next],
        "coming": [row for row in rows if row.is_next],
    }
