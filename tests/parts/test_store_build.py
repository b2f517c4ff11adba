"""Data sets in parts that machines without a common disk build into a store."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest

from niels_cache_assets.artifacts import stored as stored_module
from niels_cache_assets.artifacts.base import ReportedProgress
from niels_cache_assets.artifacts.graph import Graph
from niels_cache_assets.artifacts.materialize import materialize
from niels_cache_assets.artifacts.parts.prune import find_garbage, prune_parts
from niels_cache_assets.artifacts.parts.seal import JoinedCache
from niels_cache_assets.artifacts.parts.watch import summarize_steps
from niels_cache_assets.artifacts.stored import StorePlace
from niels_cache_assets.cli import main
from niels_cache_assets.defs.assembly import build_defs
from niels_cache_assets.defs.finished_parts import finished_parts_sensor
from niels_cache_assets.defs.launcher import launch_builds
from niels_cache_assets.defs.resources import CacheRoot
from niels_cache_assets.parts.lease import LeaseLostError
from niels_cache_assets.parts.store import lease_of, read_small, record_of
from niels_cache_assets.parts.store_lease import StoreLease, hold_store_lease
from niels_cache_assets.project.running import ClusterSettings
from niels_cache_assets.publish.check import check
from niels_cache_assets.publish.pull import pull
from niels_cache_assets.reports.cache import cache_report, find_items
from niels_cache_assets.reports.history import History
from niels_cache_pages.page import draw_report
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.remote.record import read_published
from niels_cache_runtime.remote.store import ListedObject, Store, open_store
from tests.helpers import programs
from tests.helpers.launches import Recorder, launch_in_memory
from tests.helpers.loopback_s3 import BUCKET, LoopbackS3
from tests.helpers.names import NAMES
from tests.helpers.parts_project import NAME, PartsProject, build, parts_of

pytestmark = pytest.mark.usefixtures("no_drawing")
STORE = f"s3://{BUCKET}/run"
ADDRESS = f"{STORE}/pretrain/{NAME}"
SETTINGS = {
    "budgets": "train_tokens = 900\nval_tokens = 200",
    "val_frac": "val_frac = 0.2\nshuffle_buffer = 20",
    "decontaminate": 'val_frac = 0.2\ndecontaminate = "near"',
}


@pytest.fixture
def project(tmp_path: Path, tiny_model: Path, s3: LoopbackS3) -> PartsProject:
    project = PartsProject(tmp_path / "project", tiny_model)
    project.write([20, 30, 25, 15, 10])
    return project


def machine(project: PartsProject, name: str, settings: str = "val_frac = 0.2", *, parts: int = 3) -> Graph:
    """The graph of a machine, whose disk is the cache root of this name."""
    return project.graph(parts, settings, root=name, build=f'store = "{STORE}"')


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_machines_without_a_common_disk_make_the_bytes_of_one(settings: str, project: PartsProject, s3: LoopbackS3, tmp_path: Path) -> None:
    build(project.graph(3, settings, root="local"))
    one, two = machine(project, "one", settings), machine(project, "two", settings)
    first = ["tokenizer", *[key for key in one.order() if key.startswith(("plan/", "val_part/"))]]
    assert {outcome.state for outcome in build(one, first).values()} == {"built"}
    assert {outcome.state for outcome in build(two, first).values()} == {"cache_hit"}
    parts = parts_of(one)
    build(one, parts[:2])
    build(two, parts[2:])
    moved = len(s3.puts())
    assert build(two, [f"pretrain/{NAME}"])[f"pretrain/{NAME}"].state == "built"
    assert not [key for key in s3.puts()[moved:] if key.endswith(".bin")], "the seal moves no shard"
    assert check(ADDRESS, download=True).findings == []
    pulled = pull(ADDRESS, tmp_path / "pulled").directory
    assert bytes_of(pulled) == bytes_of(project.cache("local"))
    assert {outcome.state for outcome in build(one, [*parts, f"pretrain/{NAME}"]).values()} == {"cache_hit"}
    assert not any((project.folder / root / "pretrain" / NAME).exists() for root in ("one", "two"))
    assert [*(project.folder / "one").rglob("shard_*.bin")] == [*(project.folder / "one/pretrain/.parts/pages/val").rglob("shard_*.bin")]


def test_a_data_set_of_one_process_and_conversations_are_published_as_they_are_built(
    project: PartsProject, s3: LoopbackS3, tmp_path: Path
) -> None:
    turns = [{"role": "user", "content": "the cache"}, {"role": "assistant", "content": "writes every byte once"}]
    (project.folder / "chats.jsonl").write_text("".join(json.dumps({"messages": turns}) + "\n" for _ in range(20)), encoding="utf-8")
    settings = 'val_frac = 0.2\n[sft.chats]\nsource = "chat_jsonl"\nfiles = ["chats.jsonl"]'
    local, one = project.graph(1, settings, root="local"), machine(project, "one", settings, parts=1)
    keys = ["tokenizer", f"pretrain/{NAME}", "sft/chats"]
    build(local, keys)
    assert {outcome.state for outcome in build(one, keys).values()} == {"built"}
    assert {outcome.state for outcome in build(machine(project, "two", settings, parts=1), keys).values()} == {"cache_hit"}
    losers = [f"run/{key}/{StorePlace(one[key]).folder}/00009-ab/shard" for key in keys]
    for loser in losers:
        s3.ask("PUT", f"/{BUCKET}/{loser}", b"garbage")
    for name in (NAME, "chats"):
        assert main(["part", name, "--prune", "--config", one.registry.origin, "--cache-dir", str(one.root)]) == 0
    assert not any(map(s3.content, losers))
    for key in keys[1:]:
        assert check(f"{STORE}/{key}", download=True).findings == []
        assert bytes_of(pull(f"{STORE}/{key}", tmp_path / "pulled").directory) == bytes_of(project.folder / "local" / key)


def test_the_seal_names_the_parts_that_are_missing_and_joins_those_that_are_only_in_the_store(
    project: PartsProject, capfd: pytest.CaptureFixture[str]
) -> None:
    one = machine(project, "one")
    keys = [key for key in one.order() if not key.startswith("pretrain/")]
    seal = ["part", NAME, "--seal", "--config", str(project.folder / "one.toml"), "--cache-dir", str(one.root)]
    build(one, keys[:-2])
    assert main(seal) == 1
    error = capfd.readouterr().err
    assert "part-00000" not in error
    assert "never begun" in error
    assert "--array=1-2 " in error
    build(machine(project, "two"), keys)
    assert main(seal) == 0
    assert check(ADDRESS, download=True).findings == []


def test_another_machine_sees_what_each_step_is_doing_and_reads_only_what_has_changed(
    project: PartsProject, s3: LoopbackS3, capfd: pytest.CaptureFixture[str]
) -> None:
    one, two = machine(project, "one", parts=5), machine(project, "two", parts=5)
    built, failed, running, killed, _ = parts_of(one)
    assert {step.state for step in two.watch(NAME)} == {"waiting"}
    build(one, [*[key for key in one.order() if not key.startswith(("part/", "pretrain/"))], built])
    store, listing = open_store(ADDRESS), Store.list

    def hold(key: str, name: str = "") -> AbstractContextManager[StoreLease]:
        name = name or key.rpartition("/")[2]
        return hold_store_lease(store, lease_of(name), one.root / name, times=ClusterSettings(), wait=False, log=print)

    def later(store: Store, folder: str = "") -> Iterator[ListedObject]:
        """The lease of the killed machine was renewed long ago."""
        for each in listing(store, folder):
            yield each._replace(modified=each.modified - timedelta(seconds=200 * (killed[-10:] in each.key)))

    with suppress(OSError), hold(failed):
        raise OSError("stale file handle")
    with hold(running) as lease, hold(killed), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "list", later)
        lease.report(ReportedProgress(counts={"tokens": 20}, share=0.5))
        lease._write()
        steps = {step.key: step for step in two.watch(NAME)}
    assert [steps[key].state for key in parts_of(one)] == ["done", "failed", "running", "silent", "waiting"]
    assert "stale file handle" in steps[failed].reason
    assert "50%" in steps[running].reason
    assert summarize_steps([*steps.values()])["core_hours"]["finished"] > 0
    with hold(NAME, "all"):
        assert main(["status", NAME, "--json", "--config", two.registry.origin, "--cache-dir", str(two.root)]) == 1
    shown = json.loads(capfd.readouterr().out)
    assert shown["data_sets"][0]["building"]["pid"] == os.getpid()
    assert shown["parts"][NAME]["states"]["failed"] == 1
    two.watch(NAME)
    s3.requests.clear()
    two.watch(NAME)
    assert not [key for method, key in s3.requests if method == "GET" and "/part-" in key]
    resources = {"cache_root": CacheRoot(root=str(two.root))}
    definitions, sensor, cursor = build_defs(resources, registry=two.registry), finished_parts_sensor(two.registry), None
    assert sensor.default_status == dg.DefaultSensorStatus.RUNNING
    with dg.DagsterInstance.ephemeral() as instance:
        for observed in (1, 0):
            context = dg.build_sensor_context(instance=instance, cursor=cursor, definitions=definitions, resources=resources)
            tick = sensor.evaluate_tick(context)
            cursor = tick.cursor
            assert [event.partition for event in tick.asset_events] == [NAME] * observed
        assert [instance.get_materialized_partitions(dg.AssetKey(["pretrain", asset])) for asset in ("plan", "parts")] == [
            {NAME},
            {f"{NAME}/part-00000"},
        ]


@pytest.mark.parametrize("parts", [1, 3])
def test_build_all_shows_what_is_in_the_store_on_every_machine(
    parts: int, project: PartsProject, s3: LoopbackS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = launch_in_memory(SimpleNamespace(folder=project.folder, instance=dg.DagsterInstance.ephemeral()), monkeypatch)
    for root, state in (("one", "built"), ("two", "cache_hit")):
        found = machine(project, root, parts=parts)
        results = launch_builds(found.registry, root=found.root, listener=Recorder())
        assert {(each.state, each.message) for each in results if each.name == NAME} == {(state, None)}
        assert not (found.root / "pretrain" / NAME).exists()
        assert found.dataset_state(NAME).state == "in sync"
        item = next(item for item in find_items(found.registry, root=found.root) if item.name == NAME)
        assert (item.status, item.bytes > 1_000) == ("complete", True)
        report = cache_report(found.registry, [item], root=found.root, history=History(source="none"))
        assert [type(drawn) for drawn in draw_report(found.registry, report).values()] == [list]
        assert [plan.sources[0].samples > 0 for plan in report.mixtures] == [True]
    [record] = instance.fetch_materializations(NAMES.meta["pretrain"], limit=1).records
    assert record.asset_materialization is not None
    shown = record.asset_materialization.metadata
    assert shown["published_at"].value == ADDRESS
    assert shown["sha256"].value == hashlib.sha256(read_published(open_store(ADDRESS)).meta_content).hexdigest()
    key = dg.AssetCheckKey(NAMES.meta["pretrain"], "caches_in_sync")
    assert instance.event_log_storage.get_asset_check_execution_history(key, limit=1)[0].evaluation.passed


@pytest.mark.parametrize("parts", [1, 3])
def test_a_data_set_grows_in_the_store_without_building_its_first_parts_again(
    parts: int, project: PartsProject, s3: LoopbackS3, tmp_path: Path
) -> None:
    project.write([9, 12], first=50, folder="more")
    added = 'val_frac = 0.2\n[[pretrain.pages.added]]\nfiles = ["more/*"]'
    for settings in ("val_frac = 0.2", added):
        build(project.graph(parts, settings, root="local"))
    build(machine(project, "one", parts=parts))
    machine(project, "two", parts=parts)
    add = ["--config", str(project.folder / "two.toml"), "--cache-dir", str(project.folder / "two"), "--add"]
    assert [main(["part", NAME, *add, pattern]) for pattern in ("texts/f000.jsonl", "more/*")] == [2, 0]
    sent = len(s3.puts())
    assert build(machine(project, "two", added, parts=parts))[f"pretrain/{NAME}"].state == "built"
    assert {key.split("/")[4] for key in s3.puts()[sent:] if key.endswith(".bin")} == {f"part-{parts:05d}"}
    assert bytes_of(pull(ADDRESS, tmp_path / "pulled").directory) == bytes_of(project.cache("local"))
    assert {outcome.state for outcome in build(machine(project, "three", added, parts=parts)).values()} == {"cache_hit"}
    assert [*(project.folder / "two").rglob("part-*")] == []


def freeze_before(monkeypatch: pytest.MonkeyPatch, key_ends: str, meanwhile: Callable[[], Any]) -> None:
    """Let another machine work, just before this one writes an object; the lease of this one is then over."""
    write_if, now = Store.write_if, Store.now

    def late(store: Store, key: str, content: bytes, *, state: str | None) -> str | None:
        if key == key_ends:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Store, "write_if", write_if)
                patch.setattr(Store, "now", lambda store, key: now(store, key).replace(year=2099))
                meanwhile()
        return write_if(store, key, content, state=state)

    monkeypatch.setattr(Store, "write_if", late)


def test_a_machine_that_freezes_in_the_middle_of_the_seal_changes_nothing_when_it_wakes(
    project: PartsProject, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    build(project.graph(3, "val_frac = 0.2", root="local"))
    one, two = machine(project, "one"), machine(project, "two")
    build(one, [key for key in one.order() if not key.startswith("pretrain/")])
    published: list[bytes] = []
    store = open_store(ADDRESS)

    def meanwhile() -> None:
        assert materialize(two[f"pretrain/{NAME}"]).state == "built"
        published.append(store.get("meta.json", most_bytes=10**6).content)

    build(two, ["tokenizer", f"plan/{NAME}"])
    freeze_before(monkeypatch, "meta.json", meanwhile)
    with pytest.raises(LeaseLostError, match="has taken over"):
        materialize(one[f"pretrain/{NAME}"])
    assert [store.get("meta.json", most_bytes=10**6).content] == published
    assert bytes_of(pull(ADDRESS, tmp_path / "pulled").directory) == bytes_of(project.cache("local"))


@pytest.mark.parametrize(("change", "named"), [("meta.json", "published by another process"), ("plan.json", "plan has changed")])
def test_a_seal_refuses_a_push_and_another_plan_in_the_meantime(
    change: str, named: str, project: PartsProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, store, write = machine(project, "one"), open_store(ADDRESS), JoinedCache.write
    build(one, [key for key in one.order() if not key.startswith("pretrain/")])

    def late(cache: JoinedCache, work: Any) -> Any:
        written = write(cache, work)
        found = read_small(store, change)
        store.write_if(change, b"another", state=found and found.state)
        return written

    monkeypatch.setattr(JoinedCache, "write", late)
    with pytest.raises(NielsCacheError, match=named) as caught:
        materialize(one[f"pretrain/{NAME}"])
    assert not isinstance(caught.value, LeaseLostError)


def test_prune_names_what_is_damaged_and_force_repairs_a_record(project: PartsProject, s3: LoopbackS3) -> None:
    one = machine(project, "one")
    build(one)
    store, prefix = open_store(ADDRESS), f"/{BUCKET}/run/pretrain/{NAME}"
    described = read_published(store).record.beside["meta.json"]["key"]
    content = store.get(described, most_bytes=10**6).content
    s3.ask("DELETE", f"{prefix}/{described}")
    with pytest.raises(NielsCacheError, match="it is gone"):
        prune_parts(one, NAME)
    s3.ask("PUT", f"{prefix}/{described}", content)
    part = StorePlace(one[parts_of(one)[0]]).folder
    s3.ask("PUT", f"{prefix}/{record_of(part)}", b"{")
    with pytest.raises(NielsCacheError, match="--force"):
        prune_parts(one, NAME)
    assert materialize(one[parts_of(one)[0]], force=True).state == "built"
    assert prune_parts(one, NAME)


def test_prune_removes_what_losers_and_earlier_plans_left_and_nothing_that_is_read(
    project: PartsProject, s3: LoopbackS3, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = machine(project, "one")
    build(one)
    store = open_store(ADDRESS)
    sealed = one.sealed(NAME)
    current = {StorePlace(sealed).folder, *sealed.folders_in_store().values()}
    loser = f"{min(current)}/00009-ab/train/shard_00000.bin"
    s3.ask("PUT", f"/{BUCKET}/run/pretrain/{NAME}/{loser}", b"garbage")
    found = {each.key for each in find_garbage(store, current)}
    assert loser in found
    assert all(key == loser or "/train" in key or "/val" in key for key in found)
    assert main(["part", NAME, "--prune", "--config", str(project.folder / "one.toml"), "--cache-dir", str(one.root)]) == 0
    assert loser.rpartition("/")[0] in capfd.readouterr().out
    assert find_garbage(store, current) == []
    assert check(ADDRESS, download=True).findings == []
    assert {outcome.state for outcome in build(one).values()} == {"cache_hit"}
    other = machine(project, "one", parts=2)
    build(other)
    earlier = current - {StorePlace(other.sealed(NAME)).folder, *other.sealed(NAME).folders_in_store().values()}
    removed = " ".join(str(each.directory) for each in prune_parts(other, NAME))
    assert (len(earlier) > 2, [folder for folder in earlier if folder in removed]) == (True, []), "they may be in use for a day"
    now = Store.now
    monkeypatch.setattr(Store, "now", lambda store, key: now(store, key) + timedelta(days=2 * key.startswith("clocks/prune")))
    before, kept = {each.key for each in store.list("parts")}, read_published(store)
    assert len(prune_parts(other, NAME)) > 3
    assert kept.record.replaced in {each.key for each in store.list("parts")} < before
    assert check(ADDRESS, download=True).findings == []
    monkeypatch.setattr(JoinedCache, "write", lambda cache, work: [][1])
    with pytest.raises(IndexError):
        materialize(other[f"pretrain/{NAME}"], force=True)
    assert check(ADDRESS, download=True).findings == [], "a forced build that fails leaves the published one"


@pytest.mark.parametrize(
    ("build", "named"),
    [
        ('verify_parts = "sha256"', "build"),
        ('[publish]\naddress = "s3://bucket/caches"', "publish"),
        ("[blend.all]\nweights = { pages = 1 }\nsequence_length = 8\nnum_samples = 2", "blend"),
    ],
)
def test_what_reads_caches_in_folders_is_refused_at_load(build: str, named: str, project: PartsProject) -> None:
    with pytest.raises(NielsCacheError, match=rf"\[{named}\].*needs caches in folders"):
        project.graph(2, root="one", build=f'store = "{STORE}"\n{build}')


@pytest.mark.parametrize(("settings", "named"), [('prepare = ["clean"]', "prepare"), ('exclude = "ids.txt"', "exclude")])
def test_what_needs_a_shared_folder_is_refused_at_load(settings: str, named: str, project: PartsProject) -> None:
    with pytest.raises(NielsCacheError, match=rf"\[pretrain\.pages\] {named} needs a folder") as caught:
        machine(project, "one", settings)
    assert "\n" not in str(caught.value)


def test_a_lease_that_is_too_short_for_a_store_is_refused_at_load(project: PartsProject) -> None:
    with pytest.raises(NielsCacheError, match=r"lease_seconds is 9;.*at least 30"):
        project.graph(2, root="one", build=f'store = "{STORE}"\n[cluster]\nlease_seconds = 9\nrenew_seconds = 3')


@pytest.mark.parametrize(("key", "seconds"), [("", 600), ("record_seconds = 5", 5), ("record_seconds = 3600", 3600)])
def test_records_are_rare_in_a_store_unless_a_time_is_set(key: str, seconds: int, project: PartsProject) -> None:
    assert project.graph(2, root="one", build=f'store = "{STORE}"\n{key}').registry.build.seconds_between_records == seconds


def test_a_store_without_conditions_is_refused_once_in_each_process(project: PartsProject, s3: LoopbackS3) -> None:
    one, two = machine(project, "one"), machine(project, "two")
    build(one, one.order()[:3])
    stored_module._require_conditional_put.cache_clear()
    s3.decide = lambda method, key: "unconditional" if method == "PUT" and key.endswith("conditional-put.txt") else None
    with pytest.raises(NielsCacheError, match="ignores If-None-Match"):
        build(two)
    s3.decide = lambda method, key: None
    s3.requests.clear()
    build(two)
    assert 3 <= len([key for key in s3.puts() if key.endswith("conditional-put.txt")]) <= 4


@pytest.mark.remote
def test_two_machines_of_which_one_is_killed_and_one_frozen_past_its_lease_make_the_bytes_of_one(
    project: PartsProject, s3: LoopbackS3, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    project.write([900, 900], first=10)
    local = project.graph(2, "val_frac = 0.1", root="local")
    build(local)
    running: dict[str, programs.Program] = {}
    done: dict[str, threading.Event] = {"part-00000": threading.Event(), "part-00001": threading.Event()}

    def decide(method: str, key: str) -> str | None:
        """Kill the first machine of part 0, and freeze that of part 1, when each has recorded a shard and sends another."""
        part, ends = key.split("/")[4] if key.count("/") > 4 else "", key.endswith("shard_00014.bin")
        if method == "PUT" and ends and part in done and not done[part].is_set():
            done[part].set()
            os.kill(running[part].pid, signal.SIGKILL if part == "part-00000" else signal.SIGSTOP)
        return None

    def start(root: str, *what: str) -> programs.Program:
        config = project.folder / f"{root}.toml"
        words = ("part", NAME, *what, "--config", config, "--cache-dir", project.folder / root)
        return programs.Program("-m", "niels_cache_assets.cli", *words, env=dict(os.environ))

    for root in ("one", "two"):
        project.graph(2, "val_frac = 0.1", root=root, build=f'store = "{STORE}"\n[cluster]\nlease_seconds = 30\nrenew_seconds = 2')
    s3.decide = decide
    running["part-00000"], running["part-00001"] = start("one", "0"), start("one", "1")
    assert all(event.wait(60) for event in done.values())
    assert running["part-00000"].wait(60) == -signal.SIGKILL
    others = [start("two", "0"), start("two", "1")]
    assert [other.wait(120) for other in others] == [0, 0]
    results = [json.loads(line) for line in capfd.readouterr().out.splitlines() if '"result"' in line]
    assert [(result["state"], result["resumed"] > 3_000) for result in results] == [("built", True)] * 2
    store = open_store(ADDRESS)
    records = {each.key: each.modified for each in store.list("records") if "/part-" in each.key}
    assert start("two", "--seal").wait(60) == 0
    os.kill(running["part-00001"].pid, signal.SIGCONT)
    assert running["part-00001"].wait(60) == 0  # it finds the part that the other machine has finished
    assert records.items() <= {each.key: each.modified for each in store.list("records")}.items()
    assert check(ADDRESS, download=True).findings == []
    assert bytes_of(pull(ADDRESS, tmp_path / "pulled").directory) == bytes_of(project.cache("local"))
