"""`niels-cache part --add`: a table in niels_cache.toml for new files, and nothing else in this file changes."""

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from niels_cache_assets.artifacts.graph import graph
from niels_cache_assets.artifacts.parts import plan as adding
from niels_cache_assets.artifacts.parts.plan import check_addition
from niels_cache_assets.base.fingerprint import fingerprint_of
from niels_cache_assets.base.toml import parse_toml
from niels_cache_assets.cli.__main__ import main
from niels_cache_assets.project.editing import TableNotWrittenError, add_table, read_added_tables
from niels_cache_assets.project.registry import load_registry
from niels_cache_assets.sources.hub import data
from niels_cache_assets.sources.huggingface import Huggingface
from niels_cache_assets.sources.reading.files import SourceFile
from niels_cache_assets.sources.types import ListedFile
from niels_cache_runtime.errors import NielsCacheError
from tests.helpers.messages import missing
from tests.helpers.parts_project import NAME, PartsProject, build

TABLE = f"[[pretrain.{NAME}.added]]"


@pytest.fixture
def project(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> PartsProject:
    project = PartsProject(tmp_path, tiny_model)
    project.write([9, 2, 30, 14])
    project.write([5, 4, 8], first=8, folder="more")
    build(project.graph(3))
    monkeypatch.chdir(tmp_path)
    return project


def run(project: PartsProject, *arguments: str) -> int:
    place = ["--config", str(project.folder / "cache.toml"), "--cache-dir", str(project.folder / "cache")]
    return main(["part", *arguments, *place])


def refused(project: PartsProject, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a command that must fail, and return its one line. The file must stay unchanged."""
    before = (project.folder / "cache.toml").read_bytes()
    capsys.readouterr()
    assert run(project, *arguments) != 0
    said = capsys.readouterr().err
    assert said.count("\n") == 1, said
    assert (project.folder / "cache.toml").read_bytes() == before
    return said


def test_a_table_is_written_and_the_next_build_reads_new_files_only(project: PartsProject, capsys: pytest.CaptureFixture[str]) -> None:
    config = project.folder / "cache.toml"
    before = f"# mine\n{config.read_text()}\n[reports]  # of the run\nsteps = 5\n"
    config.write_text(before)
    assert run(project, NAME, "--add", "more/*", "--parts", "2") == 0
    assert "3 files" in capsys.readouterr().out
    after = config.read_text()
    lines = iter(after.splitlines())
    assert all(line in lines for line in before.splitlines())
    assert parse_toml(after)["pretrain"][NAME]["added"] == [{"files": ["more/*"], "parts": 2}]
    assert load_registry(config=str(config)).pretrain[NAME].total_parts == 5
    assert run(project, NAME, "--add", "more/*", "--parts", "2") == 0
    assert "already" in capsys.readouterr().out
    assert config.read_text() == after
    assert "other settings" in refused(project, capsys, NAME, "--add", "more/*", "--parts", "3")
    project.write([5], first=30, folder="again")
    assert run(project, NAME, "--add", "again/f030.jsonl") == 0
    assert config.read_text().count(TABLE) == 2
    assert load_registry(config=str(config)).pretrain[NAME].total_parts == 6


def test_wrong_files_are_named(project: PartsProject, capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean" in refused(project, capsys, "page", "--add", "more/*")
    assert "more" in refused(project, capsys, NAME, "--add", "mor/*")
    assert "f001.jsonl" in refused(project, capsys, NAME, "--add", "texts/f001.jsonl")
    assert "all files" in refused(project, capsys, NAME, "--add", "texts/*")
    assert "parts" in refused(project, capsys, NAME, "--add", "more/*", "--parts", "0")
    assert "train_tokens" in refused(project, capsys, NAME, "--add", "more/*", "--train-tokens", "5")
    assert "--add" in refused(project, capsys, NAME, "--add")
    assert "--parts" in refused(project, capsys, NAME, "--prune", "--parts", "3")
    assert "more/*" in refused(project, capsys, NAME, "--prune", "more/*")
    (project.folder / "more/zz.jsonl").symlink_to("../texts/f001.jsonl")
    assert missing(refused(project, capsys, NAME, "--add", "more/*"), "zz.jsonl", "already") == []
    assert main(["part", "wikitext", "--add", "more/*", "--cache-dir", str(project.folder / "cache")]) != 0
    assert "init" in capsys.readouterr().err, "a profile is no file to write to"
    (project.folder / "more/zz.jsonl").unlink()
    os.link(project.folder / "cache.toml", project.folder / "other.toml")
    assert run(project, NAME, "--add", "more/*", "--json") != 0
    lines = parse_toml(json.loads(capsys.readouterr().out)["lines"])
    assert lines["pretrain"][NAME]["added"] == [{"files": ["more/*"], "parts": 1}], "what the user may write"


@pytest.mark.parametrize(
    "text",
    [
        '[pretrain.a]\npinned_revision = "main"  # mine\nx = 1 # one\n[build]\nseed = 1\n[pretrain.b]\ny = 2 # two\n',
        "# only a comment\n[pretrain.a]\n\n\n# after\n",
        "[build]\nseed = 1\n",
        "[pretrain]\n[pretrain.a]\nx = 1",
        '\ufeff[pretrain.a]\r\nx = "\u00e4"\r\n\r\n[build]\r\nseed = 1\r\n',
        "[pretrain.a]\nx = 1\n[[pretrain.a.added]]\nfiles = ['o']\n[sft.b]\nz = 1\n",
        "[pretrain.b]\ny = 2\n[tokenizer]\nvocab_size = 300\n[pretrain.a]\nx = [\n  1, # one\n]\n[pretrain.c]\nx = 1\n",
    ],
)
def test_every_line_of_a_file_stays(tmp_path: Path, text: str) -> None:
    path = tmp_path / "niels_cache.toml"
    path.write_text(text, encoding="utf-8", newline="")
    path.chmod(0o640)
    before = parse_toml(text)
    before.get("pretrain", {}).get("a", {}).pop("pinned_revision", None)
    add_table(path, "a", {"files": ["new/*"], "parts": 2}, keys={"pinned_revision": "c0ffee"})
    with open(path, encoding="utf-8", newline="") as file:
        after = file.read()
    lines = iter(after.splitlines())
    assert all(line in lines for line in text.splitlines() if "pinned_revision" not in line)
    tables = parse_toml(after)
    assert tables["pretrain"]["a"].pop("pinned_revision") == "c0ffee"
    assert tables["pretrain"]["a"]["added"].pop() == {"files": ["new/*"], "parts": 2}
    tables["pretrain"]["a"]["added"] = tables["pretrain"]["a"]["added"] or None
    wanted = {**before, "pretrain": {**before.get("pretrain", {}), "a": {"added": None, **before.get("pretrain", {}).get("a", {})}}}
    assert tables == wanted
    assert path.stat().st_mode & 0o777 == 0o640
    assert ("\r\n" in text) == (after.count("\n") == after.count("\r\n"))
    assert not after.endswith(("\n\n", "\r\n\r\n"))


def test_a_file_that_cannot_take_the_table_stays_and_the_lines_are_told(tmp_path: Path) -> None:
    path = tmp_path / "niels_cache.toml"
    path.write_text("[pretrain.a]\nx = 1\nadded = [{ files = ['o'] }]\n")
    with pytest.raises(TableNotWrittenError, match=r"\[\[pretrain\.a\.added\]\]") as told:
        add_table(path, "a", {"files": ["new/*"]}, keys={"x": 2})
    assert parse_toml(told.value.toml) == {"x": 2, "added": [{"files": ["o"]}, {"files": ["new/*"]}]}
    path.write_text("[pretrain.a]\nx = 1\n")
    os.link(path, tmp_path / "other.toml")
    with pytest.raises(TableNotWrittenError, match="2 names") as told:
        add_table(path, "a", {"files": ["new/*"], "parts": 2}, keys={})
    assert parse_toml(path.read_text() + told.value.toml)["pretrain"]["a"] == {"x": 1, "added": [{"files": ["new/*"], "parts": 2}]}
    assert path.read_text() == "[pretrain.a]\nx = 1\n"
    (tmp_path / "other.toml").unlink()
    (tmp_path / "link.toml").symlink_to(path)
    assert add_table(tmp_path / "link.toml", "a", {"files": ["new/*"]}, keys={}) == path
    assert (tmp_path / "link.toml").is_symlink()
    assert "new/*" in path.read_text()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["link.toml", "niels_cache.toml"]


def test_two_commands_at_once_add_both_tables(
    project: PartsProject, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    project.write([5], first=30, folder="again")
    codes: list[int] = []
    said: list[str] = []
    other = threading.Thread(target=lambda: codes.append(run(project, NAME, "--add", "again/*")))
    checked = adding.check_addition

    def slow(*arguments: Any) -> Any:
        found = checked(*arguments)
        if not other.ident:
            other.start()
            deadline = time.monotonic() + 60
            while "waiting" not in "".join(said) and time.monotonic() < deadline:
                said.append(capsys.readouterr().err)
                time.sleep(0.01)
            assert other.is_alive(), "it did not wait"
        return found

    monkeypatch.setattr(adding, "check_addition", slow)
    assert run(project, NAME, "--add", "more/*") == 0
    other.join(60)
    assert codes == [0]
    added = parse_toml((project.folder / "cache.toml").read_text())["pretrain"][NAME]["added"]
    assert [each["files"] for each in added] == [["more/*"], ["again/*"]]
    assert "waiting" in "".join(said)
    assert not list(project.folder.glob(".*"))


def hub(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    files = [SourceFile(f"hf://datasets/owner/pages@c0ffee/{name}", name) for name in names]
    monkeypatch.setattr(data, "_files_of_hub", lambda *args: [files])
    monkeypatch.setattr(
        "niels_cache_assets.sources.huggingface.hub_files", lambda source, revision: [ListedFile(name, 9, "d", None) for name in names]
    )


def test_files_of_the_hub_are_named_from_the_right(monkeypatch: pytest.MonkeyPatch) -> None:
    hub(monkeypatch, "data/CC-MAIN-2026-01/0.parquet", "data/CC-MAIN-2026-05/0.parquet", "data/CC-MAIN-2026-05/1.parquet")
    grown = [{"files": ["CC-MAIN-2026-05/*"], "revision": "new"}]
    source = Huggingface.model_validate({"dataset": "owner/pages", "parts": 2, "added": grown})
    assert [file.name for file in source.list_files("c")] == ["data/CC-MAIN-2026-01/0.parquet"]
    assert [file.name for file in source.list_files("c", group=1)] == ["data/CC-MAIN-2026-05/0.parquet", "data/CC-MAIN-2026-05/1.parquet"]
    assert [source.revision_of_files(number, "c") for number in (0, 1)] == ["c", "new"]
    wrong = Huggingface.model_validate({"dataset": "owner/pages", "parts": 2, "added": [{"files": ["CC-MAIN-2026-06/*"]}]})
    with pytest.raises(NielsCacheError, match=r"nearest.*CC-MAIN-2026-05"):
        wrong.list_files("c", group=1)
    tables = [{"files": [pattern]} for pattern in ("CC-MAIN-2026-05/*", "2026-05/1*", "*/1.parquet")]
    overlapping = Huggingface.model_validate({"dataset": "owner/pages", "parts": 2, "added": tables})
    with pytest.raises(NielsCacheError, match=r"earlier table.*CC-MAIN-2026-05/1"):
        overlapping.list_files("c", group=3)
    with pytest.raises(NielsCacheError, match=r"2026-05/1\*.*no file"):
        overlapping.list_files("c", group=2)
    for patterns in (["data/*/*"], ["CC-MAIN-2026-01/*", "CC-MAIN-2026-05/*"]):
        every = Huggingface.model_validate({"dataset": "owner/pages", "parts": 2, "added": [{"files": patterns}]})
        with pytest.raises(NielsCacheError, match="all files"):
            every.list_files("c")
    whole = Huggingface.model_validate({"dataset": "owner/pages", "pinned_revision": "c", "added": grown})
    with pytest.raises(NielsCacheError, match="CC-MAIN-2026-05/0"):
        whole.list_files("c")
    for keys, said in (({}, "pinned_revision"), ({"files": ["x"], "parts": 2}, "parquet")):
        with pytest.raises(ValueError, match=said):
            Huggingface.model_validate({"dataset": "owner/pages", "added": grown, **keys})


OLD, NEW = [f"data/2025/{number}.parquet" for number in range(2)], [f"data/2026/{number}.parquet" for number in range(3)]
FIRST, NEWEST = "1" * 40, "2" * 40  # commits


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> None:
    """A data set of the hub that was built at FIRST, and has grown since. Its branches have moved, and the tag v1 has not."""
    there = {FIRST: OLD, NEWEST: OLD + NEW}
    hub(monkeypatch)
    found = "niels_cache_assets.sources.huggingface.hub_files"
    monkeypatch.setattr(found, lambda source, revision: [ListedFile(name, 9, "d", None) for name in there[revision]])
    names = {None: NEWEST, "main": NEWEST, "release": NEWEST, "v1": FIRST}
    monkeypatch.setattr(Huggingface, "revision", lambda source, _: names.get(source.pinned_revision, source.pinned_revision))
    built = {"built": True, "dataset_name": "web", "dataset_revision": FIRST}
    monkeypatch.setattr("niels_cache_assets.artifacts.parts.plan.finished_cache", lambda *where: built)
    monkeypatch.setattr("niels_cache_assets.artifacts.parts.plan.files_of_lineage", lambda path: set(OLD))


def web(config: Path, **keys: Any) -> None:
    lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items() if value is not None)
    config.write_text(f'[pretrain.web]\nsource = "huggingface"\ndataset = "owner/pages"\n{lines}')


@pytest.mark.usefixtures("moved")
@pytest.mark.parametrize(
    ("parts", "pinned", "pins"),
    [(1, None, True), (2, None, False), (1, "release", True), (1, "v1", False)],
)
def test_a_table_for_the_hub_has_the_newest_commit(tmp_path: Path, parts: int, pinned: str | None, pins: bool) -> None:
    config = tmp_path / "niels_cache.toml"
    web(config, parts=parts, pinned_revision=pinned)
    registry = load_registry(config=str(config))
    wanted = {"files": ["2026/*"], "parts": 2}
    found = check_addition(registry, tmp_path, "web", [], wanted)
    assert found is not None
    assert [file.name for file in found.files] == NEW
    assert found.entry == {**wanted, "revision": NEWEST}
    assert found.keys == ({"pinned_revision": FIRST} if pins else {})
    add_table(config, "web", found.entry, keys=found.keys)
    grown = load_registry(config=str(config)).pretrain["web"]
    assert grown.total_parts == parts + 2
    assert [file.name for file in grown.list_files(grown.revision({}))] == OLD
    assert check_addition(registry, tmp_path, "web", read_added_tables(config, "web"), wanted) is None
    with pytest.raises(NielsCacheError, match="data/2025/1"):
        check_addition(registry, tmp_path, "web", [], {"files": ["2025/1.parquet"], "parts": 1})


@pytest.mark.usefixtures("moved")
@pytest.mark.parametrize(
    ("pinned", "is_built", "said"), [(NEWEST, True, f"{FIRST}.*{NEWEST}"), ("main", False, r"data/2026/0.*pinned_revision")]
)
def test_a_pin_that_does_not_go_with_the_table_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pinned: str, is_built: bool, said: str
) -> None:
    if not is_built:
        monkeypatch.setattr("niels_cache_assets.artifacts.parts.plan.finished_cache", lambda *where: None)
    config = tmp_path / "niels_cache.toml"
    web(config, pinned_revision=pinned)
    with pytest.raises(NielsCacheError, match=said):
        check_addition(load_registry(config=str(config)), tmp_path, "web", [], {"files": ["2026/*"], "parts": 1})


@pytest.mark.usefixtures("moved")
@pytest.mark.parametrize(("pinned", "is_kept"), [(None, True), ("main", True), ("release", False)])
def test_a_cache_that_was_built_before_its_pin_is_kept(tmp_path: Path, pinned: str | None, is_kept: bool) -> None:
    config = tmp_path / "niels_cache.toml"
    web(config, pinned_revision=FIRST)
    config.write_text(f'{config.read_text()}[[pretrain.web.added]]\nfiles = ["2026/*"]\n')
    part = graph(load_registry(config=str(config)), tmp_path).sealed("web").part(0)
    made_of = {"source": {"dataset": "owner/pages", "pinned_revision": FIRST}, "revision": FIRST}
    then = {"source": {"dataset": "owner/pages", "pinned_revision": pinned}, "revision": FIRST}
    assert part.matches({"fingerprint": fingerprint_of(then)}, made_of) == is_kept
    assert not part.matches({"fingerprint": fingerprint_of({**then, "revision": NEWEST})}, made_of)
