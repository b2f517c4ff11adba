"""One project with everything built, once for each process of pytest: tests look at it, or take a copy and go on from there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # Dagster is imported where a test asks for a project
    from pathlib import Path

    import dagster as dg

    from tests.dagster_tools import Project


@dataclass(frozen=True)
class Built:
    """`runs`: those that built it, by what they built: "tokenizer", "notes", "books", "chats". None of it is changed."""

    project: Project
    runs: dict[str, dg.ExecuteInProcessResult]


@pytest.fixture(scope="session")
def built_project(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Built:
    from tests.dagster_tools import Project

    project = Project(tmp_path_factory.mktemp("built") / "project", tiny_model)
    runs = {
        "tokenizer": project.build_tokenizer(),
        "notes": project.build("notes"),
        "books": project.build("books"),
        "chats": project.build("chats", family="sft"),
    }
    assert [name for name, run in runs.items() if not run.success] == []
    return Built(project, runs)
