"""The command `niels-cache ui` while it runs and when it stops. There is one UI per home, with read-only ones beside it. Nothing is left
afterwards.
"""

import http.client
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from niels_cache_assets.disk.build_lock import build_status
from niels_cache_assets.disk.journal import BYTES_VARIABLE
from tests.build_cache.test_determinism import digests
from tests.helpers.builds import build_dataset
from tests.helpers.children import here
from tests.helpers.messages import missing
from tests.helpers.tiny import sentences
from tests.helpers.ui.running import RunningUi, is_alive, running_ui, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.random_order(disabled=True)]  # one server, whose last test ends it

STOP_SECONDS = 8  # two are meant; a machine that runs other tests beside has its own idea of a second
BUILD_SECONDS = 240


@pytest.fixture(scope="module")
def ui(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[RunningUi]:
    """With a tokenizer, and notes that take seconds on one thread."""
    folder = tmp_path_factory.mktemp("ui")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(BYTES_VARIABLE, "200000")
        with running_ui(folder, tiny_model) as ui:
            config = ui.project.folder / "niels_cache.toml"
            config.write_text(config.read_text().replace("[build]\n", "[build]\nthreads = 1\n"))
            assert ui.project.build_tokenizer().success
            ui.project.write_notes(sentences(60) * 2_000)
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


def test_it_listens_on_loopback_alone_and_answers_as_the_guard_does(ui: RunningUi) -> None:
    lines = [line.split() for table in ("tcp", "tcp6") for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]]
    listening = [local for _, local, _, state, *_ in lines if state == "0A" and int(local.rpartition(":")[2], 16) == ui.port]
    assert listening == [f"0100007F:{ui.port:04X}"]
    assert request(ui, "GET", "/")[0] == 200
    assert request(ui, "POST", "/graphql", MUTATION, Content_Type="application/json") == (200, b'{"data":{"setNuxSeen":true}}')
    assert request(ui, "GET", "/graphql?query=mutation%7BsetNuxSeen%7D")[0] == 405
    assert request(ui, "GET", "/graphql%0A?query=mutation%7BsetNuxSeen%7D")[0] == 403
    assert request(ui, "POST", "/graphql", MUTATION, Content_Type="text/plain;application/json")[0] == 415
    assert request(ui, "POST", "/graphql", MUTATION, Content_Type="application/json", Origin="http://127.0.0.1:1")[0] == 403
    assert request(ui, "POST", "/graphql", MUTATION, Content_Type="application/json", Host="evil.example")[0] == 403


def test_a_second_ui_on_the_same_home_is_refused_and_a_read_only_one_changes_nothing(ui: RunningUi, tiny_model: Path) -> None:
    with pytest.raises(AssertionError) as raised, running_ui(ui.home.parent, tiny_model, project=ui.project, forked=True):
        pass
    assert missing(raised.value, str(ui.home), f"process {ui.process.pid} on ", "--read-only") == []
    assert "Traceback" not in (ui.home.parent / "ui.log").read_text()
    with running_ui(ui.home.parent, tiny_model, "--read-only", project=ui.project, forked=True) as beside:
        assert beside.graphql("{ repositoriesOrError { ... on RepositoryConnection { nodes { name } } } }") == {
            "repositoriesOrError": {"nodes": [{"name": "__repository__"}]}
        }
        status, text = request(beside, "POST", "/graphql", MUTATION, Content_Type="application/json")
        assert (status, missing(text.decode(), "niels-cache ui: refused", "read-only\n")) == (403, [])
        services = beside.services()
        assert services
        assert not any(".daemon" in Path(f"/proc/{pid}/cmdline").read_text() for pid in services)
        beside.process.kill()
        beside.process.wait()
        wait_until(lambda: not any(map(is_alive, services)), seconds=60, what="what a killed UI started still runs")
    assert ui.process.poll() is None


def work_until(ui: RunningUi, share: float) -> int:
    """Wait until so much of the notes is done and recorded. Return the id of the process that builds."""
    target = ui.project.root / "pretrain/notes"
    writers: list[int] = []

    def is_at_work() -> bool:
        """One look says both: at the next one, the build may have ended."""
        work = build_status(target)
        if work.writer is not None and (work.share or 0.0) > share:
            writers.append(work.writer.pid)
        return bool(writers)

    wait_until(is_at_work, seconds=BUILD_SECONDS, what=f"not at {share:.0%}")
    return writers[0]


@pytest.mark.parametrize(("lost", "share", "ending"), [("run", 0.1, "FAILURE"), ("nothing", 0.3, "CANCELED")])
def test_a_run_that_loses_its_processes_or_is_terminated_ends(ui: RunningUi, lost: str, share: float, ending: str) -> None:
    """The next test goes on with the build. tests/faults/test_materialize.py kills a step alone."""
    target = ui.project.root / "pretrain/notes"
    run = ui.launch("notes")
    step = work_until(ui, share)
    if lost == "run":
        parent = int(Path(f"/proc/{step}/stat").read_text().rpartition(")")[2].split()[1])
        for pid in (parent, step):
            os.kill(pid, signal.SIGKILL)
    else:
        ui.terminate(run)
    wait_until(lambda: ui.status_of(run) == ending, seconds=60, what=f"the run is not {ending}")
    wait_until(lambda: not is_alive(step), seconds=60, what="the step still runs")
    work = build_status(target)
    assert (work.writer, work.is_resumable, (work.share or 0.0) > share, target.exists()) == (None, True, True, False)


def test_ctrl_c_cancels_its_runs_leaves_nothing_and_the_next_build_goes_on(ui: RunningUi, tmp_path: Path) -> None:
    """The last test of this file: the server ends."""
    run = ui.launch("notes")
    work_until(ui, 0.45)
    services = ui.services()
    assert len(services) >= 4  # the code server and its child, the daemon, the run
    os.killpg(ui.process.pid, signal.SIGINT)  # as a terminal does it
    assert ui.process.wait(timeout=here(STOP_SECONDS)) == 0
    # A killed process may take a moment to end, and only its parent can wait for it.
    wait_until(lambda: not any(map(is_alive, services)), seconds=60, what="what the UI started still runs")
    assert ui.output.read_text().splitlines()[-1] == "stopped"
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
