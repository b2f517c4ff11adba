"""Samples, measures and plots of builds. They are compared with plain counting, and they are small enough for the UI."""

import json
import os
import struct
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree

import numpy as np
import pytest

from niels_cache_assets.base.documents import Message
from niels_cache_assets.build_cache import build_pretrain_cache, build_sft_cache
from niels_cache_assets.cli import main
from niels_cache_assets.tokenizer.kinds import SentencePieceTokenizer
from niels_cache_inspection.samples import notable, notable_numbers
from niels_cache_pages import measures as measuring
from niels_cache_pages.drawing import MAIN, Picture, as_png, as_svg
from niels_cache_pages.measures import CONTEXT, LENGTH_EDGES, measure_cache
from niels_cache_pages.pictures import MAX_SOURCES, cache_pictures, ratios_picture
from niels_cache_runtime.format.layout import Family
from niels_cache_runtime.format.meta import read_meta
from tests.helpers.dagster_tools import Project, materializations, metadata, rows
from tests.helpers.tiny import sentences

MAX_PNG_BYTES = 50_000


@pytest.fixture
def tokenizer(tiny_model: Path) -> SentencePieceTokenizer:
    return SentencePieceTokenizer(str(tiny_model))


@pytest.fixture
def notes(tmp_path: Path, tokenizer: SentencePieceTokenizer) -> Path:
    texts = [" ".join(sentences(1 + number % 7, seed=number)) for number in range(60)]
    build_pretrain_cache(
        texts,
        str(tmp_path / "notes"),
        tokenizer=tokenizer,
        max_train_tokens=10**9,
        max_val_tokens=300,
        shard_bytes=512,
        seed=1,
        shuffle_buffer=None,
    )
    return tmp_path / "notes"


@pytest.fixture
def chats(tmp_path: Path, tokenizer: SentencePieceTokenizer) -> Path:
    def example(number: int) -> list[Message]:
        said = sentences(4, seed=number) if number else [word * 400 for word in sentences(4, seed=0)]
        roles: tuple[Literal["user", "assistant"], ...] = ("user", "assistant") * (1 + number % 2)
        return [Message(role=role, content=text) for role, text in zip(roles, said, strict=False)]

    build_sft_cache((example(number) for number in range(30)), str(tmp_path / "chats"), tokenizer=tokenizer, val_frac=0.1, seed=1)
    return tmp_path / "chats"


def documents_of(folder: Path) -> list[np.ndarray]:
    """Every document of both splits, read plainly."""
    found = []
    for split in ("train", "val"):
        tokens = np.concatenate([np.fromfile(path, "<u2") for path in sorted((folder / split).glob("*.bin"))])
        found += np.split(tokens, np.load(folder / f"{split}_doc_ends.npy").astype(int)[:-1])
    return found


def examples_of(folder: Path) -> list[np.ndarray]:
    found = []
    for split in ("train", "val"):
        found += np.split(np.fromfile(folder / f"{split}_tokens.bin", "<u2"), np.load(folder / f"{split}_idx.npy")[1:])
    return found


def test_lengths_and_tokens_are_counted_over_all_shards_of_both_splits(notes: Path) -> None:
    meta, documents = read_meta(str(notes / "meta.json")), documents_of(notes)
    assert len(documents) == 60
    assert len(list((notes / "train").glob("*.bin"))) > 3
    found = measure_cache(notes, "pretrain", meta)
    assert found.items == 60
    assert found.counted == found.tokens == sum(map(len, documents))
    assert found.token_counts.tolist() == np.bincount(np.concatenate(documents), minlength=meta["vocab_size"]).tolist()
    binned = Counter(int(LENGTH_EDGES[np.searchsorted(LENGTH_EDGES, len(document), side="right") - 1]) for document in documents)
    assert {int(edge): int(count) for edge, count in zip(LENGTH_EDGES, found.lengths, strict=True) if count} == binned
    assert found.conversations is None


