"""Repeated spans: the search on disk strikes what a plain search over all windows strikes."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import torch

from niels_cache_assets.artifacts.graph import graph
from niels_cache_assets.artifacts.materialize import materialize
from niels_cache_assets.artifacts.repeats import open_prepared
from niels_cache_repeats import spans
from niels_cache_repeats.spans import Texts, find_spans
from tests.helpers.corpora import corpus_registry
from tests.helpers.tiny import sentences

CORPORA = int(os.environ.get("NIELS_CACHE_SPANS_CORPORA", "12"))  # thousands were run by hand

Cuts = list[tuple[int, int, int]]
Corpus = list[tuple[str, bool]]


def plain_cuts(corpus: Corpus, width: int) -> Cuts:
    """Return (document, start, end) of each span: the definition, in plain Python."""
    seen: set[bytes] = set()
    covered = [bytearray(len(text.encode())) for text, _ in corpus]
    for chosen in (True, False):
        for number, (text, in_val) in enumerate(corpus):
            data = text.encode()
            for position in range(len(data) - width + 1) if in_val == chosen else ():
                window = data[position : position + width]
                if window in seen:
                    covered[number][position : position + width] = b"\1" * width
                seen.add(window)
    cuts = []
    for number, (text, _) in enumerate(corpus):
        data, position, is_covered = text.encode(), 0, covered[number]
        lines = []  # start, end without the line break, end
        for line in data.split(b"\n"):
            end = min(len(data), position + len(line) + 1)
            lines.append((position, position + len(line) - (line.endswith(b"\r") and end > position + len(line)), end))
            position = end
        intervals, start = [], None
        for place in range(len(data) + 1):
            if place < len(data) and is_covered[place]:
                start = place if start is None else start
            elif start is not None:
                intervals.append((start, place))
                start = None
        for start, end in intervals:
            own = [line for line in lines if start <= line[0] and (line[1] <= end if line[0] < end else False)]
            if own and min(own[-1][2], end) - own[0][0] >= width:
                cuts.append((number, own[0][0], own[-1][2]))
    return cuts


def found_cuts(corpus: Corpus, width: int, folder: Path, **settings: int) -> Cuts:
    folder.mkdir()
    found = find_spans(batches(corpus), width=width, scratch=folder, **settings)
    check_copies(corpus, found)
    return list(zip(found.documents.tolist(), found.starts.tolist(), found.ends.tolist(), strict=True))


def batches(corpus: Corpus) -> Iterator[Texts]:
    """Yield the documents, three at a time."""
    for first in range(0, len(corpus), 3):
        texts = [text.encode() for text, _ in corpus[first : first + 3]]
        bounds = np.cumsum([0, *map(len, texts)])
        yield np.frombuffer(b"".join(texts), np.uint8), bounds, np.array([in_val for _, in_val in corpus[first : first + 3]])


def check_copies(corpus: Corpus, found: spans.RepeatedSpans) -> None:
    """Check that the first byte of each span has a copy that stays, and comes earlier."""
    struck = [np.zeros(len(text.encode()), bool) for text, _ in corpus]
    for number, start, end in zip(found.documents, found.starts, found.ends, strict=True):
        struck[number][start:end] = True
    rows = np.stack([found.documents, found.starts, found.kept_documents, found.kept_starts], axis=1).tolist()
    for number, start, kept, kept_start in rows:
        assert corpus[number][0].encode()[start] == corpus[kept][0].encode()[kept_start]
        assert not struck[kept][kept_start] or corpus[number][0].encode()[start] == ord("\n")
        assert (not corpus[kept][1], kept, kept_start) < (not corpus[number][1], number, start)


def random_corpus(generator: torch.Generator) -> tuple[Corpus, int]:
    def number(low: int, high: int) -> int:
        return int(torch.randint(low, high, (1,), generator=generator))

    letters = ["ab\n", "a\n", "aab\n\r", "ab\u00e4\n", "abc \n\U0001f600", "ab\r\n"][number(0, 6)]
    documents: Corpus = []
    for _ in range(number(1, 6)):
        picks = torch.randint(0, len(letters), (number(0, 60),), generator=generator).tolist()
        text = "".join(letters[pick] for pick in picks)
        if documents and number(0, 3) == 0:
            text = documents[number(0, len(documents))][0][number(0, 5) :] + text
        documents.append((text, number(0, 4) == 0))
    return documents, number(2, 12)


SMALL = {"PIECE": 7, "BUCKET": 16, "MOST_BUCKETS": 2, "_PARTS": 4, "MOST_RECORDS": 4, "_SLOTS": 2, "_RECORDS": 3, "DOCUMENTS": 2}


@pytest.mark.parametrize(
    "constants",
    [
        pytest.param({}, id="as it is"),
        pytest.param(SMALL, id="small pieces, buckets and tables"),
        pytest.param({"_KEY_MASK": np.uint64(3)}, id="most hashes collide"),
    ],
)
def test_random_corpora_are_cut_as_the_definition_says(constants: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(62)
    for name, value in constants.items():
        assert hasattr(spans, name)
        monkeypatch.setattr(spans, name, value)
    cut = 0
    for turn in range(CORPORA):
        corpus, width = random_corpus(generator)
        expected = plain_cuts(corpus, width)
        cut += len(expected)
        assert found_cuts(corpus, width, tmp_path / str(turn), ranges=1 + turn % 5, threads=1 + turn % 2) == expected, (corpus, width)
    assert cut > CORPORA


ONE, TWO, THREE = (f"Line {number} of a notice.\n" for number in ("one", "two", "six"))  # 22 bytes each


@pytest.mark.parametrize(
    ("texts", "left"),
    [
        pytest.param([ONE + TWO, "Own.\n" + ONE + TWO], [ONE + TWO, "Own.\n"], id="a later copy goes"),
        pytest.param([ONE + TWO + "\n" + ONE + TWO], [ONE + TWO + "\n"], id="a document that repeats itself keeps its first copy"),
        pytest.param([ONE + TWO, "", "short", ONE + TWO], [ONE + TWO, "", "short", ""], id="empty and short documents"),
        pytest.param(
            [ONE + TWO + THREE, "Own, " + ONE + TWO + THREE],
            [ONE + TWO + THREE, "Own, " + ONE],
            id="a line that begins before the copy stays",
        ),
        pytest.param([ONE + TWO, ONE + TWO[:-1] + " More.\n"], [ONE + TWO, ONE + TWO[:-1] + " More.\n"], id="one whole line is too short"),
        pytest.param([ONE + TWO, ONE + TWO[:-1]], [ONE + TWO, ""], id="a last line without a line break"),
        pytest.param([ONE + TWO[:-1], ONE + TWO + "Own."], [ONE + TWO[:-1], "Own."], id="the line break of the last line goes too"),
        pytest.param(
            [(ONE + TWO).replace("\n", "\r\n"), (ONE + TWO).replace("\n", "\r\n") + "Own."],
            [(ONE + TWO).replace("\n", "\r\n"), "Own."],
            id="CRLF",
        ),
        pytest.param(
            [ONE + TWO, ONE + THREE, TWO + "\n" + THREE], [ONE + TWO, ONE + THREE, TWO + "\n" + THREE], id="lines alone are short"
        ),
        pytest.param([ONE + TWO, TWO + THREE, ONE + TWO + THREE], [ONE + TWO, TWO + THREE, ""], id="windows that overlap are one span"),
        pytest.param([ONE + TWO, THREE + ONE, ONE + TWO + THREE + ONE], [ONE + TWO, THREE + ONE, ""], id="windows that touch are one span"),
        pytest.param(
            ["ä" * 22 + "\n€\U0001f600", "ä" * 22 + "\n€\U0001f600\n\U0001f600"], ["ä" * 22 + "\n€\U0001f600", "\U0001f600"], id="UTF-8"
        ),
    ],
)
def test_what_is_left(texts: list[str], left: list[str], tmp_path: Path) -> None:
    corpus = [(text, False) for text in texts]
    cuts = found_cuts(corpus, 40, tmp_path / "scratch")
    assert cuts == plain_cuts(corpus, 40)
    assert after(texts, cuts) == left


def after(texts: list[str], cuts: Cuts) -> list[str]:
    """Return what cuts leave of texts."""
    rest = [text.encode() for text in texts]
    for number, start, end in reversed(cuts):
        rest[number] = rest[number][:start] + rest[number][end:]
    return [data.decode() for data in rest]


def test_val_keeps_its_copy(tmp_path: Path) -> None:
    text = ONE + TWO
    assert found_cuts([(text, False), (text, True), (text, False)], 40, tmp_path / "scratch") == [(0, 0, 44), (2, 0, 44)]


def test_thousands_of_copies_cost_what_one_does_for_each_byte(tmp_path: Path) -> None:
    line = ONE[:-1] + TWO
    for name, corpus in {
        "documents": [(3 * line, False)] * 4000,
        "document": [(12_000 * line, False)],
        "a": [("a" * 500_000, False)],
    }.items():
        sizes = [0]
        (tmp_path / name).mkdir()

        def report(share: float, sizes: list[int] = sizes, folder: Path = tmp_path / name) -> None:
            sizes.append(sum(path.stat().st_size for path in folder.iterdir()))

        found = find_spans(batches(corpus), width=40, scratch=tmp_path / name, threads=1, report=report)
        size = sum(len(text) for text, _ in corpus)
        assert max(sizes) < 34 * size  # the text, a record and a pair for each window
        expected = {"documents": [2 * len(line)] + 3999 * [3 * len(line)], "document": [11_999 * len(line)], "a": []}[name]
        assert (found.ends - found.starts).tolist() == expected
        assert not found.kept_documents.any()


@pytest.mark.parametrize(("ranges", "threads"), [(1, 1), (7, 2), (100, 2)])
def test_the_number_of_ranges_changes_nothing(ranges: int, threads: int, tmp_path: Path) -> None:
    lines = [f"{line}\n" for line in sentences(600)]
    corpus = [("".join(lines[start : start + 6]), start % 7 == 0) for start in (*range(0, 600, 6), *range(0, 590, 5))]
    expected = plain_cuts(corpus, 200)
    assert len(expected) > 50
    assert found_cuts(corpus, 200, tmp_path / "scratch", ranges=ranges, threads=threads) == expected


def test_a_corpus_is_read_without_its_repeated_spans(tmp_path: Path) -> None:
    page = [f"{line}\n" for line in sentences(40)]
    texts = {
        "first": ["".join(page[:5]), "".join(page[5:10])],
        "second": ["".join(page[20:25]) + "".join(page[:4]), "".join(page[:5]), "".join(page[30:35])],
    }
    settings = "[build]\nthreads = 1\n[spans]\nranges = 3\n"
    registry = corpus_registry(tmp_path, texts, settings=settings, table='prepare = ["spans"]\nval_frac = 0\n')
    artifacts = graph(registry, tmp_path / "cache")
    for key in ("corpus/first", "corpus/second", "repeats/spans"):
        outcome = materialize(artifacts[key], notify=False)
    counts = outcome.meta["datasets"]
    assert counts["first"]["cuts"] == {"span": 0}
    assert counts["second"]["cuts"] == {"span": 2}
    assert counts["second"]["emptied"] == 1
    prepared = open_prepared(registry, "second", root=tmp_path / "cache")
    documents = [document for batch in prepared.documents() for document in batch]
    assert [document.text for document in documents] == ["".join(page[20:25]), "".join(page[30:35]).rstrip("\n") + "\n"]
    assert prepared.dropped["only_repeats"] == 1
    [table] = pyarrow.parquet.read_table(tmp_path / "cache/repeats/spans/second.parquet").to_batches()
    size = len("".join(page[20:25]))
    assert table.select(["ordinal", "start", "because_dataset", "because_ordinal", "because_start"]).to_pylist()[0] == {
        "ordinal": 0,
        "start": size,
        "because_dataset": "first",
        "because_ordinal": 0,
        "because_start": 0,
    }
