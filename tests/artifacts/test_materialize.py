"""The one way to build an artifact, tested with a small kind of artifact. The graph, and two processes that build the same artifact, are
tested too.
"""

import os
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from niels_cache_assets.artifacts.base import Artifact, BuildLock
from niels_cache_assets.artifacts.graph import graph
from niels_cache_assets.artifacts.materialize import materialize
from niels_cache_assets.sources.errors import SourceUnavailableError
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.commit import BusyError, hold_lock
from niels_cache_runtime.format.meta import read_meta
from tests.helpers import children
from tests.helpers.artifacts import Line
from tests.helpers.dagster_tools import Project
from tests.helpers.messages import missing
from tests.helpers.prepared_project import prepare_project
from tests.helpers.watched import Watched, watched

ROOT = Path(__file__).resolve().parents[2]


def refuse() -> None:
    raise NielsCacheError("no text today")


def text_in(folder: Path) -> str:
    return str(read_meta(str(folder / "meta.json"))["text"])


def test_a_new_kind_takes_one_class(tmp_path: Path) -> None:
    line = Line(folder=tmp_path / "x")
    first = materialize(line)
    assert (first.key, first.kind, first.name, first.state, text_in(tmp_path / "x")) == ("line/x", "line", "x", "built", "text")
    assert materialize(line).state == "cache_hit"
    assert materialize(line, force=True).state == "built"
    changed = replace(line, text="another")
    with pytest.raises(NielsCacheError, match="first"):
        changed.current()
    assert materialize(changed).state == "built"
    assert changed.current()["text"] == text_in(tmp_path / "x") == "another"
    with pytest.raises(NielsCacheError, match="no text today"):
        materialize(replace(line, before=refuse))
    assert text_in(tmp_path / "x") == "another", "the last good build stays"
    assert sorted(path.name for path in tmp_path.iterdir()) == [".x.lock", "x"]


def test_a_hit_needs_no_lock_and_writes_nothing(tmp_path: Path) -> None:
    materialize(Line(folder=tmp_path / "x"))
    with hold_lock(tmp_path / "x"):
        assert materialize(Line(folder=tmp_path / "x")).state == "cache_hit"
        with pytest.raises(BusyError):
            materialize(Line(folder=tmp_path / "x", text="another"))


def build_another(folder: Path) -> None:
    materialize(Line(folder=folder))


def test_a_build_that_was_overtaken_before_its_lock_looks_again(tmp_path: Path) -> None:
    told: list[str] = []

    @dataclass(frozen=True, kw_only=True)
    class Overtaken(Line):
        def lock(self, **settings: Any) -> AbstractContextManager[BuildLock]:
            assert children.run(build_another, self.folder) == 0
            return super().lock(**settings)

    assert materialize(Overtaken(folder=tmp_path / "x", before=refuse), log=told.append).state == "cache_hit"
    [said] = told
    assert missing(said, "another build", f"{tmp_path}/x") == []


def test_who_has_waited_for_a_turn_looks_again_before_the_lock(tmp_path: Path) -> None:
    asked: list[bool] = []

    def waits_its_turn() -> bool:
        asked.append(not asked)
        if asked[-1]:
            build_another(tmp_path / "x")
        return asked[-1]

    assert materialize(Line(folder=tmp_path / "x", before=refuse), wait_for_turn=waits_its_turn).state == "cache_hit"
    assert asked == [True]
    assert materialize(Line(folder=tmp_path / "y"), wait_for_turn=waits_its_turn).state == "built"
    assert asked == [True, False]


@dataclass(frozen=True, kw_only=True)
class Remote(Line):
    """A line whose upstream cannot be asked."""

    noun = "line"

    def revision(self) -> str | None:
        raise SourceUnavailableError("upstream is away")


def test_a_finished_build_is_kept_if_upstream_cannot_be_asked(tmp_path: Path) -> None:
    with pytest.raises(SourceUnavailableError):
        materialize(Remote(folder=tmp_path / "x"))
    materialize(Line(folder=tmp_path / "x"))
    kept = materialize(Remote(folder=tmp_path / "x"))
    assert (kept.state, kept.kept) == ("cache_hit", True)
    assert missing(kept.warning, "upstream is away", "kept", "line", "revision None") == []
    for settings in ({"force": True}, {}):
        with pytest.raises(SourceUnavailableError):
            materialize(Remote(folder=tmp_path / "x", text="text" if settings else "another"), **settings)


