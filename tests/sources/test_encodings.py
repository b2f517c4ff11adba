"""Data that are not text never become documents. All sources of files handle encodings and byte order marks, count replaced bytes, and drop
binary files.
"""

import codecs
import gzip
import json
import random
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from niels_cache_assets.artifacts.corpus_report import corpus_report
from niels_cache_assets.project.registry import Registry, load_registry
from niels_cache_assets.sources import PRETRAIN_SOURCES, SFT_SOURCES
from niels_cache_assets.sources.chat_jsonl import ChatJsonl
from niels_cache_assets.sources.huggingface import Huggingface
from niels_cache_assets.sources.jsonl import Jsonl
from niels_cache_assets.sources.markdown_folder import MarkdownFolder
from niels_cache_assets.sources.parquet import Parquet
from niels_cache_assets.sources.reading import encodings, rows
from niels_cache_assets.sources.reading.encodings import DecodesText, decoding_warning
from niels_cache_assets.sources.text import Text
from niels_cache_assets.sources.types import Source
from niels_cache_corpora.dolly15k import Dolly15k
from niels_cache_corpora.gutenberg import Gutenberg
from niels_cache_corpora.oasst1 import Oasst1
from niels_cache_corpora.roam import Roam
from niels_cache_corpora.wikipedia import dump as mediawiki
from niels_cache_corpora.wikipedia.source import Wikipedia
from niels_cache_corpora.wikitext import Wikitext
from niels_cache_runtime.errors import NielsCacheError
from tests.helpers.builds import build_dataset, build_tokenizer, find_duplicates, prepare_corpus
from tests.helpers.dagster_tools import json_of
from tests.helpers.messages import missing
from tests.helpers.places import require_every_place_is_exact
from tests.helpers.read_sources import one_file, read

FRENCH = "Le garçon élève fut très étonné: à l'été, déjà, où était la forêt? "
ENGLISH = "The café on the corner of the long street opens at seven in the morning, and nobody who lives there comes before nine. " * 3


def png() -> bytes:
    return b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + zlib.compress(random.Random(1).randbytes(4000))


NO_TEXT: dict[str, Callable[[], bytes]] = {
    "Latin-1": lambda: (FRENCH * 40).encode("latin-1"),
    "UTF-16 without a BOM": lambda: (FRENCH * 40).encode("utf-16-le"),
    "ELF": lambda: Path(sys.executable).read_bytes()[:20_000],
    "PNG": png,
    "gzip": lambda: gzip.compress((FRENCH * 40).encode()),
}


@pytest.mark.parametrize(
    ("what", "sample_by"), [*((what, "document") for what in NO_TEXT), ("Latin-1", "paragraph"), ("Latin-1", "line"), ("PNG", "line")]
)
def test_what_is_no_text_is_dropped_and_counted_with_its_file(tmp_path: Path, what: str, sample_by: Any) -> None:
    documents, context = read(Text(files=one_file(tmp_path, "a.txt", NO_TEXT[what]()), sample_by=sample_by))
    assert context.report.dropped["not_text"] >= 1
    assert context.report.facts["not_text"]["by_file"] == {"a.txt": context.report.dropped["not_text"]}
    if sample_by == "document":
        assert documents == []
    text = "".join(document.text for document in documents)
    assert "\0" not in text
    assert text.count("\ufffd") <= 0.01 * len(text)


def test_replaced_bytes_are_counted_exactly_and_few_of_them_drop_nothing(tmp_path: Path) -> None:
    content = ENGLISH.encode("latin-1") * 4 + "日本".encode()[:-1] + b" end \xf0\x9f\x98"
    (document,), context = read(Text(files=one_file(tmp_path, "a.txt", content)))
    assert document.text == content.decode(errors="replace")
    assert context.report.facts == {"replaced": {"bytes": 12 + 2 + 3, "files": 1, "by_file": {"a.txt": 17}}}
    assert not context.report.dropped


@pytest.mark.parametrize(("replaced", "dropped"), [(1, 0), (2, 1)])
def test_the_share_of_replaced_characters_decides(tmp_path: Path, replaced: int, dropped: int) -> None:
    content = b"\xff" * replaced + b"x" * (100 - replaced)
    _, context = read(Text(files=one_file(tmp_path, "a.txt", content)))
    assert context.report.dropped["not_text"] == dropped
    assert not read(Text(files=one_file(tmp_path, "a.txt", content), max_replaced_share=0.02))[1].report.dropped
    assert read(Text(files=one_file(tmp_path, "a.txt", content), max_replaced_share=0))[1].report.dropped == {"not_text": 1}


