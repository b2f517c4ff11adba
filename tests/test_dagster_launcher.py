"""Builds from a program: each data set its own run in the instance that the UI shows, and none stops another."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.execution.retries import auto_reexecution_should_retry_run  # what the daemon asks

from niels_cache_assets.defs import abandoned
from niels_cache_assets.defs.instance import ensure_instance
from niels_cache_assets.defs.keys import CACHE_REPORT, INDEX, LOCATION, MIXTURE
from niels_cache_assets.defs.launcher import LaunchFamily, LaunchResult, launch_builds
from niels_cache_assets.progress import HowFar
from niels_cache_assets.sources.row_files import Jsonl, Text
from niels_cache_assets.streaming.locks import writer_lock
from niels_cache_assets.tokenizer_training import build_tokenizer
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.formats import META_NAME
from niels_cache_runtime.meta import read_meta
from tests.dagster_tools import Project
from tests.prepared_project import prepare_project


class Recorder:
    """A listener that writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.progress: dict[str, HowFar] = {}

    def started(self, name: str, family: LaunchFamily) -> None:
        self.told.append(f"started {name} ({family})")

    def progressed(self, name: str, progress: HowFar) -> None:
        self.progress[name] = progress

    def logged(self, name: str, message: str) -> None:
        self.told.append(f"{name}: {message}")

    def finished(self, result: LaunchResult) -> None:
        self.told.append(f"finished {result.name}: {result.state}")