BUILD = """
import sys, time
from pathlib import Path
from tests.helpers.builds import build_dataset
from niels_cache_assets.defs.launcher import launch_builds
from niels_cache_assets.sources.jsonl import Jsonl
from tests.helpers.dagster_tools import Project
from tests.helpers.launches import Recorder

folder, model, how, go = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], Path(sys.argv[4])

def documents(self, context):
    print("reading", flush=True)
    while not go.exists():
        time.sleep(0.01)
    return real(self, context)

def say(message):
    if message.startswith(("waiting", "another build")):
        print(message, flush=True)

class Saying(Recorder):
    def logged(self, name, message):
        say(message)

real, Jsonl.documents = Jsonl.documents, documents
project = Project(folder, model)
if how == "plain":
    state = build_dataset(project.registry, "notes", root=project.root, wait=True, log=say).state
else:
    [*_, result] = launch_builds(project.registry, root=project.root, only=["notes"], wait=True, listener=Saying())
    state = result.state
print(state, flush=True)
"""


def test_of_a_notebook_and_a_dagster_run_that_want_the_same_the_second_waits_looks_again_and_finds_it(
    tmp_path: Path, tiny_model: Path
) -> None:
    project, go = Project(tmp_path / "project", tiny_model), tmp_path / "go"
    materialize(graph(project.registry, project.root).tokenizer())
    env = {**os.environ, "DAGSTER_HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT)}
    (tmp_path / "home").mkdir()

    def build(how: str) -> tuple[str, ...]:
        return ("-c", BUILD, str(project.folder), str(tiny_model), how, str(go))

    with watched(*build("plain"), env=env) as earlier:
        assert earlier.output.readline() == "reading\n"
        with watched(*build("dagster"), env=env) as later:
            waiting = later.output.readline()
            assert missing(waiting, "waiting", f"{project.root}/pretrain/notes", f"process {earlier.program.pid} on ") == []
            go.touch()
            assert rest(earlier)[-1] == "built"
            assert rest(later) == ["cache_hit"], "it reads nothing"


def rest(program: Watched) -> list[str]:
    lines = program.output.read().splitlines()
    assert program.program.wait(60) == 0, program.last_words(within=60)
    return lines


# The graph

MIX = '[pretrain.mix]\nsource = "interleave"\nmembers = { books = 1, letters = 1 }\nprepare = ["clean"]\n'
LATE = """
[pretrain.web]
source = "jsonl"
files = ["notes.jsonl"]
train_tokens = 900
val_tokens = 90
[pretrain.mix]
source = "interleave"
members = { web = 1, notes = 1 }
prepare = ["dedup"]
"""


@pytest.mark.parametrize(
    ("more", "imported", "first"),
    [
        (MIX, True, ["tokenizer", "corpus/books", "corpus/letters", "corpus/duplicates", "corpus/mix"]),
        (MIX, False, ["corpus/books", "corpus/letters", "corpus/duplicates", "corpus/mix", "tokenizer"]),
        (LATE, False, ["corpus/books", "corpus/letters", "corpus/duplicates", "tokenizer", "corpus/mix", "corpus/duplicates"]),
    ],
)
def test_the_order_of_a_graph_has_what_is_read_before_who_reads_it(
    tmp_path: Path, tiny_model: Path, more: str, imported: bool, first: list[str]
) -> None:
    """Drop lists are built twice if a mixture needs the tokenizer. The tokenizer is trained on the documents that the first search
    leaves.
    """
    project = prepare_project(tmp_path, tiny_model, more=more)
    if not imported:
        project.edit(f'model = "{tiny_model}"', "vocab_size = 330")
    found = graph(project.registry, project.root)
    order = found.order()
    assert order[: len(first)] == first
    assert set(order) == set(found.keys)
    read = 0
    for place, key in enumerate(order):
        for each in found[key].inputs():
            read += 1
            assert each in order[:place] or found[key].builds_from_partial_inputs, (key, each)
    assert read > 5


def test_an_order_can_be_of_some_data_sets_and_what_they_read(tmp_path: Path, tiny_model: Path) -> None:
    project = prepare_project(tmp_path, tiny_model, more=MIX)
    found = graph(project.registry, project.root)
    assert found.order(["notes"]) == ["tokenizer", "pretrain/notes"]
    assert {"corpus/books", "corpus/letters", "corpus/mix", "corpus/duplicates", "pretrain/mix"} < set(found.order(["mix"]))
    assert "pretrain/books" not in found.order(["mix"])
    with pytest.raises(NielsCacheError, match="'note'"):
        found.order(["note"])


def test_every_key_of_a_graph_is_an_artifact_with_that_key(tmp_path: Path, tiny_model: Path) -> None:
    later = '[pretrain.later]\nsource = "roam"\nprepare = ["clean"]\n'  # without a path, it can never be built
    project = prepare_project(tmp_path, tiny_model, more=MIX + later)
    found = graph(project.registry, project.root)
    artifacts: list[Artifact] = [found[key] for key in found.keys]
    assert [artifact.key for artifact in artifacts] == found.keys
    assert {each for artifact in artifacts for each in artifact.inputs()} <= set(found.keys)
    with pytest.raises(NielsCacheError, match=r"'pretrain/note'"):
        found["pretrain/note"]
