"""The steps that read places, from the states of runs: branches, restarts, phases, copies of caches, and states of workers."""

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from niels_cache_assets.cli import main
from niels_cache_inspection.account.runs import runs_of
from niels_cache_inspection.find.steps import steps_of_documents
from niels_cache_runtime import NielsCacheError, Phase, PhasedLoader, TokenLoader
from niels_cache_runtime.loader.phases import FORMAT as OF_PHASES
from tests.helpers.hand_made import write_stream
from tests.helpers.traced_steps import take_steps, traced_reads
from tests.loader.test_random_runs import write_notes

ENDS = [3, 40, 41, 160, 201]
Save = Callable[[Any], Path]


class FoundPlace(NamedTuple):
    directory: Path
    document: int
    start: int = 0
    end: int = 1_000
    split: str = "train"
    side: str | None = None


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_stream(tmp_path / "pretrain" / "notes", np.arange(5, 206) % 50, shard_tokens=64, doc_ends=ENDS)
    return tmp_path / "pretrain" / "notes"


@pytest.fixture
def save(tmp_path: Path) -> Save:
    def write(state: Any) -> Path:
        path = tmp_path / f"state {len([*tmp_path.iterdir()])}.json"
        path.write_text(json.dumps({"trainer": {"loader": state}}))
        return path

    return write


def after(folder: Path, steps: int, **settings: Any) -> Any:
    loader = TokenLoader(str(folder / "train"), **{"T": 8, "B": 4, "seed": 3, **settings})
    take_steps(loader, steps)
    return loader


def expected(loader: Any, document: int) -> set[tuple[int, ...]]:
    return {tuple(read[2:-1]) for read in traced_reads(loader, until=loader.step)["notes"] if read.document == document}


def facts(rows: list[Any], *, is_next: bool = False) -> list[tuple[int, ...]]:
    return [row[3:12] for row in rows if row.is_next == is_next]


def test_branches_and_restarts_give_the_union_of_what_they_read(folder: Path, save: Save) -> None:
    run = after(folder, 10)
    early = run.state_dict()
    take_steps(run, 6)
    branch = TokenLoader.from_state(early, B=3)
    take_steps(branch, 4)
    other = after(folder, 5, seed=4)
    states = [*map(save, (early, run.state_dict(), branch.state_dict(), other.state_dict()))]
    found = steps_of_documents(states, [FoundPlace(folder, 3), FoundPlace(folder, 3, 10, 11), FoundPlace(folder.parent, 3)])
    assert [(state.run, state.steps, state.path) for state in found.states] == [*zip((0, 0, 0, 1), (10, 16, 14, 5), states, strict=True)]
    rows = [row for row in found.rows if row.place == 0]
    of_run, of_branch, of_other = (expected(loader, 3) for loader in (run, branch, other))
    assert len(of_run - of_branch) > 3 < len(of_branch - of_run)
    assert sorted(facts([row for row in rows if row.run == 0])) == sorted(of_run | of_branch)
    assert sorted(facts([row for row in rows if row.run == 1])) == sorted(of_other)
    for row in (row for row in rows if row.run == 0 and not row.is_next):
        assert (0 in row.states, 2 in row.states) == (row.step < 10, row[3:12] in of_branch)
    assert {row.states for row in rows if row.is_next} == {(1,), (2,), (3,)}  # the run went on after the first state
    reads = [[row[1:] for row in found.rows if row.place == place and not row.is_next] for place in (0, 1)]
    assert reads[1] == [row[1:] for row in rows if not row.is_next and row.offset <= 10 < row.offset + row.tokens]
    assert 3 < len(reads[1]) < len(reads[0])
    assert found.known == {0, 1}
    assert "crashed" in found.limit


def test_a_branch_with_other_weights_has_a_next_row_of_its_own(folder: Path, save: Save, tmp_path: Path) -> None:
    sources = {"a": str(folder / "train"), "b": str(shutil.copytree(folder, tmp_path / "other/notes") / "train")}
    run = TokenLoader(sources, T=8, B=4, seed=3, weights={"a": 1, "b": 1})
    take_steps(run, 5)
    early = run.state_dict()
    branch = TokenLoader.from_state(early, weights=[*early["weights"], (early["samples"], {"a": 1, "b": 3})])
    take_steps(run, 6)
    take_steps(branch, 3)
    states = [*map(save, (early, branch.state_dict(), run.state_dict()))]
    rows = steps_of_documents(states, [FoundPlace(folder, 3)]).rows
    assert {each for row in rows if row.is_next for each in row.states} == {1, 2}