def test_a_replacement_character_that_the_file_holds_is_no_replacement(tmp_path: Path) -> None:
    text = "\ufffd held \ufffd\ufffd"
    raw = json.dumps({"text": text}, ensure_ascii=False) + "\n" + json.dumps({"text": text}) + "\n"
    pq.write_table(pa.table({"text": [text]}), tmp_path / "a.parquet")
    lines = one_file(tmp_path, "a.jsonl", raw.encode())
    sources: list[Source] = [
        Text(files=one_file(tmp_path, "a.txt", text.encode())),
        Jsonl(files=lines),
        Parquet(files=[str(tmp_path / "a.parquet")]),
        Huggingface(dataset="a/b", files=lines, shuffle_buffer=0),
    ]
    for source in sources:
        found, context = read(source)
        assert {document.text for document in found} == {text}
        assert not {"replaced", "not_text"} & context.report.facts.keys()
        assert not context.report.dropped


BOMS = {
    "utf-8": codecs.BOM_UTF8,
    "utf-16-le": codecs.BOM_UTF16_LE,
    "utf-16-be": codecs.BOM_UTF16_BE,
    "utf-32-le": codecs.BOM_UTF32_LE,
    "utf-32-be": codecs.BOM_UTF32_BE,
}
LINES = ["första raden", "ℌ ਊ ਍ line ends inside characters: Ċ", "", " \u2028 ", "日本語 \U0001f600", "last"]


@pytest.mark.parametrize("sample_by", ["document", "paragraph", "line"])
@pytest.mark.parametrize("named", BOMS)
def test_byte_order_marks_are_honoured_and_lines_split_after_decoding(tmp_path: Path, named: str, sample_by: Any) -> None:
    text = "\r\n".join(LINES)
    plain = read(Text(files=one_file(tmp_path, "a.txt", text.encode()), sample_by=sample_by))
    content = BOMS[named] + text.encode(named)
    marked = read(Text(files=one_file(tmp_path, "b.txt.gz", gzip.compress(content)), sample_by=sample_by))
    assert plain[0]
    assert [document.text for document in marked[0]] == [document.text for document in plain[0]]
    assert (marked[1].report.dropped, marked[1].report.facts) == (plain[1].report.dropped, plain[1].report.facts)


@pytest.mark.parametrize("sample_by", ["document", "paragraph", "line"])
@pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "utf-32", "cp037", "shift_jis"])
def test_a_file_in_a_given_encoding_reads_as_its_text_in_utf_8(
    tmp_path: Path, encoding: str, sample_by: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encodings, "_BLOCK", 7)  # ends inside characters
    lines = ["日本", "", "one", "two"] if encoding == "shift_jis" else ["déjà", "", "one", "two"] * 5
    text = "\n".join(lines)
    data = text.encode("utf-16-le" if encoding == "utf-16" else "utf-32-le" if encoding == "utf-32" else encoding)
    found, context = read(Text(files=one_file(tmp_path, "a.txt", data), sample_by=sample_by, encoding=encoding))
    expected, _ = read(Text(files=one_file(tmp_path, "a.txt", text.encode()), sample_by=sample_by))
    assert [(each.text, each.row) for each in found] == [(each.text, each.row) for each in expected]
    assert not context.report.facts


@pytest.mark.parametrize(
    ("given", "near"), [("rot13", ""), ("lattin-1", "latin"), ("windows1252", "windows-1252"), ("", "utf-8"), ("utf\0", "utf")]
)
def test_what_is_no_text_encoding_is_refused_with_table_key_and_the_nearest(given: str, near: str) -> None:
    with pytest.raises(NielsCacheError) as caught:
        load_registry(profile="default", overrides={"pretrain": {"mine": {"source": "text", "files": ["x"], "encoding": given}}})
    message = str(caught.value)
    assert "[pretrain.mine] encoding = " in message
    assert "did you mean '" + near in message
    assert f"did you mean {given!r}?" not in message
    assert "\n" not in message


