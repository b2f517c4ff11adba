"""A stream that is started at any position gives the rest, with the counts of the whole."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice

import pytest

from niels_cache_assets.sources.base import StreamContext
from niels_cache_assets.streaming.positions import PlacedStream, Position
from niels_cache_runtime.errors import NielsCacheError

COUNT = 23


def numbers(context: StreamContext, *, places: bool, count: int = COUNT) -> Iterator[list[int]]:
    """In batches of five, without multiples of seven, which are counted."""
    batch = []
    for number in range(context.start["row"] if context.start else 0, count):
        if number % 7 == 0:
            context.report.dropped["seventh"] += 1
            context.report.facts["seen"] = [*context.report.facts.get("seen", []), number]
            continue
        batch.append(number)
        if len(batch) == 5:
            if places:
                context.report.place = {"row": number + 1}
            yield batch
            batch = []
    yield batch


@pytest.mark.parametrize("places", [True, False])
def test_a_stream_started_at_any_position_gives_the_rest_and_the_counts_of_the_whole(places: bool) -> None:
    def batches(context: StreamContext) -> Iterator[list[int]]:
        return numbers(context, places=places)

    whole = list(PlacedStream(batches, StreamContext(seed=0)))
    assert whole == [number for number in range(COUNT) if number % 7]
    for taken in range(len(whole) + 1):
        first = PlacedStream(batches, StreamContext(seed=0))
        assert list(islice(first, taken)) == whole[:taken]
        position = Position(**json.loads(json.dumps(asdict(first.position))))
        assert position.taken == taken
        assert taken - position.before <= (5 if places else taken)
        log: list[str] = []
        context = StreamContext(seed=0, log=log.append)
        rest = PlacedStream(batches, context, position)
        assert list(rest) == whole[taken:]
        assert (context.report.dropped, context.report.facts) == ({"seventh": 4}, {"seen": [0, 7, 14, 21]})
        assert rest.position.taken == len(whole)
        assert [line.split(" in ")[0] for line in log] == (
            [f"passed over {taken - position.before} documents that are done"] if taken > position.before else []
        )


def test_a_source_that_gives_less_than_before_is_an_error() -> None:
    stream = PlacedStream(lambda context: numbers(context, places=False, count=8), StreamContext(seed=0), Position(taken=10))
    with pytest.raises(NielsCacheError, match="ended after 6 of 10 documents that were read before"):
        list(stream)