@pytest.fixture
def project(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    return Project(tmp_path, tiny_model)


def launch(project: Project, *, only: list[str] | None = None, force: bool = False) -> tuple[dict[str, LaunchResult], Recorder]:
    recorder = Recorder()
    results = launch_builds(project.registry, root=project.root, only=only, force=force, listener=recorder)
    return {result.name: result for result in results}, recorder


@pytest.fixture
def instance(project: Project) -> Iterator[dg.DagsterInstance]:
    with ensure_instance() as opened:
        yield opened


@pytest.fixture
def in_memory(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that look at results only: an instance without files is three times as fast."""
    Path(os.environ["DAGSTER_HOME"]).mkdir()
    monkeypatch.setattr("niels_cache_assets.defs.launcher.ensure_instance", lambda home, overrides: dg.DagsterInstance.ephemeral())


def states(results: dict[str, LaunchResult]) -> dict[str, str]:
    return {name: result.state for name, result in results.items()}


def test_every_data_set_is_built_in_order_and_recorded_as_a_run_of_its_job(
    project: Project, instance: dg.DagsterInstance, capfd: pytest.CaptureFixture[str]
) -> None:
    project.configure(extra='enabled = false\n[pretrain.later]\nsource = "roam"\n')
    results, recorder = launch(project)
    assert states(results) == {"tokenizer": "built", "notes": "built", "later": "skipped", "chats": "built"}
    assert "path" in (results["later"].message or "")
    notes = results["notes"]
    assert notes.meta == read_meta(str(project.root / "pretrain/notes" / META_NAME))
    assert (notes.family, notes.directory, notes.message) == ("pretrain", project.root / "pretrain/notes", None)
    assert recorder.progress["notes"].documents == 60
    assert recorder.told[:3] == ["started tokenizer (tokenizer)", "finished tokenizer: built", "started notes (pretrain)"]
    assert recorder.told[-3:] == ["finished later: skipped", "started chats (sft)", "finished chats: built"]
    runs = [(run.job_name, run.tags.get("dagster/partition"), run.status.value) for run in reversed(instance.get_runs())]
    assert runs == [
        ("build_tokenizer", None, "SUCCESS"),
        ("build_pretrain", "notes", "SUCCESS"),
        ("build_sft", "chats", "SUCCESS"),
        ("write_reports", None, "SUCCESS"),
    ]
    of_the_location = dg.RunsFilter(tags={".dagster/repository": f"__repository__@{LOCATION}"})
    assert len(instance.get_runs(filters=of_the_location)) == 4, "the page of a job asks for these"
    origins = {run.job_name: run.remote_job_origin for run in instance.get_runs()}
    assert all(origin is not None and (origin.location_name, origin.job_name) == (LOCATION, job) for job, origin in origins.items())
    assert instance.get_materialized_partitions(dg.AssetKey(["pretrain", "meta_json"])) == {"notes"}
    assert instance.event_log_storage.get_latest_asset_check_execution_by_key(
        [dg.AssetCheckKey(dg.AssetKey(["pretrain", "meta_json"]), "files_match_meta")]
    )
    output = capfd.readouterr()
    assert (output.out, output.err) == ("", "")


BLEND = """
[blend.mix]
weights = { notes = 3, books = 1 }
sequence_length = 16
num_samples = 40
"""


def test_a_blend_is_built_when_its_members_are_and_is_skipped_without_them(project: Project, instance: dg.DagsterInstance) -> None:
    project.configure(extra=BLEND)
    results, recorder = launch(project)
    assert states(results)["index/mix"] == "built"
    assert recorder.told[-2:] == ["started index/mix (index)", "finished index/mix: built"]
    assert instance.get_materialized_partitions(INDEX) == {"mix"}
    assert states(launch(project, only=["mix"])[0]) == {"tokenizer": "cache_hit", "index/mix": "cache_hit"}
    project.write_notes([])
    results, _ = launch(project)
    assert (results["index/mix"].state, results["index/mix"].message) == ("skipped", "notes could not be built")


def test_a_blend_with_a_member_that_is_switched_off_is_skipped_and_says_so(project: Project, in_memory: None) -> None:
    project.configure(extra=BLEND.replace("[blend.mix]", "enabled = false\n[blend.mix]"))
    for only in (None, ["mix"]):
        results, _ = launch(project, only=only)
        assert (results["index/mix"].state, results["index/mix"].message) == ("skipped", "books could not be built")


def test_reports_are_there_after_a_build_and_are_written_again_when_something_was_built(
    project: Project, instance: dg.DagsterInstance
) -> None:
    def written() -> list[int]:
        return [len(instance.fetch_materializations(key, limit=10).records) for key in (MIXTURE, CACHE_REPORT)]

    launch(project)
    assert written() == [1, 1]
    assert (project.root / "reports/cache.html").exists()
    launch(project)
    assert written() == [1, 1], "nothing was built"
    launch(project, only=["notes"], force=True)
    assert written() == [2, 2]


def test_a_failed_run_is_not_tried_again_by_the_daemon(project: Project) -> None:
    """It would build with the settings and the cache root of the UI's code server."""
    home = Path(os.environ["DAGSTER_HOME"])
    with ensure_instance():
        pass
    with open(home / "dagster.yaml", "a") as config:
        config.write("run_retries:\n  enabled: true\n  max_retries: 3\n")
    (project.folder / "notes.jsonl").write_text("{")
    results, _ = launch(project, only=["notes"])
    assert results["notes"].state == "failed"
    with ensure_instance() as instance:
        failed = instance.get_runs(filters=dg.RunsFilter(statuses=[dg.DagsterRunStatus.FAILURE]))
        assert [run.job_name for run in failed] == ["build_pretrain"]
        assert [run for run in failed if auto_reexecution_should_retry_run(instance, run, None)] == []


def test_a_report_that_cannot_be_written_fails_no_build(project: Project, monkeypatch: pytest.MonkeyPatch, in_memory: None) -> None:
    def refuse(*_: object) -> None:
        raise NielsCacheError("no page today")

    monkeypatch.setattr("niels_cache_assets.defs.assets.reports.write_page", refuse)
    results, recorder = launch(project, only=["notes"])
    assert states(results) == {"tokenizer": "built", "notes": "built"}
    assert recorder.told[-1] == "reports: WARNING: not written: no page today"


def test_a_build_records_what_it_has_read_of_upstream(project: Project, instance: dg.DagsterInstance) -> None:
    results, _ = launch(project, only=["notes"])
    observed = instance.fetch_observations(dg.AssetKey(["upstream", "pretrain"]), limit=5).records
    built = instance.fetch_materializations(dg.AssetKey(["pretrain", "train_shards"]), limit=5).records
    assert [record.asset_observation.partition for record in observed if record.asset_observation] == ["notes"]
    observation, materialization = observed[0].asset_observation, built[0].asset_materialization
    assert observation is not None
    assert materialization is not None
    assert results["notes"].meta is not None
    assert observation.metadata["revision"].value == results["notes"].meta["dataset_revision"]
    assert observation.tags["dagster/data_version"].startswith(results["notes"].meta["dataset_revision"] + "+")
    read = instance.fetch_materializations(dg.AssetKey(["upstream", "pretrain"]), limit=5).records
    assert (materialization.tags or {})["dagster/input_event_pointer/upstream/pretrain"] == str(read[0].storage_id)


@pytest.mark.usefixtures("in_memory")
def test_a_second_launch_finds_everything_and_force_builds_it_again(project: Project) -> None:
    launch(project, only=["notes"])
    assert states(launch(project, only=["notes"])[0]) == {"tokenizer": "cache_hit", "notes": "cache_hit"}
    assert states(launch(project, only=["notes"], force=True)[0]) == {"tokenizer": "cache_hit", "notes": "built"}
    assert states(launch(project, only=["tokenizer"], force=True)[0]) == {"tokenizer": "built"}


@pytest.mark.usefixtures("in_memory")
def test_a_data_set_that_fails_does_not_stop_the_others_and_says_why(project: Project) -> None:
    project.write_notes(["", ""])
    results, recorder = launch(project)
    assert states(results) == {"tokenizer": "built", "notes": "failed", "books": "built", "chats": "built"}
    assert results["notes"].message == (
        f"{project.root / 'pretrain/notes'}: the source gave no usable document (dropped: empty 2); nothing was written"
    )
    assert "finished notes: failed" in recorder.told


@pytest.mark.parametrize("method", ["documents", "revision"])
@pytest.mark.usefixtures("in_memory")
def test_a_bug_in_a_source_fails_its_data_set_only(project: Project, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    def broken(self: Jsonl, argument: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(Jsonl, method, broken)
    results, _ = launch(project, only=["notes", "chats"])
    assert states(results) == {"tokenizer": "built", "notes": "failed", "chats": "built"}
    assert results["notes"].message == "ZeroDivisionError: division by zero"


@pytest.mark.parametrize("method", ["documents", "revision"])
def test_a_source_that_breaks_in_any_way_is_left_out_of_the_tokenizer_and_stops_nothing(
    project: Project, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    def broken(self: Jsonl, argument: object) -> None:
        raise KeyError("text")

    monkeypatch.setattr(Jsonl, method, broken)
    project.configure(tokenizer="vocab_size = 330")
    results, recorder = launch(project)
    assert states(results) == {"tokenizer": "built", "notes": "failed", "books": "built", "chats": "built"}
    said = "the tokenizer is trained without notes: KeyError: 'text'"
    assert (results["tokenizer"].message, results["notes"].message) == (said, "KeyError: 'text'")
    assert f"tokenizer: WARNING: {said}" in recorder.told
    assert not [line for line in recorder.told if "Traceback" in line], "a person is told in one line"
    [run] = [run for run in instance.get_runs() if run.job_name == "build_tokenizer"]
    kept = [entry.user_message for entry in instance.all_logs(run.run_id)]
    assert len([text for text in kept if text.startswith("Traceback") and "in broken\n" in text and "KeyError: 'text'" in text]) == 1


@pytest.mark.usefixtures("in_memory")
def test_a_corpus_that_fails_stops_what_is_read_from_it_and_nothing_else(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = prepare_project(tmp_path, tiny_model, more='[pretrain.mix]\nsource = "interleave"\nmembers = { books = 1, notes = 1 }\n')
    text = (project.folder / "niels_cache.toml").read_text(encoding="utf-8")
    (project.folder / "niels_cache.toml").write_text(text.replace(f'model = "{tiny_model}"', "vocab_size = 330"), encoding="utf-8")

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
    assert "looked for without books" in (results["corpus/duplicates"].message or "")
    assert {results[name].message for name in ("books", "mix")} == {"the corpus of books could not be prepared"}
    assert results["tokenizer"].meta is not None
    assert results["tokenizer"].meta["trained_on"]["skipped"] == {"books": "failed", "mix": "failed"}
    assert results["tokenizer"].meta["trained_on"]["read_as"] == {"notes": "raw", "letters": "prepared", "chats": "raw"}


@pytest.mark.parametrize("budgets", ["", "train_tokens = 900\nval_tokens = 90\n"])
@pytest.mark.usefixtures("in_memory")
def test_corpora_come_before_the_tokenizer_but_for_mixtures_that_leave_out_what_a_budget_gives_to_val(
    tmp_path: Path, tiny_model: Path, budgets: str
) -> None:
    mix = '[pretrain.mix]\nsource = "interleave"\nmembers = { books = 1, letters = 1 }\nprepare = ["clean"]\n'
    project = prepare_project(tmp_path, tiny_model, more=budgets + mix)
    text = (project.folder / "niels_cache.toml").read_text(encoding="utf-8")
    (project.folder / "niels_cache.toml").write_text(text.replace(f'model = "{tiny_model}"', "vocab_size = 330"), encoding="utf-8")
    results, _ = launch(project, only=["mix"])
    last = ["tokenizer", "corpus/mix"] if budgets else ["corpus/mix", "tokenizer"]
    reports = ["report/books", "report/letters", "report/mix"]
    assert [*results] == ["corpus/books", "corpus/letters", "corpus/duplicates", *last, *reports, "mix"]
    tokenizer = results["tokenizer"].meta
    assert (tokenizer is not None, results["tokenizer"].message) == (True, None), "no data set was left out, or read raw"
    assert tokenizer is not None
    assert tokenizer["trained_on"]["read_as"] == {
        "notes": "raw",
        "books": "prepared",
        "letters": "prepared",
        "mix": "members" if budgets else "prepared",
        "chats": "raw",
    }
    again = build_tokenizer(project.registry, root=project.root, force=True)
    assert again.meta == tokenizer, "whatever corpora are there now"


@pytest.mark.usefixtures("in_memory")
def test_an_imported_tokenizer_waits_for_no_corpus(tmp_path: Path, tiny_model: Path) -> None:
    results, _ = launch(prepare_project(tmp_path, tiny_model), only=["letters"])
    assert [*results] == ["tokenizer", "corpus/letters", "corpus/duplicates", "report/letters", "letters"]


@pytest.mark.usefixtures("in_memory")
def test_a_check_that_fails_fails_its_data_set(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.test_dagster_checks import broken_verify

    monkeypatch.setattr("niels_cache_assets.defs.cache_checks.verify_dataset", broken_verify)
    results, _ = launch(project, only=["notes"])
    assert results["notes"].state == "failed"
    assert results["notes"].message == (
        "the check invariants_hold failed: val/: holds 3 EOT tokens for 4 documents; build it again with force (--force)"
    )


@pytest.mark.usefixtures("in_memory")
def test_an_id_that_the_tokenizer_has_not_is_found_by_the_checks(project: Project) -> None:
    assert states(launch(project, only=["notes"])[0])["notes"] == "built"
    shard = project.root / "pretrain/notes/train/shard_00000.bin"
    shard.write_bytes(b"\xff\xff" + shard.read_bytes()[2:])
    results, _ = launch(project, only=["notes"])
    message = results["notes"].message or ""
    assert message.startswith("the check files_match_meta failed: train/shard_00000.bin: its sha256")
    assert message.endswith("; build it again with force (--force)")
    assert states(launch(project, only=["notes"], force=True)[0])["notes"] == "built"


@pytest.mark.usefixtures("in_memory")
def test_without_a_tokenizer_the_others_are_skipped_with_the_reason(project: Project) -> None:
    project.configure(tokenizer='model = "none.model"')
    results, _ = launch(project)
    assert states(results) == {"tokenizer": "failed", "notes": "skipped", "books": "skipped", "chats": "skipped"}
    assert "none.model: no such tokenizer model" in (results["tokenizer"].message or "")
    assert results["chats"].message == "there is no tokenizer"


def test_an_unknown_name_is_refused_before_anything_runs(project: Project) -> None:
    with pytest.raises(NielsCacheError, match="no data set 'note'; did you mean 'notes'"):
        launch(project, only=["note"])
    assert not project.root.exists()


@pytest.mark.usefixtures("in_memory")
def test_what_another_process_builds_fails_with_who_it_is_or_is_waited_for(project: Project) -> None:
    launch(project, only=["tokenizer"])
    target = project.root / "pretrain/notes"
    target.parent.mkdir()
    with writer_lock(target):
        results, _ = launch(project, only=["notes"])
        assert results["notes"].state == "failed"
        assert f"{target}: another build is writing it now: process {os.getpid()} on " in (results["notes"].message or "")
    lock, waited = ExitStack(), []
    lock.enter_context(writer_lock(target))

    class Freeing(Recorder):
        def logged(self, name: str, message: str) -> None:
            if message.startswith(f"waiting for the other build of {target}: process {os.getpid()} on "):
                waited.append(name)
                lock.close()

    results = {result.name: result for result in launch_builds(project.registry, root=project.root, wait=True, listener=Freeing())}
    assert waited == ["notes"]
    assert results["notes"].state == "built"


SLOW = """
import sys, time
from pathlib import Path
from niels_cache_assets.defs import launcher
from niels_cache_assets.sources.row_files import Jsonl
from tests.dagster_tools import Project
from tests.test_dagster_launcher import Recorder

passes = []

def documents(self, context):
    passes.append(context)  # the first only counts
    for batch in real(self, context):
        yield batch
        if len(passes) == 2:
            print("writing", flush=True)
            time.sleep(60)

real, Jsonl.documents = Jsonl.documents, documents
project = Project(Path(sys.argv[1]), Path(sys.argv[2]))
try:
    launcher.launch_builds(project.registry, root=project.root, only=["notes"], listener=Recorder())
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_an_interrupt_cancels_the_run_within_two_seconds_and_leaves_nothing_that_looks_finished(
    project: Project, instance: dg.DagsterInstance, tiny_model: Path
) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", SLOW, str(project.folder), str(tiny_model)],
        cwd=Path(__file__).parent.parent,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert child.stdout is not None
    with child.stdout:
        assert child.stdout.readline() == "writing\n"
        child.send_signal(signal.SIGINT)
        began = time.monotonic()
        assert child.stdout.readline() == "interrupted\n"
        assert time.monotonic() - began < 2
    child.wait(timeout=60)
    assert [(run.job_name, run.status.value) for run in instance.get_runs()] == [
        ("build_pretrain", "CANCELED"),
        ("build_tokenizer", "SUCCESS"),
    ]
    left = {path.name for path in (project.root / "pretrain").iterdir()}
    assert left <= {".notes.lock", ".notes.partial"}  # where counting took long, what was counted is kept for the next build


def test_a_launch_goes_on_where_the_one_that_it_waits_for_is_killed(
    project: Project, instance: dg.DagsterInstance, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(abandoned, "_WATCH_SECONDS", 0.2)
    child = subprocess.Popen(
        [sys.executable, "-c", SLOW, str(project.folder), str(tiny_model)],
        cwd=Path(__file__).parent.parent,
        stdout=subprocess.PIPE,
        text=True,
    )
    killed = []

    class Killing(Recorder):
        def logged(self, name: str, message: str) -> None:
            if message.startswith("waiting for the build"):
                child.kill()
                killed.append(name)

    assert child.stdout is not None
    with child.stdout:
        assert child.stdout.readline() == "writing\n"
        [*_, result] = launch_builds(project.registry, root=project.root, only=["notes"], listener=Killing())
    assert child.wait(timeout=60) == -signal.SIGKILL
    assert (killed, result.state) == (["notes"], "built")
    statuses = [run.status.value for run in instance.get_runs() if run.job_name == "build_pretrain"]
    assert statuses == ["SUCCESS", "FAILURE"]
