"""The standard library's docstrings, of the interpreter that runs the tests and of a small library made here."""

import subprocess
import sys
import sysconfig
import textwrap
from pathlib import Path

import pytest

from niels_cache_assets.sources import python_help
from niels_cache_assets.sources.python_docs import PythonDocs
from niels_cache_assets.sources.python_help import PythonHelp
from niels_cache_runtime.errors import NielsCacheError
from tests.helpers.read_sources import read

OAK = "A tree of the genus Quercus, long enough to be kept as a document."
GROW = "Grow a little, as oaks do, in a docstring that is long enough."
LEAF = "A nested class with a docstring that is long enough to be kept."
PLANT = "Plant an acorn in the ground, then wait for a hundred years."
MODULE = f'''
    """Things about oak trees, long enough to be kept as a document."""
    import sys

    class Oak:
        """{OAK}"""

        def grow(self):
            """{GROW}

                indented

            Done.
            """
            def inner():
                """Not documented for users, and therefore not found by anyone."""

        class Leaf:
            """{LEAF}"""

    if sys.platform == "win32":
        def plant(): ...
    else:
        async def plant():
            """{PLANT}

            Second paragraph, short.

            Third paragraph, which is too long for an answer of this test: it goes on and on."""

    def _secret():
        """A private function whose docstring is long enough to be kept as well."""

    def short():
        """Short."""
'''


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, content in {
        "woods/__init__.py": MODULE,
        "woods/test/test_oak.py": MODULE,
        "site-packages/other.py": MODULE,
        "template.py": "def {name}(): ...",
        "raises.py": "raise SystemExit('imported')",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(textwrap.dedent(content))
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    return tmp_path


def test_every_documented_object_is_one_document(library: Path) -> None:
    documents, context = read(PythonDocs())
    assert [document.title for document in documents] == [
        "woods",
        "woods.Oak",
        "woods.Oak.grow",
        "woods.Oak.Leaf",
        "woods.plant",
        "woods._secret",
    ]
    assert documents[2].text == f"woods.Oak.grow\n\n{GROW}\n\n    indented\n\nDone."
    lines = (library / "woods/__init__.py").read_text().splitlines()
    assert "def grow" in lines[documents[2].row]
    assert {document.file for document in documents} == {"woods/__init__.py"}
    assert context.report.dropped == {"short_docstring": 1}


def test_help_asks_about_public_functions_and_classes(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_help, "MAX_CHARACTERS", 110)
    conversations, context = read(PythonHelp())
    assert [conversation.messages for conversation in conversations] == [
        [{"role": "user", "content": "What does `woods.Oak` do?"}, {"role": "assistant", "content": OAK}],
        [{"role": "user", "content": "What does `woods.Oak.Leaf` do?"}, {"role": "assistant", "content": LEAF}],
        [
            {"role": "user", "content": "What does `woods.plant` do?"},
            {"role": "assistant", "content": f"{PLANT}\n\nSecond paragraph, short."},
        ],
    ]
    assert [conversation.category for conversation in conversations] == ["class", "class", "function"]
    assert context.report.dropped == {"short_docstring": 1}


def test_the_revision_names_the_version_and_follows_the_files(library: Path) -> None:
    first = PythonDocs().revision({})
    assert first is not None
    assert first == PythonHelp().revision({})
    assert f"-{sys.version_info.major}.{sys.version_info.minor}." in first
    (library / "woods/new.py").write_text("")
    assert PythonDocs().revision({}) != first


def test_a_python_without_sources_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    with pytest.raises(NielsCacheError, match=f"{tmp_path}: .*sources"):
        read(PythonDocs())


def test_the_table_of_sources_is_cheap_to_import() -> None:
    script = "import sys\nfrom niels_cache_assets.sources import PRETRAIN_SOURCES\nPRETRAIN_SOURCES['fineweb_edu']\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    loaded = set(done.stdout.split())
    assert "niels_cache_assets.sources.hub.data" in loaded
    assert loaded.isdisjoint({"datasets", "pyarrow", "torch", "huggingface_hub", "dagster"})