def test_names_of_one_encoding_are_one_setting() -> None:
    assert {Text(files=["x"], encoding=name).encoding for name in ("utf-8", "UTF8", "utf_8", "utf-8-sig")} == {"utf-8"}
    assert Text(files=["x"], encoding="latin-1").identity() == Text(files=["x"], encoding="iso-8859-1").identity()
    assert Text(files=["x"], encoding="latin-1").identity() != Text(files=["x"]).identity()
    assert Text(files=["x"], encoding="latin-1").describe()["encoding"] == "iso8859-1"
    assert "encoding" not in Text(files=["x"]).describe()


def test_every_source_of_files_has_the_keys_and_a_version_of_its_own_for_files() -> None:
    kinds = {**PRETRAIN_SOURCES, **SFT_SOURCES}
    without = {name for name, kind in kinds.items() if not issubclass(kind, DecodesText)}
    assert without == {"interleave", "python_docs", "python_help"}


LATIN = FRENCH.encode("latin-1")


def damaged_sources(folder: Path) -> dict[str, Callable[..., Source]]:
    """Each kind that reads files, over the same French text as Latin-1, and how many bytes of each are no UTF-8."""
    latin = lambda value: json.dumps(value, ensure_ascii=False).encode("latin-1") + b"\n"  # noqa: E731
    row = latin({"text": FRENCH, "title": "t"})
    chats = latin({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": FRENCH}]})
    flat = latin({"instruction": "q", "response": FRENCH, "context": "", "category": "c"})
    asked = {"message_id": "a", "parent_id": None, "message_tree_id": "t", "text": "q", "role": "prompter", "lang": "en", "deleted": False}
    nodes = [asked, {**asked, "message_id": "b", "parent_id": "a", "text": FRENCH, "role": "assistant"}]
    tree = {"message_tree_id": "t", "prompt": {**asked, "replies": [nodes[1]]}}
    export = [{"title": "T", "uid": "u", "children": [{"string": FRENCH}]}]
    dump = f"<mediawiki><page><title>T</title><ns>0</ns><id>1</id><revision><text>{FRENCH}</text></revision></page></mediawiki>"
    for name in ("notes", "books", "export"):
        (folder / name).mkdir()
    (folder / "notes" / "a.md").write_bytes(LATIN)
    (folder / "books" / "a.txt").write_bytes(LATIN)
    (folder / "export" / "a.json").write_bytes(latin(export))
    column = pa.array([LATIN], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"text": column}), folder / "a.parquet")
    struct = pa.StructArray.from_arrays(
        [pa.array(["user", "assistant"]), pa.array([b"q", LATIN], pa.binary()).view(pa.string())], names=["role", "content"]
    )
    pq.write_table(pa.table({"messages": pa.ListArray.from_arrays([0, 2], struct)}), folder / "chat.parquet")
    files = {
        name: one_file(folder, name, content)
        for name, content in {
            "a.txt": LATIN, "a.jsonl": row, "chat.jsonl": chats, "dolly.jsonl": flat, "a.trees.jsonl": latin(tree),
            "flat.jsonl": b"".join(map(latin, nodes)), "a.xml": dump.encode("latin-1"), "w.txt": b" \n = T = \n \n" + LATIN + b"\n",
        }.items()
    }  # fmt: skip
    parquet = [str(folder / "a.parquet")]
    return {
        "text": lambda **keys: Text(files=files["a.txt"], **keys),
        "jsonl": lambda **keys: Jsonl(files=files["a.jsonl"], **keys),
        "parquet": lambda **keys: Parquet(files=parquet, **keys),
        "notes": lambda **keys: MarkdownFolder(path=str(folder / "notes"), **keys),
        "roam": lambda **keys: Roam(path=str(folder / "export"), **keys),
        "books": lambda **keys: Gutenberg(path=str(folder / "books"), **keys),
        "book lines": lambda **keys: Gutenberg(files=files["a.txt"], **keys),
        "dump": lambda **keys: Wikipedia(files=files["a.xml"], **keys),
        "wikitext": lambda **keys: Wikitext(files=files["w.txt"], **keys),
        "wikitext rows": lambda **keys: Wikitext(files=files["a.jsonl"], **keys),
        "hub json": lambda **keys: Huggingface(dataset="a/b", files=files["a.jsonl"], **keys),
        "hub parquet": lambda **keys: Huggingface(dataset="a/b", files=parquet, **keys),
        "hub text": lambda **keys: Huggingface(dataset="a/b", files=files["a.txt"], **keys),
        "chat": lambda **keys: ChatJsonl(files=files["chat.jsonl"], **keys),
        "chat in parquet": lambda **keys: ChatJsonl(files=[str(folder / "chat.parquet")], **keys),
        "dolly": lambda **keys: Dolly15k(files=files["dolly.jsonl"], **keys),
        "trees": lambda **keys: Oasst1(files=files["a.trees.jsonl"], **keys),
        "flat messages": lambda **keys: Oasst1(files=files["flat.jsonl"], **keys),
    }


