"""Scores of fastText: those of the reference program for the same model and line, and what it refuses or does not define.

`tests/golden/fasttext` has three models of three labels, a model of word vectors, and what `fasttext predict-prob MODEL - -1`
(facebookresearch/fastText, 1142dc4c) prints for some lines.
"""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from niels_cache_assets.base.documents import Document
from niels_cache_assets.cleaning.report import CleaningReport
from niels_cache_assets.sources.types import PretrainSource
from niels_cache_assets.steps.chain import DocumentChain
from niels_cache_assets.steps.identity import steps_identity
from niels_cache_cleaning.fasttext_files import check_model
from niels_cache_cleaning.scores import FastText, one_line
from niels_cache_runtime.errors import NielsCacheError
from tests.helpers.user_steps import documents_of, source_with

needs_fasttext = pytest.mark.skipif(find_spec("fasttext") is None, reason="fasttext-community is not installed (the extra classifier)")

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "fasttext"
LINES: list[dict[str, Any]] = json.loads((GOLDEN / "scores.json").read_text())
LABELS = ("__label__hq", "__label__lq", "__label__other")
LAST_DIGIT = 1.01e-6  # another processor may round the other way


def source_of(folder: Path, **settings: Any) -> PretrainSource:
    """Return a data set that scores with the model quality.bin in the folder, and drops at a score of 0.5."""
    if not (folder / "quality.bin").exists():
        (folder / "quality.bin").write_bytes((GOLDEN / "softmax.bin").read_bytes())
    entry = {"use": "niels_cache_cleaning.scores:FastText", "model": "quality.bin", "label": "__label__hq", "keep": ["score"], **settings}
    return source_with(folder, entry, {"where": "score > 0.5"})


@needs_fasttext
@pytest.mark.parametrize("model", ["softmax", "hs", "quantized"])
def test_scores_are_those_of_the_reference_program(model: str) -> None:
    unprinted = 0
    for label in LABELS:
        step = FastText(str(GOLDEN / f"{model}.bin"), label)
        for line in LINES:
            printed = line[model].get(label)
            unprinted += printed is None
            score = step(Document(line["text"]))["score"]
            assert score == round(score, 6)
            assert score == pytest.approx(float(printed or 0), abs=LAST_DIGIT), (label, line["text"][:40])
    assert len(LINES) > 15
    assert (unprinted > 5) is (model == "hs")


@needs_fasttext
@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("the river\nand\r\n\nits people\n", "the river and\r  its people "),
        ("the </s> river\n</s>", "the   river  "),
        ("the\0</s>\triver x</s> </s>y", "the\0 \triver x</s> </s>y"),
        ("the \ud800 river \udfff é", "the ? river ? é"),
        ("\n", " "),
        ("", ""),
    ],
)
def test_a_text_is_one_line_with_all_its_words(text: str, line: str) -> None:
    assert one_line(text) == line
    step = FastText(str(GOLDEN / "softmax.bin"), "__label__hq")
    assert step.score(text) == step.score(line)
    assert step.score(f"{text}\nbuy cheap pills") < step.score(f"{text}\nthe river and its people"), "the last line counts"


@needs_fasttext
def test_a_score_is_a_kept_column_that_where_can_use(tmp_path: Path) -> None:
    report = CleaningReport(seed=0)
    documents = documents_of(["the river and its people", "buy cheap pills click here now"])
    outcomes = DocumentChain(source=source_of(tmp_path), cleaning=None).run(documents, report)
    assert [json.loads(each.kept) for each in outcomes if isinstance(each, Document)] == [
        {"score": pytest.approx(0.978033, abs=LAST_DIGIT)}
    ]
    assert sum(report.dropped.values()) == 1


def test_the_content_of_the_model_counts_and_not_its_path(tmp_path: Path) -> None:
    first = steps_identity(source_of(tmp_path))
    (tmp_path / "moved").mkdir()
    assert steps_identity(source_of(tmp_path / "moved")) == first
    (tmp_path / "quality.bin").write_bytes((GOLDEN / "hs.bin").read_bytes())
    changed = steps_identity(source_of(tmp_path))
    assert changed != first
    assert steps_identity(source_of(tmp_path, label="__label__lq")) != changed


@needs_fasttext
@pytest.mark.parametrize(
    ("settings", "content", "facts"),
    [
        ({"label": "__label__hp"}, None, ("quality.bin", "__label__hp", "__label__hq")),
        ({"max_megabytes": 0.001}, None, ("quality.bin", "max_megabytes = 0.001")),
        ({}, b"no model", ("quality.bin", "no model of fastText")),
        ({}, b"", ("quality.bin", "no model of fastText")),
        ({}, (GOLDEN / "vectors.bin").read_bytes(), ("quality.bin", "word vectors")),
        ({"model": "missing.bin"}, None, ("missing.bin", "No such file")),
    ],
)
def test_a_model_that_cannot_be_used_is_refused_in_one_line(
    tmp_path: Path, settings: dict[str, Any], content: bytes | None, facts: tuple[str, ...]
) -> None:
    if content is not None:
        (tmp_path / "quality.bin").write_bytes(content)
    with pytest.raises(NielsCacheError) as caught:
        DocumentChain(source=source_of(tmp_path, **settings), cleaning=None).run(documents_of(["text"]), CleaningReport(seed=0))
    assert all(fact in str(caught.value) for fact in facts), caught.value
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("model", ["softmax", "quantized"])
def test_a_file_that_was_cut_off_or_grew_is_refused(tmp_path: Path, model: str) -> None:
    content, file = (GOLDEN / f"{model}.bin").read_bytes(), tmp_path / "model.bin"
    check_model(GOLDEN / f"{model}.bin")
    for size in [*range(0, len(content), 97), len(content) - 1, len(content) + 1]:
        file.write_bytes((content + b"0")[:size])
        with pytest.raises(NielsCacheError, match=r"model\.bin: is no model"):
            check_model(file)


@pytest.mark.parametrize("place", [0, 4, 8, 36, 40, 64, 68, 72, 88, 104])
def test_a_file_with_wrong_numbers_is_refused(tmp_path: Path, place: int) -> None:
    content = bytearray((GOLDEN / "softmax.bin").read_bytes())
    content[place : place + 4] = b"\xff\xff\xff\x7f"
    (tmp_path / "model.bin").write_bytes(content)
    with pytest.raises(NielsCacheError, match=r"model\.bin: is no model"):
        check_model(tmp_path / "model.bin")
