"""Values that must not change, as JSON files in this folder, and their comparison with the values of the present code.

`golden.hold(name, value)` compares a value with NAME.json in this folder, and gives the place and the old value of each difference. `pytest
--write-golden` writes the files again instead. tests/conftest.py loads this module as a plugin. tests/product/test_golden_values.py makes
the values.
"""

import json
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent
_SHOWN = 40  # differences
_LINE = 120  # characters of a list of texts in one line
_LONG = 200  # characters of a value in a difference
_MISSING = object()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-golden", action="store_true", help="write tests/golden/*.json anew from what the code gives now")


class Golden:
    """The files."""

    def __init__(self, *, write: bool) -> None:
        self._write = write

    def hold(self, name: str, value: Any, *, libraries: tuple[str, ...] = ()) -> None:
        """Fail if `value` is not that of NAME.json.

        libraries: those whose versions decide the value. The test is skipped if other versions of them are installed.
        """
        __tracebackhide__ = True
        assert value, f"{name}: there is nothing to hold"
        path, versions = FOLDER / f"{name}.json", {library: metadata.version(library) for library in libraries}
        now = {"made with": versions, "values": plain(value)} if libraries else plain(value)
        if self._write:
            path.write_text(shown(now) + "\n", encoding="utf-8")
        then = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        if libraries and then.get("made with") not in (None, versions):
            pytest.skip(f"{path.name} was written with other versions: {then['made with']}")
        found = [*differences(then, now)]
        if found:
            more = [f"and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
            raise AssertionError("\n".join([f"{path.name}: {len(found)} values have moved", *found[:_SHOWN], *more]))


@pytest.fixture(scope="session")
def golden(request: pytest.FixtureRequest) -> Golden:
    return Golden(write=request.config.getoption("--write-golden"))


def plain(value: Any) -> Any:
    """Return the value as JSON gives it back, with sorted keys."""
    return json.loads(json.dumps(value, allow_nan=False, sort_keys=True))


def differences(then: Any, now: Any, at: str = "") -> Iterator[str]:
    """Describe each value that differs, with the path of its keys."""
    if isinstance(then, Mapping) and isinstance(now, Mapping):
        for key in {**then, **now}:
            yield from differences(then.get(key, _MISSING), now.get(key, _MISSING), f"{at} > {key}" if at else str(key))
    elif isinstance(then, list) and isinstance(now, list) and all(isinstance(each, str) for each in then + now):
        gone, new = [each for each in then if each not in now], [each for each in now if each not in then]
        if gone or new:
            yield f"  {at}: without {_short(gone)}, with {_short(new)}"
        elif then != now:
            yield f"  {at}: was {_short(then)}, is {_short(now)}"
    elif isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        for index, (before, after) in enumerate(zip(then, now, strict=True)):
            yield from differences(before, after, f"{at} > {index}")
    elif type(then) is not type(now) or then != now:
        yield f"  {at}: was {_short(then)}, is {_short(now)}"


def _short(value: Any) -> str:
    text = "missing" if value is _MISSING else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONG else f"{text[:_LONG]}... ({len(text)} characters)"


def shown(value: Any, indent: str = "") -> str:
    """Return JSON that reads well as a diff: a line for each key, and a list of numbers in one line."""
    inner = f"{indent} "
    if isinstance(value, dict) and value:
        lines = [f"{inner}{json.dumps(key, ensure_ascii=False)}: {shown(each, inner)}" for key, each in value.items()]
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
    line = json.dumps(value, ensure_ascii=False)
    if isinstance(value, list) and (
        any(isinstance(each, dict | list) for each in value) or (len(line) > _LINE and isinstance(value[0], str))
    ):
        return "[\n" + ",\n".join(f"{inner}{shown(each, inner)}" for each in value) + f"\n{indent}]"
    return line
