"""Bad networks. A hub and a web server on the loopback interface answer wrongly or refuse. Builds end with the right result, or give the
reason.

All of it is built in one child process, whose import of the hub's libraries takes longer than the builds.
"""

import gzip
import itertools
import json
import re
import signal
import textwrap
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.helpers.hub_builds import Build, build_from
from tests.helpers.hub_repositories import card, dolly_rows, json_lines, parquet
from tests.helpers.loopback_faults import BEFORE_ANSWERS, IN_ANSWERS, ByName, Faults
from tests.helpers.loopback_hub import LoopbackHub
from tests.helpers.messages import missing
from tests.helpers.tiny import sentences
from tests.helpers.watched import Watched, watched

TOKEN = "a-token-of-no-usual-shape-0123456789"
FAULTS = sorted({*BEFORE_ANSWERS, *IN_ANSWERS, "whole"} - {"429 for a second", "429 for an hour", "silence"})
ROWS = [{"id": f"row{number}", "text": text, "other": "x" * 50} for number, text in enumerate(sentences(300))]
FORMATS: dict[str, dict[str, bytes]] = {
    "parquet": {f"train-{file}.parquet": parquet(ROWS[file::2], row_group_size=40) for file in range(2)},
    "json": {f"train-{file}.jsonl": json_lines(ROWS[file::2]) for file in range(2)},
    "gzip": {"train-0.jsonl.gz": gzip.compress(json_lines(ROWS), mtime=0)},
    "text": {"train-0.txt": "\n".join(row["text"] for row in ROWS).encode()},
}
WEB = ("fine", "faulty", "solid")  # folders of a web server; the last without ranges
REFUSED = {"closed": 401, "forbidden": 403, "gone": 404}


class Session(NamedTuple):
    root: Path
    hub: LoopbackHub
    results: dict[str, dict[str, Any]]
    stderr: str
    faults: dict[str, Faults]


def hub_table(dataset: str, **settings: Any) -> dict[str, Any]:
    return {"source": "huggingface", "dataset": dataset, "val_frac": 0.1, "shuffle_buffer": 20, **settings}


def plain_table(form: str, urls: list[str]) -> dict[str, Any]:
    kind = {"parquet": "parquet", "text": "text"}.get(form, "jsonl")
    return {"source": kind, "files": urls, "val_frac": 0.1, **({"sample_by": "line"} if kind == "text" else {})}


class Timed(Faults):
    """And when the requests came."""

    def __init__(self, turns: Any = (), **settings: Any) -> None:
        super().__init__(turns, **settings)
        self.times: list[float] = []

    def next(self, method: str, path: str) -> str | None:
        if self._matching(method, path):
            self.times.append(time.monotonic())
        return super().next(method, path)


