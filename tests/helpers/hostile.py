"""Damage to valid files, as by an attacker or a broken disk. There are seeded mutations of bytes and of JSON, and a watch over their
readers.

A reader may refuse a file with the project's own error, or read the true content of the file. Each fuzz test defines the true content for
its format. In CI, hypothesis draws values, and reduces a failing value to its smallest form. The long version draws a hundred times as fast
from numbered seeds.
"""

import resource
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from types import FrameType
from typing import Any, TypeVar

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

T = TypeVar("T")

CASES = [60, pytest.param(100_000, marks=pytest.mark.torture)]
_MOST_OF_HYPOTHESIS = 10_000
_SECONDS = 20  # for one case that takes milliseconds
_MEMORY_BYTES = 2 << 30  # in addition to the memory of the process
_NUMBERS = [0, 1, 2, 3, 7, 127, 128, 255, 256, 2**15, 2**16 - 1, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**60, 2**61, 2**62, 2**63 - 1]
_NUMBERS += [2**63, 2**64 - 1, -1, -2, -(2**31), -(2**63)]
TEXTS = ["", "x", "../x", "/etc/passwd", "a/../../b", "a\0b", "a\nb", "ü", "\ud800", "val", "train", "NaN", "1", "." * 300, "x" * 5000]
NASTY: list[Any] = [None, True, False, 0, 1, -1, 2**31, 2**63, 2**64, 10**30, 0.5, -0.0, 1e308, "", [], {}, [[]], {"": {}}, *TEXTS]


class Draws:
    """Random choices. They are made from whole numbers of `integer(low, high)`, which includes both ends."""

    def __init__(self, integer: Callable[[int, int], int]) -> None:
        self.integer = integer

    def of(self, values: Sequence[T]) -> T:
        return values[self.integer(0, len(values) - 1)]

    def bytes(self, low: int, high: int) -> bytes:
        return bytes(self.integer(0, 255) for _ in range(self.integer(low, high)))

    def shuffled(self, values: Sequence[T]) -> list[T]:
        left = list(values)
        return [left.pop(self.integer(0, len(left) - 1)) for _ in range(len(left))]


def fuzz(cases: int, make: Callable[[Draws], T], check: Callable[[T], None]) -> None:
    """Run `check` on so many values of `make`, on each different one once. The values are the same each time. A failing value is printed in
    a form that can be run again.
    """
    with bounded_memory():
        if cases > _MOST_OF_HYPOTHESIS:
            checked = set[int]()
            for case in range(cases):
                value = make(seeded(case))
                if (key := hash(repr(value))) in checked:
                    continue
                checked.add(key)
                try:
                    with watched():
                        check(value)
                except BaseException as error:
                    error.add_note(f"case {case}: make(seeded({case})) is {value!r}")
                    raise
            return

        @st.composite
        def values(draw: st.DrawFn) -> T:
            return make(Draws(lambda low, high: draw(st.integers(low, high))))

        @settings(max_examples=cases, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck))
        @given(values())
        def run(value: T) -> None:
            with watched():
                check(value)

        run()


def seeded(case: int) -> Draws:
    """Return the draws of this case of the long version."""
    generator = torch.Generator().manual_seed(case)
    numbers: Iterator[int] = iter(())

    def integer(low: int, high: int) -> int:
        nonlocal numbers
        number = next(numbers, None)
        if number is None:
            numbers = iter(torch.randint(2**62, (64,), generator=generator).tolist())
            number = next(numbers)
        return low + number % (high - low + 1)

    return Draws(integer)


@contextmanager
def watched() -> Iterator[None]:
    """Fail if the block takes so long that it certainly hangs."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"still reading after {_SECONDS} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, _SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def bounded_memory() -> Iterator[None]:
    """Limit the memory inside the block. A reader that believes a file with a claim of 2**60 items gets a MemoryError, and the machine
    keeps its memory.
    """
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + _MEMORY_BYTES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def mutated_bytes(draws: Draws, whole: bytes, fields: Sequence[tuple[int, int]] = ()) -> bytes:
    """Return `whole` after up to four changes. `fields`: (offset, bytes) of its little-endian numbers. Some results are random bytes."""
    if draws.integer(0, 19) == 19:
        return draws.bytes(0, 100)
    content = bytearray(whole)
    for _ in range(draws.integer(0, 4)):
        place = draws.integer(0, max(len(content) - 1, 0))
        match draws.of([*["field"] * 4 * bool(fields), "bit", "byte", "cut", "grow", "drop", "insert", "repeat", "swap"]):
            case "field":
                offset, width = draws.of(fields)
                number = draws.of(_NUMBERS) if draws.integer(0, 1) else draws.integer(-64, 64)
                content[offset : offset + width] = (number % (1 << 8 * width)).to_bytes(width, "little")
            case "bit" if content:
                content[place] ^= 1 << draws.integer(0, 7)
            case "byte" if content:
                content[place] = draws.integer(0, 255)
            case "cut":
                del content[place:]
            case "grow":
                content += draws.bytes(1, 40)
            case "drop":
                del content[place : place + draws.integer(1, 16)]
            case "insert":
                content[place:place] = draws.bytes(1, 16)
            case "repeat":
                content[place:place] = content[place : place + draws.integer(1, 64)]
            case "swap" if content:
                other = draws.integer(0, len(content) - 1)
                content[place], content[other] = content[other], content[place]
    return bytes(content)


def mutated_json(draws: Draws, whole: Any) -> Any:
    """Return a copy of JSON values, in which up to three values are replaced, left out, renamed, exchanged or added."""
    copy = deepcopy(whole)
    for _ in range(draws.integer(0, 3)):
        holder = draws.of(list(_holders(copy)))
        nasty = deepcopy(draws.of(NASTY)) if draws.integer(0, 3) else draws.integer(-5, 70_000)
        places = list(range(len(holder))) if isinstance(holder, list) else sorted(holder)
        if not places:
            continue
        place = draws.of(places)
        match draws.of([*["replace"] * 4, "remove", "add", "rename", "swap"]):
            case "replace":
                holder[place] = nasty
            case "remove":
                del holder[place]
            case "add" if isinstance(holder, dict):
                holder[draws.of(TEXTS)] = nasty
            case "add":
                holder.append(nasty)
            case "rename" if isinstance(holder, dict):
                holder[draws.of(TEXTS)] = holder.pop(place)
            case "swap":
                other = draws.of(places)
                holder[place], holder[other] = holder[other], holder[place]
    return copy


def _holders(value: Any) -> Iterator[Any]:
    if isinstance(value, (dict, list)):
        yield value
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _holders(inner)
