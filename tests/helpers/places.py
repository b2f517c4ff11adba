"""Passes over sources that begin at a place of another pass."""

import json
from collections.abc import Iterator
from typing import Any

from niels_cache_assets.base.documents import SourcePosition, SourceReport
from niels_cache_assets.sources.types import SftSource, Source, StreamContext


def batches_of(source: Source, context: StreamContext) -> Iterator[list[Any]]:
    batches = source.conversations(context) if isinstance(source, SftSource) else source.documents(context)  # type: ignore[attr-defined]
    return map(list, batches)


def started_at(place: SourcePosition | None, dropped: dict[str, int], facts: dict[str, Any]) -> StreamContext:
    """Return the context of a pass that begins at a place from a journal, which was written as JSON."""
    report = SourceReport()
    report.dropped.update(json.loads(json.dumps(dropped)))
    report.facts.update(json.loads(json.dumps(facts)))
    return StreamContext(seed=42, start=json.loads(json.dumps(place)), report=report)


def places_of(source: Source) -> list[tuple[SourcePosition, dict[str, int], dict[str, Any]]]:
    """Return every place that a pass reports, with the counts at this place."""
    context = StreamContext(seed=42)
    found = []
    for _ in batches_of(source, context):
        if (place := context.report.position) is not None:
            found.append((place, dict(context.report.dropped), dict(context.report.facts)))
    return found


Followed = list[tuple[list[Any], SourcePosition, dict[str, int], dict[str, Any]]]


def require_every_place_is_exact(source: Source, *, at_least: int, every: int = 1, same_batches: bool = True) -> None:
    """Assert that from each place (or every n-th place), the same batches, places and counts follow as in the pass that reported this
    place.

    same_batches: if it is False, the same items may follow in other batches. The places that both passes report must then have the same
    counts and the same number of items after them.
    """

    def follow(context: StreamContext) -> Followed:
        return [
            (batch, context.report.position or {}, dict(context.report.dropped), dict(context.report.facts))
            for batch in batches_of(source, context)
        ]

    def rows_of(followed: list[Any]) -> list[Any]:
        """Return batches and counts, with the number, file and row of each place. Other data of a place may differ."""
        return [(batch, place.get("number"), place.get("file"), place.get("row"), *counted) for batch, place, *counted in followed]

    whole = StreamContext(seed=42)
    undisturbed = follow(whole)
    places = [(number, *rest) for number, (_, *rest) in enumerate(undisturbed, 1) if rest[0]]
    assert len(places) >= at_least
    for number, place, dropped, facts in places[::every]:
        context = started_at(place, dropped, facts)
        found, expected = follow(context), undisturbed[number:]
        if same_batches:
            assert rows_of(found) == rows_of(expected), place
        else:
            require_same_items(found, expected)
        assert context.report.dropped == whole.report.dropped, place
        assert context.report.facts == whole.report.facts, place


def require_same_items(found: Followed, expected: Followed) -> None:
    assert [item for batch, *_ in found for item in batch] == [item for batch, *_ in expected for item in batch]
    counts, expected_counts = counts_at_places(found), counts_at_places(expected)
    common = counts.keys() & expected_counts.keys()
    assert common or not expected
    assert {place: counts[place] for place in common} == {place: expected_counts[place] for place in common}


def counts_at_places(followed: Followed) -> dict[tuple[Any, ...], tuple[int, dict[str, int], dict[str, Any]]]:
    """Return for each reported place how many items follow after it, and the counts there."""
    left = sum(len(batch) for batch, *_ in followed)
    found = {}
    for batch, place, dropped, facts in followed:
        left -= len(batch)
        found[place.get("number"), place.get("file"), place.get("row")] = left, dropped, facts
    return found
