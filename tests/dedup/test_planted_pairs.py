"""Copies that look like their originals. Each kind of copy is planted 24 times in three data sets, in train and in val, and is found at the
default settings. Near copies are found with the settings that `init` writes.
"""

import random
import re
import unicodedata
from collections import Counter
from collections.abc import Callable
from html import escape
from pathlib import Path

import pytest

from niels_cache_assets.artifacts.prepared_corpora import open_prepared
from niels_cache_assets.cli.new_config import render
from niels_cache_assets.cli.parser import parse_arguments
from niels_cache_assets.dedup.bands import bands_for_recall
from tests.helpers.builds import find_duplicates, prepare_corpus
from tests.helpers.corpora import articles, corpus_registry, nearly, write_jsonl
from tests.helpers.plain_signatures import canonical_text

PAIRS = 24
DATA_SETS = ("books", "letters", "notes")
EXTRA = " The café at no. 1847 was \"closed\", and didn't re-open: Zoë & Ångström's first office, 35 rooms (x > 2)."
FORMAT = [chr(code) for code in range(0x110000) if unicodedata.category(chr(code)) == "Cf"]
FULL_WIDTH = {code: code + 0xFEE0 for code in range(0x21, 0x7F)}
BOLD = {ord("a") + index: 0x1D41A + index for index in range(26)}


def between_letters(text: str, marks: list[str]) -> str:
    """Return the text with one of the marks inside each word of four or more letters."""
    words = text.split(" ")
    return " ".join(
        word[:2] + marks[place % len(marks)] + word[2:] if len(word) > 3 and word.isalpha() else word for place, word in enumerate(words)
    )


COPIES: dict[str, Callable[[str], str]] = {
    "zero width blanks": lambda text: between_letters(text, ["\u200b"]),
    "soft hyphens": lambda text: between_letters(text, ["\u00ad"]),
    "joiners": lambda text: between_letters(text, ["\u200c", "\u200d", "\u2060"]),
    "marks of direction": lambda text: between_letters(text, ["\u200e", "\u200f", "\u061c"]),
    "byte order marks": lambda text: "\ufeff" + between_letters(text, ["\ufeff"]),
    "every format character": lambda text: between_letters(text, FORMAT),
    "variation selectors": lambda text: between_letters(text, ["\ufe0f", "\ufe00", "\U000e0100"]),
    "HTML entities": lambda text: escape(text).replace("é", "&eacute;").replace("Å", "&Aring;").replace(" ", "&nbsp;", 5),
    "HTML entities, twice": lambda text: escape(escape(text)),
    "numeric entities": lambda text: "".join(one if one.isascii() and (one.isalnum() or one == " ") else f"&#{ord(one)};" for one in text),
    "hexadecimal entities": lambda text: text.replace("e", "&#x65;").replace(".", "&#x2E;"),
    "full-width digits": lambda text: "".join(chr(FULL_WIDTH[ord(one)]) if one.isdecimal() else one for one in text),
    "full-width letters": lambda text: text.translate(FULL_WIDTH).replace(" ", "\u3000"),
    "bold letters of formulas": lambda text: text.translate(BOLD),
    "decomposed accents": lambda text: unicodedata.normalize("NFD", text),
    "ligatures": lambda text: text.replace("ffi", "\ufb03").replace("ff", "\ufb00").replace("fi", "\ufb01"),
    "curly quotes": lambda text: text.replace('"', "“", 1).replace('"', "”").replace("'", "’"),
    "other quotes": lambda text: text.replace('"', "»").replace("'", "\u02bc"),
    "backticks": lambda text: text.replace('"', "``").replace("'", "\u00b4"),
    "capitals": str.upper,
    "lower case": str.lower,
    "no sentence marks, no quotes": lambda text: re.sub(r"[.,:;!?](?= |$)|[\"']", "", text),
    "doubled blanks": lambda text: text.replace(" ", "  "),
    "other blanks": lambda text: text.replace(" ", "\u00a0").replace("a\u00a0", "a\u2009"),
    "lines": lambda text: text.replace(" ", "\n"),
    "tabs and line ends": lambda text: "\t" + text.replace(". ", ".\r\n\r\n") + "\r\n",
    "non-breaking hyphens": lambda text: text.replace("-", "\u2011"),
}


def originals(count: int, *, seed: int = 0) -> list[str]:
    return [text + EXTRA for text in articles(count, seed=seed)]


