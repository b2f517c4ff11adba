"""The command `classifier`: what it learns from and tests on, its report, and the same bytes for the same input and seed.

One test trains in a child process, as the command does; the others train in this process.
"""

import json
import re
import signal
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from niels_cache_assets.base.documents import Document, DropReport
from niels_cache_assets.base.processes import InterruptRequested
from niels_cache_assets.cleaning.report import CleaningReport
from niels_cache_assets.cli import main
from niels_cache_assets.cli.detection import sources_of
from niels_cache_assets.steps.chain import DocumentChain
from niels_cache_cleaning import classifier, classifier_training
from niels_cache_cleaning.classifier import LABELS, SIDES, Examples
from niels_cache_cleaning.classifier_inputs import Given
from niels_cache_cleaning.classifier_report import NewFile, Scored, open_files, report_of
from niels_cache_cleaning.classifier_training import TrainingSettings
from niels_cache_cleaning.scores import FastText, one_line, words_of
from niels_cache_pages import classifier as classifier_page
from niels_cache_runtime.errors import NielsCacheError
from tests.helpers.user_steps import documents_of, source_with

pytestmark = pytest.mark.skipif(find_spec("fasttext") is None, reason="fasttext-community is not installed (the extra classifier)")

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "fasttext"
GOOD = [f"The river of {place} crosses the old town number {place} and its people" for place in range(60)]
BAD = [f"Buy cheap pills number {offer} now, click here to win {offer} times" for offer in range(90)]
TINY = ("--dim", "4", "--buckets", "50", "--word-ngrams", "2", "--lr", "1", "--epochs", "20")


