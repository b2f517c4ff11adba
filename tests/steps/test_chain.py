"""Steps of a user in memory: what each result means, how it is counted, and which mistakes are refused."""

import json
import pickle
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from niels_cache_assets.base.documents import Document, DocumentBatch
from niels_cache_assets.base.strings import Strings
from niels_cache_assets.cleaning.report import CleaningReport, RejectedDocument
from niels_cache_assets.cleaning.settings import CleaningSettings
from niels_cache_assets.corpus.chunks import ChunkWork, CorpusChunk, CorpusCounts
from niels_cache_assets.steps.chain import ChainRun, DocumentChain, Outcome
from niels_cache_assets.steps.identity import steps_identity
from niels_cache_runtime.errors import NielsCacheError
from tests.helpers.user_steps import documents_of, source_with, user_module

CODE = """
    from niels_cache_assets import Document, Drop, step

    def short(document):
        return document if len(document.text) > 3 else None

    def reasons(document):
        return Drop("few words", 2.5) if "x" in document.text else document

    def upper(document):
        return document._replace(text=document.text.upper(), title="T")

    class Add:
        version = 2
        def __init__(self, words, times=1):
            self.words = words * times
        def __call__(self, document):
            return document._replace(text=document.text + "".join(self.words))

    def scores(document):
        return {"score": len(document.text) / 10, "text": document.text + "!"}

    def take(document, limit):
        return document if len(document.text) > limit else None

    @step(batch=True)
    def batched(batch):
        assert batch.schema.names == ["text", "title", "source_id", "file", "row"]
        texts = batch["text"].to_pylist()
        return {"drop": ["x" if "x" in text else None for text in texts], "length": [len(text) for text in texts], "title": texts}

    @step(batch=True)
    def arrow(batch):
        import pyarrow.compute as pc
        return batch.select(["text"]).append_column("length", pc.utf8_length(batch["text"]))

    @step(batch=True)
    def no_batch(batch):
        pass

    @step(batch=True)
    def too_few(batch):
        return {"length": [1]}

    @step(batch=True)
    def fails_in_batch(batch):
        if any("x" in text for text in batch["text"].to_pylist()):
            raise RuntimeError("x in batch")
        return {}

    def fails(document):
        if "x" in document.text:
            raise ValueError("two\\nlines")
        return document

    def exits(document):
        raise SystemExit(3)

    @step(batch=True, stateful=True)
    class FailsWithState:
        def __init__(self):
            self.seen = 0
        def __call__(self, batch):
            self.seen += len(batch)
            if self.seen > 3:
                raise ValueError(f"{self.seen} seen")

    def by_dict(document):
        return {"drop": "few words" if "x" in document.text else None, "text": document.text.replace("one", " "), "row": document.row}

    @step(batch=True)
    def addresses(batch):
        return {"address": [batch["text"].buffers()[2].address] * len(batch)}

    def interrupts(document):
        raise KeyboardInterrupt("in a step")

    def number(document): return 5
    def other_row(document): return {"row": 7}
    def other_id(document): return Document(document.text)
    def surrogate(document): return document._replace(text="\\ud800")
    def no_text(document): return document._replace(text=None)
    def long_reason(document): return Drop("a" * 100)
    def no_number(document): return Drop("a", "b")

    class ManyReasons:
        def __init__(self, first):
            self.seen = first
        def __call__(self, document):
            self.seen += 1
            return Drop(f"reason {self.seen}")

    class Broken:
        def __init__(self):
            raise OSError("no model")

    class NotCallable:
        pass
"""
TEXTS = ["one", "two x", "three", "x four", "five"]


@pytest.fixture
def module(tmp_path: Path) -> Iterator[str]:
    with user_module(tmp_path, CODE) as name:
        yield name


def run(folder: Path, *steps: Any, cleaning: CleaningSettings | None = None, **keys: Any) -> tuple[list[Outcome], CleaningReport]:
    report = CleaningReport(seed=0)
    source = source_with(folder, *steps, **({"prepare": ["clean"]} if cleaning is not None else {}), **keys)
    outcomes = DocumentChain(source=source, cleaning=cleaning).run(documents_of(TEXTS), report)
    kept = sum(isinstance(each, Document) for each in outcomes)
    assert (report.documents, report.kept, report.dropped.total()) == (len(TEXTS), kept, len(TEXTS) - kept)
    return outcomes, report


