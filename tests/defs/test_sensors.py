"""The sensors, tick by tick, on the loopback hub and on a folder of notes: what they see, say and request. They are off at first."""

import json
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest

from niels_cache_assets.defs import cursors, sensors
from niels_cache_assets.defs.assets.upstream import REVISION
from niels_cache_assets.defs.checks.sync import IN_SYNC
from niels_cache_assets.defs.resources import CacheRoot
from niels_cache_assets.defs.sensors import UPSTREAM_TAG, notes_folder_sensor, upstream_revision_sensor
from niels_cache_corpora.roam import Roam
from tests.helpers.built_project import Built
from tests.helpers.dagster_tools import Project, metadata
from tests.helpers.hub_repositories import json_lines
from tests.helpers.loopback_hub import LoopbackHub
from tests.helpers.messages import missing
from tests.helpers.names import NAMES
from tests.helpers.prepared_project import prepare_project

TOKEN = "hf_averysecrettokenofatest"
DOLLY, WIKITEXT = "databricks/databricks-dolly-15k", "Salesforce/wikitext"
ON_THE_HUB = """
[pretrain.wiki]
source = "wikitext"

[pretrain.mix]
source = "interleave"
members = {{ wiki = 1, books = 1 }}
{more}
[sft.dolly]
source = "dolly15k"
"""
NOT_ASKED = """
[pretrain.web]
source = "fineweb_edu"
pinned_revision = "main"

[pretrain.mirror]
source = "wikitext"
files = ["notes.jsonl"]

[pretrain.off]
source = "huggingface"
dataset = "someone/something"
enabled = false
"""
VAULT = """
[pretrain.vault]
source = "markdown_folder"
path = "vault"
{more}
"""


class Clock:
    """Seconds that the test sets; each look at it takes `step`."""

    now, step = 1_000_000.0, 0.0

    def __call__(self) -> float:
        self.now += self.step
        return self.now - self.step


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The time of the sensors."""
    clock = Clock()
    for module in (sensors, cursors):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=clock, time=lambda: clock.now))
    return clock


class Watch:
    """A sensor of a project, tick after tick as the daemon does: cursor kept, observations recorded, used run keys passed over."""

    def __init__(self, project: Project, sensor: dg.SensorDefinition) -> None:
        self.project, self.sensor = project, sensor
        self.cursor: str | None = None
        self.observed: list[str | None] = []
        self.requests: list[dg.RunRequest] = []
        self.run_keys: set[str] = set()

    def tick(self) -> str:
        """Return the message of the tick. It is empty if the tick requests runs."""
        context = dg.build_sensor_context(
            instance=self.project.instance,
            cursor=self.cursor,
            definitions=self.project.defs,
            resources={"cache_root": CacheRoot(root=str(self.project.root))},
        )
        done = self.sensor.evaluate_tick(context)
        for event in done.asset_events:
            self.project.instance.report_runless_asset_event(event)
        self.cursor = done.cursor
        self.requests = [each for each in done.run_requests or [] if each.run_key not in self.run_keys]
        self.run_keys |= {each.run_key for each in self.requests if each.run_key}
        self.observed = [event.partition for event in done.asset_events]
        return done.skip_message or ""

    @property
    def asked_for(self) -> list[str | None]:
        return [request.partition_key for request in self.requests]


@pytest.fixture
def project(built_project: Built, tmp_path: Path) -> Project:
    return built_project.project.copied(tmp_path)


@pytest.fixture
def hub(hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch) -> LoopbackHub:
    """The loopback hub, for this process: the address of the real one is replaced."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
    monkeypatch.setenv("NIELS_CACHE_NETWORK_PATIENCE", "0")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    return hub


def watch_the_hub(project: Project, *, builds: bool = False, more: str = "") -> Watch:
    configure(project, ON_THE_HUB.format(more=more), **({"upstream_builds": "true"} if builds else {}))
    return Watch(project, upstream_revision_sensor(project.registry))


