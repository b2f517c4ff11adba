"""The key `exclude`: documents that are taken down by their ids, in caches, corpora and mixtures."""

import json
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow.parquet
import pytest

from niels_cache_assets.artifacts.base import Outcome
from niels_cache_assets.artifacts.corpus_report import corpus_report
from niels_cache_assets.artifacts.dataset import DatasetSpec, PretrainCache
from niels_cache_assets.artifacts.forecast.sample import _batches
from niels_cache_assets.artifacts.prepared_corpora import open_prepared
from niels_cache_assets.base.documents import DocumentBatch
from niels_cache_assets.defs.metadata.corpora import report_metadata
from niels_cache_assets.project.registry import Registry
from niels_cache_assets.sources.excluding import identity_of_ids, require_matches, unmatched_lines
from niels_cache_assets.sources.jsonl import Jsonl
from niels_cache_assets.sources.types import StreamContext
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.verify import verify_dataset
from tests.helpers.builds import build_dataset, build_tokenizer, prepare_corpus
from tests.helpers.corpora import articles, corpus_registry
from tests.helpers.messages import missing

GONE = ("books-3", "books-17", "books-58")


def excluded(tmp_path: Path, ids: str, **more: Any) -> tuple[list[str], StreamContext]:
    """Read 60 rows without these ids, and return the ids that stay."""
    (tmp_path / "ids.txt").write_text(ids, encoding="utf-8")
    (tmp_path / "books.jsonl").write_text("".join(json.dumps({"id": f"books-{row}", "text": f"text {row}"}) + "\n" for row in range(60)))
    source = Jsonl(files=[str(tmp_path / "books.jsonl")], exclude=str(tmp_path / "ids.txt"), **more)
    context = StreamContext(seed=1)
    return [document.source_id for batch in source.kept_documents(context) for document in batch], context


def test_the_rest_equals_a_plain_loop(tmp_path: Path) -> None:
    stay, context = excluded(tmp_path, "\ufeffbooks-3\r\n\n  books-17 \nbooks-58\nbooks-99")
    assert stay == [f"books-{row}" for row in range(60) if f"books-{row}" not in GONE]
    assert context.report.dropped == {"excluded": 3}
    assert context.report.facts["excluded"] == dict.fromkeys(GONE, 1)


ODD = [" outer ", "\u00a0nbsp\u00a0", "a\u2028b", "c\rd", "e\nf", "\tg", '"quoted"', "plain", "h\\n", " "]


