"""The command `niels-cache status`. It shows which caches are complete, why others are not, which process builds, and which build can be
resumed.
"""

import errno
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from niels_cache_assets.artifacts.graph import graph
from niels_cache_assets.build_cache import CODE_VERSIONS
from niels_cache_assets.cli import main
from niels_cache_assets.cli.context import find_caches
from niels_cache_assets.corpus import store
from niels_cache_assets.disk import staging as directories
from niels_cache_assets.disk.journal import BYTES_VARIABLE, JOURNAL_NAME, Journal, partial_directory
from niels_cache_assets.inspection.corpora import corpus_names
from niels_cache_assets.project.registry import load_registry
from niels_cache_assets.sources.jsonl import Jsonl
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.commit import hold_lock, lock_path
from niels_cache_runtime.format.layout import META_NAME
from tests.helpers.builds import build_dataset, build_tokenizer, find_duplicates, prepare_corpus
from tests.helpers.corpora import articles
from tests.helpers.messages import missing
from tests.helpers.unreadable import forbid

CONFIG = """
profile = "quickstart"
[tokenizer]
model = "{model}"
[pretrain.python_docs]
enabled = false
[sft.python_help]
enabled = false
[pretrain.roam]
source = "roam"
[pretrain.notes]
source = "jsonl"
files = ["notes.jsonl"]
val_frac = 0.1
[pretrain.books]
source = "jsonl"
files = ["notes.jsonl"]
prepare = ["clean", "dedup"]
val_frac = 0.1
{more}
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """A project with everything built, to be copied."""
    folder = tmp_path_factory.mktemp("status")
    (folder / "notes.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in articles(30)))
    (folder / "spm.model").write_bytes(tiny_model.read_bytes())
    configure(folder)
    registry, root = load_registry(config=str(folder / "niels_cache.toml")), folder / "cache"
    build_tokenizer(registry, root=root)
    prepare_corpus(registry, "books", root=root, processes=1)
    find_duplicates(registry, root=root)
    for name in ("notes", "books"):
        build_dataset(registry, name, root=root)
    return folder


@pytest.fixture
def project(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it as the working directory."""
    for variable in ("NIELS_CACHE_PROFILE", "NIELS_CACHE_CONFIG", "NIELS_CACHE_ROOT"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    folder: Path = shutil.copytree(built, tmp_path / "project")
    monkeypatch.chdir(folder)
    return folder


def configure(folder: Path, more: str = "") -> None:
    (folder / "niels_cache.toml").write_text(CONFIG.format(model=folder / "spm.model", more=more))


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = main(["status", *arguments, "--cache-dir", "cache"])
    output, errors = capsys.readouterr()
    assert not errors
    return code, output


def as_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, dict[str, Any]]]:
    code, output = run(capsys, "--json", *arguments)
    rows = json.loads(output)["data_sets"]
    return code, {row["name"]: row for row in rows}


def leave_unfinished(target: Path, *, share: float | None) -> None:
    """Leave an unfinished build that the next build of this project would resume."""
    registry = load_registry(config=str(target.parents[2] / "niels_cache.toml"))
    revision = registry.source(target.name).revision({})
    expected = graph(registry, target.parents[1]).dataset(target.name).journal(revision)
    partial = partial_directory(target)
    partial.mkdir()
    opened = Journal(partial, fingerprint=expected.fingerprint, log=print, identity=expected.identity)
    opened.record({"n": 3}, files={}, share=share, documents=1234)


def line_of(output: str, name: str) -> str:
    [line] = [line for line in output.splitlines() if line.split()[:1] == [name]]
    return " ".join(line.split())


