"""The thread that prepares batches: order, errors, and its end."""

import threading
from collections.abc import Iterator

import pytest

from niels_cache_runtime.loader.prefetch import prefetched


def running() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "niels-cache-prefetch"]


@pytest.mark.parametrize("ahead", [1, 2, 7])
def test_items_keep_their_order(ahead: int) -> None:
    assert list(prefetched(iter(range(50)), ahead=ahead)) == list(range(50))
    assert not running()


def test_an_error_is_raised_where_its_item_would_have_come() -> None:
    def items() -> Iterator[int]:
        yield from (1, 2)
        raise OSError("disk gone")

    found = prefetched(items(), ahead=1)
    assert [next(found), next(found)] == [1, 2]
    with pytest.raises(OSError, match="disk gone"):
        next(found)
    assert not running()


def test_a_dropped_iterator_ends_the_thread_and_closes_its_source_there() -> None:
    closed_in: list[str] = []

    def items() -> Iterator[int]:
        try:
            while True:
                yield 1
        finally:
            closed_in.append(threading.current_thread().name)

    found = prefetched(items(), ahead=2)
    assert next(found) == 1
    assert len(running()) == 1
    del found
    assert not running()
    assert closed_in == ["niels-cache-prefetch"]


def test_no_more_is_prepared_than_asked_for() -> None:
    made = []

    def items() -> Iterator[int]:
        for number in range(100):
            made.append(number)
            yield number

    found = prefetched(items(), ahead=2)
    for taken in range(1, 20):
        next(found)
        assert len(made) <= taken + 3  # two ready, one in the making
