"""The table of reasons for dropping is complete, and builds report drops: in one line, or as a warning with the place of an example."""

import json
import operator
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from niels_cache_assets.artifacts.graph import graph
from niels_cache_assets.base import reasons
from niels_cache_assets.base.documents import Document, DropReport, Message, SourceReport, merge_facts
from niels_cache_assets.base.reasons import DROP_REASONS, Stage, is_asked, reasons_of
from niels_cache_assets.build_cache import build_pretrain_cache, build_sft_cache
from niels_cache_assets.cleaning.report import CleaningReport, RejectedDocument
from niels_cache_assets.cleaning.settings import REASONS
from niels_cache_assets.facts.drops import summarize_drops
from niels_cache_assets.project.registry import Registry, load_registry
from niels_cache_assets.sources.chat_jsonl import _OF_FORM, ChatJsonl
from niels_cache_assets.sources.conversations import _MISTAKES
from niels_cache_assets.sources.jsonl import Jsonl
from niels_cache_assets.sources.messages import WEIGHT_PROBLEMS
from niels_cache_assets.sources.parquet import Parquet
from niels_cache_assets.sources.types import StreamContext
from niels_cache_cleaning.filters import FILTERS, RULES
from niels_cache_cleaning.measuring import FIRST_REASONS, LAST_REASONS, NEXT_REASONS
from niels_cache_runtime.format.meta import read_meta
from tests.helpers.builds import build_dataset, build_tokenizer
from tests.helpers.messages import missing
from tests.helpers.read_sources import read
from tests.size import BESIDE


def test_the_table_has_only_reasons_that_the_code_has_and_says_for_each_what_it_means() -> None:
    root = Path(reasons.__file__).parents[len(reasons.__name__.split(".")) - 1]
    files = [path for package in ("niels_cache_assets", *BESIDE) for path in (root / package).rglob("*.py")]
    code = "\n".join(path.read_text(encoding="utf-8") for path in files if path != Path(reasons.__file__))
    made = {f"{kind}_content" for kind in ("image", "audio", "video")} | {f"{kind}_duplicate" for kind in ("exact", "near")}
    made |= {f"missing_{key}_field" for key in ("messages", "chosen", "rejected")} | {
        f"{each}_of_member" for each in ("in_val", "near_val")
    }
    made |= {reason for reason, _ in FILTERS}
    assert [reason for reason in DROP_REASONS if f'"{reason}"' not in code and reason not in made] == []
    assert [reason for reason, row in DROP_REASONS.items() if not row.meaning or not row.stages] == []
    assert [reason for reason, row in DROP_REASONS.items() if not row.is_asked and not row.advice] == []
    assert {stage for row in DROP_REASONS.values() for stage in row.stages} == {*get_args(Stage)}


def test_each_filter_has_a_row_in_its_order_and_so_has_each_problem_that_stops_a_build() -> None:
    assert reasons_of("cleaning") == REASONS == tuple(reason for reason, _ in FILTERS)
    assert [reason for reason in REASONS if not is_asked(reason)] == ["empty"]
    assert {rule.reason for rule in RULES} | {*FIRST_REASONS, *NEXT_REASONS, *LAST_REASONS} == {*REASONS}

    assert {*_MISTAKES, *_OF_FORM, *WEIGHT_PROBLEMS} <= DROP_REASONS.keys()


UNKNOWN = "left_by_me"


COUNTED: dict[str, Callable[[str], object]] = {  # each way to count a drop
    "drop": lambda reason: DropReport().drop(reason, "a: row 1"),
    "a row of a source": lambda reason: SourceReport().drop_row(reason, "a.jsonl", 3),
    "an item": lambda reason: operator.setitem(SourceReport().dropped, reason, 1),
    "update": lambda reason: SourceReport().dropped.update({reason: 1}),
    "counts of convert": lambda reason: DropReport({reason: 1}),
    "a journal": lambda reason: DropReport(**json.loads(json.dumps({"dropped": {reason: 1}, "facts": {}}))),
    "counts of a chunk": lambda reason: DropReport().join(SimpleNamespace(dropped={reason: 1}, facts={})),  # type: ignore[arg-type]
    "a filter": lambda reason: CleaningReport(seed=1).add(RejectedDocument(Document("text"), reason, None)),
    "an example": lambda reason: CleaningReport(seed=1).add_example(RejectedDocument(Document("text"), reason, None), place=0),
    "a journal of cleaning": lambda reason: CleaningReport.from_state(CleaningReport(seed=1).state() | {"dropped": {reason: 1}}),
    "counts of cleaning": lambda reason: operator.iadd(CleaningReport(seed=1).dropped, Counter({reason: 1})),
}


