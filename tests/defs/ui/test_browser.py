"""The Dagster UI as a person uses it, in a real browser, behind the guard: one walk from the first look at the graph to a back-fill of all.

Each function has the actions and the sight of the person at one place. Later functions look at the results of earlier ones.
tests/defs/ui/test_process.py tests killed and terminated runs without a browser.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from niels_cache_runtime.format.meta import read_meta
from niels_cache_runtime.verify import verify_cache
from tests.helpers.dagster_tools import Project
from tests.helpers.tiny import sentences
from tests.helpers.ui.browser import IN_A_BROWSER, browser_page
from tests.helpers.ui.person import Person
from tests.helpers.ui.running import SETTINGS, running_ui, wait_until

pytestmark = IN_A_BROWSER

BACKFILL_SECONDS = 240
TRAIN, META = "pretrain/train_shards", "pretrain/meta_json"

# The tokenizer is imported, which takes no time.
CONFIG = """
[tokenizer]
model = {model}
[pretrain.notes]
source = "jsonl"
files = ["notes.jsonl"]
[sft.chats]
source = "chat_jsonl"
files = ["chats.jsonl"]
"""
LETTERS = """
[pretrain.letters]
source = "jsonl"
files = ["letters.jsonl"]
"""


@pytest.fixture
def person(tmp_path: Path, tiny_model: Path) -> Iterator[Person]:
    project = Project(tmp_path / "project", tiny_model)
    (project.folder / "niels_cache.toml").write_text(
        "[dagster]\nplots = true\n" + SETTINGS + CONFIG.format(model=json.dumps(str(tiny_model))), encoding="utf-8"
    )
    with browser_page() as page, running_ui(tmp_path, tiny_model, project=project, module="tests.helpers.ui.quick", forked=True) as ui:
        yield Person(page, ui)


@pytest.mark.walk  # a minute of the UI and its runs
def test_a_person_goes_from_the_first_look_at_the_graph_to_a_back_fill_of_everything(person: Person) -> None:
    the_graph_is_a_map_and_an_asset_says_what_it_is(person)
    a_data_set_that_is_added_to_the_file_is_a_partition_after_a_reload(person)
    a_click_materializes_the_tokenizer_and_its_log_comes_live(person)
    a_partition_is_built_with_the_budget_of_the_launchpad(person)
    a_materialization_shows_its_plots_and_tables(person)
    a_back_fill_builds_the_whole_profile_from_the_tokenizer_down(person)
    nothing_that_the_pages_asked_for_was_refused(person)


def the_graph_is_a_map_and_an_asset_says_what_it_is(person: Person) -> None:
    person.open_graph()
    for group in ("upstream", "tokenizer", "pretrain", "sft", "reports"):
        person.see(group)
    flow = [person.across(name) for name in ("tokenizer", "train_shards", "reports")]
    assert flow == sorted(flow), "from left to right"
    assert person.across("upstream") < flow[1]
    person.open(f"assets/{TRAIN}", view="overview")
    person.see("headerless tokens")
    person.see("TokenLoader")


def a_data_set_that_is_added_to_the_file_is_a_partition_after_a_reload(person: Person) -> None:
    lines = [json.dumps({"text": text}) for text in sentences(60)]
    (person.ui.project.folder / "letters.jsonl").write_text("\n".join(lines), encoding="utf-8")
    with open(person.ui.project.folder / "niels_cache.toml", "a", encoding="utf-8") as config:
        config.write(LETTERS)
    person.reload_definitions()
    person.open(f"assets/{TRAIN}", view="partitions")
    for name in ("notes", "letters"):
        person.see(name)


def a_click_materializes_the_tokenizer_and_its_log_comes_live(person: Person) -> None:
    person.watch(person.materialize("tokenizer"))
    assert any("EngineEvent" in frame or '"ENGINE_EVENT"' in frame for frame in person.frames), person.frames[:3]
    project = person.ui.project
    assert (project.root / "tokenizer/spm.model").read_bytes() == project.tokenizer_model.read_bytes()


def a_partition_is_built_with_the_budget_of_the_launchpad(person: Person) -> None:
    person.open_launchpad(TRAIN, "notes")
    person.configure("ops:\n  stream_pretrain_dataset:\n    config:\n      train_tokens: 700\n      val_tokens: 100\n")
    person.watch(person.launch())
    assert budgets(person) == (700, 100)


def a_materialization_shows_its_plots_and_tables(person: Person) -> None:
    person.open_partition(META, "notes")
    person.show("plots")
    wait_until(lambda: person.pictures() == 3, seconds=60, what="a picture is not drawn")
    person.press("Close")
    person.see("chars_per_token")


def a_back_fill_builds_the_whole_profile_from_the_tokenizer_down(person: Person) -> None:
    backfill = person.back_fill('group:"tokenizer" or group:"pretrain" or group:"sft"')
    person.open(f"runs/b/{backfill}")
    person.see("sft / train_pair")
    wait_until(lambda: person.backfills()[backfill] != "REQUESTED", seconds=BACKFILL_SECONDS, what="the back-fill has not ended")
    assert person.backfills() == {backfill: "COMPLETED_SUCCESS"}
    root = person.ui.project.root
    built = [read_meta(str(root / name / "meta.json")) for name in ("pretrain/notes", "pretrain/letters", "sft/chats")]
    assert [meta["built"] for meta in built] == [True] * 3
    assert budgets(person)[0] > 700, "all of the file again"
    assert verify_cache(root) == []


def nothing_that_the_pages_asked_for_was_refused(person: Person) -> None:
    person.page.goto(f"{person.ui.url}/graphql")
    person.see("GraphiQL")
    assert person.refused == []


def budgets(person: Person) -> tuple[int, int]:
    """The tokens of notes, of its train and of its val."""
    meta = read_meta(str(person.ui.project.root / "pretrain/notes/meta.json"))
    return meta["train_tokens"], meta["val_tokens"]
