"""Mistakes that a newcomer makes at the keyboard. Each message must name the problem, the place, and the text to type.

The tests of the commands have other mistakes (tests/cli/test_arguments.py, tests/project/test_registry.py).
"""

from pathlib import Path

import pytest

from niels_cache_assets.artifacts.input_problems import input_problems
from niels_cache_assets.build_cache import build_pretrain_cache
from niels_cache_assets.cli import main
from niels_cache_assets.project.registry import load_registry
from niels_cache_assets.tokenizer.kinds import SentencePieceTokenizer
from niels_cache_runtime import TokenLoader
from niels_cache_runtime.errors import NielsCacheError
from tests.helpers.builds import build_tokenizer
from tests.helpers.hand_made import write_cache
from tests.helpers.messages import missing


@pytest.fixture(autouse=True)
def _project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NIELS_CACHE_CONFIG", "NIELS_CACHE_PROFILE", "NIELS_CACHE_ROOT", "DAGSTER_HOME"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return the message of the command on stderr. It must be one line, and nothing is done."""
    assert main(list(arguments)) == 2
    output, errors = capsys.readouterr()
    assert not output
    assert errors.count("\n") == 1
    return errors


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[pretrain]\nsource = "text"\nfiles = ["text"]\n', ('[pretrain] source = "text": ', "[pretrain.NAME]")),
        ("[sft]\nval_frac = 0.1\n", ("[sft] val_frac = 0.1: ", "[sft.NAME]")),
        ('[notes]\nsource = "text"\nfiles = ["text"]\n', ("'notes'", "write [pretrain.notes]")),
        ('[chats]\nsource = "chat_jsonl"\nfiles = ["text"]\n', ("'chats'", "write [sft.chats]")),
    ],
)
def test_a_data_set_in_the_wrong_table_is_told_which_table_to_write(text: str, expected: tuple[str, ...]) -> None:
    Path("niels_cache.toml").write_text(text)
    with pytest.raises(NielsCacheError) as caught:
        load_registry()
    assert missing(caught.value, "niels_cache.toml: ", *expected) == []


def test_a_name_in_a_cache_directory_that_is_missing_leads_to_the_option(capsys: pytest.CaptureFixture[str]) -> None:
    Path("niels_cache.toml").write_text('[pretrain.notes]\nsource = "text"\nfiles = ["notes"]\n')
    assert missing(refused(capsys, "sample", "notes", "--cache-dir", "chache"), "--only notes", "--cache-dir", "chache") == []