def files_only(method: str, path: str) -> bool:
    return method == "GET" and "/resolve/" in path and not path.endswith(".md")


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Session]:
    root = tmp_path_factory.mktemp("root")
    (root / "tokenizer").symlink_to(tiny_model.parent)
    readme = {"README.md": card({"default": {"train": "data/*"}})}
    repositories = {form: {**readme, **{f"data/{name}": content for name, content in files.items()}} for form, files in FORMATS.items()}
    owners = ["fine", "faulty", "down", "second", "hour", "moved", "gated", *REFUSED]
    hub = LoopbackHub({f"{owner}/{form}": files for owner in owners for form, files in repositories.items()}, root / "hf_home")
    hub.repositories["fine/chat"] = hub.repositories["faulty/chat"] = {"chat.jsonl": json_lines(dolly_rows(40))}
    long = {f"data/train-{file}.parquet": parquet([{"text": text} for text in sentences(800, seed=file)]) for file in range(5)}
    hub.repositories["fine/long"] = hub.repositories["later/long"] = {**readme, **long}
    for owner in WEB:
        hub.plain |= {f"{owner}/{name}": content for files in FORMATS.values() for name, content in files.items()}
    hub.env["HF_TOKEN"] = TOKEN
    hub.large = (".parquet", ".gz")
    hub.gated.update(f"gated/{form}" for form in FORMATS)
    hub.refused = {f"{owner}/{form}": status for owner, status in REFUSED.items() for form in FORMATS}

    def move(form: str) -> Iterator[str | None]:
        yield None
        hub.repositories[f"moved/{form}"] = {**readme, "data/other.txt": b"Another commit came while this was read."}

    def each_fault() -> Iterator[str | None]:
        for fault in itertools.chain(["silence"], itertools.cycle(FAULTS)):
            yield from (None, None, fault)

    faults = {
        "faulty": Faults(each_fault()),
        "solid": Faults(each_fault()),
        "down": Faults(itertools.repeat("503"), matching=files_only),
        "second": Timed(["429 for a second"], matching=files_only),
        "hour": Faults(["429 for an hour"], matching=files_only),
        "later": Faults(["503"], matching=lambda method, path: method == "GET" and path.endswith("train-3.parquet")),
        **{f"moved/{form}": Faults(move(form), matching=files_only) for form in FORMATS},
    }
    hub.faults = ByName(faults)
    builds = {f"{owner} {form}": Build(hub_table(f"{owner}/{form}")) for owner in ("fine", "faulty", "moved") for form in FORMATS}
    builds |= {f"{owner} chat": Build({"source": "dolly15k", "dataset": f"{owner}/chat"}) for owner in ("fine", "faulty")}
    for form, files in FORMATS.items():
        for owner in WEB:
            urls = [f"{hub.url.replace('127.0.0.1', 'localhost')}/files/{owner}/{name}?signature={TOKEN}" for name in files]
            if form != "parquet" or owner != "solid":
                builds[f"{owner} web {form}"] = Build(plain_table(form, urls))
                builds[f"{owner} web {form} by datasets"] = Build(hub_table("a/b", files=urls))
    builds["parquet without ranges"] = Build(plain_table("parquet", [f"{hub.url}/files/solid/train-0.parquet?signature={TOKEN}"]))
    builds["no such file"] = Build(plain_table("json", [f"{hub.url}/files/fine/nothing.jsonl?signature={TOKEN}"]))
    builds |= {owner: Build(hub_table(f"{owner}/json")) for owner in ("second", "hour", "gated", *REFUSED)}
    builds["down"] = Build(hub_table("down/json"), patience=3)
    budgets = {"val_frac": None, "val_tokens": 100, "train_tokens": 10_000_000, "shuffle_buffer": 0}
    builds["never late"] = Build(hub_table("fine/long", **budgets))
    builds |= {f"late {number}": Build(hub_table("later/long", **budgets), name="late", patience=0) for number in range(2)}
    results, stderr = build_from(hub, root, list(builds.values()))
    yield Session(root, hub, dict(zip(builds, results, strict=True)), stderr, faults)
    hub.close()


def outcomes(session: Session, *names: str) -> dict[str, Any]:
    """The files of builds, or their errors."""
    return {name: session.results[name].get("files", session.results[name].get("error")) for name in names}


@pytest.mark.parametrize("form", [*FORMATS, "chat"])
def test_a_hub_data_set_comes_out_the_same_whatever_goes_wrong(form: str, session: Session) -> None:
    assert len(session.results[f"fine {form}"]["files"]) == 6
    assert outcomes(session, f"faulty {form}") == {f"faulty {form}": session.results[f"fine {form}"]["files"]}


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("by", ["", " by datasets"])
def test_files_of_a_web_server_come_out_the_same_with_and_without_ranges_whatever_goes_wrong(form: str, by: str, session: Session) -> None:
    names = [name for owner in WEB if (name := f"{owner} web {form}{by}") in session.results]
    assert len(names) >= 2
    assert len(session.results[names[0]]["files"]) == 6
    assert outcomes(session, *names) == dict.fromkeys(names, session.results[names[0]]["files"])


def test_every_fault_was_made(session: Session) -> None:
    for name in ("faulty", "solid"):
        assert {fault for fault, _, _ in session.faults[name].made} == {*FAULTS, "silence"}


@pytest.mark.parametrize("form", FORMATS)
def test_a_branch_that_moves_during_a_build_does_not_matter(form: str, session: Session) -> None:
    assert len(session.hub.repositories[f"moved/{form}"]) == 2, "it moved"
    assert outcomes(session, f"moved {form}") == {f"moved {form}": session.results[f"fine {form}"]["files"]}


def test_retry_after_is_waited_for(session: Session) -> None:
    assert outcomes(session, "second") == {"second": session.results["fine json"]["files"]}
    times = session.faults["second"].times  # type: ignore[attr-defined]
    assert times[1] - times[0] >= 1


