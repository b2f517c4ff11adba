"""`init`: a file that loads, with what was asked for in it, from flags or from answers."""

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from niels_cache_assets.cli import exit_codes, main
from niels_cache_assets.registry import load_registry
from niels_cache_assets.sources.files import find_files


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
    assert tables["pretrain"]["my_text"]["files"] == ["../my books/**/*.txt"]
    assert tables["pretrain"]["c4"]["dataset"] == "allenai/c4"
    assert tables["build"]["cache_dir"] == "../kept"
    registry = load_registry(config="configs/mine.toml")
    enabled = {name for family in (registry.pretrain, registry.sft) for name, source in family.items() if source.enabled}
    assert enabled == {"my_text", "my_jsonl", "my_notes", "roam", "c4", "chats"}
    assert registry.tokenizer.vocab_size == 5_000
    (project / "configs/all.toml").write_text(uncommented(text))
    assert load_registry(config="configs/all.toml").pretrain["my_text"].prepare, "what is offered in comments is valid"


def files_of(name: str) -> list[str]:
    """What a build would read for that data set, by name and in order."""
    source = load_registry(config="niels_cache.toml").pretrain[name]
    return [file.name for file in find_files(source.model_dump()["files"])]


def test_what_is_put_into_a_folder_later_is_read_and_of_named_files_nothing_else(project: Path) -> None:
    folder = project / "few [1]"
    folder.mkdir()
    for name in ("a.txt", "b.txt.gz", "r.jsonl", "w.xml-p1p20.bz2"):
        (folder / name).write_bytes(b"")
    assert main(["init", "--files", "few [1]", "my books/vol.0.txt"]) == exit_codes.DONE
    assert files_of("my_text") == ["few [1]/a.txt", "few [1]/b.txt.gz", "my books/vol.0.txt"]
    (folder / "below").mkdir()
    for name in ("c.txt", "below/d.txt", "below/s.jsonl", "w.xml-p21p30.bz2", "e.png"):
        (folder / name).write_bytes(b"")
    texts = ["few [1]/a.txt", "few [1]/b.txt.gz", "few [1]/below/d.txt", "few [1]/c.txt", "my books/vol.0.txt"]
    assert files_of("my_text") == texts
    assert files_of("my_jsonl") == ["few [1]/below/s.jsonl", "few [1]/r.jsonl"]
    assert files_of("my_wikipedia") == ["few [1]/w.xml-p1p20.bz2", "few [1]/w.xml-p21p30.bz2"]


def test_a_link_that_leads_back_into_its_folder_makes_no_file_be_read_twice(project: Path) -> None:
    (project / "my books" / "again").symlink_to(".")
    assert main(["init", "--files", "my books"]) == exit_codes.DONE
    assert files_of("my_text") == [f"vol.{number}.txt" for number in range(5)]


def test_what_was_written_is_json_for_programs(project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for stream in ("stdin", "stdout"):
        monkeypatch.setattr(f"sys.{stream}.isatty", lambda: True)  # where it would ask
    assert main(["init", "--json"]) == exit_codes.DONE
    assert json.loads(capsys.readouterr().out)["file"] == "niels_cache.toml"
    assert (
        main(["init", "--json", "--out", "my.toml", "--files", "rows.jsonl", "--only-mine", "--profile", "quickstart"]) == exit_codes.DONE
    )
    written = json.loads(capsys.readouterr().out)
    assert written == {"file": "my.toml", "profile": "quickstart", "data_sets": ["my_text"], "cache_dir": str(project / "cache/quickstart")}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--files", "none.txt"], "none.txt: no such file"),
        (["--files", "picture.png"], "its name does not say what it holds"),
        (["--notes", "none"], "none: is not there; correct --notes"),
        (["--notes", "rows.jsonl"], "rows.jsonl: is no folder; --notes takes a folder"),
        (["--chats", "my books"], "my books: is a folder; --chats takes files"),
        (["--tokenizer", "my books"], "my books: is a folder; --tokenizer takes files"),
        (["--hub", "c4"], "write OWNER/NAME"),
        (["--profile", "quick"], "error: --profile: no profile 'quick'; did you mean 'quickstart'?"),
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


def test_answers_that_end_early_leave_no_file_and_a_quotation_mark_is_asked_for(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    answers: Iterator[str] = iter(["quickstart", "'my books"])

    def ask(question: str) -> str:
        if (answer := next(answers, None)) is None:
            raise EOFError
        return answer

    monkeypatch.setattr("builtins.input", ask)
    assert main(["init"]) == exit_codes.WRONG_USE
    said = capsys.readouterr()
    assert "No closing quotation" in said.out
    assert "the answers ended before the questions; nothing was written" in said.err
    assert "Traceback" not in said.err
    assert not Path("niels_cache.toml").exists()
