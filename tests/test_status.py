"""`niels-cache status`: one look says what is complete, what is not and why, who is at work, and what can be gone on with."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from niels_cache_assets.cache_state import all_states
from niels_cache_assets.cli import main
from niels_cache_assets.cli.context import find_places
from niels_cache_assets.cli.corpora import corpus_names
from niels_cache_assets.corpus.duplicates import find_duplicates
from niels_cache_assets.corpus.prepare import prepare_corpus
from niels_cache_assets.pipeline import build_dataset
from niels_cache_assets.registry import load_registry
from niels_cache_assets.streaming.directories import partial_directory
from niels_cache_assets.streaming.journal import Journal
from niels_cache_assets.streaming.locks import lock_path, writer_lock
from niels_cache_assets.tokenizer_training import build_tokenizer
from niels_cache_runtime.formats import META_NAME
from tests.corpora import articles

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
    partial = partial_directory(target)
    partial.mkdir()
    Journal.open(partial, fingerprint="f", log=print).record({"n": 3}, files={}, share=share, documents=1234)


def line_of(output: str, name: str) -> str:
    [line] = [line for line in output.splitlines() if line.split()[:1] == [name]]
    return " ".join(line.split())


def test_the_old_build_that_a_killed_one_left_is_no_data_set(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for kind, name in (("pretrain", "notes"), ("corpus", "books")):
        shutil.copytree(project / "cache" / kind / name, partial_directory(project / "cache" / kind / name))
    registry = load_registry(config=str(project / "niels_cache.toml"))
    assert {"notes", "corpus/books"} <= set(as_json(capsys)[1])
    assert [name for name in as_json(capsys)[1] if "partial" in name] == []
    assert [name for name in find_places(registry, project / "cache") if "partial" in name] == []
    assert corpus_names(registry, project / "cache") == ["books"]


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_where_everything_is_complete_it_says_so_and_exits_0(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = files(project)
    code, output = run(capsys)
    assert code == 0
    assert "everything is complete; caches in " in output
    conditions = {name: row["condition"] for name, row in as_json(capsys)[1].items()}
    assert conditions == {
        "tokenizer": "complete",
        "corpus/books": "complete",
        "corpus/duplicates": "complete",
        "roam": "off",
        "python_docs": "off",
        "notes": "complete",
        "books": "complete",
        "python_help": "off",
    }
    assert run(capsys, "--full")[0] == 0
    assert files(project) == before, "nothing is written, no lock either"


def test_what_is_off_is_not_counted(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(project / "cache/pretrain/notes")
    conditions = [row["condition"] for row in as_json(capsys)[1].values()]
    assert (conditions.count("off"), conditions.count("complete"), conditions.count("missing")) == (3, 4, 1)
    assert "\n1 of 5 is not complete: " in run(capsys)[1]


def test_names_choose_and_a_data_set_stands_for_its_corpus_too(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert list(as_json(capsys, "books")[1]) == ["corpus/books", "books"]
    assert list(as_json(capsys, "corpus/books", "tokenizer")[1]) == ["tokenizer", "corpus/books"]
    assert main(["status", "book"]) == 2
    assert "no data set 'book'; did you mean 'books'?" in capsys.readouterr().err


def damage_nothing(cache: Path) -> None:
    pass


def cut(cache: Path) -> None:
    path = cache / "pretrain/notes/train/shard_00000.bin"
    path.write_bytes(path.read_bytes()[:-2])


def lose(cache: Path) -> None:
    (cache / "pretrain/notes/val_doc_ends.npy").unlink()


def break_meta(cache: Path) -> None:
    (cache / "pretrain/notes" / META_NAME).write_text("{")


def remove(cache: Path) -> None:
    shutil.rmtree(cache / "pretrain/notes")


def lose_tokenizer(cache: Path) -> None:
    (cache / "tokenizer/spm.model").unlink()


@pytest.mark.parametrize(
    ("change", "more", "condition", "advice"),
    [
        (cut, "", "broken", "notes/train/shard_00000.bin: has "),
        (lose, "", "broken", "notes/val_doc_ends.npy: missing, though meta.json lists it"),
        (break_meta, "", "broken", "notes/meta.json: not valid JSON"),
        (remove, "", "missing", "build it"),
        (lose_tokenizer, "", "stale", "build the tokenizer first"),
        (damage_nothing, "[build]\nseed = 7", "stale", "its settings have changed since"),
    ],
)
def test_what_is_not_complete_says_why(
    project: Path, capsys: pytest.CaptureFixture[str], change: Callable[[Path], None], more: str, condition: str, advice: str
) -> None:
    change(project / "cache")
    configure(project, more)
    code, rows = as_json(capsys, "notes")
    assert (code, rows["notes"]["condition"]) == (1, condition)
    assert advice in rows["notes"]["advice"]
    code, output = run(capsys, "notes")
    assert (code, f"notes pretrain {condition} " in line_of(output, "notes")) == (1, True)
    assert "1 of 1 is not complete: niels-cache build-all builds what can be built" in output


def test_a_changed_threshold_makes_duplicates_stale_and_what_is_read_through_them(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    configure(project, "[dedup]\nthreshold = 0.97")
    _, rows = as_json(capsys)
    assert {name: row["condition"] for name, row in rows.items() if row["condition"] == "stale"} == {
        "corpus/duplicates": "stale",
        "books": "stale",
    }
    configure(project, "[cleaning]\nmin_words = 21")
    _, rows = as_json(capsys, "books", "corpus/duplicates")
    assert {name: row["condition"] for name, row in rows.items()} == {
        "corpus/books": "stale",
        "corpus/duplicates": "stale",
        "books": "stale",
    }
    assert "other settings" in rows["corpus/books"]["advice"]


def test_changed_settings_of_the_tokenizer_make_it_stale_and_a_lost_model_to_import_too(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    configure(project)
    toml = project / "niels_cache.toml"
    toml.write_text(toml.read_text().replace(f'model = "{project / "spm.model"}"', "vocab_size = 500"))
    code, rows = as_json(capsys)
    assert (code, {name for name, row in rows.items() if row["condition"] == "stale"}) == (1, {"tokenizer"})
    assert "[tokenizer] or the seed has changed since" in rows["tokenizer"]["advice"]
    configure(project)
    assert as_json(capsys)[0] == 0
    (project / "spm.model").unlink()
    _, rows = as_json(capsys)
    assert (rows["tokenizer"]["condition"], rows["notes"]["condition"]) == ("stale", "complete")
    assert "spm.model: no such tokenizer model" in rows["tokenizer"]["advice"]


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
    assert line_of(output, "notes").startswith("notes pretrain missing, resumable at 43% build it; the next build goes on where the last")
    assert line_of(output, "books").startswith(
        "books pretrain complete, an unfinished build beside it (1,234 documents) of other settings, "
    )
    registry = load_registry(config=str(project / "niels_cache.toml"))
    assert build_dataset(registry, "books", root=project / "cache").state == "cache_hit"
    assert not partial_directory(project / "cache/pretrain/books").exists()
    assert line_of(run(capsys)[1], "books") == "books pretrain complete"


def test_a_partial_directory_without_a_journal_or_with_a_damaged_one_is_not_resumable(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    partial = partial_directory(project / "cache/pretrain/notes")
    partial.mkdir()
    assert as_json(capsys, "notes")[1]["notes"]["resumable"] is None
    (partial / "journal.json").write_bytes(b"\x00" * 100)
    assert as_json(capsys, "notes")[1]["notes"]["resumable"] is None


def test_a_build_at_work_is_named_with_its_process(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(project / "cache/pretrain/notes")
    with writer_lock(project / "cache/pretrain/notes"), writer_lock(project / "cache/tokenizer"):
        code, rows = as_json(capsys)
        assert code == 1
        building = rows["notes"]["building"]
        assert (building["pid"], building["host"]) == (os.getpid(), os.uname().nodename)
        assert rows["notes"]["resumable"] is None
        assert rows["books"]["building"] is None
        code, output = run(capsys)
        assert line_of(output, "notes").startswith(f"notes pretrain missing, being built by process {os.getpid()} on ")
        assert line_of(output, "tokenizer").startswith("tokenizer complete, being built by process")
        assert "1 of 5 is being built" in output
    assert as_json(capsys)[1]["notes"]["building"] is None


def test_how_far_a_build_at_work_is_is_in_json_too_and_nobody_is_told_to_build_it(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = project / "cache/pretrain/notes"
    shutil.rmtree(target)
    leave_unfinished(target, share=0.43)
    with writer_lock(target):
        _, rows = as_json(capsys, "notes")
        assert (rows["notes"]["building"]["share"], rows["notes"]["building"]["documents"]) == (0.43, 1234)
        line = line_of(run(capsys, "notes")[1], "notes")
    assert line.startswith("notes pretrain missing, being built (43%) by process ")
    assert "build it" not in line


def test_a_pipe_in_the_place_of_a_lock_is_nobodys(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lock = lock_path(project / "cache/pretrain/notes")
    lock.unlink(missing_ok=True)
    os.mkfifo(lock)
    assert as_json(capsys, "notes")[1]["notes"]["building"] is None


def test_changed_bytes_of_the_same_size_are_found_with_full_only(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("pretrain/notes/train/shard_00000.bin", "corpus/books/digests.npy", "duplicates/books.parquet"):
        path = project / "cache" / name
        path.write_bytes(path.read_bytes()[:-1] + bytes([path.read_bytes()[-1] ^ 1]))
    assert as_json(capsys)[0] == 0
    code, rows = as_json(capsys, "--full")
    assert code == 1
    assert [name for name, row in rows.items() if row["condition"] == "broken"] == ["corpus/books", "corpus/duplicates", "notes"]
    assert "train/shard_00000.bin: its sha256 is not the one in meta.json" in rows["notes"]["advice"]


def test_caches_of_another_configuration_are_shown_too(project: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text('profile = "quickstart"\n[tokenizer]\nmodel = "spm.model"\n')
    states = {state.name: state for state in all_states(load_registry(config=str(other)), root=project / "cache")}
    assert (states["notes"].state, states["corpus/books"].state, states["corpus/duplicates"].state) == ("built", "built", "built")
    assert states["python_docs"].condition == "missing"
