"""After a takedown no text of a document is left outside of the cache: not in Dagster's home, logs, checks, tracebacks and reports."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from markupsafe import Markup

from niels_cache_assets.cli import main
from tests.helpers.tiny import sentences

CANARY = "zqcanaryqxjvwkplmntrgz"  # the longest word of the text, so the tokenizer's sample has it, too
SETTINGS = """
[dagster]
plots = false

[tokenizer]
vocab_size = 330
train_on = ["plain"]

[pretrain.plain]
source = "jsonl"
files = ["plain.jsonl"]
val_frac = 0.3
decontaminate = "exact"

[pretrain.clean]
source = "jsonl"
files = ["plain.jsonl"]
val_frac = 0.3
prepare = ["clean", "dedup"]
cleaning = { skip = ["not_english", "language_error", "no_stopwords"], min_characters = 100, mask = ["email"] }

[sft.chats]
source = "chat_jsonl"
files = ["chats.jsonl"]

[pretrain.broken]
source = "jsonl"
files = ["broken.jsonl"]
text_field = "text"

[sft.refused]
source = "chat_jsonl"
files = ["refused.jsonl"]
template = "refusing.jinja"
"""
TEMPLATE = (
    "{% for message in messages %}{% generation %}{{ message.content }}{% endgeneration %}{{ message['content'] + none }}{% endfor %}"
)


def write(folder: Path, name: str, rows: list[Any]) -> None:
    (folder / name).write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows))


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("canary")
    texts = [f"{CANARY} {' '.join(sentences(6, seed=seed))} {CANARY} {CANARY}@example.com" for seed in range(30)]
    texts += [CANARY, texts[3], f"{CANARY} " * 400]  # the shortest, a duplicate, and the longest
    write(folder, "plain.jsonl", [{"text": text, "title": f"{CANARY} {row}", "id": f"id-{row}"} for row, text in enumerate(texts)])
    said = [{"role": "user", "content": f"{CANARY}?"}, {"role": "assistant", "content": f"{CANARY}! " * 50}]
    write(folder, "chats.jsonl", [{"messages": said}] * 8 + [{"messages": said[:1]}] * 8)
    write(folder, "refused.jsonl", [{"messages": said}])
    write(folder, "broken.jsonl", [*({"text": f"{CANARY} good {row}"} for row in range(300)), f'{{"text": "{CANARY} broken\n'])
    (folder / "refusing.jinja").write_text(TEMPLATE)
    (folder / "niels_cache.toml").write_text(SETTINGS)
    return folder


@pytest.fixture(autouse=True)
def words_for_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pages have all words of a picture, without the seconds for drawing."""
    monkeypatch.setattr("niels_cache_pages.page.as_svg", lambda picture, of: Markup("<svg>{}</svg>").format((picture, of)))


def files_with_canary(folder: Path) -> list[str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [str(path.relative_to(folder)) for path in files if CANARY.encode() in path.read_bytes()]


def test_a_canary_is_only_in_the_cache_and_the_sources(
    project: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(project)
    monkeypatch.setenv("DAGSTER_HOME", str(project / "home"))
    assert main(["build-all"]) == 1, "two data sets cannot be built"
    printed = capfd.readouterr()
    assert main(["report", "--out", str(project / "page.html")]) == 0
    for command in (["report", "--json"], ["status"], ["show", "chats"], ["show", "plain"]):
        main(command)
    printed_later = capfd.readouterr()
    built = {str(path.parent.relative_to(project / "cache")) for path in (project / "cache").rglob("meta.json")}
    assert {"tokenizer", "corpus/clean", "pretrain/plain", "pretrain/clean", "sft/chats"} <= built
    assert not built & {"pretrain/broken", "sft/refused"}
    for name in ("broken", "refused"):
        assert f"{name} failed" in printed.out
    databases = [path for path in (project / "home").rglob("*.db") if path.stat().st_size]
    assert databases, "the home has records"
    assert any(b"dropped" in path.read_bytes() for path in databases)
    assert files_with_canary(project / "home") == []
    assert files_with_canary(project / "cache/reports") == []
    assert CANARY in (project / "page.html").read_text(), "a page that a person asks for has excerpts"
    (project / "page.html").unlink()
    for text in (*printed, *printed_later):
        assert CANARY not in text
    assert files_with_canary(project / "cache"), "text is in the cache"
    assert main(["sample", "plain", "--notable"]) == 0
    assert CANARY in capfd.readouterr().out, "the command that the metadata names shows the text"


def test_doctor_lists_every_place_with_the_canary(
    project: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(project)
    monkeypatch.setenv("DAGSTER_HOME", str(project / "home"))
    assert main(["report", "clean"]) == 0
    capfd.readouterr()
    assert main(["doctor", "--text", "--json"]) == 0
    places = {place["where"]: place for place in json.loads(capfd.readouterr().out)["text"]}
    for name in ("plain.jsonl", "chats.jsonl"):
        assert any(where.endswith(name) for where in places)
    cache, page = project / "cache", project / "cache/reports/tune/clean.html"
    for folder in ("tokenizer", "corpus/clean", "pretrain/plain", "pretrain/clean", "sft/chats"):
        assert places[str(cache / folder)]["bytes"] > 0
    assert str(page.relative_to(cache)) in files_with_canary(cache)
    for path in files_with_canary(cache):
        assert any((cache / path).is_relative_to(where) for where in places if os.path.isabs(where)), path
    assert not any(str(project / "home") in where for where in places)
    page.unlink()


def test_a_new_home_is_readable_by_its_owner_only(project: Path) -> None:
    assert (project / "home").stat().st_mode & 0o077 == 0