def test_a_configuration_in_another_encoding_says_to_save_it_as_utf_8() -> None:
    Path("niels_cache.toml").write_text("[build]\nseed = 1\n", encoding="utf-16")
    with pytest.raises(NielsCacheError, match=r"^niels_cache\.toml: .*\(byte 0\); .* UTF-8$"):
        load_registry()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["sample", "my_text"], ("cache: ", "'my_text'")),
        (["build-all", "--only", "my_text"], ("--only: ", "'my_text'")),
        (["prebuild-index", "mix"], ("no blend 'mix'",)),
    ],
)
def test_a_name_in_another_folder_than_its_file_leads_to_the_file(
    arguments: list[str], problem: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = refused(capsys, *arguments)
    assert missing(errors, *problem, "no niels_cache.toml") == []
    assert errors.endswith(" --config FILE\n")

    Path("niels_cache.toml").write_text('[pretrain.notes]\nsource = "text"\nfiles = ["notes"]\n')
    assert "no niels_cache.toml" not in refused(capsys, *arguments)
    here = Path.cwd()
    (here / "below").mkdir()
    monkeypatch.chdir(here / "below")
    assert refused(capsys, *arguments).endswith(f" --config {here / 'niels_cache.toml'}\n")
    assert missing(load_registry().without_file, f" --config {here / 'niels_cache.toml'}", "niels-cache init") == []


def test_a_cache_without_its_tokenizer_is_told_how_to_build_it(capsys: pytest.CaptureFixture[str]) -> None:
    write_cache(Path("cache"))
    Path("niels_cache.toml").write_text('[pretrain.notes]\nsource = "text"\nfiles = ["notes"]\n')
    for file in Path("cache/tokenizer").iterdir():
        file.unlink()
    errors = refused(capsys, "sample", "notes")
    assert missing(errors, "cache/tokenizer/meta.json: ", "niels-cache build-all --only tokenizer") == []


@pytest.mark.parametrize(
    ("content", "table", "message"),
    [
        (b"hello", '[tokenizer]\nmodel = "FILE"', r"FILE: not [^()/]*SentencePiece[^()/]* \.model [^()/]*$"),  # without words of a library
        (b"", '[pretrain.books]\nsource = "text"\nfiles = ["FILE"]', "books: no text "),
        ("Grüße aus Köln. ".encode("latin-1") * 99, '[pretrain.letters]\nsource = "text"\nfiles = ["FILE"]', 'encoding = "latin-1"'),
    ],
)
def test_a_file_of_no_use_to_a_tokenizer_is_named_with_what_to_type(content: bytes, table: str, message: str) -> None:
    Path("FILE").write_bytes(content)
    Path("niels_cache.toml").write_text(f"{table}\n")
    with pytest.raises(NielsCacheError, match=message):
        build_tokenizer(load_registry(), root=Path("cache"))


@pytest.mark.parametrize("where", ["cache", "cache/below"])
def test_doctor_finds_a_file_in_the_place_of_the_cache_directory(where: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("cache").write_text("x")
    Path("niels_cache.toml").write_text('[pretrain.notes]\nsource = "python_docs"\n')
    assert main(["doctor", "--offline", "--cache-dir", where]) == 1
    output = capsys.readouterr().out
    assert f"{Path.cwd() / 'cache'} is a file" in " ".join(output.split())
    assert missing(output, "--cache-dir", "[build] cache_dir") == []


@pytest.mark.parametrize(("given", "split"), [("cache", "cache/pretrain/notes/train"), ("cache/pretrain", "cache/pretrain/notes/train")])
def test_a_loader_of_a_cache_root_is_told_a_split(given: str, split: str) -> None:
    write_cache(Path("cache"))
    with pytest.raises(NielsCacheError, match=f"no shards here; .*split: .*{split}$"):
        TokenLoader(given, T=3, B=1, seed=0)


def test_a_global_batch_that_the_ranks_do_not_divide_says_what_to_type() -> None:
    write_cache(Path("cache"))
    with pytest.raises(NielsCacheError, match=r"^B=2\.66\d*: world_size=3 .* 8 rows .*: write B=2 or B=3$"):
        TokenLoader("cache/pretrain/notes/train", T=3, B=8 / 3, seed=0, world_size=3)  # type: ignore[arg-type]
    with pytest.raises(NielsCacheError, match=r"^B=4\.0: .*; write B=4$"):
        TokenLoader("cache/pretrain/notes/train", T=3, B=8 / 2, seed=0, world_size=2)  # type: ignore[arg-type]


@pytest.mark.parametrize("pattern", ["texts/**/*.txt", "texts", "texts/a.txt", "text/b.txt"])
def test_a_path_with_a_typo_gets_the_nearest_that_is_there(pattern: str) -> None:
    Path("text").mkdir()
    Path("text/a.txt").write_text("a")
    near = "text/a.txt" if pattern == "text/b.txt" else "text"
    Path("niels_cache.toml").write_text(f'[pretrain.books]\nsource = "text"\nfiles = ["{pattern}"]\n')
    (problem,) = input_problems(load_registry(), offline=True)
    assert missing(problem, repr(pattern), f"did you mean '{near}'?", "(relative") == []


def test_a_list_of_ids_that_is_missing_is_found_before_a_tokenizer_is_trained() -> None:
    Path("a.jsonl").write_text('{"text": "words"}\n')
    Path("niels_cache.toml").write_text('[pretrain.books]\nsource = "jsonl"\nfiles = ["a.jsonl"]\nexclude = "ids.txt"\n')
    (problem,) = input_problems(load_registry(), offline=True)
    assert missing(problem, "ids.txt", "exclude") == []
    Path("ids.txt").write_text("1\n")
    assert [*input_problems(load_registry(), offline=True)] == []


@pytest.mark.parametrize(("given", "said"), [("texst", "did you mean 'text'?"), ("elsewhere", "check the path")])
def test_init_leads_to_the_nearest_path(given: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("text").mkdir()
    assert missing(refused(capsys, "init", given), f"{given}: ", said) == []


def test_names_of_only_with_commas_are_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    tables = [f'[pretrain.{name}]\nsource = "text"\nfiles = ["{name}"]\n' for name in ("books", "notes")]
    Path("niels_cache.toml").write_text("".join(tables))
    assert missing(refused(capsys, "build-all", "--only", "books,notes"), "'books,notes'", " spaces:", "--only books notes\n") == []
    assert "spaces" not in refused(capsys, "build-all", "--only", "books,notse")


def test_a_val_budget_above_the_source_is_called_as_the_file_calls_it(tiny_model: Path) -> None:
    tokenizer = SentencePieceTokenizer(str(tiny_model))
    with pytest.raises(NielsCacheError, match=r"max_val_tokens=1,000,000, .* val_tokens\b.* train "):
        build_pretrain_cache(
            ["some text"], "cache/mine", tokenizer=tokenizer, max_train_tokens=10, max_val_tokens=1_000_000, shard_bytes=1024, seed=0,
            shuffle_buffer=None,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("files = [data/*.txt]\n", ("niels_cache.toml: ", "line 1", "quotation marks")),
        ('[pretrain.chats]\nsource = "jsonl"\nfiles = ["chats.jsonl"]\n', ("[sft.NAME]", 'source = "chat_jsonl"', "messages[].content")),
    ],
)
def test_a_table_that_cannot_be_read_is_told_what_to_write(content: str, said: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    messages = '[{"role": "user", "content": "hello there"}, {"role": "assistant", "content": "hello to you"}]'
    Path("chats.jsonl").write_text(f'{{"messages": {messages}}}\n')
    Path("niels_cache.toml").write_text(content)
    assert main(["build-all"]) == 2
    assert missing(capsys.readouterr().err, *said) == []


@pytest.mark.parametrize(("header", "is_named"), [("1,The first review of a book", True), ("n,What did you like", False)])
def test_a_first_line_of_csv_that_may_be_a_record_is_shown(header: str, is_named: bool, capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.csv").write_text(f"{header}\n2,Another review of a film\n3,Good and cheap\n")
    assert main(["init", "a.csv"]) == 0
    assert (missing(capsys.readouterr().err, "[pretrain.my_text]", repr(header[2:]), "set columns") == []) == is_named
