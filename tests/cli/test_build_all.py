"""The real command line. It builds, builds again, fails, is interrupted, and shows caches.

One folder with two small data sets, one whose file is broken and one that is not configured is built once for all tests here, by a
process of its own.
"""

import gzip
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from niels_cache_assets.cli import main
from niels_cache_runtime import Batch
from niels_cache_runtime.format.layout import META_NAME
from niels_cache_runtime.format.meta import read_meta, write_meta
from niels_cache_runtime.loader.windows import PretrainWindows
from tests.helpers import programs
from tests.helpers.messages import missing
from tests.helpers.tiny import sentences

REPOSITORY = Path(__file__).resolve().parents[2]
COMMAND = ("-m", "niels_cache_assets.cli")
CONFIG = """
profile = "quickstart"
[build]
cache_dir = "cache"
[tokenizer]
model = "spm.model"
[pretrain.notes]
source = "jsonl"
files = ["notes.jsonl"]
[pretrain.broken]
source = "jsonl"
files = ["broken.jsonl"]
[pretrain.roam]
source = "roam"
[sft.chats]
source = "chat_jsonl"
files = ["chats.jsonl"]
val_frac = 0
[dagster]
plots = false
"""
ONLY = ("--only", "notes", "broken", "roam", "chats")


def environment(folder: Path) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("NIELS_CACHE_", "DAGSTER_"))}
    return kept | {"PYTHONPATH": str(REPOSITORY), "DAGSTER_HOME": str(folder / "dagster home"), "COLUMNS": "200"}