def texts(outcomes: list[Outcome]) -> list[str | None]:
    return [each.text if isinstance(each, Document) else None for each in outcomes]


def test_each_result_has_its_meaning_and_its_reason(module: str, tmp_path: Path) -> None:
    outcomes, report = run(
        tmp_path, f"{module}:short", f"{module}:reasons", f"{module}:upper", {"use": f"{module}:Add", "words": ["+"], "times": 2}
    )
    assert texts(outcomes) == [None, None, "THREE++", None, "FIVE++"]
    assert report.dropped == {"step:short": 1, "step:reasons:few words": 2}
    assert [(row["reason"], row["row"], row["value"], row["excerpt"]) for row in report.rows()] == [
        ("step:reasons:few words", 1, 2.5, "two x"),
        ("step:reasons:few words", 3, 2.5, "x four"),
        ("step:short", 0, None, "one"),
    ]
    assert outcomes[2] == Document("THREE++", "id-2", "a.jsonl", 2, "T")


def test_a_dict_may_drop_the_document_and_blank_texts_are_dropped(module: str, tmp_path: Path) -> None:
    outcomes, report = run(tmp_path, f"{module}:by_dict")
    assert texts(outcomes) == [None, None, "three", None, "five"]
    assert report.dropped == {"step:by_dict:few words": 2, "empty": 1}
    assert [row["excerpt"] for row in report.rows() if row["reason"] == "empty"] == ["one"]


@pytest.mark.parametrize("name", ["short", "my name"])
def test_a_name_replaces_that_of_the_function(module: str, tmp_path: Path, name: str) -> None:
    _, report = run(tmp_path, {"use": f"{module}:take", "limit": 4, "name": name})
    assert report.dropped == {f"step:{name}": 2}


def test_columns_are_kept_and_conditions_read_them(module: str, tmp_path: Path) -> None:
    outcomes, report = run(tmp_path, {"use": f"{module}:scores", "keep": ["score"]}, {"where": "score >= 0.5"})
    assert texts(outcomes) == [None, "two x!", "three!", "x four!", None]
    assert [json.loads(each.kept or "") for each in outcomes if isinstance(each, Document)] == [
        {"score": 0.5},
        {"score": 0.5},
        {"score": 0.6},
    ]
    assert report.dropped == {"where": 2}
    for step, columns in ("scores", "score"), ("upper", "none"):
        chain = DocumentChain(source=source_with(tmp_path, f"{module}:{step}", {"where": "scor > 1"}), cleaning=None)
        with pytest.raises(NielsCacheError, match=rf"no step before returns the column 'scor' for .* sample; columns: {columns}"):
            chain.run(documents_of(TEXTS), CleaningReport(seed=0), is_trial=True)
        assert not any(isinstance(each, Document) for each in chain.run(documents_of(TEXTS), CleaningReport(seed=0))), "a rare column"


def test_a_document_without_a_column_keeps_null(module: str, tmp_path: Path) -> None:
    outcomes, _ = run(tmp_path, f"{module}:upper", {"use": f"{module}:batched", "keep": ["length"]})
    assert [each.kept for each in outcomes if isinstance(each, Document)] == [
        f'{{"length":{len(text)}}}' for text in TEXTS if "X" not in text
    ]


@pytest.mark.parametrize("most", [1, 2, 256])
def test_batches_give_the_same_for_every_size(module: str, tmp_path: Path, most: int) -> None:
    source = source_with(tmp_path, f"{module}:batched", {"use": f"{module}:arrow", "keep": ["length"]})
    report = CleaningReport(seed=0)
    outcomes = DocumentChain(source=source, cleaning=None).run(documents_of(TEXTS), report, batch=most)
    assert [each.title for each in outcomes if isinstance(each, Document)] == ["one", "three", "five"]
    assert [each.kept for each in outcomes if isinstance(each, Document)] == ['{"length":3}', '{"length":5}', '{"length":4}']
    assert report.dropped == {"step:batched:x": 2}