def test_a_cache_is_known_by_its_files_wherever_it_is(folder: Path, save: Save, tmp_path: Path) -> None:
    state = save(after(folder, 10).state_dict())
    here = facts(steps_of_documents([state], [FoundPlace(folder, 1)]).rows)
    copy = tmp_path / "elsewhere" / "pretrain" / "copied"
    shutil.copytree(folder, copy)
    assert facts(steps_of_documents([state], [FoundPlace(copy, 1)]).rows) == here != []
    shutil.rmtree(folder)
    with pytest.raises(NielsCacheError, match="--source notes=FOLDER"):
        steps_of_documents([state], [FoundPlace(copy, 1)])
    assert facts(steps_of_documents([state], [FoundPlace(copy, 1)], {"notes": str(copy / "train")}).rows) == here
    (copy / "meta.json").unlink()
    bare = save(after(copy, 10).state_dict())
    assert facts(steps_of_documents([bare], [FoundPlace(copy, 1)]).rows) != []


def test_a_state_of_a_run_in_phases_is_read_from_a_checkpoint(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    phases = [Phase(T=8, B=2, tokens=160), Phase(T=16, B=2, packing="best_fit")]
    loader: Any = PhasedLoader(str(folder / "train"), phases=phases, seed=1, lot_tokens=50, lanes=2)
    take_steps(loader, 14)
    assert loader.phase == 1
    torch.save({"step": 1, "data": loader.state_dict()}, tmp_path / "checkpoint.pt")
    found = steps_of_documents([tmp_path / "checkpoint.pt"], [FoundPlace(folder, 3)])
    assert sorted(facts(found.rows)) == sorted(expected(loader, 3)) != []
    assert found.states[0].steps == 14
    row = found.rows[-1]
    assert main(["trace", "--state", str(tmp_path / "checkpoint.pt"), "--step", str(row.step), "--row", str(row.row), "--json"]) == 0
    (traced,) = json.loads(capsys.readouterr().out)["rows"]
    places = [(each["first_column"], each["document"]) for each in traced["segments"] if "document" in each]
    assert traced["epoch"] == row.epoch
    assert (row.first, 3) in places


@pytest.mark.parametrize("of_phases", [False, True])
@pytest.mark.parametrize("lost", ["names", "sources", "folder"])
def test_an_incomplete_state_is_refused_in_one_line(folder: Path, save: Save, lost: str, of_phases: bool) -> None:
    state = after(folder, 1).state_dict()
    del (state["sources"]["notes"] if lost == "folder" else state)[lost]
    path = save({"format": OF_PHASES, "phases": [state]} if of_phases else state)
    for read in (partial(steps_of_documents, places=[]), partial(runs_of, moved={})):
        with pytest.raises(NielsCacheError, match=rf"{path.name}: .*invalid .*{lost}"):
            read([path])


def test_a_cache_that_has_grown_since_is_read_as_it_was(tmp_path: Path, save: Save) -> None:
    loader = after(Path(write_notes(tmp_path / "before" / "notes", 1)).parent, 6)
    state = save(loader.state_dict())
    grown = Path(write_notes(tmp_path / "after" / "notes", 2)).parent
    rows = steps_of_documents([state], [FoundPlace(grown, 5), FoundPlace(grown, 20)], {"notes": str(grown / "train")}).rows
    assert sorted(facts([row for row in rows if row.place == 0])) == sorted(expected(loader, 5)) != []
    assert [row.is_next for row in rows if row.place == 1] == [True]  # it came with the growth


def test_states_of_workers_count_the_batches_of_all_of_them(folder: Path, save: Save) -> None:
    loader = after(folder, 0)
    state = loader.state_dict()
    workers = [state | {"worker": [0, 2, 3]}, state | {"worker": [1, 2, 2]}]
    take_steps(loader, 5)
    found = steps_of_documents([save(workers)], [FoundPlace(folder, 3)])
    assert found.states[0].steps == 5
    assert sorted(facts(found.rows)) == sorted(expected(loader, 3)) != []
