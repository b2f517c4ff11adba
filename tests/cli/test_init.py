"""The command `init`. It writes a file that loads and has the requested data sets, from flags or from answers."""

import bz2
import gzip
import io
import json
import os
import re
import sys
import tomllib
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from niels_cache_assets.cli import command as exit_codes
from niels_cache_assets.cli import main
from niels_cache_assets.project.registry import load_registry
from niels_cache_assets.sources.reading.files import find_files
from tests.helpers.messages import missing

CHAT = '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n'
DUMP = b"<mediawiki><page><title>a</title><ns>0</ns><id>1</id><revision><text>b</text></revision></page></mediawiki>"


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for variable in ("NIELS_CACHE_PROFILE", "NIELS_CACHE_CONFIG", "NIELS_CACHE_ROOT", "DAGSTER_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my books").mkdir()
    for number in range(5):
        (tmp_path / "my books" / f"vol.{number}.txt").write_text("a book")
    (tmp_path / "rows.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "chats.jsonl").write_text(CHAT)
    return tmp_path


def uncommented(text: str) -> str:
    """Return the file with every commented key and table switched on."""
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
    (project / "notes/a.md").write_text("a note")
    (project / "configs").mkdir()
    wishes = ["my books", "rows.jsonl", "notes", "chats.jsonl", "--hub", "allenai/c4:en"]
    more = ["--cache-dir", "kept", "--vocab-size", "5_000", "--out", "configs/mine.toml"]
    assert main(["init", *wishes, *more]) == exit_codes.DONE  # the hub is away here, which is no reason to refuse
    text = (project / "configs/mine.toml").read_text()
    tables = tomllib.loads(text)
    assert tables["pretrain"]["my_text"]["files"] == ["../my books/**/*.txt"]
    assert tables["pretrain"]["c4"]["dataset"] == "allenai/c4"
    assert tables["build"]["cache_dir"] == "../kept"
    registry = load_registry(config="configs/mine.toml")
    enabled = {name for family in (registry.pretrain, registry.sft) for name, source in family.items() if source.enabled}
    assert enabled == {"my_text", "my_jsonl", "my_notes", "c4", "chats"}
    assert registry.tokenizer.vocab_size == 5_000
    (project / "configs/all.toml").write_text(uncommented(text))
    assert load_registry(config="configs/all.toml").pretrain["my_text"].prepare, "what is offered in comments is valid"


def files_of(name: str) -> list[str]:
    """Return the files that a build would read for this data set, by name and in order."""
    source = load_registry(config="niels_cache.toml").pretrain[name]
    return [file.name for file in find_files(source.model_dump()["files"])]


def test_what_is_put_into_a_folder_later_is_read_and_of_named_files_nothing_else(project: Path) -> None:
    folder = project / "few [1]"
    folder.mkdir()
    (folder / "a.txt").write_bytes(b"a")
    (folder / "b.txt.gz").write_bytes(gzip.compress(b"b"))
    (folder / "r.jsonl").write_bytes(b'{"text": "c"}')
    (folder / "w.xml-p1p20.bz2").write_bytes(bz2.compress(DUMP))
    assert main(["init", "few [1]", "my books/vol.0.txt"]) == exit_codes.DONE
    assert files_of("my_text") == ["few [1]/a.txt", "few [1]/b.txt.gz", "my books/vol.0.txt"]
    (folder / "below").mkdir()
    for name in ("c.txt", "below/d.txt", "below/s.jsonl", "w.xml-p21p30.bz2", "e.png"):
        (folder / name).write_bytes(b"")
    texts = ["few [1]/a.txt", "few [1]/b.txt.gz", "few [1]/below/d.txt", "few [1]/c.txt", "my books/vol.0.txt"]
    assert files_of("my_text") == texts
    assert files_of("my_jsonl") == ["few [1]/below/s.jsonl", "few [1]/r.jsonl"]
    assert files_of("my_wikipedia") == ["few [1]/w.xml-p1p20.bz2", "few [1]/w.xml-p21p30.bz2"]


def test_links_that_lead_back_or_to_one_another_make_no_file_be_read_twice(project: Path) -> None:
    """`**` follows each link again in each link. With two links, there are 2^40 paths."""
    for name in ("a", "b"):
        (project / "my books" / name).mkdir()
        (project / "my books" / name / f"{name}.txt").write_text("a book")
        (project / "my books" / name / "up").symlink_to("..")
    assert main(["init", "my books"]) == exit_codes.DONE
    assert files_of("my_text") == ["a/a.txt", "b/b.txt", *(f"vol.{number}.txt" for number in range(5))]
    assert tomllib.loads((project / "niels_cache.toml").read_text())["pretrain"]["my_text"]["files"] == ["my books/**/*.txt"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["none.txt"], ("none.txt: ", "no such file")),
        (["picture.png"], ("picture.png: ", "its name")),
        (["--tokenizer", "none.model", "rows.jsonl"], ("none.model: ", "correct --tokenizer")),
        ([], ("no data set", "--from NAME", "--hub OWNER/NAME")),
        (["--from", "wikitxt"], ("'wikitxt'", "did you mean 'wikitext'?")),
        (["--from", "roam"], ("niels-cache init PATH",)),
        (["--text-field", "body", "chats.jsonl"], ("chats.jsonl: ", "body", "messages")),
        (["bots.jsonl"], ("bots.jsonl: ", "(human)", "assistant (gpt)")),
        (["feed.xml"], ("feed.xml: ", "MediaWiki")),
        (["numbers.jsonl"], ("numbers.jsonl: ", "text (fields: a (1))")),
        (["empty.jsonl"], ("empty.jsonl: ", "no row")),
        (["lost.txt"], ("lost.txt: ", "leads to no")),
        (["piped"], ("p.json: ", "regular")),
        (["hollow"], ("hollow: ", "no file")),
        (["--tokenizer", "my books", "rows.jsonl"], ("my books: ", "no tokenizer.json")),
        (["--hub", "c4"], ("write OWNER/NAME",)),
        (["--vocab-size", "3_000_000_000", "rows.jsonl"], ("niels_cache.toml: [tokenizer] vocab_size = 3000000000",)),
        (["--out", "no/such/folder.toml", "rows.jsonl"], ("no/such", "with --out")),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_written(
    arguments: list[str], expected: tuple[str, ...], project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0")
    (project / "bots.jsonl").write_text('{"messages": [{"role": "bot", "content": "a"}]}')
    (project / "feed.xml").write_text("<rss><title>a</title></rss>")
    (project / "numbers.jsonl").write_text('{"a": 1}')
    (project / "empty.jsonl").write_text("")
    (project / "piped").mkdir()
    os.mkfifo(project / "piped/p.json")
    (project / "lost.txt").symlink_to("nowhere")
    (project / "hollow").mkdir()
    before = sorted(project.iterdir())
    assert main(["init", *arguments]) == exit_codes.WRONG_USE
    assert missing(capsys.readouterr().err, *expected) == []
    assert sorted(project.iterdir()) == before


def test_a_file_that_is_there_is_kept_unless_forced(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "niels_cache.toml").write_text("# mine\n")
    assert main(["init", "--from", "wikitext"]) == exit_codes.WRONG_USE
    said = capsys.readouterr().err
    assert "--force" in said
    assert "niels-cache init --list wikitext >> niels_cache.toml" in said
    assert (project / "niels_cache.toml").read_text() == "# mine\n"
    assert main(["init", "--force", "rows.jsonl"]) == exit_codes.DONE


def rows(*values: object) -> bytes:
    return "".join(json.dumps(value) + "\n" for value in values).encode()


def parquet(**columns: list[object]) -> bytes:
    buffer = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), buffer)
    return bytes(buffer.getvalue())