def test_the_old_build_that_a_killed_one_left_is_no_data_set(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for kind, name in (("pretrain", "notes"), ("corpus", "books")):
        shutil.copytree(project / "cache" / kind / name, partial_directory(project / "cache" / kind / name))
    registry = load_registry(config=str(project / "niels_cache.toml"))
    assert {"notes", "corpus/books"} <= set(as_json(capsys)[1])
    assert [name for name in as_json(capsys)[1] if "partial" in name] == []
    assert [name for name in find_caches(registry, project / "cache") if "partial" in name] == []
    assert corpus_names(registry, project / "cache") == ["books"]


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_where_everything_is_complete_it_says_so_and_exits_0(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = files(project)
    code, output = run(capsys)
    assert code == 0
    assert "everything" in output
    conditions = {name: row["condition"] for name, row in as_json(capsys)[1].items()}
    names = ("tokenizer", "corpus/books", "corpus/duplicates", "notes", "books")
    assert conditions == {"roam": "off"} | dict.fromkeys(names, "complete"), "what is switched off is in no list"
    everything = as_json(capsys, "--all")[1]
    assert {name for name in everything if name not in conditions} == {"python_docs", "python_help"}
    assert list(as_json(capsys, "python_docs")[1]) == ["python_docs"], "unless it is asked for"
    assert files(project) == before, "nothing is written, no lock either"


def test_names_choose_and_a_data_set_stands_for_its_corpus_too(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert list(as_json(capsys, "books")[1]) == ["corpus/books", "books"]
    assert list(as_json(capsys, "corpus/books", "tokenizer")[1]) == ["tokenizer", "corpus/books"]
    assert main(["status", "book"]) == 2
    assert missing(capsys.readouterr().err, "'book'", "'books'") == []
    forbid(monkeypatch, project / "cache/pretrain/notes")
    code, rows = as_json(capsys)
    assert (code, rows["notes"]["state"], rows["books"]["state"]) == (1, "unreadable", "in sync"), "one folder hides no other"
    assert missing(rows["notes"]["advice"], "notes/meta.json", "Permission denied") == []


@pytest.mark.parametrize(
    ("change", "more", "condition", "advice"),
    [
        (lambda cache: os.truncate(cache / "pretrain/notes/train/shard_00000.bin", 2), "", "broken", "notes/train/shard_00000.bin: has "),
        (lambda cache: os.unlink(cache / "pretrain/notes/val_doc_ends.npy"), "", "broken", "notes/val_doc_ends.npy: missing"),
        (lambda cache: os.truncate(cache / "pretrain/notes" / META_NAME, 1), "", "broken", "notes/meta.json: not valid"),
        (lambda cache: shutil.rmtree(cache / "pretrain/notes"), "", "missing", "build it"),
        (lambda cache: os.unlink(cache / "tokenizer/spm.model"), "", "stale", "tokenizer first"),
        (lambda cache: None, "[build]\nseed = 7", "stale", "settings"),
    ],
)
def test_what_is_not_complete_says_why(
    project: Path, capsys: pytest.CaptureFixture[str], change: Callable[[Path], object], more: str, condition: str, advice: str
) -> None:
    change(project / "cache")
    configure(project, more)
    code, rows = as_json(capsys, "notes")
    assert (code, rows["notes"]["condition"]) == (1, condition)
    assert advice in rows["notes"]["advice"]
    code, output = run(capsys, "notes")
    assert (code, f"notes pretrain {condition} " in line_of(output, "notes")) == (1, True)
    assert missing(output, "1 of 1 ", "niels-cache build-all") == []
    conditions = [row["condition"] for row in as_json(capsys)[1].values()]
    assert ("off" in conditions, f" of {len(conditions) - 1} " in run(capsys)[1]) == (True, True), "what is off is not counted"


def test_what_is_read_through_stale_duplicates_or_a_stale_corpus_is_stale(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for more, stale in (("[dedup]\nthreshold = 0.97", {"corpus/duplicates", "books"}), ("[cleaning]\nmin_words = 21", None)):
        configure(project, more)
        _, rows = as_json(capsys)
        found = {name for name, row in rows.items() if row["condition"] == "stale"}
        assert found == (stale or {"corpus/books", "corpus/duplicates", "books"})
    assert "other settings" in rows["corpus/books"]["advice"]


def test_an_unfinished_build_shows_how_far_it_is_beside_the_state_of_the_last_good_cache(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, share in (("notes", 0.43), ("books", None)):
        leave_unfinished(project / "cache/pretrain" / name, share=share)
    shutil.rmtree(project / "cache/pretrain/notes")
    code, rows = as_json(capsys, "notes", "books")
    assert code == 1
    assert [rows[name]["resumable"] for name in ("notes", "books", "corpus/books")] == [
        {"share": 0.43, "documents": 1234},
        {"share": None, "documents": 1234},
        None,
    ]
    _, output = run(capsys)
    assert missing(line_of(output, "notes"), "notes pretrain missing, ", "resumable at 43%") == []
    assert missing(line_of(output, "books"), "books pretrain complete, ", "unfinished", "1,234 documents", "settings") == []
    registry = load_registry(config=str(project / "niels_cache.toml"))
    assert build_dataset(registry, "books", root=project / "cache").state == "cache_hit"
    assert not partial_directory(project / "cache/pretrain/books").exists()
    assert re.fullmatch(r"books pretrain complete [\d,]+ tokens [\d,]+", line_of(run(capsys)[1], "books"))


def test_a_build_at_work_is_named_with_its_process(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(project / "cache/pretrain/notes")
    lock = lock_path(project / "cache/pretrain/notes")
    lock.unlink(missing_ok=True)
    os.mkfifo(lock)
    assert as_json(capsys, "notes")[1]["notes"]["building"] is None, "a pipe is nobody's lock"
    lock.unlink()
    with hold_lock(project / "cache/pretrain/notes"), hold_lock(project / "cache/tokenizer"):
        code, rows = as_json(capsys)
        building = rows["notes"]["building"]
        assert (code, building["pid"], building["host"]) == (1, os.getpid(), os.uname().nodename)
        assert (rows["notes"]["resumable"], rows["books"]["building"]) == (None, None)
        code, output = run(capsys)
        for name, before in (("notes", "notes pretrain missing, "), ("tokenizer", "tokenizer complete, ")):
            assert missing(line_of(output, name), before, "being built", f" by process {os.getpid()} on ") == []
        assert missing(output, "1 of 5 ", "being built") == []
    assert as_json(capsys)[1]["notes"]["building"] is None
    target = project / "cache/pretrain/notes"
    leave_unfinished(target, share=0.43)
    with hold_lock(target):
        building = as_json(capsys, "notes")[1]["notes"]["building"]
        assert (building["share"], building["documents"]) == (0.43, 1234)
        line = line_of(run(capsys, "notes")[1], "notes")
    assert missing(line, "notes pretrain missing, ", "built (43%)", " by process ") == []
    assert "build it" not in line
    (partial_directory(target) / JOURNAL_NAME).write_bytes(b"\x00" * 100)
    assert as_json(capsys, "notes")[1]["notes"]["resumable"] is None


BUILDS: dict[str, Callable[..., object]] = {
    "notes": lambda registry, root, log: build_dataset(registry, "notes", root=root, log=log),
    "books": lambda registry, root, log: build_dataset(registry, "books", root=root, log=log),
    "corpus/books": lambda registry, root, log: prepare_corpus(registry, "books", root=root, processes=1, log=log),
    "corpus/duplicates": lambda registry, root, log: find_duplicates(registry, root=root, log=log),
}
CODE_VERSIONS_NOW = dict(CODE_VERSIONS)


def stop_a_build(project: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Leave it unfinished at its last step, with nothing finished beside it; its target."""
    configure(project)
    registry, root = load_registry(config=str(project / "niels_cache.toml")), project / "cache"
    target = next(state.directory for state in graph(registry, root).states() if state.name == name)
    shutil.rmtree(target, ignore_errors=True)

    replace_target = directories._replace_target

    def fail(partial: Path, built: Path) -> None:
        if built.name == target.name:  # not the steps of a search for duplicates
            raise OSError(errno.EIO, "the disk refuses")
        replace_target(partial, built)

    with monkeypatch.context() as patched:
        patched.setenv(BYTES_VARIABLE, "1")
        patched.setattr(store, "TEXT_BYTES_PER_GROUP", 500)
        patched.setattr(store, "TEXT_BYTES_PER_FILE", 1_000)
        patched.setattr(directories, "_replace_target", fail)
        with pytest.raises(NielsCacheError, match="the disk refuses"):
            BUILDS[name](registry, root, lambda line: None)
    assert (partial_directory(target) / JOURNAL_NAME).exists()
    return target


def log_of_the_next_build(project: Path, name: str) -> str:
    registry, root, told = load_registry(config=str(project / "niels_cache.toml")), project / "cache", list[str]()
    BUILDS[name](registry, root, told.append)
    return "\n".join(told)


@pytest.mark.parametrize(
    ("name", "change", "changed"),
    [
        ("notes", "[build]\nshard_bytes = 4096\nseed = 7", "seed, shard_bytes"),
        ("books", "[build]\nshard_bytes = 4096", "shard_bytes"),
        ("corpus/books", "[cleaning]\nmin_words = 21", "cleaning.min_words"),
        ("corpus/duplicates", "[dedup]\nthreshold = 0.97", "bands, rows, settings.threshold"),
    ],
)
def test_an_unfinished_build_is_stale_exactly_where_the_next_one_starts_afresh(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str, change: str, changed: str
) -> None:
    """`changed`: the settings that it names."""
    stop_a_build(project, name, monkeypatch)
    row = as_json(capsys, name)[1][name]
    assert (row["resumable"] is not None, row["stale_build"]) == (True, None), row
    line = line_of(run(capsys, name)[1], name)
    assert missing(line, "build resumes", "if the data") == []
    configure(project, change)
    row = as_json(capsys, name)[1][name]
    why = row["stale_build"]["why"]
    assert (row["resumable"], missing(why, changed)) == (None, []), why
    line = line_of(run(capsys, name)[1], name)
    assert missing(line, "missing, an unfinished", f"stale: {why}") == []
    assert "resumable" not in line
    if name in ("notes", "corpus/books"):
        assert missing(log_of_the_next_build(project, name), "starting afresh", why) == []
        return
    configure(project)
    assert as_json(capsys, name)[1][name]["resumable"] is not None
    assert "resuming" in log_of_the_next_build(project, name)


def test_other_data_another_tokenizer_and_other_code_are_named(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_a_build(project, "notes", monkeypatch)

    def why() -> str:
        return str(as_json(capsys, "notes")[1]["notes"]["stale_build"]["why"])

    with monkeypatch.context() as patched:
        patched.setitem(CODE_VERSIONS, "pretrain", "99")
        assert missing(why(), f"code version {CODE_VERSIONS_NOW['pretrain']} ", "99 now") == []
    with monkeypatch.context() as patched:
        patched.setattr(Jsonl, "code_version", "99")
        assert missing(why(), "code version", "source jsonl", "99 now") == []
    model = project / "cache/tokenizer/spm.model"
    whole = model.read_bytes()
    model.write_bytes(whole + b"\x78\x01")  # a field that SentencePiece does not know
    assert missing(why(), "tokenizer", "changed") == []
    model.write_bytes(whole)
    assert as_json(capsys, "notes")[1]["notes"]["resumable"] is not None
    with open(project / "notes.jsonl", "a") as notes:
        notes.write(json.dumps({"text": "one more"}) + "\n")
    assert missing(why(), "data", "changed") == []
    shutil.rmtree(project / "cache/tokenizer")
    line = line_of(run(capsys, "notes")[1], "notes")
    assert missing(line, "missing, resumable", "if settings") == [], "what cannot be compared is not called stale"


def test_an_unfinished_build_of_what_is_not_configured_any_more_is_stale(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = stop_a_build(project, "notes", monkeypatch)
    toml = project / "niels_cache.toml"
    toml.write_text(toml.read_text().replace('[pretrain.notes]\nsource = "jsonl"', '[pretrain.notes]\nenabled = false\nsource = "jsonl"'))
    row = as_json(capsys, "notes")[1]["notes"]
    assert row["condition"] == "off"
    assert missing(row["stale_build"]["why"], "switched off", "not configured") == []
    assert partial_directory(target).exists()


def test_the_tokenizer_says_what_it_was_trained_on_and_what_it_lacks(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`later` cannot be read when it is trained."""
    later = '[pretrain.later]\nsource = "jsonl"\nfiles = ["later.jsonl"]\n[sft.chats]\nsource = "chat_jsonl"\nfiles = ["c.jsonl"]'
    configure(project, later)
    toml = project / "niels_cache.toml"
    toml.write_text(toml.read_text().replace(f'model = "{project / "spm.model"}"', "vocab_size = 330"))
    build_tokenizer(load_registry(config=str(toml)), root=project / "cache")
    note = as_json(capsys, "tokenizer")[1]["tokenizer"]["note"]
    assert missing(note, "books (prepared), notes; ", "without chats, later, ", "not be read", "build-all --only tokenizer --force") == []
    assert line_of(run(capsys, "tokenizer")[1], "tokenizer") == f"tokenizer complete 330 pieces - {note}"
    (project / "later.jsonl").write_text('{"text": "Here it is."}\n')
    assert as_json(capsys, "tokenizer")[1]["tokenizer"]["condition"] == "complete", "it stays valid"
    build_tokenizer(load_registry(config=str(toml)), root=project / "cache", force=True)
    note = as_json(capsys, "tokenizer")[1]["tokenizer"]["note"]
    assert missing(note, "books (prepared)", "later, notes; ", "without chats, ", "not be read") == []
