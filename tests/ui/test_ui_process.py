"""The command `niels-cache ui` while it runs and when it stops. There is one UI per home, with read-only ones beside it. Nothing is left
afterwards.
"""

import http.client
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from niels_cache_assets.artifacts.builds import build_dataset
from niels_cache_assets.disk.journal import BYTES_VARIABLE
from niels_cache_assets.disk.staging import work_on
from tests.faults.children import here
from tests.messages import missing
from tests.test_cache_determinism import digests
from tests.tiny import sentences
from tests.ui.running import RunningUi, is_alive, running_ui, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.random_order(disabled=True)]  # one server, whose last test ends it

STOP_SECONDS = 8  # two are meant; a machine that runs other tests beside has its own idea of a second
BUILD_SECONDS = 240
PAGES = '[pretrain.pages]\nsource = "jsonl"\nfiles = ["pages/*"]\nparts = 3\n'
MOST_BYTES = 200_000  # of Dagster's database for one part
RUNNING = ("QUEUED", "STARTING", "STARTED")


@pytest.fixture(scope="module")
def ui(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[RunningUi]:
    """With a tokenizer, notes that take a while, and a data set in parts."""
    folder = tmp_path_factory.mktemp("ui")
    pages = folder / "project/pages"
    pages.mkdir(parents=True)
    for number in range(3):
        (pages / f"{number}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in sentences(9, seed=number)))
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(BYTES_VARIABLE, "200000")
        with running_ui(folder, tiny_model, tables=PAGES) as ui:
            assert ui.project.build_tokenizer().success
            ui.project.write_notes(sentences(60) * 5_000)
            yield ui


def request(ui: RunningUi, method: str, path: str, body: str | None = None, **headers: str) -> tuple[int, bytes]:
    """`headers` replace what a program would send; `_` in their names is `-`."""
    connection = http.client.HTTPConnection("127.0.0.1", ui.port, timeout=60)
    connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
    response = connection.getresponse()
    answer = response.status, response.read()
    connection.close()
    return answer


MUTATION = json.dumps({"query": "mutation { setNuxSeen }"})


def test_over_the_network_it_answers_as_the_guard_does(ui: RunningUi) -> None:
    assert request(ui, "GET", "/")[0] == 200
    assert request(ui, "POST", "/graphql", MUTATION, Content_Type="application/json") == (200, b'{"data":{"setNuxSeen":true}}')
    assert request(ui, "GET", "/graphql?query=mutation%7BsetNuxSeen%7D")[0] == 405
    assert request(ui, "GET", "/graphql%0A?query=mutation%7BsetNuxSeen%7D")[0] == 403
    assert request(ui, "POST", "/graphql", MUTATION, Content_Type="text/plain;application/json")[0] == 415
    assert request(ui, "POST", "/graphql", MUTATION, Content_Type="application/json", Origin="http://127.0.0.1:1")[0] == 403
    assert request(ui, "POST", "/graphql", MUTATION, Content_Type="application/json", Host="evil.example")[0] == 403


def test_the_server_listens_on_loopback_alone(ui: RunningUi) -> None:
    """The kernel lists one socket that listens on this port, on 127.0.0.1."""
    lines = [line.split() for table in ("tcp", "tcp6") for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]]
    listening = [local for _, local, _, state, *_ in lines if state == "0A" and int(local.rpartition(":")[2], 16) == ui.port]
    assert listening == [f"0100007F:{ui.port:04X}"]


def test_a_second_ui_on_the_same_home_is_told_where_the_first_is(ui: RunningUi, tiny_model: Path) -> None:
    with pytest.raises(AssertionError) as raised, running_ui(ui.home.parent, tiny_model, project=ui.project, forked=True):
        pass
    assert missing(raised.value, str(ui.home), f"process {ui.process.pid} on ", "--read-only") == []
    assert "Traceback" not in (ui.home.parent / "ui.log").read_text()


def test_a_read_only_ui_beside_it_shows_and_changes_nothing(ui: RunningUi, tiny_model: Path) -> None:
    with running_ui(ui.home.parent, tiny_model, "--read-only", project=ui.project, forked=True) as beside:
        assert beside.graphql("{ repositoriesOrError { ... on RepositoryConnection { nodes { name } } } }") == {
            "repositoriesOrError": {"nodes": [{"name": "__repository__"}]}
        }
        status, text = request(beside, "POST", "/graphql", MUTATION, Content_Type="application/json")
        assert (status, missing(text.decode(), "niels-cache ui: refused", "read-only\n")) == (403, [])
        assert not any(".daemon" in Path(f"/proc/{pid}/cmdline").read_text() for pid in beside.services())
        services = beside.services()
        assert services
        beside.process.kill()
        beside.process.wait()
        wait_until(lambda: not any(map(is_alive, services)), seconds=60, what="what a killed UI started still runs")
    assert ui.process.poll() is None


def test_a_part_adds_little_to_the_database(ui: RunningUi) -> None:
    sizes = []
    for job, name in (
        ("plan_parts", "pages"),
        *(("build_parts", f"pages/part-{number:05d}") for number in range(3)),
    ):
        run = ui.launch(name, job=job)
        wait_until(lambda: ui.status_of(run) not in RUNNING, seconds=300, what=f"{name} is not built")  # noqa: B023
        assert ui.status_of(run) == "SUCCESS"
        sizes.append(sum(path.stat().st_size for path in (ui.home / "history").rglob("*.db")))
    assert 1_000 < (sizes[-1] - sizes[1]) / 2 <= MOST_BYTES, sizes


def work_until(ui: RunningUi, share: float) -> int:
    """Wait until so much of the notes is done and recorded. Return the id of the process that builds."""
    target = ui.project.root / "pretrain/notes"
    writers: list[int] = []

    def is_at_work() -> bool:
        """One look says both: at the next one, the build may have ended."""
        work = work_on(target)
        if work.writer is not None and (work.share or 0.0) > share:
            writers.append(work.writer.pid)
        return bool(writers)

    wait_until(is_at_work, seconds=BUILD_SECONDS, what=f"not at {share:.0%}")
    return writers[0]


def test_runs_that_lose_a_process_or_are_terminated_end_and_the_next_one_goes_on(ui: RunningUi) -> None:
    target = ui.project.root / "pretrain/notes"
    for lost, share, ending in (("step", 0.1, "FAILURE"), ("run", 0.2, "FAILURE"), ("nothing", 0.35, "CANCELED")):
        run = ui.launch("notes")
        step = work_until(ui, share)
        parent = int(Path(f"/proc/{step}/stat").read_text().rpartition(")")[2].split()[1])
        for pid in {"step": [step], "run": [parent, step], "nothing": []}[lost]:
            os.kill(pid, signal.SIGKILL)
        if lost == "nothing":
            ui.terminate(run)
        wait_until(lambda: ui.status_of(run) == ending, seconds=60, what=f"the run that lost {lost} is not {ending}")  # noqa: B023
        wait_until(lambda: not is_alive(step), seconds=60, what=f"{lost}: the step still runs")  # noqa: B023
        work = work_on(target)
        assert (work.writer, work.is_resumable, (work.share or 0.0) > share, target.exists()) == (None, True, True, False), lost


def test_ctrl_c_cancels_its_runs_leaves_nothing_and_the_next_build_goes_on(ui: RunningUi, tmp_path: Path) -> None:
    """The last test of this file: the server ends."""
    run = ui.launch("notes")
    work_until(ui, 0.5)
    services = ui.services()
    assert len(services) >= 4  # the code server and its child, the daemon, the run
    begin = time.monotonic()
    os.killpg(ui.process.pid, signal.SIGINT)  # as a terminal does it
    assert ui.process.wait(timeout=here(STOP_SECONDS)) == 0
    seconds = time.monotonic() - begin
    # A killed process may take a moment to end, and only its parent can wait for it.
    wait_until(lambda: not any(map(is_alive, services)), seconds=60, what="what the UI started still runs")
    assert ui.output.read_text().splitlines()[-1] == "stopped", f"after {seconds:.1f} s"
    with dg.DagsterInstance.from_config(str(ui.home)) as instance:
        ended = instance.get_run_by_id(run)
        assert ended is not None
        assert ended.status == dg.DagsterRunStatus.CANCELED
    said: list[str] = []
    target = ui.project.root / "pretrain/notes"
    build_dataset(ui.project.registry, "notes", root=ui.project.root, log=said.append)
    assert any(line.startswith("resuming notes at ") for line in said), said
    copy = tmp_path / "undisturbed"
    copy.mkdir()
    (copy / "tokenizer").symlink_to(ui.project.root / "tokenizer")
    build_dataset(ui.project.registry, "notes", root=copy)
    assert digests(copy / "pretrain/notes") == digests(target)
