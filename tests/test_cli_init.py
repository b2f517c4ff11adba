"""`init`: a file that loads, with what was asked for in it, from flags or from answers."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from niels_cache_assets.cli import exit_codes, main
from niels_cache_assets.registry import load_registry


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for variable in ("NIELS_CACHE_PROFILE", "NIELS_CACHE_CONFIG", "NIELS_CACHE_ROOT", "DAGSTER_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my books").mkdir()
    for number in range(5):
        (tmp_path / "my books" / f"vol.{number}.txt").write_text("a book")
    (tmp_path / "rows.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "chats.jsonl").write_text('{"messages": []}\n')
    return tmp_path


def uncommented(text: str) -> str:
    """With every key and table that stands there as a comment."""
    return re.sub(r"^# (?=\[|\w+ = )", "", text, flags=re.MULTILINE)


@pytest.mark.parametrize("profile", ["default", "quickstart"])
def test_without_wishes_the_file_says_what_may_be_set_and_changes_nothing(profile: str, project: Path) -> None:
    assert main(["init", "--profile", profile]) == exit_codes.DONE
    text = (project / "niels_cache.toml").read_text()
    written, plain = load_registry(config="niels_cache.toml"), load_registry(profile=profile)
    assert (written.pretrain, written.sft, written.tokenizer, written.profile) == (plain.pretrain, plain.sft, plain.tokenizer, profile)
    (project / "all.toml").write_text(uncommented(text))
    said = load_registry(config="all.toml")
    assert (said.build.seed, said.tokenizer.vocab_size, said.build.cache_dir) == (
        plain.build.seed,
        plain.tokenizer.vocab_size,
        plain.build.cache_dir,
    ), "what a comment calls usual is"
    assert "books" in said.pretrain


def test_every_flag_is_a_table_with_paths_as_seen_from_the_file(project: Path) -> None:
    (project / "notes").mkdir()
    (project / "configs").mkdir()
    wishes = ["--files", "my books", "rows.jsonl", "--notes", "notes", "--hub", "allenai/c4:en", "--chats", "chats.jsonl"]
    more = ["--only-mine", "--roam", "notes", "--cache-dir", "kept", "--vocab-size", "5_000", "--out", "configs/mine.toml"]
    assert main(["init", *wishes, *more]) == exit_codes.DONE
    text = (project / "configs/mine.toml").read_text()
    tables = tomllib.loads(text)
    assert tables["pretrain"]["my_text"]["files"] == ["../my books/*.txt"]
    assert tables["pretrain"]["c4"]["dataset"] == "allenai/c4"
    assert tables["build"]["cache_dir"] == "../kept"
    registry = load_registry(config="configs/mine.toml")
    enabled = {name for family in (registry.pretrain, registry.sft) for name, source in family.items() if source.enabled}
    assert enabled == {"my_text", "my_jsonl", "my_notes", "roam", "c4", "chats"}
    assert registry.tokenizer.vocab_size == 5_000
    (project / "configs/all.toml").write_text(uncommented(text))
    assert load_registry(config="configs/all.toml").pretrain["my_text"].prepare, "what is offered in comments is valid"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--files", "none.txt"], "none.txt: no such file"),
        (["--files", "picture.png"], "its name does not say what it holds"),
        (["--notes", "none"], "none: is not there"),
        (["--hub", "c4"], "write OWNER/NAME"),
        (["--profile", "quick"], "did you mean 'quickstart'?"),
        (["--vocab-size", "70_000"], "niels_cache.toml: [tokenizer] vocab_size = 70000"),
        (["--out", "no/such/folder.toml"], "choose another place with --out"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_written(
    arguments: list[str], expected: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "picture.png").write_bytes(b"")
    before = sorted(project.iterdir())
    assert main(["init", *arguments]) == exit_codes.WRONG_USE
    assert expected in capsys.readouterr().err
    assert sorted(project.iterdir()) == before


def test_a_file_that_is_there_is_kept_unless_forced(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "niels_cache.toml").write_text("# mine\n")
    assert main(["init"]) == exit_codes.WRONG_USE
    assert "--force" in capsys.readouterr().err
    assert (project / "niels_cache.toml").read_text() == "# mine\n"
    assert main(["init", "--force"]) == exit_codes.DONE


def test_at_a_terminal_it_asks_until_answers_make_sense(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    answers: Iterator[str] = iter(["quik", "quickstart", "none.txt", "'my books'", "", "", "chats.jsonl", "no", ""])
    monkeypatch.setattr("builtins.input", lambda question: next(answers))
    assert main(["init"]) == exit_codes.DONE
    assert next(answers, None) is None, "all were asked for"
    registry = load_registry(config="niels_cache.toml")
    assert registry.profile == "quickstart"
    assert {name for name, source in {**registry.pretrain, **registry.sft}.items() if source.enabled} == {"my_text", "chats"}