def configure(project: Project, extra: str, **keys: str) -> None:
    project.configure(extra=extra)
    lines = "".join(f"{key} = {value}\n" for key, value in keys.items())
    project.edit("[dagster]\n", f"[dagster]\n{lines}")


def publish(hub: LoopbackHub, repository: str, text: str = "another line") -> str:
    """Make a new commit, and return its name."""
    hub.repositories[repository] = {**hub.repositories[repository], "more.jsonl": json_lines([{"text": text}])}
    return hub.commit(repository)


def record_build(project: Project, name: str) -> None:
    """Record a build from the last observed version of upstream."""
    family = project.registry.family_of(name)
    newest = project.instance.fetch_observations(NAMES.upstream[family], limit=1).records[0].storage_id
    tags = {f"dagster/input_event_pointer/{NAMES.upstream[family].to_user_string()}": str(newest)}
    project.instance.report_runless_asset_event(dg.AssetMaterialization(NAMES.meta[family], partition=name, tags=tags))


def test_everything_that_watches_is_off_until_someone_turns_it_on(project: Project) -> None:
    repository = project.defs.get_repository_def()
    sensors = {sensor.name: sensor for sensor in repository.sensor_defs}
    schedules = {schedule.name: schedule for schedule in repository.schedule_defs}
    assert set(sensors) == {"upstream_revision_sensor", "notes_folder_sensor"}
    assert {sensor.default_status for sensor in sensors.values()} == {dg.DefaultSensorStatus.STOPPED}
    assert {name: (schedule.job_name, schedule.cron_schedule) for name, schedule in schedules.items()} == {
        "nightly_upstream": ("observe_upstream", "0 3 * * *"),
        "nightly_verification": ("verify_caches", "30 3 * * *"),
    }
    assert {schedule.default_status for schedule in schedules.values()} == {dg.DefaultScheduleStatus.STOPPED}
    hub, notes = upstream_revision_sensor(project.registry), notes_folder_sensor(project.registry)
    assert missing(Watch(project, hub).tick(), "nothing", "hub") == missing(Watch(project, notes).tick(), "nothing", "folder") == []


def test_a_data_set_that_moved_on_the_hub_is_observed_once(project: Project, hub: LoopbackHub) -> None:
    """Also beside data sets that are pinned, local or switched off: nobody asks for these."""
    watch = watch_the_hub(project, more=NOT_ASKED)
    assert missing(watch.tick(), "3 data sets of 3: ", f"wiki is at {hub.commit(WIKITEXT)} ", "mix is", " sha256:") == []
    assert watch.observed == ["wiki", "mix", "dolly"]
    assert missing(watch.tick(), "3 data sets of 3: ", "nothing") == []
    assert watch.observed == []
    commit = publish(hub, DOLLY)
    assert missing(watch.tick(), "3 data sets of 3: ", f"dolly is at {commit} ") == []
    assert (watch.observed, watch.requests) == (["dolly"], [])
    last = project.instance.fetch_observations(NAMES.upstream["sft"], limit=1).records[0].asset_observation
    assert last is not None
    assert metadata(last)[REVISION] == commit  # type: ignore[arg-type]
    assert "nothing" in watch.tick()
    publish(hub, WIKITEXT)
    watch.tick()
    assert watch.observed == ["wiki", "mix"], "what is mixed from it has moved as well"
    asked = {path for _, path, _ in hub.requests if path.startswith("/api/datasets/")}  # the library asks for a list of its own once
    assert asked == {f"/api/datasets/{name}" for name in (WIKITEXT, DOLLY)}