NOT_ASCII = sum(not character.isascii() for character in FRENCH)


def strings(found: list[Any]) -> str:
    texts = [each.text if hasattr(each, "text") else each.messages[-1]["content"] for each in found]
    return "".join(texts)


def test_every_source_of_files_counts_drops_and_decodes_alike(tmp_path: Path) -> None:
    for kind, make in damaged_sources(tmp_path).items():
        found, context = read(make())
        assert "\ufffd" not in strings(found), kind
        assert (context.report.facts["replaced"]["bytes"], context.report.dropped["not_text"]) == (NOT_ASCII, 1), kind
        kept, context = read(make(max_replaced_share=1))
        assert (context.report.facts["replaced"]["bytes"], strings(kept).count("\ufffd")) == (NOT_ASCII, NOT_ASCII), kind
        decoded, context = read(make(encoding="latin-1"))
        assert FRENCH.strip() in strings(decoded), kind
        assert not {"replaced", "not_text"} & context.report.facts.keys(), kind


@pytest.mark.parametrize("encoding", ["cp1252", "utf-16-le"])
def test_a_replaced_byte_leaves_the_rest_of_its_line_as_it_is_written(tmp_path: Path, encoding: str) -> None:
    broken = b"\x81" if encoding == "cp1252" else b"\0\xd8"
    files = one_file(tmp_path, "a.jsonl", ('{"text": "' + FRENCH * 4).encode(encoding) + broken + '"}\n'.encode(encoding))
    makes: list[Callable[..., Source]] = [Jsonl, lambda **keys: Huggingface(dataset="a/b", **keys)]
    for make in makes:
        (document,), context = read(make(files=files, encoding=encoding))
        assert document.text == FRENCH * 4 + "\ufffd"
        assert context.report.facts["replaced"]["bytes"] == len(broken)


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "BATCH_DOCUMENTS", 2)
    monkeypatch.setattr(mediawiki, "_BLOCK", 701)
    monkeypatch.setattr(encodings, "_BLOCK", 61)


def mixed(number: int) -> bytes:
    """A text with a few replaced bytes, one with many, one with NULs, or a clean one."""
    plain = f"Text {number} of those that are read. ".encode() * 8
    return [plain, plain + b"\xff\xe2\x82", b"\xe9" * 30 + plain, plain + b"\0", plain][number % 5]


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("kind", ["line", "paragraph", "jsonl", "dump", "utf-16"])
def test_a_pass_that_starts_at_any_place_counts_the_same(tmp_path: Path, kind: str) -> None:
    texts = [mixed(number) for number in range(14)]
    pages = (
        b"<page><title>T</title><ns>0</ns><id>%d</id><revision><text>%b</text></revision></page>\n" % (number, text)
        for number, text in enumerate(texts)
    )
    utf_16 = (f"Line {number} ".encode("utf-16-le") * 20 + b"\0\xd8" * (number % 3) for number in range(14))
    content, source = {
        "line": (b"\n".join(texts), lambda files: Text(files=files, sample_by="line")),
        "paragraph": (b"\r\n\r\n".join(texts), lambda files: Text(files=files, sample_by="paragraph")),
        "jsonl": (b"\n".join(b'{"text": "' + text.replace(b"\0", b"\\u0000") + b'"}' for text in texts), lambda files: Jsonl(files=files)),
        "dump": (b"<mediawiki>" + b"".join(pages) + b"</mediawiki>", lambda files: Wikipedia(files=files)),
        "utf-16": (codecs.BOM_UTF16_LE + b"\n\0".join(utf_16), lambda files: Text(files=files, sample_by="line")),
    }[kind]
    made: Source = source(one_file(tmp_path, {"dump": "a.xml", "jsonl": "a.jsonl"}.get(kind, "a.txt"), content))
    _, context = read(made)
    assert context.report.facts["replaced"]["bytes"] > 0
    assert context.report.dropped["not_text"] > 0
    require_every_place_is_exact(made, at_least=2)


