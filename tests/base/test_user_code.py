"""The code of a user: how a configuration names it, and which changes of its files change its identity."""

import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from itertools import count
from pathlib import Path

import pytest

from niels_cache_assets.base import user_code
from niels_cache_assets.base.user_code import _read_module, code_identity, code_sha256, load_code
from niels_cache_runtime.errors import NielsCacheError

_names = count()

STEP = """
    from . import near
    from {name}.inner.far import LIMIT
    import json

    def drop_short(document):  # a comment
        return document if len(document.text) > LIMIT else None

    anonymous = lambda document: document

    def make():
        def closure(document):
            return document
        return closure

    closure = make()
    instance = object()
"""


GOLDEN_CODE = r'''"""Words."""
from __future__ import annotations
import json as j

@j.loads(b"\\0", u"x")
class A(dict, metaclass=type):
    x: int = 1_000

    async def f(self, a, /, *b, c=1.5, **d) -> "x":
        try:
            return f"{a!r:>{c}} é" f"{b}" if not a else {**d, None: ..., 2j: [*b], "": ()}
        except* (OSError, ValueError) as error:
            match a:
                case {"x": [1, *_], **rest} | (-1 as rest) if rest:
                    await (y := a[1:, ...])
                case _:
                    pass
'''


@pytest.fixture
def package(tmp_path: Path) -> Iterator[Path]:
    """A package with a name of its own, whose module `step` imports two of its other modules; `unused` is imported by nothing."""
    folder = tmp_path / f"package_{next(_names)}"
    files = {
        "__init__": "",
        "step": STEP.format(name=folder.name),
        "near": "",
        "unused": "X = 1",
        "inner/__init__": "",
        "inner/far": "LIMIT = 5",
    }
    for name, text in files.items():
        (folder / f"{name}.py").parent.mkdir(exist_ok=True)
        (folder / f"{name}.py").write_text(textwrap.dedent(text))
    yield folder
    for name in [name for name in sys.modules if name.startswith(folder.name)]:
        del sys.modules[name]
    if str(tmp_path) in sys.path:
        sys.path.remove(str(tmp_path))


def load(package: Path, name: str = "drop_short") -> Callable[..., object]:
    return load_code(f"{package.name}.step:{name}", group="niels_cache.steps", folder=str(package.parent), where="niels_cache.toml: steps")


def change(path: Path, text: str) -> None:
    """Write a file, with a time of change that differs from before."""
    before = path.stat().st_mtime_ns
    path.write_text(text)
    os.utime(path, ns=(before + 1, before + 1))


@pytest.mark.parametrize("module", ["__init__", "step", "near", "inner/__init__", "inner/far"])
def test_a_change_of_an_imported_module_of_the_package_changes_the_identity(package: Path, module: str) -> None:
    step = load(package)
    path, before = package / f"{module}.py", code_identity(step, {"level": 2})
    change(path, path.read_text() + "\n# a comment\n\n\n")
    assert code_identity(step, {"level": 2}) == before, "a comment does not count"
    change(path, path.read_text() + "MORE = 1\n")
    assert code_identity(step, {"level": 2}) != before


def test_settings_and_files_count_and_other_modules_do_not(package: Path) -> None:
    step = load(package)
    before = code_identity(step, {})
    assert before == {"use": f"{package.name}.step:drop_short", "settings": {}, "code": code_sha256(step.__module__)}
    change(package / "unused.py", "X = 2")
    assert code_identity(step, {}) == before
    assert code_identity(step, {"level": 1}) != before
    (package / "words.txt").write_text("one")
    step.depends_on = ["words.txt"]  # type: ignore[attr-defined]
    with_file = code_identity(step, {})
    assert with_file != before
    change(package / "words.txt", "two")
    assert code_identity(step, {}) not in (before, with_file)
    assert code_identity(step, {}) == code_identity(step, {}, [package / "words.txt"])
    (package / "inner" / "words.txt").write_text("one")
    with_both = code_identity(step, {}, [package / "inner" / "words.txt"])
    change(package / "words.txt", "three")
    assert code_identity(step, {}, [package / "inner" / "words.txt"]) != with_both, "files of one name all count"
    (package / "words.txt").unlink()
    with pytest.raises(NielsCacheError, match=r"drop_short: depends_on: .*words\.txt: No such file"):
        code_identity(step, {})
    step.depends_on = "words.txt"  # type: ignore[attr-defined]
    with pytest.raises(NielsCacheError, match=r"drop_short: depends_on is 'words\.txt'; give a list of files: \['words\.txt'\]"):
        code_identity(step, {})