def test_a_hub_that_is_down_is_told_plainly_without_the_token_and_what_answers_is_still_observed(
    project: Project, hub: LoopbackHub, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    watch = watch_the_hub(project)
    hub.down = True
    told = [watch.tick()]
    assert missing(told[0], "3 data sets of 3: wiki ", f"{WIKITEXT}: ", "reached") == []
    assert [told[0].count(f"{name} could not") for name in ("wiki", "mix", "dolly")] == [1, 1, 1]
    assert (watch.observed, watch.requests) == ([], [])
    hub.down = False
    del hub.repositories[WIKITEXT]
    told.append(watch.tick())
    assert missing(told[1], f"{WIKITEXT}: no such", "private") == []
    assert watch.observed == ["dolly"]
    sent = {token for path, token in hub.tokens if "/datasets/" in path}  # the library also asks for lists of its own, without a token
    assert sent == {f"Bearer {TOKEN}"}
    records = [record for key in NAMES.upstream.values() for record in project.instance.fetch_observations(key, limit=9).records]
    assert {record.partition_key for record in records} >= {"dolly"}
    assert len(caplog.records) > 3
    everything = [*told, watch.cursor, records, caplog.text, [record.__dict__ for record in caplog.records], *capfd.readouterr()]
    assert TOKEN not in repr(everything)


def test_a_look_ends_in_time_and_the_next_one_begins_where_it_ended(project: Project, hub: LoopbackHub, clock: Clock) -> None:
    clock.step = 11
    watch = watch_the_hub(project)
    assert "2 data sets of 3 (dolly is next): " in watch.tick()
    watch.tick()
    assert watch.observed == ["dolly"]
    assert missing(watch.tick(), "2 data sets of 3 (wiki is next): ", "nothing") == []
    watch.cursor = json.dumps({"next": "a data set that is gone"})
    assert "(dolly is next)" in watch.tick()


def test_with_the_option_what_was_built_is_asked_for_once_for_each_revision(project: Project, hub: LoopbackHub) -> None:
    watch = watch_the_hub(project, builds=True)
    watch.tick()
    assert (len(watch.observed), watch.requests) == (3, []), "what nobody has built is not begun"
    record_build(project, "dolly")
    assert "nothing" in watch.tick()
    commit = publish(hub, DOLLY)
    publish(hub, WIKITEXT)
    assert watch.tick() == ""
    assert (watch.asked_for, watch.observed) == (["dolly"], ["wiki", "mix", "dolly"])
    request = watch.requests[0]
    version = request.tags[UPSTREAM_TAG]
    assert (str(request.run_key).startswith(f"dolly@{version}#"), version.startswith(commit)) == (True, True)
    assert request.asset_selection == [dg.AssetKey(["sft", name]) for name in ("train_pair", "val_pair", "meta_json")]
    assert request.run_config == {"ops": {"stream_sft_dataset": {"config": {"wait": True}}}}
    assert missing(watch.tick(), "dolly was requested", "being built", "failed") == []
    assert watch.requests == []
    publish(hub, DOLLY, "once more")
    watch.tick()
    assert (watch.asked_for, watch.requests[0].run_key != request.run_key) == (["dolly"], True)


def test_a_data_set_that_comes_back_to_a_state_on_the_hub_is_asked_for_again(project: Project, hub: LoopbackHub) -> None:
    watch = watch_the_hub(project, builds=True)
    watch.tick()
    record_build(project, "dolly")
    built = hub.repositories[DOLLY]
    for _ in range(3):
        publish(hub, DOLLY, "a state whose build fails")
        before = watch.cursor
        watch.tick()
        assert watch.asked_for == ["dolly"]
        watch.cursor = before
        watch.tick()
        assert watch.asked_for == [], "the cursor was lost, and the run that was asked for is the same"
        hub.repositories[DOLLY] = built
        watch.tick()
    assert len(watch.run_keys) == 3


@pytest.fixture
def vault(project: Project) -> Iterator[Path]:
    """The folder of the data set `vault`, which is built when it is quiet for 100 seconds."""
    folder = project.folder / "vault"
    (folder / "day").mkdir(parents=True)
    for number in range(9):
        (folder / "day" / f"{number}.md").write_text(f"Note {number}. " + "Words of a note. " * 9)
    configure(project, VAULT.format(more=""), notes_quiet_seconds="100")
    return folder


def watch_the_notes(project: Project) -> Watch:
    return Watch(project, notes_folder_sensor(project.registry))


def test_notes_are_built_when_their_folder_has_been_quiet_and_not_while_it_changes(project: Project, vault: Path, clock: Clock) -> None:
    watch = watch_the_notes(project)
    assert missing(watch.tick(), "1 data set of 1", " vault ", "changed", "100 more seconds") == []
    clock.now += 99
    (vault / "new.md").write_text("A new note.")
    assert "100 more seconds" in watch.tick()
    clock.now += 60
    assert "40 more seconds" in watch.tick()
    assert watch.observed == []
    clock.now += 40
    assert watch.tick() == ""
    assert (watch.asked_for, watch.observed) == (["vault"], ["vault"])
    assert str(watch.requests[0].run_key).startswith(f"vault@{watch.requests[0].tags[UPSTREAM_TAG]}#")
    clock.now += 1000
    assert missing(watch.tick(), "vault", "requested") == []
    assert project.build("vault").success
    assert missing(watch.tick(), "1 data set of 1", "nothing") == []
    assert json.loads(str(watch.cursor))["changed"] == {}
    (vault / "new.md").write_text("A new note, and more of it.")
    assert "has changed" in watch.tick()
    (vault / "new.md").write_text("A new note.")
    assert "nothing" in watch.tick(), "it is as it was built"


@pytest.mark.parametrize("why", ["gone", "a bug"])
def test_a_folder_that_cannot_be_read_stops_no_look_at_the_others(
    project: Project, vault: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    whole = Roam.revision

    def revision(self: Roam, siblings: dict[str, Any]) -> str | None:
        if str(self.path).endswith("odd") and why == "a bug":
            raise KeyError("text")
        return whole(self, siblings)

    monkeypatch.setattr(Roam, "revision", revision)
    configure(project, VAULT.format(more='[pretrain.odd]\nsource = "roam"\npath = "odd"'))
    said = watch_the_notes(project).tick()
    reason = ["KeyError: 'text'"] if why == "a bug" else ["path = ", "not a folder"]
    assert missing(said, "2 data sets of 2", " vault ", "changed", "odd could not", *reason) == []


def test_without_a_tokenizer_nothing_is_asked_for(project: Project, vault: Path) -> None:
    configure(project, VAULT.format(more=""), notes_quiet_seconds="0")
    shutil.rmtree(project.root / "tokenizer")
    watch = watch_the_notes(project)
    assert missing(watch.tick(), "vault", "no tokenizer") == []
    project.build_tokenizer()
    assert watch.tick() == ""
    assert watch.asked_for == ["vault"]


def test_notes_that_are_cleaned_first_are_asked_for_with_their_corpus(tmp_path: Path, tiny_model: Path) -> None:
    project = prepare_project(
        tmp_path, tiny_model, more='[pretrain.vault]\nsource = "markdown_folder"\npath = "books"\nprepare = ["dedup"]'
    )
    (tmp_path / "books" / "note.md").write_text("A note among the books.")
    project.edit("[dagster]\n", "[dagster]\nnotes_quiet_seconds = 0\n")
    project.build_tokenizer()
    watch = watch_the_notes(project)
    assert watch.tick() == ""
    (request,) = watch.requests
    assert request.asset_graph_subset is not None
    wanted = {f"{each.asset_key.to_user_string()} {each.partition_key}" for each in request.asset_graph_subset.iterate_asset_partitions()}
    assert wanted == {
        *(f"corpus/{name} vault" for name in ("documents", "kept", "report")),
        "corpus/duplicates None",
        *(f"pretrain/{name} vault" for name in ("train_shards", "val_shards", "meta_json")),
    }
    assert "requested" in watch.tick()


def test_the_job_of_the_nightly_verification_reads_every_cache(project: Project) -> None:
    run = project.run("verify_caches")
    evaluations = run.get_asset_check_evaluations()
    assert [evaluation.check_name for evaluation in evaluations] == [IN_SYNC, IN_SYNC]
    verified = {evaluation.asset_key.path[0]: evaluation.metadata["verified"].value for evaluation in evaluations}
    assert verified == {"pretrain": "every file of 2 data sets", "sft": "every file of 1 data set"}