def test_facts_name_the_worst_files_and_count_the_rest(tmp_path: Path) -> None:
    for number in range(40):
        (tmp_path / f"{number:02}.txt").write_bytes(b"x" * 10_000 + b"\xff" * (number * 7 % 40 + 1))
    _, context = read(Text(files=[str(tmp_path / "*.txt")]))
    replaced = context.report.facts["replaced"]
    assert (replaced["bytes"], replaced["files"]) == (sum(range(1, 41)), 40)
    worst = sorted(range(1, 41), reverse=True)[:20]
    assert set(worst) <= set(replaced["by_file"].values())
    assert len(replaced["by_file"]) <= 21
    warning = decoding_warning({"facts": context.report.facts, "source": {}})
    assert warning is not None
    assert missing(warning, "(17.txt: 40, 34.txt: 39, 11.txt: 38, ", "37 more") == []


Project = Callable[..., Registry]


@pytest.fixture
def project(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Makes a registry of `mine`, a table of texts, with the tokenizer of the tests in the folder `cache`."""
    monkeypatch.chdir(tmp_path)  # where nothing is configured

    def registry_of(**table: Any) -> Registry:
        overrides = {"pretrain": {"mine": {"source": "text", **table}}, "tokenizer": {"model": str(tiny_model)}}
        registry = load_registry(profile="default", overrides=overrides)
        build_tokenizer(registry, root=tmp_path / "cache")
        return registry

    return registry_of


def test_a_build_a_corpus_or_a_tokenizer_of_which_nothing_is_text_fails_and_names_file_and_key(tmp_path: Path, project: Project) -> None:
    root, files = tmp_path / "cache", one_file(tmp_path, "wrong.txt", png())
    with pytest.raises(NielsCacheError, match=r"not_text 1.*wrong\.txt: 1.* encoding"):
        build_dataset(project(files=files), "mine", root=root)
    assert not (root / "pretrain/mine/meta.json").exists()
    with pytest.raises(NielsCacheError, match=r"no document.*wrong\.txt: 1.* encoding"):
        prepare_corpus(project(files=files, prepare=["dedup"]), "mine", root=root, processes=1)
    tables = {"pretrain": {"mine": {"source": "text", "files": files}}, "tokenizer": {"train_on": ["mine"]}}
    with pytest.raises(NielsCacheError, match=r"tokenizer.*wrong\.txt: 1.* encoding"):
        build_tokenizer(load_registry(profile="default", overrides=tables), root=tmp_path / "other")


def test_a_corpus_its_report_its_cache_and_the_ui_say_what_was_replaced(tmp_path: Path, project: Project) -> None:
    from niels_cache_assets.defs.metadata.builds import family_metadata
    from niels_cache_assets.reports.cache import cache_report, find_items
    from niels_cache_assets.reports.history import History

    for number in range(8):
        one_file(tmp_path, f"{number}.txt", f"Fine text {number}, with words enough. ".encode() * 20)
    one_file(tmp_path, "latin.txt", ENGLISH.encode("latin-1") * 3)
    one_file(tmp_path, "picture.txt", png())
    registry, root = project(files=[str(tmp_path / "*.txt")], prepare=["dedup"]), tmp_path / "cache"
    outcome = prepare_corpus(registry, "mine", root=root, processes=2)
    assert outcome.meta["dropped_by_source"] == {"not_text": 1}
    assert outcome.meta["facts"]["replaced"]["by_file"]["latin.txt"] == 9
    assert "picture.txt" in str(outcome.warning)
    find_duplicates(registry, root=root)
    report = corpus_report(registry, "mine", root=root)
    assert report["replaced"] == outcome.meta["facts"]["replaced"]
    assert [row["reason"] for row in report["reasons"] if row["stage"] == "source"] == ["not_text"]
    built = build_dataset(registry, "mine", root=root)
    assert built.meta["facts"] == outcome.meta["facts"]
    plain = project(files=[str(tmp_path / "*.txt")])
    build_tokenizer(plain, root=tmp_path / "plain")
    outcome = build_dataset(plain, "mine", root=tmp_path / "plain")
    entries = family_metadata(plain, outcome, plain.source("mine"), draw=False)[None]
    assert json_of(entries["made_from"].value)["facts"]["not_text"]["by_file"] == {"picture.txt": 1}
    assert missing(entries["warning"], "picture.txt", " encoding") == []
    page = cache_report(registry, find_items(registry, root=root), root=root, history=History(source="none"))
    assert "mine" in {notice.name for notice in page.notices if "picture.txt" in notice.text}