def test_a_version_may_stand_for_the_code(package: Path) -> None:
    step = load(package)
    step.version = 3  # type: ignore[attr-defined]
    assert code_identity(step, {}) == {
        "use": f"{package.name}.step:drop_short",
        "settings": {},
        "version": "3",
        "code": code_sha256(step.__module__),
    }
    step.identity = "version"  # type: ignore[attr-defined]
    before = code_identity(step, {})
    change(package / "near.py", "X = 2")
    assert code_identity(step, {}) == before == {"use": f"{package.name}.step:drop_short", "settings": {}, "version": "3"}
    del step.version  # type: ignore[attr-defined]
    with pytest.raises(NielsCacheError, match=r"drop_short: identity is 'version'; set it to 'code', or .* version"):
        code_identity(step, {})


def test_modules_in_the_folder_of_a_module_without_package_count(package: Path) -> None:
    folder = package.parent
    helper, name = folder / f"{package.name}_helper.py", f"{package.name}_alone"
    helper.write_text("LIMIT = 1")
    (folder / f"{name}.py").write_text(f"import json, {helper.stem}, numpy\ndef step(document): return document\n")
    step = load_code(f"{name}:step", group="niels_cache.steps", folder=str(folder), where="steps")
    before = code_identity(step, {})
    change(helper, "LIMIT = 2")
    assert code_identity(step, {}) != before


def test_the_hash_of_code_is_the_same_in_every_version_of_python(package: Path) -> None:
    """A changed value makes every data set with steps stale."""
    change(package / "near.py", GOLDEN_CODE)
    digest, imported = _read_module("near", package / "near.py", 0, 0)
    assert digest == "3785c841579c24cabe5396b38526c70befdd073b53afa3689bfb4efabc8adef1"
    assert {*imported} == {"__future__", "__future__.annotations", "json"}


@pytest.mark.parametrize(
    ("before", "after"), [('x = ["", "a"]', 'x = ["a"]'), ("x = 1", "x = True"), ("x = None", "x = 0"), ("f(a=1)", "f(a)")]
)
def test_different_code_has_different_hashes(package: Path, before: str, after: str) -> None:
    digests = []
    for number, text in enumerate((before, after)):
        change(package / "near.py", text)
        digests.append(_read_module("near", package / "near.py", number, -1)[0])
    assert digests[0] != digests[1]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("{}.step:anonymous", "not a function or class at the top of a module"),
        ("{}.step:closure", "not a function or class at the top of a module"),
        ("{}.step:instance", "not a function or class at the top of a module"),
        ("{}.step:near", "not a function or class at the top of a module"),
        ("{}.step:drop_shorts", "'drop_shorts'; did you mean 'drop_short'?"),
        ("{}.step:", "{}.step has no ''"),
        ("{}.missing:f", "cannot import '{}.missing'"),
        ("{}.broken:f", "cannot import '{}.broken' (ZeroDivisionError: division by zero)"),
        ("missing", "no entry point 'missing'"),
    ],
)
def test_wrong_names_are_refused_in_one_line(package: Path, name: str, problem: str) -> None:
    (package / "broken.py").write_text("1 / 0")
    with pytest.raises(NielsCacheError) as caught:
        load_code(name.format(package.name), group="niels_cache.steps", folder=str(package.parent), where="niels_cache.toml: steps")
    assert str(caught.value).startswith("niels_cache.toml: steps: ")
    assert problem.format(package.name) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_entry_point_is_found_by_its_name(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step, group = load(package), "niels_cache.steps"
    points = {group: [EntryPoint("short", f"{package.name}.step:drop_short", group)]}
    monkeypatch.setattr(user_code, "entry_points", lambda *, group: points[group])
    assert load_code("short", group=group, folder=str(package.parent), where="steps") is step
    with pytest.raises(NielsCacheError, match=r"no entry point 'shrt'; did you mean 'short'"):
        load_code("shrt", group=group, folder=str(package.parent), where="steps")


def test_code_of_the_main_script_is_refused(package: Path) -> None:
    step = load(package)
    step.__module__ = "__main__"
    with pytest.raises(NielsCacheError, match="main script, which workers cannot import; move it into a module"):
        load(package)