MESSAGES = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
SHARED = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]
TREE = {"message_tree_id": "t", "prompt": {"message_id": "m", "text": "a", "role": "prompter", "replies": []}}


@pytest.mark.parametrize(
    ("name", "content", "family", "expected"),
    [
        ("a.jsonl", rows({"id": "x" * 99, "url": "u" * 99, "body": "some text"}), "pretrain", {"source": "jsonl", "text_field": "body"}),
        ("a.jsonl", rows({"title": "a title", "text": "b"}), "pretrain", {"source": "jsonl", "text_field": "text"}),
        ("a.json.gz", gzip.compress(rows({"content": "a b"})), "pretrain", {"source": "jsonl", "text_field": "content"}),
        ("a.parquet", parquet(n=[1], article=["a b"]), "pretrain", {"source": "parquet", "text_field": "article"}),
        ("a.txt", b"a", "pretrain", {"source": "text"}),
        ("a.xml.bz2", bz2.compress(DUMP), "pretrain", {"source": "wikipedia"}),
        ("a.jsonl", rows({"messages": MESSAGES}), "sft", {"source": "chat_jsonl"}),
        ("a.parquet", parquet(conversations=[SHARED]), "sft", {"source": "chat_jsonl", "messages_field": "conversations"}),
        (
            "a.jsonl",
            rows({"instruction": "a", "input": "", "output": "b"}),
            "sft",
            {"source": "chat_jsonl", "instruction_field": "instruction", "input_field": "input", "output_field": "output"},
        ),
        (
            "a.jsonl",
            rows({"system": "s", "prompt": "a", "completion": "b"}),
            "sft",
            {"source": "chat_jsonl", "instruction_field": "prompt", "output_field": "completion", "system_field": "system"},
        ),
        ("a.jsonl", rows(TREE), "sft", {"source": "oasst1"}),
    ],
    ids=["longest", "text", "compressed", "parquet", "plain", "dump", "messages", "shared", "alpaca", "pairs", "trees"],
)
def test_it_looks_into_what_it_is_given(name: str, content: bytes, family: str, expected: dict[str, str], project: Path) -> None:
    folder = project / "data"
    folder.mkdir()
    (folder / name).write_bytes(content)
    for given in ("data", f"data/{name}"):
        assert main(["init", "--force", given]) == exit_codes.DONE
        tables = tomllib.loads((project / "niels_cache.toml").read_text())
        ((table,),) = ([*tables[each].values()] for each in ("pretrain", "sft") if each in tables)
        (source,) = load_registry(config="niels_cache.toml").datasets(family).values()  # type: ignore[arg-type]
        assert {key: value for key, value in table.items() if key != "files"} == expected
        assert [Path(file.url).name for file in source.input_files()] == [name]


