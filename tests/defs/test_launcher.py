"""Builds from a program. Each data set is one run in the instance that the UI shows, and a failed run does not stop other runs."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.execution.retries import auto_reexecution_should_retry_run  # what the daemon asks

from niels_cache_assets.defs.home.instance import ensure_instance
from niels_cache_assets.defs.launcher import launch_builds
from niels_cache_assets.sources.jsonl import Jsonl
from niels_cache_assets.sources.text import Text
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.commit import hold_lock
from niels_cache_runtime.format.layout import META_NAME
from niels_cache_runtime.format.meta import read_meta
from tests.helpers.built_project import Built
from tests.helpers.dagster_tools import Project
from tests.helpers.launches import Recorder, launch, launch_in_memory, states
from tests.helpers.messages import missing
from tests.helpers.names import NAMES
from tests.helpers.prepared_project import prepare_project
from tests.helpers.ui.running import wait_until

pytestmark = pytest.mark.usefixtures("no_drawing")


@pytest.fixture
def project(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Nothing of it is built, and its home is on the disk."""
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    return Project(tmp_path, tiny_model)


@pytest.fixture
def home_instance(project: Project) -> Iterator[dg.DagsterInstance]:
    with ensure_instance() as opened:
        yield opened


@pytest.fixture
def in_memory(project: Project, monkeypatch: pytest.MonkeyPatch) -> dg.DagsterInstance:
    return launch_in_memory(project, monkeypatch)


