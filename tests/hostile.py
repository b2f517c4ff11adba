"""What an attacker or a broken disk makes of a valid file: seeded mutations of bytes and of JSON, and a watch over who reads them.

A reader may refuse a file with the project's own error or read what is truly in it; each fuzz test says for its format what that is.
"""

import json
import resource
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from types import FrameType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

CASES = [60, pytest.param(100_000, marks=pytest.mark.torture)]
_SECONDS = 20  # for one case that takes milliseconds
_MEMORY_BYTES = 2 << 30  # on top of what the process has
_NUMBERS = [0, 1, 2, 3, 7, 127, 128, 255, 256, 2**15, 2**16 - 1, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**60, 2**61, 2**62, 2**63 - 1]
_NUMBERS += [2**63, 2**64 - 1, -1, -2, -(2**31), -(2**63)]
TEXTS = ["", "x", "../x", "/etc/passwd", "a/../../b", "a\0b", "a\nb", "ü", "\ud800", "val", "train", "NaN", "1", "." * 300, "x" * 5000]
NASTY: list[Any] = [None, True, False, 0, 1, -1, 2**31, 2**63, 2**64, 10**30, 0.5, -0.0, 1e308, "", [], {}, [[]], {"": {}}, *TEXTS]


def fuzz(cases: int, strategy: st.SearchStrategy[Any], check: Callable[[Any], None]) -> None:
    """Run `check` on so many draws, the same ones each time; a failure prints the smallest draw that fails, ready to be replayed."""

    @settings(max_examples=cases, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(strategy)
    def run(drawn: Any) -> None:
        with watched():
            check(drawn)

    with bounded_memory():
        run()


@contextmanager
def watched() -> Iterator[None]:
    """Fails where the block takes so long that it can only hang."""

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
    """Whoever believes a file that claims 2**60 items gets a MemoryError here, and not the machine's memory."""
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + _MEMORY_BYTES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@st.composite
def mutated_bytes(draw: st.DrawFn, whole: bytes, fields: Sequence[tuple[int, int]] = ()) -> bytes:
    """`whole` after one to four changes; `fields`: (offset, bytes) of its little-endian numbers. Sometimes bytes of nobody's."""
    if draw(st.integers(0, 19)) == 0:
        return draw(st.binary(max_size=200))
    content = bytearray(whole)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, max(len(content) - 1, 0)))
        match draw(st.sampled_from(["field"] * 4 * bool(fields) + ["bit", "byte", "cut", "grow", "drop", "insert", "repeat", "swap"])):
            case "field":
                offset, width = draw(st.sampled_from(list(fields)))
                number = draw(st.sampled_from(_NUMBERS) | st.integers(-64, 64)) % (1 << 8 * width)
                content[offset : offset + width] = number.to_bytes(width, "little")
            case "bit" if content:
                content[place] ^= 1 << draw(st.integers(0, 7))
            case "byte" if content:
                content[place] = draw(st.integers(0, 255))
            case "cut":
                del content[place:]
            case "grow":
                content += draw(st.binary(min_size=1, max_size=40))
            case "drop":
                del content[place : place + draw(st.integers(1, 16))]
            case "insert":
                content[place:place] = draw(st.binary(min_size=1, max_size=16))
            case "repeat":
                content[place:place] = content[place : place + draw(st.integers(1, 64))]
            case "swap" if content:
                other = draw(st.integers(0, len(content) - 1))
                content[place], content[other] = content[other], content[place]
    return bytes(content)


@st.composite
def mutated_json(draw: st.DrawFn, whole: Any) -> Any:
    """A copy of JSON values with one to three of them replaced, left out, renamed or added."""
    copy = json.loads(json.dumps(whole))
    for _ in range(draw(st.integers(1, 3))):
        holders = list(_holders(copy))
        holder = draw(st.sampled_from(holders))
        nasty = deepcopy(draw(st.sampled_from(NASTY) | st.integers(-5, 70_000)))
        places = list(range(len(holder))) if isinstance(holder, list) else sorted(holder)
        if not places:
            continue
        place = draw(st.sampled_from(places))
        match draw(st.sampled_from(["replace"] * 4 + ["remove", "add", "rename", "swap"])):
            case "replace":
                holder[place] = nasty
            case "remove":
                del holder[place]
            case "add" if isinstance(holder, dict):
                holder[draw(st.sampled_from(TEXTS))] = nasty
            case "add":
                holder.append(nasty)
            case "rename" if isinstance(holder, dict):
                holder[draw(st.sampled_from(TEXTS))] = holder.pop(place)
            case "swap":
                other = draw(st.sampled_from(places))
                holder[place], holder[other] = holder[other], holder[place]
    return copy


def _holders(value: Any) -> Iterator[Any]:
    if isinstance(value, (dict, list)):
        yield value
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _holders(inner)
