"""The column of the text of a data set without `text_field`: one rule for all kinds, parts, references and `init`, or an error."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from niels_cache_assets.cli import main
from niels_cache_assets.cli.command import DONE
from niels_cache_assets.project.registry import load_registry
from niels_cache_assets.sources.huggingface import Huggingface
from niels_cache_assets.sources.jsonl import Jsonl
from niels_cache_assets.sources.parquet import Parquet
from niels_cache_assets.sources.reading.encodings import TextOptions
from niels_cache_assets.sources.reading.files import SourceFile
from niels_cache_assets.sources.reading.references import questions
from niels_cache_assets.sources.reading.rows import parquet_rows
from niels_cache_assets.sources.text_column import ROWS, Column, kind_of_name
from niels_cache_assets.sources.types import PretrainSource, StreamContext
from niels_cache_runtime.errors import NielsCacheError
from tests.helpers.builds import build_dataset, build_tokenizer, prepare_corpus
from tests.helpers.dagster_tools import Project
from tests.helpers.hub_repositories import json_lines, parquet
from tests.helpers.loopback_hub import LoopbackHub
from tests.helpers.messages import missing
from tests.helpers.parts_project import NAME, PartsProject, build, stream_of
from tests.helpers.read_sources import read_from
from tests.helpers.tiny import sentences

Rows = list[dict[str, Any]]
TEXTS = sentences(40)
IDS: Rows = [
    {"id": f"{number:08x}-aaaa", "url": f"https://example.org/{number}", "lang": "en", "content": text} for number, text in enumerate(TEXTS)
]


def write_jsonl(path: Path, rows: Rows) -> Path:
    path.with_suffix(".jsonl").write_bytes(json_lines(rows))
    return path.with_suffix(".jsonl")


def write_parquet(path: Path, rows: Rows) -> Path:
    table = pa.Table.from_pylist(rows) if rows else pa.table({"content": pa.array([], pa.string())})
    pq.write_table(table, path.with_suffix(".parquet"))
    return path.with_suffix(".parquet")


def hub_of(files: list[str], **keys: Any) -> Huggingface:
    return Huggingface(dataset="ours/rows", files=files, shuffle_buffer=0, **keys)


Kind = tuple[Callable[..., PretrainSource], Callable[[Path, Rows], Path]]
KINDS: dict[str, Kind] = {
    "jsonl": (Jsonl, write_jsonl),
    "parquet": (Parquet, write_parquet),
    "huggingface of json": (hub_of, write_jsonl),
    "huggingface of parquet": (hub_of, write_parquet),
}
of_each_kind = pytest.mark.parametrize(("source", "write"), KINDS.values(), ids=KINDS)


def read(source: PretrainSource, log: list[str] | None = None) -> tuple[list[str], StreamContext]:
    context = StreamContext(seed=1, log=(log if log is not None else []).append)
    return [document.text for batch in source.documents(context) for document in batch], context


@of_each_kind
def test_ids_urls_and_languages_are_not_the_text_and_the_choice_is_logged(tmp_path: Path, source: Any, write: Any) -> None:
    log: list[str] = []
    texts, context = read(source(files=[str(write(tmp_path / "a", IDS))]), log)
    assert texts == TEXTS
    assert [line for line in log if missing(line, "'content'", "no field 'text'") == []] == log != []
    assert context.report.dropped == {}


@of_each_kind
@pytest.mark.parametrize("name", ["Text", "TEXT", "text"])
def test_text_wins_in_any_case(tmp_path: Path, source: Any, write: Any, name: str) -> None:
    rows = [{"abstract": "an abstract of it", name: text} for text in TEXTS]
    log: list[str] = []
    assert read(source(files=[str(write(tmp_path / "a", rows))]), log)[0] == TEXTS
    assert bool(log) is (name != "text")


UNDECIDED: list[tuple[Rows, tuple[str, ...]]] = [
    ([{"title": f"A title {number}", "body": text} for number, text in enumerate(TEXTS)], ("set text_field to one of: title, body",)),
    ([{"id": f"a-{number}", "url": f"http://a.b/{number}"} for number in range(9)], ("ids)", "URLs)", "set text_field if")),
    (
        [{"data": {"content": text}, "id": f"x-{number}"} for number, text in enumerate(TEXTS)],
        ("data (an object with content)", "set text_field to 'data.content'"),
    ),
    ([{"name": f"A name {len(text)}", "data": {"content": text}} for text in TEXTS[:9]], ("'data.content'", "'name'")),
    ([{"code": code} for code in ["a-1", "b-2", "c-3", "d e"]], ("'code'", "not text")),
    ([{"Text": "a b", "TEXT": "c d"}], ("set text_field to one of: Text, TEXT",)),
    ([{"n": number} for number in range(3)], ("n (", "add a field `text`")),
]


@of_each_kind
@pytest.mark.parametrize(("rows", "said"), UNDECIDED, ids=["two", "ids", "nested", "longer inside", "mixed", "cases", "numbers"])
def test_rows_that_do_not_decide_are_one_error_that_lists_the_fields(
    tmp_path: Path, source: Any, write: Any, rows: Rows, said: tuple[str, ...]
) -> None:
    """The check of local files shows values of the rows, and the build, whose messages are logged, shows none."""
    file = write(tmp_path / "a", rows)
    for use in (read, lambda each: each.check_input({})):
        with pytest.raises(NielsCacheError) as caught:
            use(source(files=[str(file)]))
        assert missing(str(caught.value), file.name, "no field 'text'", *said) == []
        assert "\n" not in str(caught.value)
        if said[0].endswith("title, body"):
            assert ("A title" in str(caught.value), caught.value.__cause__) == (use is not read and source is not hub_of, None)


@of_each_kind
def test_the_first_256_rows_of_the_first_file_with_rows_decide(tmp_path: Path, source: Any, write: Any) -> None:
    first = [{"content": f"some text {row}", "other": "12"} for row in range(ROWS)]
    files = [
        str(write(tmp_path / "empty", [])),
        str(write(tmp_path / "a", [*first, {"content": "some more", "other": "now a text"}])),
        str(write(tmp_path / "b", [{"content": "the last", "other": "a longer text than that"}])),
    ]
    assert read(source(files=files))[0][-2:] == ["some more", "the last"]


@of_each_kind
def test_files_without_the_field_are_counted_and_named_and_no_other_field_is_read(tmp_path: Path, source: Any, write: Any) -> None:
    rows: dict[str, Rows] = {
        "a": [{"text": text} for text in TEXTS[:5]],
        "b": [{"content": text, "url": "u"} for text in TEXTS[5:9]],
        "c": [{"text": text} for text in TEXTS[9:12]],
        "d": [{"body": text} for text in TEXTS[12:14]],
    }
    files = [str(write(tmp_path / name, each)) for name, each in rows.items()]
    texts, context = read(source(files=files))
    assert texts == [*TEXTS[:5], *TEXTS[9:12]]
    assert context.report.dropped == {"missing_text_field": 6}
    suffix = Path(files[0]).suffix
    assert context.report.facts["files_without_text_field"] == {"files": 2, "first": f"b{suffix}", "fields": "content, url"}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, "ids") for name in ("id", "doc_id", "docId", "pageID", "text-id")),
        *[("page_url", "URLs"), ("createdTime", "dates"), ("content_hash", "hashes"), ("license", "labels"), ("file_path", "paths")],
        *((name, None) for name in ("content", "url_text", "idea", "candidate", "数据", "")),
    ],
)
def test_the_last_word_of_a_name_tells_what_a_column_holds(name: str, kind: str | None) -> None:
    assert kind_of_name(name) == kind


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["https://a.org/b", "www.c.org"], "URLs"),
        (["example.org/path", "a.com"], "URLs"),
        (["2024-01-31", "2024-02-01T10:20:30Z", "1 Jan 2024"], "dates"),
        (["d41d8cd98f00b204e9800998ecf8427e", "sha256:" + "0" * 64], "hashes"),
        (["/data/a b/c.txt", "docs/my file.md"], "paths"),
        (["en", "de", "pt-BR"], "languages"),
        (["train-0001", "<urn:uuid:1-2>"], "ids"),
        (["very good", "very bad"] * 20, "labels"),
        (["\ufffd\ufffdPNG\0"], "binary data"),
        (['[{"role": "user", "content": "q"}]', ' {"a": 1}\n'], "JSON"),
        (["[Illustration] of a tree [1]", "{curly}"], None),
        ([None, " ", ""], "no text"),
        (["a text"], None),
        (["en", "a sentence of it"], None),
        (["这是一个文件", "другой"], None),
        (["ACGT" * 80], None),
    ],
)
def test_values_tell_what_a_column_holds(values: list[Any], kind: str | None) -> None:
    assert Column("x", values).kind == kind


# Bytes, which old writers store in place of strings.

BYTES = [None if text is None else text.encode("latin-1") for text in ("naïve text", "café au lait", None, "the third")]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary_view()], ids=str)
@pytest.mark.parametrize("source", [Parquet, hub_of], ids=["parquet", "huggingface"])
@pytest.mark.parametrize("name", ["text", "content"])
def test_bytes_are_decoded_as_text(tmp_path: Path, source: Any, kind: pa.DataType, name: str) -> None:
    ids, file = pa.array([b"i1", b"i2", b"i3", b"i4"]), tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": ids, name: pa.array(BYTES, kind), "url": ["u"] * 4}), file)
    context = StreamContext(seed=1)
    found = [each for batch in source(files=[str(file)], encoding="latin-1").documents(context) for each in batch]
    assert [(each.text, each.source_id) for each in found] == [("naïve text", "i1"), ("café au lait", "i2"), ("the third", "i4")]
    assert context.report.dropped == {"null_text": 1}
    texts, context = read(source(files=[str(file)], max_replaced_share=1.0))
    assert texts == ["na\ufffdve text", "caf\ufffd au lait", "the third"]
    assert context.report.facts["replaced"]["bytes"] == 2


@pytest.mark.parametrize(
    "column",
    [
        pa.array([b"a text!!", b"another!"], pa.binary(8)),
        pa.array(["a text!!", "another!"]).dictionary_encode(),
        pa.array([b"a text!!", b"another!"]).dictionary_encode(),
        pa.array(["a text!!", "another!"], pa.string_view()),
        pa.array(["a text!!", "another!"], pa.large_string()),
    ],
    ids=lambda column: str(column.type),
)
@pytest.mark.parametrize("source", [Parquet, hub_of], ids=["parquet", "huggingface"])
def test_each_form_of_strings_is_read(tmp_path: Path, source: Any, column: pa.Array) -> None:
    pq.write_table(pa.table({"id": ["1", "2"], "content": column}), tmp_path / "a.parquet")
    source = source(files=[str(tmp_path / "a.parquet")])
    source.check_input({})
    assert read(source)[0] == ["a text!!", "another!"]


def test_rows_of_chats_have_text_in_place_of_bytes_but_pictures_stay(tmp_path: Path) -> None:
    picture = b"\x89PNG\r\n\0\xff"
    turns = [[{"role": b"user", "content": "é".encode()}], [{"role": b"user", "content": "è".encode("latin-1") + b" and more"}]]
    pq.write_table(pa.table({"messages": turns, "image": [{"bytes": picture}] * 2, "id": [b"a", b"b"]}), tmp_path / "a.parquet")
    (first, second) = (row for _, row in parquet_rows(SourceFile(str(tmp_path / "a.parquet"), "a.parquet"), options=TextOptions("latin-1")))
    assert first == {"messages": [{"role": "user", "content": "é"}], "image": {"bytes": picture}, "id": "a"}
    assert second["messages"][0]["content"] == "è and more"


# The hub.


def test_streams_of_the_hub_follow_the_same_rule(tmp_path: Path) -> None:
    two = [{"title": f"A title {number}", "body": text} for number, text in enumerate(TEXTS)]
    half = [{"text": text} for text in TEXTS[:4]]
    repositories = {
        "ours/ids": {"data/train-0.parquet": parquet(IDS)},
        "ours/two": {"data/train-0.parquet": parquet(two)},
        "ours/half": {"data/train-0.parquet": parquet(half), "data/train-1.parquet": parquet(IDS[:3])},
        "ours/splits": {
            "data/train-0.parquet": parquet(IDS),
            "data/validation-0.parquet": parquet([{"content": "x", "title": "A long text"}]),
        },
    }
    hub = LoopbackHub(repositories, tmp_path)
    try:
        tables = [{"source": "huggingface", "dataset": name, "shuffle_buffer": 5} for name in repositories]
        tables[-1]["val_split"] = "validation"
        ids, refused, halved, splits = read_from(hub, *tables)
    finally:
        hub.close()
    assert {each["text"] for each in ids["items"]} == {*TEXTS}
    assert ids["facts"]["text_field"] == "content"
    assert missing(refused["error"], "data/train-0.parquet", "set text_field to one of: title, body") == []
    assert (len(halved["items"]), halved["dropped"]) == (4, {"missing_text_field": 3})
    assert halved["facts"]["files_without_text_field"]["first"] == "data/train-1.parquet"
    assert {each["text"] for each in splits["items"] if each["split"] == "val"} == {"x"}, "the data of train decide"


# Builds.


@pytest.fixture
def project(tmp_path: Path, tiny_model: Path) -> PartsProject:
    found = PartsProject(tmp_path, tiny_model)
    found.write([9, 9, 9, 9, 9, 9])
    return found


def rename(project: PartsProject, *, folder: str = "texts", **others: str) -> None:
    """Rename the field `text` of all files in a folder to `content`, and add other fields."""
    for path in (project.folder / folder).iterdir():
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        path.write_bytes(json_lines([{"id": row["id"], "content": row["text"], **others} for row in rows]))


@pytest.mark.parametrize("parts", [1, 3])
def test_a_build_logs_the_field_once_and_warns_of_files_without_it_in_one_line(project: PartsProject, parts: int) -> None:
    rename(project)
    (project.folder / "texts" / "f005.jsonl").write_bytes(json_lines([{"body": text, "url": "u"} for text in TEXTS]))
    log: list[str] = []
    outcomes = build(project.graph(parts, "val_frac = 0.2\nshuffle_buffer = 4"), log=log.append)
    assert len([line for line in log if "text is read from the field 'content'" in line]) == 1
    said = [outcome.warning for outcome in outcomes.values() if outcome.warning]
    assert [missing(line, "f005.jsonl", "no field 'content'", "body, url") for line in said] == [[]]
    meta = json.loads((project.cache() / "meta.json").read_text())
    assert (meta["source"]["text_field"], meta["dropped"]) == ("content", {"missing_text_field": len(TEXTS)})
    assert "text_field" not in meta["facts"]


def test_parts_and_added_files_use_what_the_plan_has_decided(project: PartsProject) -> None:
    rename(project)
    project.write([5, 5], first=10, folder="more")
    rename(project, folder="more", title="Another text that is longer than the content of it, and would be a candidate alone")
    added = f"val_frac = 0.0\n[[pretrain.{NAME}.added]]\nfiles = ['more/*']\nparts = 2"
    build(project.graph(2, added))
    plan = json.loads((project.folder / f"cache/pretrain/.parts/{NAME}/plan.json").read_text())
    assert [group["text_field"] for group in plan["groups"]] == ["content", "content"]
    for path in (project.folder / "more").iterdir():
        path.rename(project.folder / "texts" / path.name)
    build(project.graph(1, 'val_frac = 0.0\ntext_field = "content"', root="one"))
    assert stream_of(project.cache()) == stream_of(project.cache("one"))


def test_a_first_file_that_decides_otherwise_is_another_build(project: PartsProject) -> None:
    rename(project)
    (first,) = [outcome for key, outcome in build(project.graph(1)).items() if key.startswith("pretrain/")]
    assert build(project.graph(1))[first.key].state == "cache_hit"
    (project.folder / "texts" / "f000.jsonl").write_bytes(json_lines([{"Text": "Now this one.", "content": "not any more"}]))
    second = build(project.graph(1))[first.key]
    assert (second.state, second.meta["source"]["text_field"]) == ("built", "Text")
    assert second.meta["fingerprint"] != first.meta["fingerprint"]
    assert missing(second.warning or "", "5 files", "'Text'", "f001.jsonl", "id, content") == []


# References and `init`.


def test_questions_of_an_evaluation_follow_the_rule_if_no_known_field_has_them(tmp_path: Path) -> None:
    log: list[str] = []
    assert [each.text for each in questions(str(write_jsonl(tmp_path / "a", IDS)), log.append)] == TEXTS
    assert missing(" ".join(log), "a.jsonl", "'content'") == []
    rows = [{"question": "What is it?", "explanation": "a text of it"}]
    assert [each.text for each in questions(str(write_jsonl(tmp_path / "b", rows)))] == ["What is it?"]
    with pytest.raises(NielsCacheError, match=r"c\.jsonl.*title.*body"):
        [*questions(str(write_jsonl(tmp_path / "c", [{"title": "A b", "body": "c d"}])))]


def test_init_writes_the_field_and_asks_for_it_where_rows_do_not_decide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_jsonl(tmp_path / "a", IDS)
    assert main(["init", "a.jsonl"]) == DONE
    assert 'text_field = "content"' in Path("niels_cache.toml").read_text()
    write_jsonl(tmp_path / "b", UNDECIDED[0][0])
    assert main(["init", "--force", "b.jsonl"]) != DONE
    assert missing(capsys.readouterr().err, "b.jsonl", "set --text-field to one of: title, body") == []
    assert main(["init", "--force", "b.jsonl", "--text-field", "body"]) == DONE
    assert 'text_field = "body"' in Path("niels_cache.toml").read_text()
    assert main(["init", "--force", "b.jsonl", "--text-field", "bdy"]) != DONE
    assert missing(capsys.readouterr().err, "'bdy'", "title, body") == []


@of_each_kind
def test_an_id_field_that_no_row_has_is_refused(tmp_path: Path, source: Any, write: Any) -> None:
    file = write(tmp_path / "a", [{"text": text, "name": f"n-{number}"} for number, text in enumerate(TEXTS)])
    for use in (read, lambda each: each.check_input({})):
        with pytest.raises(NielsCacheError, match=r"id_field: .*'nmae'.*'name'"):
            use(source(files=[str(file)], id_field="nmae"))
    assert read(source(files=[str(file)], id_field="name"))[0] == TEXTS


# A field that holds something else than text in every row.


SCORES = [{"score": number, "body": f"Text {number} of the body.", "title": "A title", "tags": ["a"], "more": "x"} for number in range(15)]
TURNS = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
CHAT = {"turns": TURNS, "messages": "q a", "n": 1, "q": "q", "a": "a"}
Q_AND_A = {"instruction_field": "q", "output_field": "a"}
OASST = ("message_id", "message_tree_id")


def stream(family: str, **table: Any) -> tuple[list[Any], StreamContext]:
    """All that the source gives, and what it reports."""
    source = load_registry(profile="quickstart", overrides={family: {"x": table}}).source("x")
    context = StreamContext(seed=0)
    batches = source.documents(context) if isinstance(source, PretrainSource) else source.conversations(context)  # type: ignore[attr-defined]
    return [item for batch in batches for item in batch], context


def require_hint(family: str, file: Path, *facts: str, **table: Any) -> None:
    """Require that a source gives nothing, and that its one hint names the file, the first row, and these facts."""
    given, context = stream(family, files=[str(file)], **table)
    assert given == []
    assert sum(context.report.dropped.values()) > 0
    (said,) = context.report.hints
    assert missing(said, f"{file.name}: row 0: ", *facts) == []
    assert ("_field" in said) == ("only" not in facts), "some sources have no such key"


@pytest.mark.parametrize(
    ("source", "write", "numbers", "lists"),
    [
        ("jsonl", write_jsonl, "numbers", "lists"),
        ("parquet", write_parquet, "int64", "list<element: string>"),
        ("fineweb_edu", write_jsonl, "numbers", "lists"),
        ("fineweb_edu", write_parquet, "int64", "list<element: string>"),
    ],
)
def test_a_text_field_of_another_type_names_key_field_type_and_where_text_is(
    tmp_path: Path, source: str, write: Callable[[Path, Rows], Path], numbers: str, lists: str
) -> None:
    file = write(tmp_path / "x", SCORES)
    table: dict[str, Any] = {"source": source}
    others = ("text_field", ": body, title, more")
    require_hint("pretrain", file, "'score'", numbers, *others, **table, text_field="score")
    require_hint("pretrain", file, "'tags'", lists, *others, **table, text_field="tags")
    given, context = stream("pretrain", files=[str(file)], **table, text_field="body")
    assert (len(given), context.report.hints) == (15, [])


@pytest.mark.parametrize(
    ("source", "settings", "row", "facts"),
    [
        ("jsonl", {}, {"text": {"en": "a"}, "body": "b"}, ("text", "objects", "set text_field ", " of: body")),
        ("jsonl", {}, {"text": True}, ("text", "true", "text_field cannot help")),
        ("wikitext", {}, {"text": 5}, ("text", "numbers, ", "only")),
        ("chat_jsonl", {}, CHAT, ("messages", "text, ", "set messages_field ", " of: turns")),
        ("chat_jsonl", {"messages_field": "n"}, CHAT, ("n", "numbers, ", "set messages_field ", " of: turns")),
        (
            "chat_jsonl",
            Q_AND_A | {"instruction_field": "n"},
            CHAT,
            ("n", "numbers, ", "set instruction_field ", " of: turns, messages, q, a"),
        ),
        ("chat_jsonl", Q_AND_A | {"output_field": "n"}, CHAT, ("n", "numbers, ", "set output_field ", " of: turns, messages, q, a")),
        ("chat_jsonl", Q_AND_A | {"input_field": "n"}, CHAT, ("n", "numbers, ", "set input_field ", " of: messages, q, a")),
        ("dolly15k", {}, {"instruction": "q", "response": 5, "context": "", "category": "x"}, ("response", "numbers, ", "only")),
        ("oasst1", {}, {**dict.fromkeys(OASST, "1"), "parent_id": None, "text": 5, "role": "prompter"}, ("text", "numbers, ", "only")),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_field_that_is_taken_by_itself_or_of_conversations_is_named_too(
    tmp_path: Path, source: str, settings: dict[str, str], row: dict[str, Any], facts: tuple[str, ...]
) -> None:
    family, (field, kind, *others) = "pretrain" if source in ("jsonl", "wikitext") else "sft", facts
    rows = [row, {**row, "text": None}, row] if source == "jsonl" else [row] * 3
    for write in (write_jsonl, write_parquet) if row is CHAT else (write_jsonl,):
        file = write(tmp_path / "x", rows)
        require_hint(family, file, f"'{field}' holds {kind}", *others, source=source, **settings)
        if row is CHAT:
            assert len(stream("sft", source=source, files=[str(file)], messages_field="turns")[0]) == 3


def test_the_hint_is_in_the_line_that_ends_a_build_or_a_corpus(tmp_path: Path, tiny_model: Path) -> None:
    said = ("notes.jsonl", "row 0", "'score'", "text_field", ": body, title, more")
    project = Project(tmp_path, tiny_model)
    write_jsonl(tmp_path / "notes.jsonl", SCORES)
    config = tmp_path / "niels_cache.toml"
    config.write_text(config.read_text().replace('files = ["notes.jsonl"]', 'files = ["notes.jsonl"]\ntext_field = "score"'))
    registry = load_registry(profile="quickstart", config=str(config))
    build_tokenizer(registry, root=project.root)
    with pytest.raises(NielsCacheError) as caught:
        build_dataset(registry, "notes", root=project.root)
    assert missing(caught.value, "non_string_text 15", *said) == []
    config.write_text(
        config.read_text() + '[pretrain.cleaned]\nsource = "jsonl"\nfiles = ["notes.jsonl"]\ntext_field = "score"\nprepare = ["clean"]\n'
    )
    with pytest.raises(NielsCacheError, match="no document") as caught:
        prepare_corpus(load_registry(profile="quickstart", config=str(config)), "cleaned", root=project.root)
    assert missing(caught.value, *said) == []


def test_names_of_fields_stay_on_one_line(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"a\r": None, "b\n\x1b[2J": 1}] * 3
    file = write_jsonl(tmp_path / "chats.jsonl", rows)
    with pytest.raises(NielsCacheError) as caught:
        stream("sft", source="chat_jsonl", files=[str(file)])
    assert str(caught.value).isprintable()
    assert missing(str(caught.value), "chats.jsonl: row 0: ", "'messages'", "a\\r, b\\n\\x1b[2J") == []