def test_one_folder_may_hold_several_kinds_and_files_of_a_kind_several_forms(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = project / "data"
    folder.mkdir()
    (folder / "a.jsonl").write_bytes(rows({"messages": MESSAGES}))
    (folder / "b.jsonl").write_bytes(rows({"body": "some text"}))
    (folder / "c.txt").write_text("a")
    for name, file, content in (("notes", "a.md", "a note"), ("graph", "g.json", '[{"title": "a", "children": [{"string": "b"}]}]')):
        (project / name).mkdir()
        (project / name / file).write_text(content)
    assert main(["init", "data", "notes", "graph"]) == exit_codes.DONE
    assert re.search(r"^  \[pretrain\.my_jsonl\] jsonl: data.*'body'$", capsys.readouterr().out, flags=re.MULTILINE), "the chosen column"
    registry = load_registry(config="niels_cache.toml")
    found = {name: [Path(file.url).name for file in registry.source(name).input_files()] for name in (*registry.pretrain, *registry.sft)}
    found = {name: sorted(files) for name, files in found.items() if name in ("my_jsonl", "my_text", "chats")}
    assert found == {"my_jsonl": ["b.jsonl"], "my_text": ["c.txt"], "chats": ["a.jsonl"]}
    assert {name: registry.pretrain[name].source for name in ("my_notes", "roam")} == {"my_notes": "markdown_folder", "roam": "roam"}


def words(count: int) -> str:
    """Return so many words, each of them twice, in six bytes each."""
    return "".join(f"{n:05x}\n{n:05x}\n" for n in range(count))


TEXTS = {
    "little": (words(500), 400),
    "more": (words(41_700), 2_000),
    "much": (words(333_400), 16_000),
    "repetitive": ("the same line again\n" * 5_000, 264 + 10),
    "some lines": (words(100), 264 + 16 + (100 - 30) * 3 // 4),
    "many characters": ("".join(map(chr, range(0x4E00, 0x4E00 + 2_000))) * 2, 264 + 2_000 + 30),
}


@pytest.mark.parametrize("form", TEXTS)
def test_a_text_gets_a_vocabulary_that_can_be_trained_on_it(form: str, project: Path) -> None:
    """SentencePiece needs a piece for each character, and finds only few others in a text that repeats itself."""
    text, expected = TEXTS[form]
    (project / "a.txt").write_text(text)
    assert main(["init", "a.txt"]) == exit_codes.DONE
    assert load_registry(config="niels_cache.toml").tokenizer.vocab_size == expected


@pytest.mark.parametrize(("arguments", "expected"), [(["--vocab-size", "5_000"], 5_000), (["--hub", "allenai/c4"], 16_000)])
def test_a_vocabulary_that_somebody_chose_stays(arguments: list[str], expected: int, project: Path) -> None:
    assert main(["init", "rows.jsonl", *arguments]) == exit_codes.DONE
    assert load_registry(config="niels_cache.toml").tokenizer.vocab_size == expected


def test_a_file_without_text_is_found_before_a_build(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "old.txt").write_bytes("Grüße ".encode("latin-1") * 99)
    assert main(["init", "old.txt"]) == exit_codes.DONE
    assert missing(capsys.readouterr().err, "WARNING: niels_cache.toml: ", "old.txt", 'encoding = "latin-1"') == []


@pytest.mark.parametrize(("answer", "is_written"), [("\n", True), ("Y\n", True), ("n\n", False), ("", False)])
def test_somebody_at_a_terminal_sees_the_examples_and_is_asked(
    answer: str, is_written: bool, project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    keyboard = io.StringIO(answer)
    monkeypatch.setattr(sys, "stdin", keyboard)
    for stream in (sys.stdin, sys.stdout):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    assert main(["init", "rows.jsonl"]) == exit_codes.DONE
    shown = capsys.readouterr().out
    assert shown.index("--- my_text: a") < shown.index("Write niels_cache.toml? [Y/n]")
    assert (project / "niels_cache.toml").exists() == is_written
    assert main(["init", "rows.jsonl", "--force", "--quiet"]) == exit_codes.DONE, "nobody is asked"


def test_each_split_that_datasets_saved_is_a_table(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for split, row in (("train", {"text": "a"}), ("test", {"text": "b"}), ("chats", {"messages": MESSAGES})):
        datasets.Dataset.from_list([row]).save_to_disk(str(project / "ds" / split))
    (project / "ds/dataset_dict.json").write_text('{"splits": ["chats", "train", "test"]}')
    (project / "ds/train/cache-1.arrow").write_bytes(b"")
    assert main(["init", "ds", "--json"]) == exit_codes.DONE
    tables = tomllib.loads((project / "niels_cache.toml").read_text())
    assert sorted(table["files"] for table in tables["pretrain"].values()) == [["ds/test"], ["ds/train"]]
    assert [table["files"] for table in tables["sft"].values()] == [["ds/chats"]]
    assert "chats" in load_registry(config="niels_cache.toml").sft
    assert [each["files"] for each in json.loads(capsys.readouterr().out)["seen"]] == [1, 2]


def test_every_file_is_listed_with_its_use_or_the_reason_why_it_is_ignored(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = project / "data"
    (folder / "src").mkdir(parents=True)
    (folder / "README.md").write_text("a readme")
    (folder / "src/__init__.py").write_bytes(b"")
    (folder / "src/a.py").write_text("import os\n" * 1000)
    (folder / "p.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0")
    (folder / "package.json").write_text('{"version": 1}')
    (folder / "chats.jsonl").write_bytes(rows({"messages": MESSAGES}))
    (folder / "images.jsonl").write_bytes(rows({"messages": [{"role": "user", "content": [{"type": "image_url"}]}, MESSAGES[1]]}))
    assert main(["init", "data", "--json"]) == exit_codes.DONE
    captured = capsys.readouterr()
    outcomes = [each["outcome"] for each in json.loads(captured.out)["seen"]]
    assert [each["source"] for each in outcomes if isinstance(each, dict)] == ["chat_jsonl"]
    reasons = [each for each in outcomes if isinstance(each, str)]
    said = ("README.md: ", "package.json", "images.jsonl: a message contains an image", "p.png", "init 'data/**/*.py'")
    assert missing(" ".join(reasons), *said) == []
    assert len(reasons) == 5
    assert missing(captured.err.splitlines()[-1], "WARNING", "% of the bytes are ignored") == []


def test_a_readme_is_text_among_texts_or_if_it_is_named(project: Path) -> None:
    folder = project / "data"
    folder.mkdir()
    (folder / "README.md").write_text("a readme")
    (folder / "LICENSE.txt").write_text("a licence")
    assert main(["init", "data"]) == exit_codes.WRONG_USE
    assert main(["init", "data/README.md"]) == exit_codes.DONE
    assert files_of("my_text") == ["README.md"]
    (folder / "a.md").write_text("a note")
    assert main(["init", "data", "--force"]) == exit_codes.DONE
    assert files_of("my_text") == ["LICENSE.txt", "README.md", "a.md"]


def test_code_is_text_if_it_is_named_and_an_empty_file_is_no_obstacle(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "src").mkdir()
    for name, content in (("__init__.py", ""), ("a.py", "import os")):
        (project / "src" / name).write_text(content)
    assert main(["init", "src"]) == exit_codes.WRONG_USE
    assert "niels-cache init 'src/**/*.py'" in capsys.readouterr().err
    assert main(["init", "src/**/*.py"]) == exit_codes.DONE
    assert tomllib.loads((project / "niels_cache.toml").read_text())["pretrain"]["my_text"]["files"] == ["src/**/*.py"]
    shown = capsys.readouterr().out
    assert "100.0% of the bytes are used" in shown
    assert "--- my_text: import os" in shown


def test_three_examples_of_each_data_set_are_shown_with_the_targets(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "chats.jsonl").write_text(CHAT * 5)
    assert main(["init", "chats.jsonl"]) == exit_codes.DONE
    shown = [line for line in capsys.readouterr().out.splitlines() if line.startswith("--- chats: ")]
    assert len(shown) == 3
    assert all(line.endswith("[[b<eot>]]") for line in shown), "only the words of the assistant are targets"


def test_a_hub_that_cannot_be_reached_means_that_nothing_was_checked(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "--hub", "allenai/c4"]) == exit_codes.DONE
    assert missing(capsys.readouterr().err, "WARNING: [pretrain.c4]", "nothing was checked") == []
