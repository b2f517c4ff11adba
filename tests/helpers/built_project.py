"""Projects with everything built, once for each process of pytest. Tests look at these projects, or take a copy and continue with it.

`built_corpora` also has cleaned and deduplicated data sets. It costs three times as much as `built_project`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # Dagster is imported when a test requests a project
    from pathlib import Path

    import dagster as dg

    from tests.helpers.dagster_tools import Project


@dataclass(frozen=True)
class Built:
    """A built project, which no test may change. `runs`: the runs that built it, by the name of their result, such as "tokenizer" and
    "notes".
    """

    project: Project
    runs: dict[str, dg.ExecuteInProcessResult]


@pytest.fixture(scope="session")
def built_project(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Built:
    from tests.helpers.dagster_tools import Project

    project = Project(tmp_path_factory.mktemp("built") / "project", tiny_model)
    return _built(project, {"tokenizer": project.build_tokenizer()}, "notes", "books")


@pytest.fixture(scope="session")
def built_corpora(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Built:
    """Return the project of `prepare_project`. `books` and `letters` have a corpus, `notes` and `chats` have none. The tokenizer is
    trained.
    """
    from tests.helpers.dagster_tools import TRAIN_HERE
    from tests.helpers.prepared_project import prepare_project

    project = prepare_project(tmp_path_factory.mktemp("corpora") / "project", tiny_model)
    project.edit(f'model = "{tiny_model}"', TRAIN_HERE)
    runs = {"tokenizer": project.build_tokenizer()}
    runs |= {f"corpus/{name}": project.run("build_corpus", name) for name in ("books", "letters")}
    runs |= {"duplicates": project.run("find_duplicates")}
    runs |= {f"report/{name}": project.run("report_corpus", name) for name in ("books", "letters")}
    return _built(project, runs, "notes", "books", "letters")


def _built(project: Project, runs: dict[str, dg.ExecuteInProcessResult], *pretrain: str) -> Built:
    """Build these data sets and `chats`, in addition to everything that is built already."""
    runs = {**runs, **{name: project.build(name) for name in pretrain}, "chats": project.build("chats", family="sft")}
    assert [name for name, run in runs.items() if not run.success] == []
    return Built(project, runs)