@pytest.mark.parametrize("way", COUNTED)
def test_no_other_reason_can_be_counted(way: str) -> None:
    COUNTED[way]("empty")
    with pytest.raises(ValueError, match=rf"{UNKNOWN}.*docs/drop_reasons\.md"):
        COUNTED[way](UNKNOWN)


@pytest.mark.parametrize("family", ["pretrain", "sft"])
def test_a_caller_of_a_builder_cannot_write_another_reason(tmp_path: Path, tokenizer: Any, family: str) -> None:
    def build(reason: str) -> None:
        report, out = SourceReport(), str(tmp_path / "cache")
        report.dropped = Counter({reason: 1})  # type: ignore[assignment]
        settings = {"tokenizer": tokenizer, "report": report, "seed": 1}
        if family == "sft":
            turns: list[Message] = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}]
            build_sft_cache([turns], out, val_frac=0, **settings)
        else:
            build_pretrain_cache(["a"], out, max_train_tokens=9, max_val_tokens=0, shard_bytes=4096, shuffle_buffer=None, **settings)

    with pytest.raises(ValueError, match=UNKNOWN):
        build(UNKNOWN)
    assert [*tmp_path.glob("cache/*")] == []
    build("null_text")
    assert read_meta(str(tmp_path / "cache/meta.json"))["dropped"] == {"null_text": 1}


def test_drops_that_are_joined_keep_the_first_place_and_add_the_counts() -> None:
    drops, later = DropReport(), DropReport()
    drops.drop("null_text", "a: row 1")
    later.drop("null_text", "b: row 7", count=2, of_val=1)
    later.drop("empty", "b: row 9")
    drops.join(later)
    assert drops.dropped == {"null_text": 3, "empty": 1}
    assert drops.facts == {"first_dropped": {"null_text": "a: row 1", "empty": "b: row 9"}, "dropped_of_val": {"null_text": 1}}
    assert DropReport(**json.loads(json.dumps(drops.state()))).state() == drops.state()
    assert merge_facts([{"a": {"x": 1, "y": "first"}}, {"a": {"x": 2, "y": "second"}}]) == {"a": {"x": 3, "y": "first"}}


def meta_of(*, train: int, val: int = 0, dropped: dict[str, int], **facts: Any) -> dict[str, Any]:
    return {"kind": "pretrain", "built": True, "documents": {"train": train, "val": val}, "dropped": dropped, "facts": facts}


@pytest.mark.parametrize(("dropped", "is_said"), [({"empty": 10}, False), ({"empty": 11}, True)])
def test_a_reason_of_more_than_one_percent_is_a_warning(dropped: dict[str, int], is_said: bool) -> None:
    summary = summarize_drops(meta_of(train=1000 - sum(dropped.values()), dropped=dropped, first_dropped={"empty": "a.jsonl: row 3"}))
    assert summary.requested is None
    assert bool(summary.warnings) == is_said
    if is_said:
        assert missing(summary.warnings[0], "11 of 1,000 documents", "1.1%", "empty", "a.jsonl: row 3") == []


def test_many_reasons_together_are_one_warning_above_five_percent() -> None:
    reasons = [reason for reason in DROP_REASONS if not is_asked(reason)][:6]
    few = dict.fromkeys(reasons, 8)
    assert summarize_drops(meta_of(train=1000 - 48, dropped=few)).warnings == ()
    [warning] = summarize_drops(meta_of(train=1000 - 60, dropped=dict.fromkeys(reasons, 10))).warnings
    assert missing(warning, "of 1,000 documents", *(reason.replace("_", " ") for reason in reasons)) == []