def write_rows(path: Path, rows: Sequence[object]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def contents(folder: Path) -> dict[str, bytes]:
    every = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    files = {name: content for name, content in every.items() if name != "reports/cache.html"}  # it says when things were built
    return {name: data for name, data in files.items() if not name.endswith(".lock")}


def states(table: str) -> dict[str, str]:
    """Return {data set: state} from the rows of build-all's table."""
    rows = re.findall(r"^(\w+) +(built|cache hit|disabled|skipped|failed) ", table, flags=re.MULTILINE)
    return dict(rows)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    folder = tmp_path_factory.mktemp("command line")
    (folder / "niels_cache.toml").write_text(CONFIG)
    (folder / "spm.model").write_bytes(tiny_model.read_bytes())
    write_rows(folder / "notes.jsonl", [{"text": text} for text in sentences(300, words=30)])
    (folder / "broken.jsonl").write_text('{"text": "fine"}\nnot json\n')
    chats = [[{"role": "user", "content": "a stream?"}, {"role": "assistant", "content": text}] for text in sentences(40, seed=1)]
    write_rows(folder / "chats.jsonl", [{"messages": messages} for messages in chats])
    return folder


@pytest.fixture(scope="module")
def first_build(folder: Path) -> subprocess.CompletedProcess[str]:
    return programs.run(*COMMAND, "build-all", *ONLY, cwd=folder, env=environment(folder))


@pytest.fixture
def built(folder: Path, first_build: subprocess.CompletedProcess[str], monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with its caches, as the working directory of this process."""
    for variable in ("NIELS_CACHE_PROFILE", "NIELS_CACHE_CONFIG", "NIELS_CACHE_ROOT"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("DAGSTER_HOME", str(folder / "dagster home"))
    monkeypatch.chdir(folder)
    return folder


def printed(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    """Return the output of a command that must return `code`."""
    assert main(arguments) == code
    output, errors = capsys.readouterr()
    assert not errors
    return output


def printed_json(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Any:
    text = printed(capsys, *arguments, "--json", code=code)
    assert text.isascii(), "it goes through any pipe"
    return json.loads(text)


def test_a_data_set_that_fails_does_not_stop_the_others(folder: Path, first_build: subprocess.CompletedProcess[str]) -> None:
    assert first_build.returncode == 1
    assert states(first_build.stdout) == {"tokenizer": "built", "notes": "built", "broken": "failed", "roam": "skipped", "chats": "built"}
    assert re.search(r"^broken failed: .*broken\.jsonl: line 2 .*JSON", first_build.stdout, flags=re.MULTILINE)
    assert re.search(r"^roam skipped: .*path", first_build.stdout, flags=re.MULTILINE)
    assert not (folder / "cache/pretrain/broken").exists()
    assert "Traceback" not in first_build.stdout + first_build.stderr
    assert "Warning" not in first_build.stderr, "of a beta feature of Dagster"
    lines = first_build.stderr.splitlines()
    assert lines[0] == "tokenizer: started"
    assert any(re.fullmatch(r"notes: built in [0-9.]+ s", line) for line in lines)
    assert "\x1b" not in first_build.stdout + first_build.stderr


def test_the_snippet_that_it_prints_runs(built: Path, first_build: subprocess.CompletedProcess[str]) -> None:
    snippet = first_build.stdout.partition("Train from it:")[2].strip()
    variables: dict[str, object] = {}
    exec("\n".join(line.strip() for line in snippet.splitlines()), variables)
    batch = variables["batch"]
    assert isinstance(batch, Batch)
    assert batch.x.shape == batch.y.shape == (4, 256)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_build_stops_and_leaves_the_last_good_cache(built: Path, number: signal.Signals, code: int) -> None:
    before, endless = contents(built / "cache"), built / "endless.jsonl.gz"
    text = " ".join(sentences(2_000))
    member = gzip.compress("".join(json.dumps({"text": f"{text} {row}"}) + "\n" for row in range(10)).encode(), 1)
    endless.write_bytes(member * 400)  # 600 MB of text that takes minutes to encode, and no room
    settings = {"pretrain.notes.files": [endless.name], "pretrain.notes.val_frac": 0, "build.threads": 1}
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={json.dumps(value)}")]
    with (built / "stdout").open("w+b") as stdout, (built / "stderr").open("w+b") as stderr:
        streams = (0, stdout.fileno(), stderr.fileno())
        build = programs.Program(*COMMAND, "build-all", "--only", "notes", *words, cwd=built, env=environment(built), streams=streams)
        try:
            deadline = time.monotonic() + 60
            while not (built / "cache/pretrain/.notes.partial/train").exists():
                assert build.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.01)
            time.sleep(2)  # Dagster writes what the build logs at its start; Python ignores an exception in a callback of its database
            build.send_signal(number)
            assert build.wait(timeout=60) == code, "long before the end of the text"
        finally:
            build.kill()
            endless.unlink()
    errors = (built / "stderr").read_text().splitlines()
    assert [line for line in errors if line.startswith("niels-cache:")] == [errors[-1]]
    assert "Traceback" not in (built / "stdout").read_text() + "".join(errors)
    assert contents(built / "cache") == before, "neither the old cache nor anything beside it has changed"


def test_status_says_what_is_configured_and_what_is_built(built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status"]) == 1
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()[2:] if line}
    assert re.search(r"pretrain +complete +[0-9,]+ tokens +[0-9,]+", rows["notes"])
    assert re.search(r"sft +complete +40 examples +0", rows["chats"])
    assert re.search(r"off +- +- +needs path", rows["roam"])
    assert "missing" in rows["python_docs"]
    assert re.search(r"complete +400 pieces +-", rows["tokenizer"])


def test_status_marks_what_is_damaged_or_has_another_tokenizer(built: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = shutil.copytree(built / "cache", tmp_path / "cache")
    (root / "sft/chats" / META_NAME).write_text("{")
    changed = str(root / "tokenizer" / META_NAME)
    write_meta(changed, {**read_meta(changed), "sha256": "0" * 64})
    assert main(["status", "--cache-dir", str(root)]) == 1
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line}
    assert re.search(r"broken +- +- ", rows["chats"])
    assert re.search(r"stale .*tokenizer has changed", rows["notes"])
    assert main(["sample", "notes", "--cache-dir", str(root)]) == 2
    assert "built with tokenizer" in capsys.readouterr().err


def test_show_prints_what_meta_json_says(built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    meta = read_meta(str(built / "cache/pretrain/notes" / META_NAME))
    text = printed(capsys, "show", "notes")
    for value in (meta["fingerprint"], meta["dataset_revision"], meta["split_rule"], f"{meta['train_tokens']:,}"):
        assert value in text
    assert len(meta["files"]) > 4
    for path, entry in meta["files"].items():
        assert re.search(rf"^{re.escape(path)} .*{entry['sha256']}", text, flags=re.MULTILINE)
    assert "<|ngpt_eot" in printed(capsys, "show", "tokenizer")


def test_verify_is_clean_and_finds_a_changed_byte(built: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "verify")
    assert text.splitlines()[-1].endswith("no findings")
    rows = [re.split(r" {2,}", line.strip()) for line in text.splitlines()]
    assert ["data set", "family", "files", "bytes", "result"] in rows
    assert {(row[0], row[1], row[-1]) for row in rows if row[-1] == "verified"} == {
        ("tokenizer", "tokenizer", "verified"),
        ("notes", "pretrain", "verified"),
        ("chats", "sft", "verified"),
    }
    root = shutil.copytree(built / "cache", tmp_path / "cache")
    shard = root / "pretrain/notes/train/shard_00000.bin"
    shard.write_bytes(b"\x00\x00" + shard.read_bytes()[2:])
    assert "train/shard_00000.bin: its sha256" in printed(capsys, "verify", "notes", "--cache-dir", str(root), code=1)
    verified = printed_json(capsys, "verify", "notes", "--cache-dir", str(root), code=1)
    assert (verified["folders"], verified["findings"][0]["path"]) == (["pretrain/notes"], "train/shard_00000.bin")
    assert {row["name"]: row["outcome"] for row in verified["results"]} == {"notes": "findings"}
    assert "no findings" in printed(capsys, "verify", "chats", "--cache-dir", str(root))


def test_sample_shows_windows_as_text(built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("sample", "notes", "--split", "val", "-n", "2", "--seed", "3", "--tokens", "40")
    text = printed(capsys, *arguments)
    assert len(re.findall(r"^--- val window \d of 2, 40 tokens$", text, flags=re.MULTILINE)) == 2
    assert "<|ngpt_" not in text
    assert text == printed(capsys, *arguments), "the same seed shows the same"
    assert text != printed(capsys, *arguments[:-4], "--seed", "4", "--tokens", "40")


def test_sample_marks_what_the_assistant_is_trained_to_say(built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "sample", "chats", "-n", "2", "--seed", "0", "--tokens", "200")
    answers = re.findall(r"^<\|usr\|>a stream\?<\|eot\|><\|asst\|>\[\[(.*)<\|eot\|>\]\]$", text, flags=re.MULTILINE)
    assert len(answers) == 2
    assert set(answers) <= set(sentences(40, seed=1))
    assert main(["sample", "chats", "--split", "val"]) == 2
    assert missing(capsys.readouterr().err, "empty", "(0 examples)") == []


def test_sample_marks_a_target_that_is_cut_and_explains_it_once(built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    how = ("-n", "40", "--seed", "0")
    whole = printed_json(capsys, "sample", "chats", *how, "--tokens", "200")["samples"]
    assert not any(sample["hidden_targets"] for sample in whole)
    assert "[cut" not in printed(capsys, "sample", "chats", *how, "--tokens", "200")
    cut = printed_json(capsys, "sample", "chats", *how, "--tokens", "10")["samples"]
    assert len(cut) == len(whole) > 1
    for short, long in zip(cut, whole, strict=True):
        assert short["hidden_targets"] == sum(long["is_target"][10:]) > 0
        assert short["hidden_tokens"] == len(long["tokens"]) - 10
    text = printed(capsys, "sample", "chats", *how, "--tokens", "10")
    assert re.findall(r"\]\] \[cut: (\d+) ", text) == [str(sample["hidden_targets"]) for sample in cut]
    assert text.count("[cut: ...]") == 1


def test_sample_marks_the_document_that_the_token_budget_cut(built: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = shutil.copytree(built / "cache", tmp_path / "cache")
    path = root / "pretrain/notes" / META_NAME
    assert "budget" not in printed(capsys, "sample", "notes", "--notable", "--cache-dir", str(root))
    write_meta(str(path), {**read_meta(str(path)), "cut_document": {"train": 0, "val": None}})
    text = printed(capsys, "sample", "notes", "--notable", "--tokens", "2000", "--cache-dir", str(root))
    first = next(part for part in text.split("--- ") if part.startswith("first"))
    assert re.search(r"<\|eot\|> \[cut by .*budget\]$", first, flags=re.MULTILINE)
    assert re.findall(r"^\[cut by .*budget\](.)", text, flags=re.MULTILINE) == [":"], "explained once"
    assert text.count("[cut by") == 2
    marked = printed_json(capsys, "sample", "notes", "--notable", "--cache-dir", str(root))["samples"]
    assert [sample["is_cut_by_budget"] for sample in marked] == ["document 0," in sample["title"] for sample in marked]


def test_sample_counts_the_rows_that_repeat_tokens(built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = built / "cache/pretrain/notes/train"
    windows = PretrainWindows(str(folder), T=40)
    rows = windows.read(np.arange(windows.samples), epoch=0, boundaries=False).tokens
    repeating = [number for number, row in enumerate(rows) if (row[1:] == row[:-1]).any()]
    how = ("--cache-dir", str(built / "cache"), "--tokens", "40", "--repetitive", "1,2", "-n", "2")
    text = printed(capsys, "sample", "notes", *how)
    assert f"{len(repeating):,} of {windows.samples:,} windows of T=40" in text
    found = printed_json(capsys, "sample", "notes", *how)["samples"]
    assert [sample["tokens"] for sample in found] == rows[repeating[:2]].tolist()
    assert main(["sample", "chats", *how]) == 2
    assert "--repetitive: is for pretrain" in capsys.readouterr().err


def test_every_command_that_looks_prints_json_for_programs(built: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    meta = read_meta(str(built / "cache/pretrain/notes" / META_NAME))
    assert main(["status", "--json"]) == 1
    listed = {row["name"]: row for row in json.loads(capsys.readouterr().out)["data_sets"]}
    counts = {key: meta[key] for key in ("train_tokens", "val_tokens", "vocab_size")}
    assert listed["notes"]["counts"] == {**counts, "documents": sum(meta["documents"].values())}
    assert listed["notes"]["source"] == "jsonl"
    assert (listed["notes"]["sha256"], listed["roam"]["state"]) == (meta["content_sha256"], "not configured")
    assert printed_json(capsys, "show", "notes")["cache"]["meta"] == meta
    assert printed_json(capsys, "show", "notes")["corpus"] is None
    sampled = printed_json(capsys, "sample", "chats", "-n", "1", "--seed", "3")
    sample = sampled["samples"][0]
    assert (sampled["seed"], len(sample["tokens"]), any(sample["is_target"])) == (3, len(sample["is_target"]), True)
    assert sample["text"].startswith("<|usr|>a stream?")
    exported = printed_json(capsys, "export", "npy", "notes", "--out", str(tmp_path / "npy"), "--dry-run")
    assert [file["tokens"] for file in exported["files"] if file["tokens"]] == [meta["train_tokens"], meta["val_tokens"]]
    assert exported["written"] is False


def test_tokenizers_are_compared_on_the_same_text_by_source(
    built: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("niels_cache_assets.cli.commands.tokenizer._BLOCK_TOKENS", 50)  # documents cross blocks
    (tmp_path / "own.txt").write_text("the river " * 100)
    compared = printed_json(capsys, "tokenizer", "compare", "cache", "spm.model", "--files", str(tmp_path / "own.txt"))
    rows = {row["source"]: row for row in compared["sources"]}
    assert list(rows) == ["notes", "chats", "files", "all"]
    assert rows["files"]["characters"] == 1_000
    assert all(row["tokens"][0] == row["tokens"][1] > 0 for row in rows.values()), "it is the same model"
    assert rows["all"]["characters"] == sum(row["characters"] for name, row in rows.items() if name != "all")
    notes = read_meta(str(built / "cache/pretrain/notes" / META_NAME))
    assert rows["notes"]["tokens"][0] == notes["train_tokens"] - notes["documents"]["train"], "its documents without EOT, encoded again"
    text = printed(capsys, "tokenizer", "compare", "cache", "spm.model", "--only", "notes", "--characters", "500")
    assert re.search(r"^notes +500 +(\d\.\d{3}) +\1 +\+0\.0%$", text, flags=re.MULTILINE)