def test_the_cleaning_runs_first_or_where_its_entry_stands(module: str, tmp_path: Path) -> None:
    settings = CleaningSettings(
        skip=("not_english", "language_error", "no_stopwords"), min_characters=5, min_words=1, min_mean_word_length=0
    )
    _, first = run(tmp_path, f"{module}:short", cleaning=settings)
    assert first.dropped == {"too_short": 2}, "the cleaning drops them before the step sees them"
    _, later = run(tmp_path, f"{module}:short", "cleaning", f"{module}:reasons", cleaning=settings)
    assert later.dropped == {"step:short": 1, "too_short": 1, "step:reasons:few words": 2}
    assert later.rows()[0]["reason"] == "too_short"


def test_examples_of_steps_before_the_cleaning_are_masked_and_can_be_written(module: str, tmp_path: Path) -> None:
    source = source_with(tmp_path, f"{module}:reasons", "cleaning", prepare=["clean"])
    document = Document("x jo@web.org \ud800", "id", "a.jsonl", 0, "of jo@web.org \ud800")
    report = CleaningReport(seed=0)
    DocumentChain(source=source, cleaning=CleaningSettings(mask=("email",))).run([document], report)
    (row,) = report.rows()
    assert (row["reason"], row["excerpt"], row["title"]) == ("step:reasons:few words", "x [email] ?", "of [email] ?")


@pytest.mark.parametrize(
    ("step", "problem"),
    [
        ("fails", "a.jsonl: row 1: step fails: ValueError: two lines ("),
        ("exits", "a.jsonl: row 0: step exits: SystemExit: 3"),
        ("fails_in_batch", "a.jsonl: row 1: step fails_in_batch: RuntimeError: x in batch"),
        ("too_few", "and later documents: step too_few: the column 'length' has 1 values for 5 documents"),
        ("no_batch", "row 0: step no_batch: it returns a NoneType; return a dict or table of columns"),
        ("number", "row 0: step number: it returns a int; return a Document, None, Drop or a dict"),
        ("other_id", "row 0: step other_id: it changes more than text and title"),
        ("other_row", "row 0: step other_row: it changes more than text and title"),
        ("FailsWithState", "row 0 and later documents: step FailsWithState: ValueError: 5 seen"),
        ("surrogate", "row 0: step surrogate: the text or title contains a lone surrogate"),
        ("no_text", "row 0: step no_text: text and title must be str"),
        ("long_reason", "row 0: step long_reason: the reason 'aaaa"),
        ("no_number", "row 0: step no_number: the value 'b' of Drop is not a number"),
        ("Broken", "step Broken: cannot be created: OSError: no model"),
        ("NotCallable", "step NotCallable: the class has no __call__"),
        ("take", "row 0: step take: TypeError: take() missing 1 required positional argument: 'limit'"),
    ],
)
def test_a_mistake_is_one_line_with_document_and_step(module: str, tmp_path: Path, step: str, problem: str) -> None:
    with pytest.raises(NielsCacheError) as caught:
        run(tmp_path, f"{module}:{step}")
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("step", ["fails", "fails_in_batch"])
def test_failed_documents_are_dropped_and_counted_if_asked(module: str, tmp_path: Path, step: str) -> None:
    outcomes, report = run(tmp_path, {"use": f"{module}:{step}", "on_error": "drop"})
    assert texts(outcomes) == ["one", None, "three", None, "five"]
    assert report.dropped == {f"step_failed:{step}": 2}


def test_a_batch_with_state_is_not_repeated_to_find_the_document(module: str, tmp_path: Path) -> None:
    with pytest.raises(NielsCacheError, match="row 0 and later documents: step FailsWithState: ValueError: 5 seen"):
        run(tmp_path, {"use": f"{module}:FailsWithState", "on_error": "drop"})