def odd_rows(tmp_path: Path, lines: list[str]) -> tuple[list[str], StreamContext]:
    """Read rows with odd ids without these lines, and return the ids that stay."""
    (tmp_path / "odd.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="")
    (tmp_path / "odd.jsonl").write_text("".join(json.dumps({"id": each, "text": "some text"}) + "\n" for each in [*ODD, "stays"]))
    source = Jsonl(files=[str(tmp_path / "odd.jsonl")], exclude=str(tmp_path / "odd.txt"))
    context = StreamContext(seed=1)
    return [document.source_id for batch in source.kept_documents(context) for document in batch], context


@pytest.mark.parametrize("form", ["plain", "as JSON"])
def test_ids_with_white_space_and_line_ends_are_left_out(tmp_path: Path, form: str) -> None:
    with_ends = [each for each in ODD if "\n" in each or "\r" in each or each == " "]  # no line can hold these
    lines = [each if form == "plain" and each not in with_ends else json.dumps(each) for each in ODD]
    stay, context = odd_rows(tmp_path, lines)
    assert stay == ["stays"]
    assert unmatched_lines(str(tmp_path / "odd.txt"), context.report.facts["excluded"]) == []


def test_ids_that_match_nothing_are_listed(tmp_path: Path) -> None:
    _, context = odd_rows(tmp_path, ["plain ", "nobody", "no\u2028body"])
    assert context.report.facts["excluded"] == {"plain": 1}
    line = require_matches(str(tmp_path / "odd.txt"), context.report.facts, must_match=False)
    assert missing(line, "odd.txt", "2 of 3 ids", '"nobody"', '"no\u2028body"') == []
    with pytest.raises(NielsCacheError, match=r"exclude_must_match.*") as raised:
        require_matches(str(tmp_path / "odd.txt"), context.report.facts, must_match=True)
    assert "nobody" in str(raised.value)


def test_two_lists_that_differ_only_in_a_line_end_have_two_fingerprints() -> None:
    assert identity_of_ids(["a\nb"]) != identity_of_ids(["a", "b"])


@pytest.mark.parametrize("prepare", [False, True])
def test_an_id_that_must_match_stops_a_build_and_a_cache_hit(tmp_path: Path, tiny_model: Path, prepare: bool) -> None:
    (tmp_path / "ids.txt").write_text("books-3\nnobody")
    table = 'val_frac = 0.1\nexclude = "ids.txt"\n' + ('prepare = ["clean"]\n' if prepare else "")
    root = tmp_path / "cache"

    def build(more: str) -> Outcome:
        registry = corpus_registry(tmp_path, {"books": articles(60)}, settings=f'[tokenizer]\nmodel = "{tiny_model}"\n', table=table + more)
        build_tokenizer(registry, root=root)
        return prepare_corpus(registry, "books", root=root, processes=1) if prepare else build_dataset(registry, "books", root=root)

    with pytest.raises(NielsCacheError, match="nobody"):
        build("exclude_must_match = true")
    assert not [*root.glob("*/books/meta.json")]
    outcomes = [build(""), build("")]
    assert [outcome.state for outcome in outcomes] == ["built", "cache_hit"]
    for outcome in outcomes:
        assert [warning for warning in outcome.drops.warnings if "nobody" in warning and "books-3" not in warning]
        assert "excluded 1" in str(outcome.drops.requested)
    with pytest.raises(NielsCacheError, match="nobody"):
        build("exclude_must_match = true")
    (tmp_path / "ids.txt").write_text("books-3\n")
    assert build("exclude_must_match = true").drops.warnings == ()


def test_an_estimate_reads_the_rest(tmp_path: Path) -> None:
    stay, _ = excluded(tmp_path, "\n".join(GONE))
    source = Jsonl(files=[str(tmp_path / "books.jsonl")], exclude=str(tmp_path / "ids.txt"))
    read = _batches(source, StreamContext(seed=1, files=source.input_files()))
    assert [text for _, texts in read for text in texts] == [f"text {each.removeprefix('books-')}" for each in stay]


def test_they_change_no_other_document_of_val(tmp_path: Path, tiny_model: Path) -> None:
    found = []
    for table in ("", 'exclude = "ids.txt"\n'):
        excluded(tmp_path, "\n".join(GONE))
        tokenizer = f'[tokenizer]\nmodel = "{tiny_model}"\n'
        registry = corpus_registry(tmp_path, {"books": articles(60)}, settings=tokenizer, table=f"val_frac = 0.2\n{table}")
        root = tmp_path / f"cache {len(found)}"
        build_tokenizer(registry, root=root)
        val = build_dataset(registry, "books", root=root).directory / "val_documents.parquet"
        found.append(pyarrow.parquet.read_table(val)["source_id"].to_pylist())
    assert len(found[0]) == 12
    assert found[1] == [each for each in found[0] if each not in GONE]


def test_the_ids_decide_the_fingerprint_and_the_path_does_not(tmp_path: Path) -> None:
    identities = []
    for name, ids in (("a.txt", "1\n2\n"), ("b.txt", "2\r\n\r\n1"), ("c.txt", "1\n3\n")):
        (tmp_path / name).write_text(ids)
        identities.append(Jsonl(files=["a.jsonl"], exclude=str(tmp_path / name)).identity())
    assert identities[0] == identities[1] != identities[2]
    assert "exclude" not in Jsonl(files=["a.jsonl"]).identity()


@pytest.mark.parametrize(("content", "keyword"), [(None, "correct its path"), (b"\n \n", "no id"), (b"\xff\xfe1", "UTF-8")])
def test_a_file_of_no_ids_is_one_line(tmp_path: Path, content: bytes | None, keyword: str) -> None:
    if content is not None:
        (tmp_path / "ids.txt").write_bytes(content)
    with pytest.raises(NielsCacheError, match=keyword) as raised:
        Jsonl(files=["a.jsonl"], exclude=str(tmp_path / "ids.txt")).identity()
    assert "ids.txt" in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("rule", ["val_frac = 0.1", "val_tokens = 50"])
@pytest.mark.parametrize("name", ["books", "mix"])
def test_a_cache_and_a_mixture_read_the_rest(tmp_path: Path, rule: str, name: str) -> None:
    (tmp_path / "ids.txt").write_text("\n".join(GONE))
    mix = f'[pretrain.mix]\nsource = "interleave"\nmembers = {{ books = 1.0 }}\n{rule}\n'
    registry = corpus_registry(tmp_path, {"books": articles(60)}, settings=mix, table='exclude = "ids.txt"\n' + rule)
    spec = DatasetSpec(registry=registry, root=tmp_path, name=name, source=registry.pretrain[name], build=registry.build)
    siblings = registry.pretrain
    context = StreamContext(seed=1, revision=spec.source.revision(siblings), siblings=siblings)
    batches = PretrainCache(spec=spec).stream(context)["items"].open()
    read = [document.source_id for batch in batches for document in DocumentBatch.of(batch)]
    assert len(read) > 40
    assert set(read).isdisjoint(GONE)
    assert context.report.dropped["excluded"] == 3


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    (tmp_path / "ids.txt").write_text("\n".join(GONE))
    return corpus_registry(tmp_path, {"books": articles(60)}, table='prepare = ["clean"]\nval_frac = 0.1\nexclude = "ids.txt"\n')


def test_a_corpus_and_its_report_say_what_was_removed(registry: Registry, tmp_path: Path) -> None:
    prepare_corpus(registry, "books", root=tmp_path, processes=1)
    prepared = open_prepared(registry, "books", root=tmp_path)
    assert {document.source_id for batch in prepared.documents() for document in batch}.isdisjoint(GONE)
    report = corpus_report(registry, "books", root=tmp_path)
    assert report["documents"] == {"given": 60, "kept": 57}
    assert report["excluded"] == dict.fromkeys(GONE, 1)
    assert [row["documents"] for row in report["reasons"] if row["reason"] == "excluded"] == [3]
    outcome = Outcome(key="reports/corpus/books", state="built", meta=report, directory=tmp_path)
    shown = report_metadata(outcome, draw=False)["excluded_table"]
    assert isinstance(shown, dg.TableMetadataValue)
    assert [record.data for record in shown.records] == [{"id": each, "documents": 1} for each in sorted(GONE)]
    (tmp_path / "ids.txt").write_text("books-4")
    with pytest.raises(NielsCacheError, match="other settings"):
        open_prepared(registry, "books", root=tmp_path)


@pytest.mark.parametrize("kind", ["chat", "preference"])
def test_sft_examples_are_left_out_and_all_others_keep_their_split(tmp_path: Path, tiny_model: Path, kind: str) -> None:
    def messages(row: int, answer: str) -> list[dict[str, str]]:
        return [{"role": "user", "content": f"question {row // 2}"}, {"role": "assistant", "content": f"{answer} {row}"}]

    rows = [
        {"id": f"chat-{row}", "messages": messages(row, "answer")}
        if kind == "chat"
        else {"id": f"chat-{row}", "chosen": messages(row, "good"), "rejected": messages(row, "bad")}
        for row in range(40)
    ]
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    gone = ["chat-0", "chat-7", "chat-8", "chat-21"]
    (tmp_path / "ids.txt").write_text("\n".join(gone))
    found, tokens = [], []
    for number, exclude in enumerate(["", 'exclude = "ids.txt"\n']):
        table = f'[tokenizer]\nmodel = "{tiny_model}"\n[sft.chats]\nsource = "chat_jsonl"\nfiles = ["chats.jsonl"]\nval_frac = 0.3\n'
        registry = corpus_registry(tmp_path, {}, settings=f'{table}kind = "{kind}"\n{exclude}')
        root = tmp_path / f"cache {number}"
        build_tokenizer(registry, root=root)
        outcome = build_dataset(registry, "chats", root=root)
        lineage = {split: pyarrow.parquet.read_table(outcome.directory / f"{split}_examples.parquet") for split in ("train", "val")}
        found.append({split: rows["source_id"].to_pylist() for split, rows in lineage.items()})
        tokens.append({split: (outcome.directory / f"{split}_tokens.bin").read_bytes() for split in lineage})
        assert {split: outcome.meta[f"{split}_examples"] for split in lineage} == {split: len(ids) for split, ids in found[-1].items()}
        assert verify_dataset(outcome.directory) == []
    assert {each for ids in found[0].values() for each in ids} >= {*gone}
    assert found[1] == {split: [each for each in ids if each not in gone] for split, ids in found[0].items()}
    assert all(len(tokens[1][split]) < len(tokens[0][split]) for split in tokens[0])
    assert outcome.meta["dropped"] == {"excluded": 4}
    assert outcome.meta["facts"]["excluded"] == dict.fromkeys(gone, 1)