def test_what_the_settings_ask_for_is_one_neutral_line() -> None:
    meta = meta_of(train=10, dropped={"where": 980, "exact_duplicate": 10}) | {"cut": {"train": 1, "val": 0}}
    summary = summarize_drops(meta)
    assert summary.warnings == ()
    assert missing(summary.requested, "990 of 1,000 documents", "where 980", "exact duplicate 10", "1 document cut") == []


def test_val_is_counted_on_its_own() -> None:
    [warning] = summarize_drops(meta_of(train=10_000, val=8, dropped={"empty": 12}, dropped_of_val={"empty": 12})).warnings
    assert missing(warning, "12 of 20 documents of val", "60.0%") == []
    many = meta_of(train=100, val=10_000, dropped={"empty": 12}, dropped_of_val={"empty": 1})
    assert [line for line in summarize_drops(many).warnings if "11 of 111 documents of train" not in line] == []
    assert summarize_drops(many).warnings


def test_a_reason_that_another_version_wrote_is_unasked_and_the_counts_of_the_corpus_are_not_said_again() -> None:
    assert summarize_drops(meta_of(train=1, dropped={"seventh": 9})).warnings
    assert summarize_drops(meta_of(train=1, dropped={"empty": 9}), already_reported={"empty": 9}).warnings == ()


def rows(folder: Path, name: str, values: list[Any]) -> None:
    (folder / name).write_text("".join(json.dumps(value) + "\n" for value in values))


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_file_without_the_field_of_the_text_is_noted_once(tmp_path: Path, kind: str) -> None:
    for number, field in enumerate(["text", "content", "text", "content"]):
        values = [{field: f"row {row}", "score": number} for row in range(3)]
        if kind == "jsonl":
            rows(tmp_path, f"{number}.jsonl", values)
        else:
            pq.write_table(pa.Table.from_pylist(values), tmp_path / f"{number}.parquet")
    source = {"jsonl": Jsonl, "parquet": Parquet}[kind](files=[str(tmp_path / f"*.{kind}")])
    documents, context = read(source)
    assert len(documents) == 6
    assert context.report.dropped == {"missing_text_field": 6}
    assert context.report.facts["files_without_text_field"] == {"files": 2, "first": f"1.{kind}", "fields": "content, score"}
    assert "files_without_items" not in context.report.facts, "a file without the field is said once"
    assert context.report.facts["first_dropped"] == {"missing_text_field": f"1.{kind}: row 0"}
    _, chosen = read(source.model_copy(update={"where": "score < 2", "text_field": "text"}))
    assert chosen.report.facts["files_without_text_field"] == context.report.facts["files_without_text_field"]
    assert "files_without_items" not in chosen.report.facts


def test_a_file_of_which_settings_leave_out_only_some_rows_is_noted(tmp_path: Path) -> None:
    rows(tmp_path, "a.jsonl", [{"text": "good", "score": 9}])
    rows(tmp_path, "b.jsonl", [{"text": None, "score": score} for score in (1, 9)])
    rows(tmp_path, "c.jsonl", [{"text": "low", "score": 1}])
    rows(tmp_path, "d.jsonl", [{"text": None, "score": 9}])
    _, context = read(Jsonl(files=[str(tmp_path / "*.jsonl")], where="score > 5"))
    assert context.report.dropped == {"where": 2, "null_text": 2}
    assert context.report.facts["files_without_items"] == {"files": 2, "first": "b.jsonl"}
    [*_, warning] = summarize_drops(meta_of(train=6, dropped={}, **context.report.facts)).warnings
    assert warning.startswith("b.jsonl and 1 other file")


def test_a_pass_that_resumes_in_any_batch_notes_the_same(tmp_path: Path) -> None:
    for number in range(4):
        good = [{"text": f"{number} {row}"} for row in range(600)]
        rows(tmp_path, f"{number}.jsonl", good if number in (0, 3) else [{"text": None}] * 3 if number == 1 else [{"text": ""}, *good])
    source = Jsonl(files=[str(tmp_path / "*.jsonl")])
    marks = []
    context = StreamContext(seed=1)
    for _ in source.documents(context):
        marks.append((context.report.position, context.report.dropped.copy(), dict(context.report.facts)))
    whole = context.report.facts
    assert whole["files_without_items"] == {"files": 1, "first": "1.jsonl"}
    assert whole["first_dropped"] == {"null_text": "1.jsonl: row 0", "empty": "2.jsonl: row 0"}
    starts = [mark for mark in marks if mark[0] is not None]
    assert len(starts) > 4
    for place, dropped, facts in starts:
        resumed = StreamContext(seed=1, start=json.loads(json.dumps(place)))
        resumed.report.dropped.update(dropped)
        resumed.report.facts.update(facts)
        for _ in source.documents(resumed):
            pass
        assert (resumed.report.dropped, resumed.report.facts) == (context.report.dropped, whole)