def test_copies_that_look_alike_are_exact_duplicates_at_the_default_settings(tmp_path: Path) -> None:
    assert len(COPIES) >= 20
    assert len(FORMAT) > 150
    texts = originals(len(COPIES) * PAIRS)
    data: dict[str, list[str]] = {name: [] for name in DATA_SETS}
    kinds: dict[str, str] = {}
    for number, text in enumerate(texts):
        kind = [*COPIES][number % len(COPIES)]
        copy = COPIES[kind](text)
        assert copy != text, kind
        kinds[copy] = kind
        for place, document in enumerate((text, copy)):
            data[DATA_SETS[(number + place * (1 + number // 3)) % 3]].append(document)
    generator = random.Random(1)
    for documents in data.values():
        generator.shuffle(documents)
    registry = corpus_registry(tmp_path, data, table='prepare = ["dedup"]\nval_frac = 0.3\n')
    for name in DATA_SETS:
        prepare_corpus(registry, name, root=tmp_path, processes=1)
    meta = find_duplicates(registry, root=tmp_path).meta
    left: Counter[str] = Counter()
    splits: Counter[str] = Counter()
    for name in DATA_SETS:
        prepared = open_prepared(registry, name, root=tmp_path)
        for batch in prepared.documents():
            left.update(canonical_text(document.text) for document in batch)
            splits.update(document.split or "none" for document in batch)
    survivors = Counter(kinds[copy] for copy in kinds if left[canonical_text(copy)] != 1)
    assert survivors == {}
    assert left.total() == len(texts)
    assert min(splits["train"], splits["val"]) > 100
    found = [pair for counts in meta["datasets"].values() for pair in counts["pairs"]]
    assert sum(pair["documents"] for pair in found) == len(texts)
    assert {pair["kind"] for pair in found} == {"exact"}
    assert {(pair["split"], pair["because_split"]) for pair in found} == {
        (one, other) for one in ("train", "val") for other in ("train", "val")
    }


def similarity(text: str, other: str) -> float:
    """Return the Jaccard similarity of two texts without punctuation inside words, from sets of word 5-grams."""
    one, two = (
        {*zip(*(words[start:] for start in range(5)), strict=False)} for words in (canonical_text(each).split() for each in (text, other))
    )
    return len(one & two) / len(one | two)


def test_near_copies_are_found_with_the_settings_of_init(tmp_path: Path) -> None:
    data = {"texts": [each for number, text in enumerate(articles(136)) for each in (text, nearly(text, 1 + number % 18))]}
    pairs = range(0, len(data["texts"]), 2)
    near = {row + 1 for row in pairs if similarity(*data["texts"][row : row + 2]) >= 0.85}
    assert 40 < len(near) < 96
    write_jsonl(tmp_path / "texts.jsonl", data["texts"])
    arguments = parse_arguments(["init", str(tmp_path / "texts.jsonl")])
    assert arguments is not None
    [table] = re.findall(r"\[dedup\]\n(.+)", render(arguments, []))
    quality = {}
    for settings in ("", f"[dedup]\n{table}"):
        registry = corpus_registry(tmp_path, data, settings=settings, table='prepare = ["dedup"]\nval_frac = 0.0\n')
        prepare_corpus(registry, "texts", root=tmp_path, processes=1)
        find_duplicates(registry, root=tmp_path)
        left = {document.row for batch in open_prepared(registry, "texts", root=tmp_path).documents() for document in batch}
        found = {*range(len(data["texts"]))} - left
        quality[settings] = len(found & near) / len(near), len(found & near) / len(found)  # recall and precision
    before, after = quality.values()
    assert after == (1, 1)
    assert max(before) < 0.95  # so the pairs are hard enough


@pytest.mark.parametrize(
    ("threshold", "num_perm", "bands"),
    [(0.85, 128, (16, 8)), (0.5, 128, None), (0.99, 16, None), (0.05, 16, (16, 1))],
)
def test_bands_for_recall_fit_and_miss_few_pairs(threshold: float, num_perm: int, bands: tuple[int, int] | None) -> None:
    chosen = bands_for_recall(threshold, num_perm)
    assert chosen[0] * chosen[1] <= num_perm
    if bands is not None:
        assert chosen == bands
    if bands != (num_perm, 1):
        assert (1 - threshold ** chosen[1]) ** chosen[0] <= 0.01
