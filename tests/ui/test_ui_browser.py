"""The Dagster UI as a person uses it, in a real browser, behind the guard: one server, one small project, from the first look at the graph
to a back-fill of everything.

The tests stand in the order in which a person would go, and what takes long (a back-fill: the daemon looks at it twice a minute) goes on
meanwhile; each runs by itself as well. Every step leaves a screenshot in screenshots/.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from niels_cache_assets.streaming.directories import work_on
from niels_cache_assets.streaming.journal import BYTES_VARIABLE
from niels_cache_runtime.meta import read_meta
from niels_cache_runtime.verify import verify_cache
from tests.dagster_tools import Project
from tests.tiny import sentences
from tests.ui.browser import IN_A_BROWSER, browser_page
from tests.ui.person import Person
from tests.ui.running import running_ui, wait_until

pytestmark = IN_A_BROWSER

BACKFILL_SECONDS = 240
STOP_SECONDS = 60  # two are meant: a busy machine takes its time to end a process
TRAIN, META = "pretrain/train_shards", "pretrain/meta_json"
OWN = ("notes", "endless", "broken")

# What a newcomer has, cut short; the tokenizer is imported, which takes no time.
QUICKSTART = """
[build]
cache_dir = "cache"
threads = 1
[tokenizer]
model = {model}
[pretrain.python_docs]
train_tokens = 30_000
val_tokens = 3_000
"""
OWN_TABLES = """
[pretrain.notes]
source = "jsonl"
files = ["notes.jsonl"]
[pretrain.endless]
source = "jsonl"
files = ["endless.jsonl"]
train_tokens = 100_000_000
val_tokens = 1_000
[pretrain.broken]
source = "jsonl"
files = ["broken.jsonl"]
"""


@pytest.fixture(scope="module")
def person(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Person]:
    folder = tmp_path_factory.mktemp("ui")
    project = Project(folder / "project", tiny_model)
    (project.folder / "niels_cache.toml").write_text(QUICKSTART.format(model=json.dumps(str(tiny_model))), encoding="utf-8")
    with (
        pytest.MonkeyPatch.context() as patched,
        browser_page() as page,
    ):
        patched.setenv(BYTES_VARIABLE, "200000")
        with running_ui(folder, tiny_model, project=project) as ui:
            yield Person(page, ui)


@pytest.fixture(scope="module")
def tokenizer_run(person: Person) -> str:
    return person.materialize("tokenizer")


@pytest.fixture(scope="module")
def backfill(person: Person, tokenizer_run: str) -> str:
    """From the tokenizer down, while there is only what the quickstart profile has."""
    person.watch(tokenizer_run)
    return person.back_fill('group:"tokenizer" or group:"pretrain" or group:"sft"')


@pytest.fixture(scope="module")
def own_data(person: Person, backfill: str) -> None:
    """Three data sets more in the file: one that is built in no time, one that takes long, and one with a line that is no JSON."""
    folder = person.ui.project.folder
    lines = [json.dumps({"text": text}) for text in sentences(60)]
    (folder / "endless.jsonl").write_text("\n".join(lines * 20_000), encoding="utf-8")
    (folder / "broken.jsonl").write_text("\n".join([*lines[:2], '{"text": "cut', *lines[3:]]), encoding="utf-8")
    with open(folder / "niels_cache.toml", "a", encoding="utf-8") as config:
        config.write(OWN_TABLES)
    person.reload_definitions()


def test_the_graph_is_a_map_and_an_asset_says_what_it_is(person: Person) -> None:
    person.open_graph()
    for group in ("upstream", "tokenizer", "pretrain", "sft", "reports"):
        person.see(group)
    person.look("01_graph")
    flow = [person.across(name) for name in ("tokenizer", "train_shards", "reports")]
    assert flow == sorted(flow), "from left to right"
    assert person.across("upstream") < flow[1]
    person.open(f"assets/{TRAIN}", view="overview")
    person.see("headerless uint16")
    person.see("TokenLoader")
    person.look("02_description")


def test_a_click_materializes_the_tokenizer_and_its_log_comes_live(person: Person, tokenizer_run: str) -> None:
    person.watch(tokenizer_run)
    assert any("EngineEvent" in frame or '"ENGINE_EVENT"' in frame for frame in person.frames), person.frames[:3]
    person.look("03_tokenizer_run")
    project = person.ui.project
    assert (project.root / "tokenizer/spm.model").read_bytes() == project.tokenizer_model.read_bytes()


def test_data_sets_that_are_added_to_the_file_are_partitions_after_a_reload(person: Person, own_data: None) -> None:
    person.open(f"assets/{TRAIN}", view="partitions")
    for name in ("python_docs", *OWN):
        person.see(name)
    person.look("04_new_partitions")


def test_a_partition_is_built_with_the_budget_of_the_launchpad(person: Person, own_data: None) -> None:
    person.open_launchpad(TRAIN, "notes")
    person.configure("ops:\n  stream_pretrain_dataset:\n    config:\n      train_tokens: 700\n      val_tokens: 100\n")
    person.page.wait_for_timeout(1_000)  # the schema and the preview
    person.look("05_launchpad")
    run = person.launch()
    person.watch(run)
    person.look("06_run")
    meta = read_meta(str(person.ui.project.root / "pretrain/notes/meta.json"))
    assert (meta["train_tokens"], meta["val_tokens"]) == (700, 100)


def test_a_materialization_shows_its_plots_and_tables(person: Person, own_data: None) -> None:
    """Of what the test before it has built; by itself it builds it first."""
    if not (person.ui.project.root / "pretrain/notes/meta.json").exists():
        person.watch(person.materialize_partition(TRAIN, "notes"))
    person.open_partition(META, "notes")
    person.show("plots")
    assert person.pictures() == 3
    person.look("07_plots")
    person.close()
    person.look("08_partition")
    person.entry("contents").scroll_into_view_if_needed()
    person.look("09_entries")
    person.open(f"assets/{TRAIN}", view="overview")
    person.see("Columns")
    person.look("10_overview")


def test_a_partition_that_fails_says_why_in_plain_words(person: Person, own_data: None) -> None:
    person.watch(person.materialize_partition(TRAIN, "broken"), "RUN_FAILURE")
    person.see(re.compile(r"broken\.jsonl.*line 3"))
    person.look("11_failure")
    person.open_partition(TRAIN, "broken")
    person.see("failed, and did not materialize this asset")
    person.look("12_failed_partition")


def test_a_long_build_is_observed_and_a_terminated_one_can_go_on(person: Person, own_data: None) -> None:
    run = person.materialize_partition(TRAIN, "endless")
    target = person.ui.project.root / "pretrain/endless"
    person.open(f"runs/{run}")
    person.see("ASSET_OBSERVATION", seconds=120)
    person.look("13_progress_run")
    person.open(f"assets/{TRAIN}", view="events", partition="endless")
    person.see("tokens_per_second")
    person.look("13_progress_observation")
    person.terminate(run)
    person.look("14_terminated")
    wait_until(lambda: person.ui.status_of(run) == "CANCELED", seconds=STOP_SECONDS, what="the run is not canceled")
    work = work_on(target)
    assert (work.writer, work.is_resumable, target.exists()) == (None, True, False)


def test_a_button_runs_the_check_that_says_what_is_not_in_sync(person: Person, own_data: None) -> None:
    person.watch(person.execute_check(META, "caches_in_sync"))
    person.open_check(META, "caches_in_sync")
    for name in OWN:
        person.entry("states").get_by_text(name, exact=True).wait_for()
    for name in ("endless", "broken"):
        row = person.page.locator("tr", has=person.page.get_by_text(name, exact=True)).last.inner_text()
        assert ("missing" in row, "build it" in row) == (True, True), row
    person.look("15_in_sync")


def test_a_back_fill_builds_the_whole_profile_from_the_tokenizer_down(person: Person, backfill: str) -> None:
    wait_until(lambda: person.backfills()[backfill] != "REQUESTED", seconds=BACKFILL_SECONDS, what="the back-fill has not ended")
    person.open(f"runs/b/{backfill}")
    person.see("sft / train_pair")
    person.look("16_backfill")
    assert person.backfills()[backfill] == "COMPLETED_SUCCESS"
    root = person.ui.project.root
    built = [read_meta(str(root / name / "meta.json")) for name in ("pretrain/python_docs", "sft/python_help")]
    assert [meta["built"] for meta in built] == [True, True]
    assert verify_cache(root) == []
    person.open_partition("sft/train_pair", "python_help")
    person.show("samples")
    person.see("longest")
    person.look("17_samples")


def test_nothing_that_the_pages_ask_for_is_refused(person: Person) -> None:
    person.open("graphql")
    person.see("GraphiQL")
    assert person.refused == []
