"""The trial before a build finds steps whose result depends on anything but the document."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from niels_cache_assets.steps import trial
from niels_cache_assets.steps.chain import DocumentChain
from niels_cache_runtime.errors import NielsCacheError
from tests.helpers.user_steps import documents_of, source_with, user_module

CODE = """
    from niels_cache_assets import step

    def fine(document):
        return {"text": document.text + "!", "length": len(document.text), "nothing": float("nan")}

    class Counter:
        def __init__(self):
            self.seen = 0
        def __call__(self, document):
            self.seen += 1
            return document._replace(text=f"{document.text} {self.seen}")

    class Title(Counter):
        def __call__(self, document):
            self.seen += 1
            return document._replace(title=f"T{self.seen}")

    @step(stateful=True)
    class Stateful(Counter):
        pass

    class Alternate(Counter):
        def __call__(self, document):
            self.seen += 1
            return document if self.seen % 2 else None

    @step(batch=True)
    def batch_size(batch):
        return {"size": [len(batch)] * len(batch)}

    def hashes(document):
        return document._replace(text=" ".join({*document.text.split()}))
"""
TEXTS = [" ".join(f"word{number * word}" for word in range(20)) for number in range(1, 31)]


@pytest.fixture
def module(tmp_path: Path) -> Iterator[str]:
    with user_module(tmp_path, CODE) as name:
        yield name


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run both runs here, each with steps of its own, as two processes have them."""

    def run(work: Any, items: Iterable[Any], **how: Any) -> Iterator[Any]:
        assert how["processes"] == 2
        for item in items:
            yield trial.StepTrial(DocumentChain(source=work.chain.source, cleaning=None))(item, lambda place, step, seconds: None)

    monkeypatch.setattr(trial, "map_in_processes", run)


def attempt(folder: Path, *steps: Any) -> None:
    trial.try_steps("web", DocumentChain(source=source_with(folder, *steps), cleaning=None), documents_of(TEXTS))


@pytest.mark.parametrize("step", ["fine", "Stateful"])
def test_steps_that_depend_on_the_document_pass(module: str, tmp_path: Path, in_this_process: Callable[[], None], step: str) -> None:
    attempt(tmp_path, f"{module}:{step}")


@pytest.mark.parametrize(
    ("step", "shown"),
    [
        ("Counter", r"word19! 1'.* and .*word19! 30'"),
        ("Alternate", r"'word0 word1 .* and .*step:Alternate"),
        ("batch_size", r"'size': 30.* and .*'size': 2"),
        ("Title", r"'T1'.* and .*'T30'"),
    ],
)
def test_a_step_that_depends_on_others_stops_the_build(
    module: str, tmp_path: Path, in_this_process: Callable[[], None], step: str, shown: str
) -> None:
    with pytest.raises(NielsCacheError, match=rf"^web: a.jsonl: row 0: step {step} gave .*{shown}") as caught:
        attempt(tmp_path, f"{module}:fine", f"{module}:{step}")
    assert "\n" not in str(caught.value)


@pytest.mark.walk
def test_a_step_that_depends_on_hashes_of_strings_is_found(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    with pytest.raises(NielsCacheError, match=r"row 0: step hashes gave .*word"):
        attempt(tmp_path, f"{module}:hashes")