def test_who_asks_to_wait_longer_than_patience_lasts_is_not_waited_for(session: Session) -> None:
    result = session.results["hour"]
    assert result["unavailable"]
    assert "asks to wait 3600 s" in result["error"]
    assert len(session.faults["hour"].made) == 1


def test_patience_ends_in_one_failure_that_says_so_after_messages_that_said_it_is_waiting(session: Session) -> None:
    result = session.results["down"]
    assert result["unavailable"]
    assert re.match(r"down/json: .*HTTP 503, \d+ tries in \d+ s", result["error"])
    waits = [line for line in result["log"] if re.search(r"HTTP 503; .* [\d.]+ s, .* \d+ s", line)]
    assert len(waits) >= 3


def test_a_build_that_patience_ended_goes_on_to_the_same_bytes(session: Session) -> None:
    first, last = session.results["late 0"], session.results["late 1"]
    assert first["unavailable"]
    assert any("resuming late" in line for line in last["log"])
    assert last["files"] == session.results["never late"]["files"]


@pytest.mark.parametrize(("name", "expected"), [("gated", "gated"), ("closed", "private"), ("forbidden", "HTTP 403"), ("gone", "HTTP 404")])
def test_what_asking_again_does_not_change_is_said_at_once(name: str, expected: str, session: Session) -> None:
    result = session.results[name]
    assert missing(result["error"], f"{name}/json:", expected, f"https://huggingface.co/datasets/{name}/json") == []
    assert not result["unavailable"]
    asked = Counter((method, path) for method, path, _ in session.hub.requests if f"/{name}/" in path and "/resolve/" in path)
    assert asked
    assert max(asked.values()) <= 2, "a HEAD or GET of the library, and ours"


def test_what_a_web_server_does_not_have_or_cannot_is_said(session: Session) -> None:
    assert missing(session.results["parquet without ranges"]["error"], "/files/solid/train-0.parquet", "HTTP ranges") == []
    assert missing(session.results["no such file"]["error"], "/files/fine/nothing.jsonl'", "no file") == []


def test_no_token_and_no_signature_is_in_anything_that_is_written_or_said(session: Session) -> None:
    assert f"Bearer {TOKEN}" in {sent for _, sent in session.hub.tokens}, "it was sent"
    assert any(TOKEN in path for _, path, _ in session.hub.requests)
    said = json.dumps(session.results) + session.stderr
    assert "HTTP 503" in said, "failures were said"
    written = [path for path in session.root.rglob("*") if path.is_file()]
    assert len(written) > 10
    for secret in (TOKEN, "hf_signaturesignature"):
        assert secret not in said
        assert [path for path in written if secret.encode() in path.read_bytes()] == []


def test_an_interrupt_ends_waiting_threads_of_the_libraries_too(tmp_path: Path) -> None:
    with _parquet_hub(tmp_path) as hub:
        hub.faults = Faults(itertools.chain([None] * 2, itertools.repeat("503")), matching=files_only)
        endless_waits = "from niels_cache_assets.sources.net import retries\nretries.FIRST_WAIT = retries.LONGEST_WAIT = 600.0\n"
        with _reader(hub, endless_waits) as reader:
            assert "HTTP 503" in reader.output.readline()
            reader.program.send_signal(signal.SIGINT)
            assert reader.last_words(within=60) == "KeyboardInterrupt"


@contextmanager
def _parquet_hub(folder: Path) -> Iterator[LoopbackHub]:
    repository = {"README.md": card({"default": {"train": "data/*"}}), **{f"data/{name}": it for name, it in FORMATS["parquet"].items()}}
    hub = LoopbackHub({"down/parquet": repository}, folder / "hf_home")
    try:
        yield hub
    finally:
        hub.close()


def _reader(hub: LoopbackHub, before: str) -> AbstractContextManager[Watched]:
    """A plain process that streams the hub's data set through the library's threads."""
    script = """
        from niels_cache_assets.sources.net import retries as network
        from niels_cache_assets.sources.types import StreamContext
        from niels_cache_assets.sources.huggingface import Huggingface
        source = Huggingface(dataset="down/parquet", shuffle_buffer=20)
        with network.retry_for(600, lambda message: print(message, flush=True)):
            for batch in source.documents(StreamContext(seed=1, revision=source.revision({}))):
                pass
    """
    env = {**hub.env, "NIELS_CACHE_NETWORK_PATIENCE": ""}
    return watched("-c", textwrap.dedent(before) + textwrap.dedent(script), env=env)