def train_here(lines: Path, model: Path, settings: TrainingSettings, *, progress: Callable[[float], None], files: object = ()) -> None:
    classifier_training.main({"lines": str(lines), "model": str(model), "settings": settings.for_fasttext()})
    progress(1.0)


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test works in a folder of its own with good.jsonl and bad.jsonl, and trains in this process."""
    for variable in ("NIELS_CACHE_PROFILE", "NIELS_CACHE_CONFIG", "NIELS_CACHE_ROOT"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(classifier, "train", train_here)
    write("good.jsonl", GOOD)
    write("bad.jsonl", BAD)
    return tmp_path


@pytest.fixture
def new_file() -> Iterator[NewFile]:
    with open_files(None) as new_file:
        yield new_file


def write(name: str, texts: Sequence[str]) -> None:
    Path(name).write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def given(side: str, *names: str) -> Given:
    return Given(option=f"--{side}", names=names, sources=sources_of(names), siblings={})


def run(*options: str, out: str = "q.bin") -> int:
    return main(["classifier", "train", "--good", "good.jsonl", "--bad", "bad.jsonl", "--out", out, *TINY, "--quiet", *options])


def test_the_child_process_gives_the_bytes_of_this_process_whatever_the_order_of_files(own_folder: Path, new_file: NewFile) -> None:
    def lines(seed: int) -> bytes:
        examples = Examples(new_file, held_out=0.1, seed=seed)
        for side in SIDES:
            examples.read(side, given(side, f"{side}.jsonl"))
        examples.write_lines(own_folder / "lines", "sample")
        return (own_folder / "lines").read_bytes()

    other = lines(seed=8)
    first, shares = lines(seed=7), list[float]()
    settings = TrainingSettings(dim=4, buckets=50, word_ngrams=2, seed=7)
    for model, train, seed in (("child", classifier_training.train, 7), ("here", train_here, 7), ("seed", train_here, 8)):
        train(own_folder / "lines", own_folder / model, replace(settings, seed=seed), progress=shares.append)
    child, here, seed = ((own_folder / model).read_bytes() for model in ("child", "here", "seed"))
    assert child == here != seed
    assert shares[-1] == 1.0
    write("good.jsonl", GOOD[::-1])
    write("bad.jsonl", [*BAD[40:], *BAD[:40]])
    assert lines(seed=7) == first != other
    assert sorted(first.splitlines()) != sorted(other.splitlines()), "another sample of the larger side"


def test_the_printed_entry_scores_a_data_set(own_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("sub").mkdir()
    assert run(out="sub/q.bin") == 0
    printed = capsys.readouterr().out
    steps = tomllib.loads(printed[printed.index("steps = [") :])["steps"]
    assert steps[0]["score"] == "sub/q.bin"
    assert steps[0]["label"] == "__label__hq"
    chain = DocumentChain(source=source_with(own_folder, *steps), cleaning=None)
    kept = [isinstance(each, Document) for each in chain.run(documents_of([GOOD[3], BAD[3]]), CleaningReport(seed=0))]
    assert kept == [True, False]
    page = Path("sub/q.bin.html").read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert GOOD[0][:13] in page
    assert page.count("<svg") == 4
    assert sorted(path.name for path in Path("sub").iterdir()) == ["q.bin", "q.bin.html"]


def test_evaluate_repeats_the_figures_of_the_texts_that_were_held_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(classifier_page, "render", lambda report: "<!DOCTYPE html>")  # drawing takes time
    assert run("--json", "--held-out", "0.3") == 0
    trained = json.loads(capsys.readouterr().out)
    assert main(["classifier", "evaluate", "q.bin", "--good", "good.jsonl", "--bad", "bad.jsonl", "--held-out", "0.3", "--json", "-q"]) == 0
    evaluated = json.loads(capsys.readouterr().out)
    assert {key: value for key, value in trained.items() if key != "training"} == evaluated
    counts = [sum(row[side] for row in trained["histogram"]) for side in SIDES]
    assert counts == [trained["sides"][side]["held_out"] for side in SIDES]
    assert min(counts) > 5
    assert trained["training"]["lines"] == dict.fromkeys(SIDES, 60 - counts[0]), "both sides weigh the same"
    assert Path("q.bin.evaluation.html").exists()


@pytest.mark.parametrize(
    "text",
    [
        "the river\nand its people\n",
        "cheap __label__hq the __label__x people",
        "the </s> river\0and\tits\v people",
        "a \ud800 b",
        "",
        " \n",
    ],
)
def test_a_text_is_learned_from_as_it_is_scored(text: str) -> None:
    step = FastText(str(GOLDEN / "softmax.bin"), "__label__hq")
    assert step.score(words_of(text)) == step.score(text)
    read, _ = step._model.get_line(one_line(text), on_unicode_error="replace")
    assert words_of(text).split() == [word for word in read if word != "</s>"]


def test_copies_are_never_on_both_sides_of_the_split_and_texts_of_both_sides_are_left_out(own_folder: Path, new_file: NewFile) -> None:
    write("good.jsonl", [*GOOD, *(text.replace(" ", "\n ") for text in GOOD), BAD[0], "</s>", "__label__hq"])
    write("bad.jsonl", [*BAD, GOOD[0]])
    examples = Examples(new_file, held_out=0.4, seed=1)
    for side in SIDES:
        examples.read(side, given(side, f"{side}.jsonl"))
    assert examples.counts["good"] == {"read": 123, "copies": 60, "empty": 2}
    assert examples.counts["bad"] == {"read": 91, "copies": 0, "empty": 0}
    assert examples.in_both == 2
    tested = {(side, words_of(document.text)) for side, document in examples.held_out()}
    examples.write_lines(own_folder / "lines", "none")
    lines = [line.split(" ", 1) for line in (own_folder / "lines").read_text().splitlines()]
    learned = {(side, words) for label, words in lines for side in SIDES if LABELS[side] == label}
    assert len(lines) == len(learned)
    assert not tested & learned
    assert tested | learned == {("good", words_of(text)) for text in GOOD[1:]} | {("bad", words_of(text)) for text in BAD[1:]}
    assert 30 < len(tested) < 90


@pytest.mark.parametrize(("balance", "good", "bad"), [("sample", 60, 60), ("repeat", 90, 90), ("none", 60, 90)])
def test_balance_changes_the_lines_and_says_so(own_folder: Path, new_file: NewFile, balance: Any, good: int, bad: int) -> None:
    examples = Examples(new_file, held_out=0.0, seed=1)
    for side in SIDES:
        examples.read(side, given(side, f"{side}.jsonl"))
    training = examples.write_lines(own_folder / "lines", balance)
    lines = (own_folder / "lines").read_text().splitlines()
    assert training["lines"] == {"good": good, "bad": bad}
    assert [sum(line.startswith(LABELS[side]) for line in lines) for side in SIDES] == [good, bad]
    assert training["note"].startswith(f"{good} good and {bad} bad; ")
    assert len({*lines}) == (120 if balance == "sample" else 150)
    halves = [sum(line.startswith(LABELS["good"]) for line in half) for half in (lines[: len(lines) // 2], lines[len(lines) // 2 :])]
    assert abs(halves[0] - halves[1]) <= 1, "both sides alternate"


def test_the_report_counts_as_plain_python_does(new_file: NewFile) -> None:
    random = np.random.default_rng(0)
    scores = {f"text {number}": round(float(score), 6) for number, score in enumerate(random.random(200))}
    scores["text 7"], scores["text 8"] = 0.5, 1.00001
    tested = Scored(new_file, scores.__getitem__, lambda text: 10)
    good = {text for text, score in scores.items() if score + random.random() > 0.9}
    for text in scores:
        tested.add(Document(text), "good" if text in good else "bad")
    report = report_of(tested, tested, similarity=0.85)
    assert len(report["thresholds"]) == 19
    for row, stays, near in zip(report["thresholds"], report["stays"]["thresholds"], report["nearest"], strict=True):
        kept = {text for text, score in scores.items() if score > row["threshold"]}
        assert row["precision"] == pytest.approx(len(kept & good) / len(kept), abs=1e-6)
        assert row["recall"] == pytest.approx(len(kept & good) / len(good), abs=1e-6)
        assert row["good_kept"] + row["bad_kept"] == stays["documents"] == len(kept)
        assert max(each["score"] for each in near["below"]) <= row["threshold"] < min(each["score"] for each in near["above"])
    ordered = sorted(scores, key=lambda text: -scores[text])
    places = [place for place, text in enumerate(ordered, 1) if text in good]
    assert report["average_precision"] == pytest.approx(sum(n / place for n, place in enumerate(places, 1)) / len(places), abs=1e-6)
    assert [each["excerpt"] for each in report["errors"]["bad"]] == [text for text in ordered if text not in good][:10]
    assert sum(row["good"] for row in report["histogram"]) == len(good)


def test_unique_tokens_count_a_group_of_copies_once(new_file: NewFile) -> None:
    texts = [" ".join(f"word{text}x{place}" for place in range(100)) for text in range(6)]
    documents = [(texts[0], 0.9), (texts[1], 0.2), (texts[0].upper(), 0.9), (f"{texts[1]} more", 0.6), (texts[2], 0.4), (texts[2], 0.4)]
    scores = dict(documents)
    scored = Scored(new_file, scores.__getitem__, lambda text: len(text.split()))
    for text, _ in documents:
        scored.add(Document(text), "good" if text == texts[0] else "bad")
    assert scored.groups(0.85).tolist() == [0, 1, 0, 1, 4, 4]
    stays = report_of(scored, scored, similarity=0.85)["stays"]
    assert (stays["documents"], stays["tokens"], stays["unique_tokens"], stays["copies"]) == (6, 601, 300, 3)
    rows = {row["threshold"]: (row["documents"], row["tokens"], row["unique_tokens"]) for row in stays["thresholds"]}
    assert rows[0.3] == (5, 501, 301), "of the pair at 0.2 and 0.6, only the second stays"
    assert rows[0.5] == (3, 301, 201)
    assert rows[0.95] == (0, 0, 0)


@pytest.mark.parametrize(
    ("change", "options", "facts"),
    [
        ({"good.jsonl": GOOD[:9]}, (), ("--good good.jsonl", "9 different texts")),
        ({"bad.jsonl": ["the same"] * 500}, (), ("--bad bad.jsonl", "500 documents", "1 different text,")),
        ({"bad.jsonl": []}, (), ("--bad bad.jsonl", "no document")),
        ({"bad.jsonl": ["</s>", "__label__hq"]}, (), ("--bad bad.jsonl",)),
        ({"bad.jsonl": GOOD}, (), ("--bad", "0 different texts")),
        ({"good.jsonl": GOOD[:10]}, ("--held-out", "0.0001"), ("--good", "held out", "--held-out")),
        ({}, ("--held-out", "1"), ("--held-out",)),
        ({}, ("--lr", "0"), ("--lr",)),
        ({}, ("--dim", "0"), ("--dim",)),
        ({}, ("--seed", "3_000_000_000"), ("--seed", "2_147_483_647")),
        ({}, ("--on", "missing.jsonl"), ("missing.jsonl", "no such file")),
        ({}, ("--on", "wikipedja"), ("wikipedja", "data set")),
        ({}, ("--tokenizer", "missing.model"), ("missing.model", "no such file")),
        ({}, ("--text-field", "content"), ("content",)),
        ({}, ("--out", "bad.jsonl/q.bin"), ("bad.jsonl/q.bin: cannot be written", "--out")),
        ({"q.bin": []}, (), ("q.bin: is there already", "--force")),
        ({"q.bin.html": []}, (), ("q.bin.html: is there already", "--force")),
        ({"q.bin.html": ["mine"]}, ("--force", "--good", "missing"), ("q.bin.html: is there already", "no page")),
    ],
)
def test_bad_input_is_one_line_and_no_file(
    own_folder: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Sequence[str]], options: Sequence[str], facts: Sequence[str]
) -> None:
    for name, texts in change.items():
        write(name, texts)
    before = {path.name for path in own_folder.iterdir()}
    assert run(*options) == 2
    message = capsys.readouterr().err
    assert all(fact in message for fact in facts), message
    assert message.count("\n") == 1
    assert {path.name for path in own_folder.iterdir()} == before


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        ((str(GOLDEN / "vectors.bin"),), ("vectors.bin", "word vectors")),
        ((str(GOLDEN / "hs.bin"), "--label", "__label__hp"), ("hs.bin", "__label__hq")),
        (("missing.bin",), ("missing.bin", "no such file")),
        ((), ("evaluate takes MODEL",)),
    ],
)
def test_a_model_that_cannot_be_evaluated_is_one_line(
    capsys: pytest.CaptureFixture[str], options: Sequence[str], facts: Sequence[str]
) -> None:
    assert main(["classifier", "evaluate", *options, "--good", "good.jsonl", "--bad", "bad.jsonl"]) == 2
    message = capsys.readouterr().err
    assert all(fact in message for fact in facts), message
    assert message.count("\n") == 1


def test_data_sets_are_read_by_name_and_a_file_by_its_path(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(classifier_page, "render", lambda report: "<!DOCTYPE html>")
    table = '[pretrain.{0}]\nsource = "jsonl"\nfiles = ["{0}.jsonl"]\n'
    Path("niels_cache.toml").write_text(table.format("good") + table.format("bad"))
    Path("good").mkdir()
    Path("good/other.txt").write_text("one text")
    options = ("--good", "good", "--bad", "bad", "bad.jsonl", "--on", "./good")
    assert main(["classifier", "train", *options, "--out", "new/q.bin", *TINY, "--json", "-q"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [report["sides"][side]["read"] for side in SIDES] == [60, 180]
    assert report["sides"]["bad"]["copies"] == 90
    assert report["stays"]["documents"] == 1
    assert report["stays"]["tokens"] == 2


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [(KeyboardInterrupt, 130, "interrupted"), (InterruptRequested, 143, "from the beginning"), (None, 1, "q.bin: ")],
)
def test_a_training_that_is_interrupted_or_fills_the_disk_leaves_the_older_file(
    own_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: type | None, code: int, said: str
) -> None:
    def interrupted(lines: Path, model: Path, *_: object, **__: object) -> None:
        model.write_bytes((GOLDEN / "softmax.bin").read_bytes()[:-1])
        assert not [path for path in own_folder.iterdir() if path.name.startswith(".")], "a kill leaves nothing"
        if error is not None:
            raise error(signal.SIGTERM)

    Path("q.bin").write_bytes(b"older")
    monkeypatch.setattr(classifier, "train", interrupted)
    assert run("--force") == code
    assert said in capsys.readouterr().err
    assert Path("q.bin").read_bytes() == b"older"
    assert {path.name for path in own_folder.iterdir()} == {"good.jsonl", "bad.jsonl", "q.bin"}


def test_without_the_extra_nothing_is_read(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "fasttext", None)
    Path("good.jsonl").write_text("no JSON")
    assert run() == 2
    assert re.fullmatch(r".*niels-cache\[classifier\].*\n", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("printed", "code", "facts"),
    [
        ("Progress: 3.1%\nValueError: Encountered NaN.", 1, ("--lr = 0.1",)),
        ("MemoryError: std::bad_alloc", 1, ("--buckets", "800.0 MB")),
        ("Progress: 3.1%", -9, ("--buckets", "800.0 MB")),
        ("ValueError: something else", 1, ("something else",)),
        ("", 1, ("code 1",)),
    ],
)
def test_a_failure_of_fasttext_says_what_to_change(printed: str, code: int, facts: Sequence[str]) -> None:
    found = classifier_training._explain(printed, code, TrainingSettings(word_ngrams=2))
    assert all(fact in found for fact in facts), found


def test_documents_that_cannot_be_read_are_counted(own_folder: Path) -> None:
    Path("good.jsonl").write_text(Path("good.jsonl").read_text() + '{"text": 5}\n')
    report = DropReport()
    assert len([*given("good", "good.jsonl").documents(report)]) == 60
    assert sum(report.dropped.values()) == 1
    write("empty.jsonl", [])
    with pytest.raises(NielsCacheError, match="holds no document"):
        next(given("good", "empty.jsonl").documents(DropReport()))