@pytest.mark.parametrize("step", ["short", "batched"])
@pytest.mark.parametrize("place", [0, 2])
def test_a_call_that_took_too_long_is_left_out_and_counted(module: str, tmp_path: Path, step: str, place: int) -> None:
    """As `map_in_processes` runs a chunk again, for each call that it has ended."""
    chain = DocumentChain(source=source_with(tmp_path, {"use": f"{module}:{step}", "on_error": "drop"}), cleaning=None)
    documents, skipped = documents_of(["first", "other", "third"]), list[tuple[int, int]]()
    slow = "third" if place else "first"
    for _ in range(3):
        calls = list[tuple[int, int]]()

        def mark(place: int, step: int, seconds: float, calls: list[tuple[int, int]] = calls) -> None:
            if seconds:
                calls.append((place, step))

        report = CleaningReport(seed=0)
        outcomes = chain.run(documents, report, mark=mark, skipped=skipped)
        if slow in [each.text for each in outcomes if isinstance(each, Document)]:
            hung = next(call for call in calls if call[0] in (place, -1))
            skipped.append(chain.skip_call(documents, *hung, has_ended=False))
    assert texts(outcomes) == [None if text == slow else text for text in ("first", "other", "third")]
    assert report.dropped == {f"step_too_slow:{step}": 1}
    stops = DocumentChain(source=source_with(tmp_path, {"use": f"{module}:{step}", "seconds_per_document": 3}), cleaning=None)
    with pytest.raises(
        NielsCacheError, match=rf"^a.jsonl: row {place}: step {step}: took longer than 3 seconds; raise seconds_per_document"
    ):
        stops.skip_call(documents, place, 0, has_ended=False)
    with pytest.raises(NielsCacheError, match=rf"^a.jsonl: row {place}: step {step}: its process has ended"):
        chain.skip_call(documents, place, 0, has_ended=True)


def test_a_worker_that_finds_other_code_stops(module: str, tmp_path: Path) -> None:
    source = source_with(tmp_path, f"{module}:FailsWithState")
    loaded = steps_identity(source)
    assert loaded["1 FailsWithState"]["stateful"] is True, "an earlier import of the module may differ in it"
    for changes in {"stateful": False}, {"code": "0"}:
        before = {"1 FailsWithState": {**loaded["1 FailsWithState"], **changes}}
        with pytest.raises(NielsCacheError, match="the code of a step has changed since the build began"):
            DocumentChain(source=source, cleaning=None, identity=before).run(documents_of(TEXTS), CleaningReport(seed=0))


def test_a_step_has_at_most_100_reasons_in_all_workers(module: str, tmp_path: Path) -> None:
    total = CorpusCounts(report=CleaningReport(seed=0))

    def count(first: int, documents: int) -> None:
        source = source_with(tmp_path, {"use": f"{module}:ManyReasons", "first": first}, f"{module}:short")
        chunk = CorpusChunk(first, DocumentBatch.of(documents_of(["text"] * documents)))
        total.add(ChunkWork(source=source, seed=0, cleaning=None, signer=None)(chunk).counts)

    count(0, 60)
    count(0, 60)
    count(60, 40)
    with pytest.raises(NielsCacheError, match=r"step:ManyReasons: has over 100 reasons, such as 'step:ManyReasons:reason 1'; give num"):
        count(100, 1)


def test_batches_see_the_column_that_came_and_others_once_a_step_has_changed_it(module: str, tmp_path: Path) -> None:
    documents, texts_column = documents_of(TEXTS), Strings.of(TEXTS)
    assert texts_column is not None
    given = texts_column.arrow().buffers()[2].address
    for before, kept, is_view in ([], 5, True), (["short"], 4, True), (["batched"], 3, False), (["scores"], 5, False):
        steps = [f"{module}:{step}" for step in before]
        chain = DocumentChain(source=source_with(tmp_path, *steps, {"use": f"{module}:addresses", "keep": ["address"]}), cleaning=None)
        found = chain.run(documents, CleaningReport(seed=0), given=documents, texts=texts_column)
        addresses = [json.loads(each.kept or "")["address"] for each in found if isinstance(each, Document)]
        assert (len(addresses), {address == given for address in addresses}) == (kept, {is_view}), before