@pytest.fixture
def built(built_project: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Everything of it is built, and its home is in memory."""
    project = built_project.project.copied(tmp_path)
    launch_in_memory(project, monkeypatch)
    return project


def test_every_data_set_is_built_in_order_and_recorded_as_a_run_of_its_job(
    project: Project, home_instance: dg.DagsterInstance, capfd: pytest.CaptureFixture[str]
) -> None:
    project.configure(extra='enabled = false\n[pretrain.later]\nsource = "roam"\n')
    results, recorder = launch(project)
    assert states(results) == {"tokenizer": "built", "notes": "built", "later": "skipped", "chats": "built"}
    assert "path" in (results["later"].message or "")
    notes = results["notes"]
    assert notes.meta == read_meta(str(project.root / "pretrain/notes" / META_NAME))
    assert (notes.family, notes.directory, notes.message) == ("pretrain", project.root / "pretrain/notes", None)
    assert recorder.progress["notes"].documents == 60
    assert "on this machine" in recorder.told.pop(1), "where the tokenizer comes from"
    assert recorder.told[:3] == ["started tokenizer (tokenizer)", "finished tokenizer: built", "started notes (pretrain)"]
    assert recorder.told[-3:] == ["finished later: skipped", "started chats (sft)", "finished chats: built"]
    runs = [(run.job_name, run.tags.get("dagster/partition"), run.status.value) for run in reversed(home_instance.get_runs())]
    assert runs == [
        ("build_tokenizer", None, "SUCCESS"),
        ("build_pretrain", "notes", "SUCCESS"),
        ("build_sft", "chats", "SUCCESS"),
        ("write_reports", None, "SUCCESS"),
    ]
    started_by = {"niels_cache/started_by": "build-all", "user": "build-all"}
    of_the_location = dg.RunsFilter(tags={".dagster/repository": f"__repository__@{NAMES.location}", **started_by})
    assert len(home_instance.get_runs(filters=of_the_location)) == 4, "the page of a job asks for these"
    origins = {run.job_name: run.remote_job_origin for run in home_instance.get_runs()}
    assert all(origin is not None and (origin.location_name, origin.job_name) == (NAMES.location, job) for job, origin in origins.items())
    assert home_instance.get_materialized_partitions(dg.AssetKey(["pretrain", "meta_json"])) == {"notes"}
    assert home_instance.event_log_storage.get_latest_asset_check_execution_by_key(
        [dg.AssetCheckKey(dg.AssetKey(["pretrain", "meta_json"]), "files_match_meta")]
    )
    output = capfd.readouterr()
    assert (output.out, output.err) == ("", "")
    assert (project.root / "reports/cache.html").exists()


BLEND = """
[blend.mix]
weights = { notes = 3, books = 1 }
sequence_length = 16
num_samples = 40
"""


def test_a_blend_is_built_when_its_members_are_and_is_skipped_without_them(built: Project) -> None:
    built.configure(extra=BLEND)
    built.remove("notes")
    results, recorder = launch(built, only=["notes", "mix"])
    assert states(results) == {"tokenizer": "cache_hit", "notes": "built", "index/mix": "built"}
    assert recorder.told[-2:] == ["started index/mix (index)", "finished index/mix: built"]
    assert built.instance.get_materialized_partitions(NAMES.index) == {"mix"}
    assert states(launch(built, only=["mix"])[0]) == {"tokenizer": "cache_hit", "index/mix": "cache_hit"}
    built.write_notes([])
    results, _ = launch(built, only=["notes", "mix"])
    assert states(results) == {"tokenizer": "cache_hit", "notes": "failed", "index/mix": "skipped"}
    assert (results["index/mix"].message or "").startswith("notes could not be built")


def test_a_second_launch_finds_everything_and_force_builds_it_again_with_the_reports(built: Project) -> None:
    def written() -> list[int]:
        return [len(built.instance.fetch_materializations(key, limit=10).records) for key in (NAMES.mixture, NAMES.cache_report)]

    hits = {"tokenizer": "cache_hit", "notes": "cache_hit"}
    assert states(launch(built, only=["notes"])[0]) == hits
    assert written() == [1, 1], "there was no page"
    assert states(launch(built, only=["notes"])[0]) == hits
    assert written() == [1, 1], "nothing was built"
    assert states(launch(built, only=["notes"], force=True)[0]) == {"tokenizer": "cache_hit", "notes": "built"}
    assert written() == [2, 2]


def test_a_failed_run_is_not_tried_again_by_the_daemon(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would build with the settings and the cache root of the UI's code server."""
    project.instance = dg.DagsterInstance.ephemeral(settings={"run_retries": {"enabled": True, "max_retries": 3}})
    launch_in_memory(project, monkeypatch)
    (project.folder / "notes.jsonl").write_text("{")
    results, _ = launch(project, only=["notes"])
    assert results["notes"].state == "failed"
    [failed] = project.instance.get_runs(filters=dg.RunsFilter(statuses=[dg.DagsterRunStatus.FAILURE]))
    assert failed.job_name == "build_pretrain"
    assert not auto_reexecution_should_retry_run(project.instance, failed, None)
    assert auto_reexecution_should_retry_run(project.instance, failed.with_tags({}), None), "as runs of the UI are"


def test_a_report_that_cannot_be_written_fails_no_build(built: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise NielsCacheError("no page today")

    monkeypatch.setattr("niels_cache_pages.page.write_page", refuse)
    results, recorder = launch(built, only=["tokenizer"], force=True)
    assert states(results) == {"tokenizer": "built"}
    assert missing(recorder.told[-1], "reports: WARNING: ", "no page today") == []


@pytest.mark.parametrize("method", ["documents", "revision"])
def test_a_source_that_breaks_in_any_way_is_left_out_of_the_tokenizer_and_stops_nothing(
    project: Project, in_memory: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    def broken(self: Jsonl, argument: object) -> None:
        raise KeyError("text")

    monkeypatch.setattr(Jsonl, method, broken)
    project.configure(tokenizer="vocab_size = 330")
    results, recorder = launch(project, only=["notes", "books"])
    assert states(results) == {"tokenizer": "built", "notes": "failed", "books": "built"}
    assert results["notes"].message == "KeyError: 'text'"
    said = results["tokenizer"].message
    assert missing(said, "without notes", "KeyError: 'text'") == []
    assert f"tokenizer: WARNING: {said}" in recorder.told
    assert not [line for line in recorder.told if "Traceback" in line], "a person is told in one line"
    [run] = [run for run in in_memory.get_runs() if run.job_name == "build_tokenizer"]
    kept = [entry.user_message for entry in in_memory.all_logs(run.run_id)]
    assert len([text for text in kept if text.startswith("Traceback") and "in broken\n" in text and "KeyError: 'text'" in text]) == 1


def test_a_corpus_that_fails_stops_what_is_read_from_it_and_nothing_else(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mixture = '[pretrain.mix]\nsource = "interleave"\nmembers = { books = 1, notes = 1 }\n'
    project = prepare_project(tmp_path, tiny_model, more=mixture)
    project.edit(f'model = "{tiny_model}"', "vocab_size = 330")
    launch_in_memory(project, monkeypatch)

    def broken(self: Text, context: object) -> None:
        raise KeyError("text")

    monkeypatch.setattr(Text, "documents", broken)  # of books
    results, _ = launch(project)
    assert states(results) == {
        "corpus/books": "failed",
        "corpus/letters": "built",
        "corpus/duplicates": "built",
        "tokenizer": "built",
        "report/letters": "built",
        "notes": "built",
        "books": "skipped",
        "letters": "built",
        "mix": "skipped",
        "chats": "built",
    }
    assert "books: " in (results["corpus/duplicates"].message or "")
    for name in ("books", "mix"):
        assert missing(results[name].message, "corpus", "books") == []
    assert results["tokenizer"].meta is not None
    assert results["tokenizer"].meta["trained_on"]["skipped"] == {"books": "failed", "mix": "failed"}
    assert results["tokenizer"].meta["trained_on"]["read_as"] == {"notes": "raw", "letters": "prepared", "chats": "raw"}


def test_an_unknown_name_is_refused_before_anything_runs(project: Project) -> None:
    with pytest.raises(NielsCacheError, match=r"'note'.*'notes'"):
        launch(project, only=["note"])
    assert not project.root.exists()


def test_what_another_process_builds_fails_with_who_it_is_or_is_waited_for(built: Project) -> None:
    target = built.root / "pretrain/notes"
    built.remove("notes")
    with hold_lock(target):
        results, _ = launch(built, only=["notes"])
        assert results["notes"].state == "failed"
        assert missing(results["notes"].message, f"{target}: another build", f"process {os.getpid()} on ") == []
    lock, waited = ExitStack(), []
    lock.enter_context(hold_lock(target))

    class Freeing(Recorder):
        def logged(self, name: str, message: str) -> None:
            if missing(message, "waiting", f"{target}: process {os.getpid()} on ") == []:
                waited.append(name)
                lock.close()

    [*_, result] = launch_builds(built.registry, root=built.root, only=["notes"], wait=True, listener=Freeing())
    assert (waited, result.state) == (["notes"], "built")


_HANGING = """
import sys, time
from pathlib import Path
from niels_cache_assets.artifacts import materialize
from niels_cache_assets.cli import main
materialize._build = lambda *required, **settings: (Path(sys.argv[1]).touch(), time.sleep(600))
main(["build-all", *sys.argv[2:]])
"""


def test_after_a_kill_the_next_launch_and_a_run_of_the_ui_start(project: Project, home_instance: dg.DagsterInstance) -> None:
    began = project.folder / "began"
    options = ["--config", str(project.folder / "niels_cache.toml"), "--cache-dir", str(project.root), "--only", "notes", "--quiet"]
    with subprocess.Popen([sys.executable, "-c", _HANGING, str(began), *options]) as killed:
        wait_until(began.exists, seconds=60, what="no build begins")
        killed.send_signal(signal.SIGKILL)
    assert states(launch(project, only=["notes"])[0]) == {"tokenizer": "built", "notes": "built"}
    project.instance = home_instance
    assert project.build("notes").success
    found = [run.status for run in home_instance.get_runs()]
    assert sorted(status.value for status in found) == ["FAILURE", *["SUCCESS"] * 4], "the killed one has ended"