def test_rows_of_a_split_of_upstream_count_for_val(tmp_path: Path) -> None:
    from niels_cache_assets.sources.huggingface import Huggingface

    rows(tmp_path, "train.jsonl", [{"text": "a"}, {"text": None}])
    rows(tmp_path, "val.jsonl", [{"text": None}, {"text": None}, {"text": "b"}])
    files = {"files": [str(tmp_path / "train.jsonl")], "val_files": [str(tmp_path / "val.jsonl")]}
    _, context = read(Huggingface(dataset="a/b", text_field="text", shuffle_buffer=0, **files))
    assert context.report.dropped == {"null_text": 3}
    assert context.report.facts["dropped_of_val"] == {"null_text": 2}


def test_the_builder_names_the_first_document_that_it_drops(tmp_path: Path, tokenizer: Any) -> None:
    texts = [Document(f"text {row}", f"id-{row}", "a.jsonl", row, split="val" if row % 2 else None) for row in range(40)]
    texts[7], texts[9] = texts[7]._replace(text="\ud800"), texts[9]._replace(text="\ud800")
    build_pretrain_cache(
        texts, str(tmp_path / "cache"), tokenizer=tokenizer, max_train_tokens=10**6, max_val_tokens=0, shard_bytes=4096, seed=1,
        shuffle_buffer=None,
    )  # fmt: skip
    meta = read_meta(str(tmp_path / "cache/meta.json"))
    assert meta["dropped"] == {"invalid_unicode": 2}
    assert meta["facts"] == {"first_dropped": {"invalid_unicode": "a.jsonl: row 7"}, "dropped_of_val": {"invalid_unicode": 2}}


@pytest.fixture
def registry(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    monkeypatch.chdir(tmp_path)
    messages = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}]
    broken = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": None}]
    rows(tmp_path, "chats.jsonl", [{"messages": messages if row % 5 == 0 else broken} for row in range(50)])
    overrides = {"sft": {"chats": {"source": "chat_jsonl", "files": ["chats.jsonl"]}}, "tokenizer": {"model": str(tiny_model)}}
    found = load_registry(profile="default", overrides=overrides)
    build_tokenizer(found, root=tmp_path / "cache")
    return found


def test_a_build_and_a_cache_hit_and_the_status_and_the_report_say_it(registry: Registry, tmp_path: Path) -> None:
    from niels_cache_assets.reports.cache import cache_report, find_items
    from niels_cache_assets.reports.history import History

    root = tmp_path / "cache"
    said = [build_dataset(registry, "chats", root=root).drops.warnings for _ in range(2)]
    assert said[0] == said[1]
    assert missing(said[0], "40 of 50 conversations", "80.0%", "null content", "chats.jsonl: row 1") == []
    assert missing(graph(registry, root).state("sft/chats").note, *said[0]) == []
    report = cache_report(registry, find_items(registry, root=root), root=root, history=History(source="none"))
    assert [notice.text for notice in report.notices if "null content" in notice.text] == [*said[0]]


def test_broken_rows_name_the_first_place_of_each_reason(tmp_path: Path) -> None:
    rows(tmp_path, "a.jsonl", [{"messages": [{"role": "user", "content": "?"}]}] * 2 + [{"messages": "no"}])
    rows(tmp_path, "b.jsonl", [{"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]}])
    context = StreamContext(seed=1)
    assert [*ChatJsonl(files=[str(tmp_path / "*.jsonl")]).conversations(context)]
    assert context.report.facts["first_dropped"] == {"no_assistant": "a.jsonl: row 0", "malformed_messages": "a.jsonl: row 2"}
    assert context.report.facts["files_without_items"] == {"files": 1, "first": "a.jsonl"}