def test_a_batch_has_replacement_characters_for_lone_surrogates(module: str, tmp_path: Path) -> None:
    documents = [Document("a\ud800b\0", "\udfff", "f\ud800", 0, "T\ud800"), Document("\U0001f600", "id", "f", 1)]
    source = source_with(tmp_path, f"{module}:scores", f"{module}:batched", "cleaning", prepare=["clean"])
    chain_run = ChainRun(report=CleaningReport(seed=0), outcomes=[*documents])
    for title in DocumentChain(source=source, cleaning=CleaningSettings()).each_step(chain_run):
        if title == "batched":
            found = [(each.text, each.title) for _, each in chain_run.documents()]
    assert found == [("a\ud800b\0!", "a\ufffdb\0!"), ("\U0001f600!", "\U0001f600!")]


def test_an_interrupt_that_a_step_raises_is_an_error_in_a_worker(module: str, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, f"{module}:interrupts")
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as workers do
    try:
        with pytest.raises(NielsCacheError, match=r"^a.jsonl: row 0: step interrupts: KeyboardInterrupt: in a step \(.*\.py:\d+\)$"):
            run(tmp_path, f"{module}:interrupts")
    finally:
        signal.signal(signal.SIGINT, handler)


@pytest.mark.parametrize("steps", [[], ["short"], ["scores"], ["batched", "upper"]])
@pytest.mark.parametrize("lone", ["", "\ud800"])
def test_rows_are_those_of_the_chain_for_objects_and_for_columns(module: str, tmp_path: Path, steps: list[str], lone: str) -> None:
    documents = documents_of([*TEXTS, f"six{lone}"])
    source = source_with(tmp_path, *(f"{module}:{step}" for step in steps))
    outcomes = DocumentChain(source=source, cleaning=None).run(documents, CleaningReport(seed=0))
    expected = [(each.text, each.title, each.row, len(each.text)) for each in outcomes if isinstance(each, Document)]
    work, chunk = ChunkWork(source=source, seed=0, cleaning=None, signer=None), CorpusChunk(0, DocumentBatch.of(documents))
    for given in chunk, pickle.loads(pickle.dumps(chunk)):
        found = pickle.loads(pickle.dumps(work(given)))
        assert [(row.text, row.title, row.row, row.characters) for row in found.rows(chunk)] == expected
        assert len(found.texts) == (len(expected) if {"scores", "upper"} & {*steps} else 0), "only changed texts cross"


def test_the_values_of_a_rejection_survive(module: str, tmp_path: Path) -> None:
    outcomes, _ = run(tmp_path, f"{module}:reasons")
    assert outcomes[1] == RejectedDocument(documents_of(TEXTS)[1], "step:reasons:few words", 2.5)


@pytest.mark.parametrize(
    ("steps", "problem"),
    [
        ([{"level": 1}], "names no step; set use, where, or one of .*filter"),
        ([{"use": "a:b", "where": "x > 1"}], "either use or where"),
        ([{"where": "x > 1", "level": 2}], "has no other keys"),
        ([{"use": "cleaning", "on_error": "drop"}], "has no other keys"),
        (["a:b", "c:b"], "'b' twice"),
        (["cleaning"], 'prepare must have "clean"'),
        ([{"use": "a:b", "keep": ["url"]}], "'url' is kept twice"),
        ([{"use": "a:b", "keep": ["row"]}], "'row' is the name of a column"),
        ([{"use": "a:b", "name": "x:y"}], "pattern"),
    ],
)
def test_wrong_entries_are_refused(tmp_path: Path, steps: list[Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        source_with(tmp_path, *steps, keep=["url"])


@pytest.mark.parametrize(
    ("steps", "keys", "problem"),
    [
        (["a:b"], {"added": [{"files": ["b.jsonl"]}]}, "but with prepare or steps all documents are split together"),
        ([], {"parts": 2, "tokens_in_parts": True}, "does nothing without prepare or steps"),
    ],
)
def test_refusals_for_parts_name_steps_too(tmp_path: Path, steps: list[str], keys: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        source_with(tmp_path, *steps, **keys)
