"""Automatic builds of small SFT data sets. Dagster evaluates the condition, tick by tick, over real builds."""

from pathlib import Path

import dagster as dg
import pytest

from niels_cache_assets.defs.keys import family_keys
from niels_cache_runtime.errors import NielsCacheError
from tests.built_project import Built
from tests.dagster_tools import Project
from tests.tiny import sentences

TALKS = """
[sft.talks]
source = "chat_jsonl"
files = ["talks.jsonl"]
"""


class Automation:
    """The condition of a project, evaluated as the sensor does it. Requests are returned, not executed."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.cursor: object = None

    def tick(self) -> set[str | None]:
        """Return the requested partitions. All three assets of each partition must be requested."""
        result = dg.evaluate_automation_conditions(self.project.defs, self.project.instance, cursor=self.cursor)  # type: ignore[arg-type]
        self.cursor = result.cursor
        asked = [result.get_requested_partitions(key) for key in family_keys("sft")]
        assert asked[0] == asked[1] == asked[2], "one build makes all three"
        return asked[0]


@pytest.fixture
def project(built_project: Built, tmp_path: Path) -> Project:
    """`talks` is not built yet, all else is."""
    project = built_project.project.copied(tmp_path)
    (tmp_path / "talks.jsonl").write_bytes((tmp_path / "chats.jsonl").read_bytes())
    project.configure(extra=TALKS)
    return project


def build(project: Project, *names: str) -> None:
    for name in names:
        project.observe(name)
        assert project.build(name, family="sft").success


def name_automatic(project: Project, names: str) -> None:
    project.edit("[dagster]\n", f"[dagster]\nautomatic_sft = {names}\n")


def test_other_bytes_of_the_tokenizer_or_another_revision_ask_for_a_build_and_nothing_else_does(project: Project) -> None:
    automation = Automation(project)
    build(project, "talks")
    assert automation.tick() == set()
    assert project.build_tokenizer(force=True).success
    assert automation.tick() == set(), "it is the same tokenizer"
    project.import_other_tokenizer(extra=TALKS)
    assert project.build_tokenizer().success
    assert automation.tick() == {"chats", "talks"}
    assert automation.tick() == set(), "they are asked for once"
    build(project, "chats", "talks")
    assert automation.tick() == set()
    text = (project.folder / "chats.jsonl").read_text().replace(sentences(1, seed=9)[0], "Another question.")
    (project.folder / "chats.jsonl").write_text(text)
    project.observe("chats", "talks")
    assert automation.tick() == {"chats"}, "talks was looked at as well, and is what it was"


def test_only_the_data_sets_that_are_named_are_automatic_and_what_was_never_built_is_not_begun(project: Project) -> None:
    name_automatic(project, '["talks"]')
    automation = Automation(project)
    assert automation.tick() == set(), "talks is missing, and was before this was turned on"
    build(project, "talks")
    assert automation.tick() == set()
    project.import_other_tokenizer(extra=TALKS)
    name_automatic(project, '["talks"]')
    assert project.build_tokenizer().success
    assert automation.tick() == {"talks"}


def test_nothing_is_begun_that_nobody_built_neither_when_it_is_new_in_the_file_nor_when_the_tokenizer_changes(project: Project) -> None:
    project.configure()
    automation = Automation(project)
    assert automation.tick() == set()
    project.configure(extra=TALKS)
    assert automation.tick() == set(), "talks has come into the file"
    project.import_other_tokenizer(extra=TALKS)
    assert project.build_tokenizer().success
    assert automation.tick() == {"chats"}


def test_an_unknown_name_is_refused_with_the_nearest(project: Project) -> None:
    name_automatic(project, '["talk"]')
    with pytest.raises(NielsCacheError, match=r"\[dagster\] automatic_sft .*'talk'.* 'talks'"):
        _ = project.defs