def test_blocks_give_what_one_pass_gives(notes: Path, chats: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = measure_cache(notes, "pretrain", read_meta(str(notes / "meta.json")))
    whole_chats = measure_cache(chats, "sft", read_meta(str(chats / "meta.json")))
    monkeypatch.setattr(measuring, "_BLOCK_TOKENS", 100)
    monkeypatch.setattr("niels_cache_assets.facts.split_tokens._BLOCK_OFFSETS", 7)
    again = measure_cache(notes, "pretrain", read_meta(str(notes / "meta.json")))
    assert again.lengths.tolist() == whole.lengths.tolist()
    assert again.token_counts.tolist() == whole.token_counts.tolist()
    again_chats = measure_cache(chats, "sft", read_meta(str(chats / "meta.json")))
    assert again_chats.conversations is not None
    assert whole_chats.conversations is not None
    assert again_chats.conversations.turns == whole_chats.conversations.turns
    assert again_chats.conversations.target_shares.tolist() == whole_chats.conversations.target_shares.tolist()


def test_turns_targets_and_what_a_row_cuts_are_counted(chats: Path, tokenizer: SentencePieceTokenizer) -> None:
    meta, examples, ids = read_meta(str(chats / "meta.json")), examples_of(chats), tokenizer.special_token_ids()
    found = measure_cache(chats, "sft", meta)
    assert found.conversations is not None
    assert found.items == len(examples) == 30
    assert found.conversations.turns == Counter({2: 15, 4: 15})
    said = sum(len(span) for example in examples for span in np.split(example, np.flatnonzero(example == ids["eot"]) + 1)
               if len(span) and span[0] == ids["asst"])  # fmt: skip
    spans = sum(int((example == ids["asst"]).sum()) for example in examples)
    assert found.conversations.target_tokens == said - spans
    assert int(found.conversations.target_shares.sum()) == 30
    assert found.cut == sum(len(example) > CONTEXT + 1 for example in examples) == 1


def test_every_plot_is_a_small_picture(notes: Path, chats: Path) -> None:
    drawn = {}
    given: list[tuple[Family, Path, dict[str, int]]] = [("pretrain", notes, {f"reason {n}": n for n in range(1, 30)}), ("sft", chats, {})]
    for family, folder, dropped in given:
        drawn[family] = cache_pictures(measure_cache(folder, family, read_meta(str(folder / "meta.json"))), family, dropped=dropped)
    assert [len(drawn[family]) for family, *_ in given] == [3, 5]
    for picture in [*drawn["pretrain"], *drawn["sft"]]:
        png = as_png(picture)
        assert png.startswith(b"\x89PNG")
        assert len(png) < MAX_PNG_BYTES
        width, height = struct.unpack(">II", png[16:24])
        assert width > 300
        assert 50 < height < 1000
        assert len(svg := as_svg(picture, "notes")) < MAX_PNG_BYTES
        assert (as_png(picture), as_svg(picture, "notes")) == (png, svg), "the same picture, the same bytes"


def test_the_sources_with_the_lowest_ratios_are_shown_and_equal_ones_by_name() -> None:
    ratios = {f"s{number:02}": 2.0 + number for number in reversed(range(MAX_SOURCES))} | {"b": 1.0, "a": 1.0}
    picture = ratios_picture(ratios)
    assert list(picture.names) == [f"s{number:02}" for number in reversed(range(MAX_SOURCES - 2))] + ["a", "b"]
    assert f"{MAX_SOURCES} lowest of {MAX_SOURCES + 2}" in picture.title


@pytest.mark.parametrize("kind", ["columns", "bars"])
def test_an_svg_shows_all_texts_and_values_in_the_colors_of_the_page(kind: Literal["columns", "bars"]) -> None:
    given, hostile = '$x"><script>&\ud800\x01\n', '$x"><script>&   '
    texts: dict[str, Any] = {
        "title": given,
        "labels": [given] * 3,
        "ticks": [(1, given), (2, given * 9)],
        "limit": (1, given),
        "legend": {MAIN: given},
    }
    picture = Picture(kind=kind, names=[given, given * 9, "c"], values=[3, 0.00001, 40_000], **texts)
    svg = as_svg(picture, "of $it$")
    tree = ElementTree.fromstring(svg)
    assert tree.attrib["aria-label"] == f"of $it$: {hostile}"
    assert [title.text for title in tree.iter("title")] == [
        f"{name}, {hostile}: {value}" for name, value in ((hostile, "3"), (hostile * 9, "1e-05"), ("c", "40,000"))
    ]
    shown = [text.text for text in tree.iter("text")]
    assert shown.count(hostile) == {"columns": 4, "bars": 7}[kind], "the title, the limit, the legend, a tick, and the labels of bars"
    assert kind == "columns" or f"{(hostile * 9)[:23]}…" in shown
    assert "#" not in svg, "every color is a variable, and nothing refers to an id"
    assert not [name for element in tree.iter() for name in element.attrib if name in ("id", "style", "clip-path")]
    assert "<script" not in svg
    assert as_png(picture).startswith(b"\x89PNG")


def test_wide_names_of_bars_are_not_cut() -> None:
    tree = ElementTree.fromstring(as_svg(Picture(kind="bars", title="", names=["COMMON_CRAWL_2024_GERMAN"], values=[1]), "notes"))
    [end] = [float(text.attrib["x"]) for text in tree.iter("text") if text.text == "COMMON_CRAWL_2024_GERMAN"]
    assert end > 183.9, "its width in DejaVu Sans of 11 points"


def test_drawing_says_nothing_of_a_home_that_cannot_be_written_or_of_letters_for_the_browser() -> None:
    drawing = "from niels_cache_pages.drawing import *; as_svg(Picture(kind='bars', title='日本', names=['本'], values=[1]), 'notes')"
    environment = {name: value for name, value in os.environ.items() if name not in ("MPLCONFIGDIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME")}
    done = subprocess.run([sys.executable, "-c", drawing], env={**environment, "HOME": os.devnull}, capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"", b"")


@pytest.mark.parametrize("kind", ["columns", "bars"])
def test_a_picture_of_nothing_says_so(kind: Literal["columns", "bars"]) -> None:
    picture = Picture(kind=kind, title="dropped", names=[], values=[])
    assert ">dropped: none<" in as_svg(picture, "notes")
    assert as_png(picture).startswith(b"\x89PNG")


def test_samples_are_the_first_a_random_one_the_longest_and_the_shortest(notes: Path, chats: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("niels_cache_assets.facts.split_tokens._BLOCK_OFFSETS", 7)
    meta = read_meta(str(notes / "meta.json"))
    documents = documents_of(notes)[: meta["documents"]["train"]]
    lengths = [len(document) for document in documents]
    numbers = notable_numbers(np.cumsum(lengths), meta)
    picked = {what: number for number, whats in numbers.items() for what in whats.split(", ")}
    assert sorted(picked) == ["first", "longest", "random", "shortest"]
    assert picked["first"] == 0
    assert (lengths[picked["longest"]], lengths[picked["shortest"]]) == (max(lengths), min(lengths))
    shown = [*notable(notes, "pretrain", "train", length=10**6, tokenizer=None)]
    assert [sample.tokens.tolist() for sample in shown] == [documents[number].tolist() for number in numbers]
    assert len(next(notable(notes, "pretrain", "train", length=3, tokenizer=None)).tokens) == 3
    assert any(len(sample.tokens) > CONTEXT for sample in notable(chats, "sft", "train", length=10**6, tokenizer=None))


def test_a_trained_tokenizer_shows_how_it_fits_its_sources_as_compare_and_the_cache_do(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    project = Project(tmp_path, tiny_model)
    project.write_notes([f"{text}\n\n    and an indented line\n" for text in sentences(60)])
    project.configure(tokenizer='vocab_size = 330\ntrain_on = ["notes", "books"]')
    project.edit("plots = false", "plots = true")
    found = metadata(materializations(project.build_tokenizer(), "tokenizer")["tokenizer"])
    model = str(project.root / "tokenizer/spm.model")
    texts = [json.loads(line)["text"] for line in (project.folder / "notes.jsonl").read_text().splitlines()]
    ratios = {row["data_set"]: row["chars_per_token"] for row in rows(found["by_source"])}
    assert ratios.keys() == {"notes", "books"}
    assert [(row["data_set"], row["read_as"]) for row in rows(found["trained_on"])] == [("books", "raw"), ("notes", "raw")]
    tokenizer = SentencePieceTokenizer(model)
    assert ratios["notes"] == round(sum(map(len, texts)) / sum(len(tokenizer.encode(text)) for text in texts), 3)
    assert main(["tokenizer", "compare", model, model, "--files", str(project.folder / "notes.jsonl"), "--json"]) == 0
    (compared,) = (row for row in json.loads(capsys.readouterr().out)["sources"] if row["source"] == "files")
    assert ratios["notes"] == round(compared["characters_per_token"][0], 3)
    built = metadata(materializations(project.build("notes"))["pretrain/meta_json"])
    assert ratios["notes"] == built["chars_per_token"]
    assert "niels-cache show tokenizer" in found["longest_words"]
    assert found["plots"].count("data:image/png") == 1
    assert len(found["plots"]) < MAX_PNG_BYTES
