"""The commands about corpora. Their counts equal the prepared documents, their samples exist on disk, and a mistake gives one line."""

import gzip
import json
import re
import runpy
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from niels_cache_assets.cli import main
from niels_cache_assets.cli.commands import clean
from niels_cache_assets.cli.commands.clean import evenly_spaced
from niels_cache_assets.cli.commands.duplicates import mark_differences
from niels_cache_assets.cli.console import excerpt
from niels_cache_assets.inspection.corpora import documents_at
from niels_cache_assets.project.registry import Registry, load_registry
from niels_cache_inspection.find.places import Place
from niels_cache_inspection.web import _dropped_for
from niels_cache_runtime.format.meta import Meta, read_meta
from tests.helpers.builds import find_duplicates, prepare_corpus
from tests.helpers.corpora import articles, corpus_registry, nearly, write_jsonl
from tests.helpers.messages import missing

REPOSITORY = Path(__file__).resolve().parents[2]
LISTS = ["\n".join(f"* the item of list {page} to number {index}" for index in range(60)) for page in range(5)]
SHORT = ["too short", "short as well, the one and only", "\x1b[31mred\x01"]
TEXTS = [*articles(40), *LISTS, *SHORT]
NEAR = [nearly(text) for text in articles(40)[:12]]


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test works in a separate folder, without this machine's settings, on a wide screen."""
    for variable in ("NIELS_CACHE_PROFILE", "NIELS_CACHE_CONFIG", "NIELS_CACHE_ROOT"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def configured(folder: Path) -> Registry:
    """Two data sets with `prepare`. `copies` has the first document of `notes` unchanged, and twelve documents nearly unchanged."""
    settings = '[build]\ncache_dir = "cache"\n[dedup]\nthreshold = 0.7'
    return corpus_registry(folder, {"notes": TEXTS, "copies": [TEXTS[0], *NEAR, *articles(30, seed=9)]}, settings=settings)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two cache roots. `corpora` has both corpora, and `deduplicated` also has their duplicates."""
    folder = tmp_path_factory.mktemp("prepared")
    registry = configured(folder)
    for name in registry.prepared():
        prepare_corpus(registry, name, root=folder / "corpora", processes=1)
    shutil.copytree(folder / "corpora", folder / "deduplicated")
    find_duplicates(registry, root=folder / "deduplicated")
    return folder


@pytest.fixture
def registry(own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    monkeypatch.setenv("NIELS_CACHE_PROFILE", "quickstart")
    monkeypatch.setenv("NIELS_CACHE_CONFIG", "niels_cache.toml")
    return configured(own_folder)


@pytest.fixture
def corpora(registry: Registry, prepared: Path) -> dict[str, Meta]:
    """Build both corpora. Return their meta.json by name."""
    shutil.copytree(prepared / "corpora", "cache")
    return {name: read_meta(f"cache/corpus/{name}/meta.json") for name in registry.prepared()}


@pytest.fixture
def duplicates(registry: Registry, prepared: Path) -> Meta:
    shutil.copytree(prepared / "deduplicated", "cache")
    return read_meta("cache/duplicates/meta.json")


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return the output of a command that ends well."""
    assert main(arguments) == 0, capsys.readouterr().err
    output, errors = capsys.readouterr()
    assert not errors
    return output


def counts(text: str) -> dict[str, int]:
    """The counter report's rows."""
    rows = re.findall(r"^(\w+(?: \(when read\))?) +([\d,]+) +(?:(?:< )?[\d.]+%|-)(?: .*)?$", text, flags=re.MULTILINE)
    assert rows
    return {reason: int(count.replace(",", "")) for reason, count in rows}


def cleaned(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, int]:
    return counts(printed(capsys, "clean", *arguments, "--set", 'skip=["not_english", "language_error"]'))


# clean


def test_clean_counts_what_preparing_the_same_file_counts(corpora: dict[str, Meta], capsys: pytest.CaptureFixture[str]) -> None:
    expected = {"kept": 40, "list_page": 5, "too_short": 3}
    assert counts(printed(capsys, "clean", "notes.jsonl")) == expected
    assert {**corpora["notes"]["dropped"], "kept": corpora["notes"]["documents"]["kept"]} == expected


def test_clean_reads_every_kind_of_file_by_its_name(own_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second, third, fourth, fifth = articles(5)
    folder = own_folder / "mixed"
    (folder / "deeper").mkdir(parents=True)
    (folder / "one.txt").write_text(first)
    (folder / "deeper" / "two.MD").write_text(second)
    (folder / "three.jsonl.gz").write_bytes(gzip.compress(json.dumps({"text": third}).encode()))
    pq.write_table(pa.table({"text": [fourth, "short"]}), folder / "four.parquet")
    page = f"<page><title>Five</title><ns>0</ns><id>5</id><revision><id>1</id><text>{fifth}</text></revision></page>"
    (folder / "five.xml").write_text(f'<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/">{page}</mediawiki>')
    shutil.copyfile(folder / "five.xml", folder / "five.xml-p1p5")
    (folder / "picture.png").write_bytes(b"\x89PNG")
    assert cleaned(capsys, "mixed") == {"kept": 6, "too_short": 1}
    assert cleaned(capsys, "mixed/one.txt", "mixed/three.jsonl.gz") == {"kept": 2}
    assert cleaned(capsys, "mixed/*.parquet", "mixed/deeper") == {"kept": 2, "too_short": 1}


def test_clean_takes_thresholds_from_the_configuration_and_the_command_line(own_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_jsonl(own_folder / "notes.jsonl", TEXTS)
    skip = 'skip = ["not_english", "language_error"]'
    (own_folder / "niels_cache.toml").write_text(f"[cleaning]\n{skip}\n")
    assert counts(printed(capsys, "clean", "notes.jsonl")) == {"kept": 40, "list_page": 5, "too_short": 3}
    assert "list_page" not in counts(printed(capsys, "clean", "notes.jsonl", "--set", "max_bullet_share=1"))
    strict = counts(printed(capsys, "clean", "notes.jsonl", "--set", "min_words=100_000"))
    assert strict == {"kept": 0, "too_short": 48}


def test_clean_says_the_same_from_many_processes(
    own_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_jsonl(own_folder / "notes.jsonl", TEXTS * 8)
    alone = printed(capsys, "clean", "notes.jsonl", "-n", "50")
    monkeypatch.setattr(clean, "_MIN_BYTES_FOR_PROCESSES", 0)
    monkeypatch.setattr(clean, "available_threads", lambda: 2)
    assert printed(capsys, "clean", "notes.jsonl", "-n", "50") == alone


def test_clean_stops_at_its_limit_over_all_files(own_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_jsonl(own_folder / "a.jsonl", articles(30))
    (own_folder / "b.txt").write_text(articles(1)[0])
    for limit, kept in ((7, 7), (30, 30), (31, 31), (99, 31)):
        assert cleaned(capsys, "a.jsonl", "b.txt", "--limit", str(limit)) == {"kept": kept}


def test_examples_show_the_measured_value_and_cannot_drive_the_terminal(own_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_jsonl(own_folder / "notes.jsonl", TEXTS)
    shown = printed(capsys, "clean", "notes.jsonl", "-n", "9")
    assert [path.name for path in own_folder.rglob("*")] == ["notes.jsonl"], "it writes nothing"
    assert len(re.findall(r"^--- list_page 1: notes\.jsonl, row 4\d$", shown, flags=re.MULTILINE)) == 5
    assert "--- too_short 9: notes.jsonl, row 45\ntoo short\n" in shown
    assert "\x1b" not in shown
    assert "\x01" not in shown
    one_reason = printed(capsys, "clean", "notes.jsonl", "--reason", "list_page")
    assert one_reason.count("--- ") == one_reason.count("--- list_page ") == 3


def test_rows_that_cannot_be_read_titles_and_another_field(own_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    titles = ["Mercury (disambiguation)", "Mercury", 5]
    rows: list[object] = [{"title": title, "text": text, "body": "no"} for title, text in zip(titles, articles(3), strict=True)]
    rows += [{"text": None}, {"other": 1}]
    (own_folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    expected = {"kept": 2, "disambiguation": 1, "null_text (when read)": 1, "missing_text_field (when read)": 1}
    assert cleaned(capsys, "rows.jsonl") == expected
    assert "--- disambiguation: Mercury (disambiguation) (rows.jsonl, row 0)" in printed(capsys, "clean", "rows.jsonl", "-n", "1")
    assert cleaned(capsys, "rows.jsonl", "--text-field", "body")["too_short"] == 2
    (own_folder / "empty.jsonl").touch()
    assert printed(capsys, "clean", "empty.jsonl").startswith("0 documents read, 0 kept")


# clean --dropped


def test_what_was_dropped_has_counts_and_examples_of_every_reason(corpora: dict[str, Meta], capsys: pytest.CaptureFixture[str]) -> None:
    shown = printed(capsys, "clean", "--dropped", "notes")
    assert shown.startswith("notes: 48 documents read, 40 kept")
    assert counts(shown) == {"kept": 40, "list_page": 5, "too_short": 3}
    assert re.findall(r"^--- (\w+)", shown, flags=re.MULTILINE) == ["list_page"] * 3 + ["too_short"] * 3
    assert "--- " not in printed(capsys, "clean", "--dropped", "notes", "-n", "0")
    assert "--- " not in printed(capsys, "clean", "--dropped", "notes", "--reason", "redirect")
    one = printed(capsys, "clean", "--dropped", "notes", "--reason", "list_page", "-n", "20")
    assert sorted(re.findall(r"list (\d) to number 0$", one, flags=re.MULTILINE)) == ["0", "1", "2", "3", "4"]
    assert "--- too_short" not in one
    rows = [{"row": index} for index in range(50)]
    assert [row["row"] for row in evenly_spaced(rows, 5)] == [0, 10, 20, 30, 40], "over all that was kept of them"
    assert (evenly_spaced(rows, 99), evenly_spaced([], 3), evenly_spaced(rows, 0)) == (rows, [], [])


# sample --stage corpus


def test_sample_shows_documents_of_the_corpus_and_their_sizes(corpora: dict[str, Meta], capsys: pytest.CaptureFixture[str]) -> None:
    shown = printed(capsys, "sample", "notes", "--stage", "corpus", "-n", "5", "--seed", "3", "--tokens", "1_000")
    ordinals = [int(ordinal) for ordinal in re.findall(r"^--- (?:train|val) document (\d+), ", shown, flags=re.MULTILINE)]
    assert len(set(ordinals)) == 5
    assert all(TEXTS[ordinal] in shown for ordinal in ordinals)  # the first 40 are those that stay
    assert "duplicates" in shown, "they have not been looked for yet"
    assert printed(capsys, "sample", "notes", "--stage", "corpus", "-n", "5", "--seed", "3", "--tokens", "1_000") == shown
    mean = corpora["notes"]["characters"]["after"] / 40
    assert missing(shown, "40 documents ", f" {mean:,.0f} characters ") == []


def test_sample_leaves_duplicates_out(duplicates: Meta, capsys: pytest.CaptureFixture[str]) -> None:
    gone = {row["ordinal"] for row in pq.read_table("cache/duplicates/copies.parquet").to_pylist()}
    assert gone
    shown = printed(capsys, "sample", "copies", "--stage", "corpus", "-n", "99", "--seed", "3")
    ordinals = {int(ordinal) for ordinal in re.findall(r"^--- (?:train|val) document (\d+), ", shown, flags=re.MULTILINE)}
    assert ordinals == set(range(43)) - gone
    assert "duplicates" not in shown


# duplicates


def test_duplicates_shows_both_texts_with_their_similarity(duplicates: Meta, capsys: pytest.CaptureFixture[str]) -> None:
    near = [row for row in pq.read_table("cache/duplicates/copies.parquet").to_pylist() if row["kind"] == "near"]
    assert len(near) >= 8, "most of the twelve"
    shown = printed(capsys, "duplicates", "copies", "-n", "99", "--seed", "1")
    assert missing(shown, "copies: 43 documents", "1 as exact", f"{len(near)} as near") == []
    for row in near:
        assert f"near duplicate, similarity {row['similarity']:.3f}" in shown
        assert f"dropped: copies {row['split']} {row['ordinal']}, copies.jsonl, row {row['ordinal']}" in shown
        assert f"kept: notes {row['because_split']} {row['because_ordinal']}, notes.jsonl, row {row['because_ordinal']}" in shown
    assert shown.count("[[other0]]") == len(near), "the word that was changed, and it alone"
    assert "(--seed 1 " in shown
    assert printed(capsys, "duplicates", "copies", "-n", "99", "--seed", "1") == shown


def test_what_cleaning_and_duplicates_show_is_json_for_programs(duplicates: Meta, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [row for row in pq.read_table("cache/duplicates/copies.parquet").to_pylist() if row["kind"] == "near"]
    found = json.loads(printed(capsys, "duplicates", "copies", "-n", "99", "--json"))
    assert [pair["ordinal"] for pair in found["pairs"]] == [row["ordinal"] for row in rows]
    assert all(pair["document"]["text"] != pair["because"]["text"] for pair in found["pairs"])
    assert json.loads(printed(capsys, "duplicates", "--json"))["datasets"]["copies"] == found["counts"]
    corpus = json.loads(printed(capsys, "show", "copies", "--json"))["corpus"]
    assert corpus["duplicates"] == found["counts"]
    rejected = json.loads(printed(capsys, "clean", "--dropped", "notes", "--json", "-n", "1"))
    assert rejected["read"] == rejected["kept"] + sum(rejected["dropped"].values())
    assert {row["reason"] for row in rejected["examples"]} == set(rejected["dropped"])
    sampled = json.loads(printed(capsys, "sample", "copies", "--stage", "corpus", "-n", "2", "--json"))["samples"]
    assert [sorted(sample)[:2] for sample in sampled] == [["file", "ordinal"]] * 2
    cleaned = json.loads(printed(capsys, "clean", "notes.jsonl", "--json", "-n", "1"))
    assert cleaned["documents"] == {"read": rejected["read"], "kept": rejected["kept"]}


def test_the_page_of_a_document_lists_the_copies_that_were_dropped_for_it(registry: Registry, duplicates: Meta) -> None:
    metas = {name: read_meta(f"cache/corpus/{name}/meta.json") for name in registry.prepared()}
    (kept,) = documents_at(Path("cache"), [("notes", 0)], metas, ["source_id", "file", "row"]).values()
    shared: dict[str, Any] = {
        "dataset": "notes",
        "family": "pretrain",
        "directory": Path("cache/pretrain/notes"),
        "split": "train",
        "excerpt": "",
    }
    found, note = _dropped_for(registry, Path("cache"), Place(document=0, start=0, end=9, **shared, **kept))
    assert note == ""
    assert ("copies", "exact") in {(each["dataset"], each["kind"]) for each in found}
    assert all(each["source_id"] and each["because_ordinal"] == 0 for each in found)
    found, note = _dropped_for(registry, Path("cache"), Place(document=0, start=0, end=9, **shared, **{**kept, "source_id": None}))
    assert (found, note) == ([], "its data set has no corpus, so no list of dropped copies")


def test_why_explains_each_document_as_the_build_has_counted_it(duplicates: Meta, capsys: pytest.CaptureFixture[str]) -> None:
    def why(name: str, document: str) -> dict[str, Any]:
        return json.loads(printed(capsys, "why", name, document, "--json"))

    corpora = {name: pq.read_table(f"cache/corpus/{name}/documents_00000.parquet").to_pylist() for name in ("notes", "copies")}
    for row in pq.read_table("cache/duplicates/copies.parquet").to_pylist()[:4]:
        kept = corpora[row["because_dataset"]][row["because_ordinal"]]
        found = why("copies", corpora["copies"][row["ordinal"]]["source_id"])
        assert (found["reason"], found["because"]["source_id"]) == (f"{row['kind']}_duplicate", kept["source_id"])
        assert found["value"] == (row["similarity"] if row["kind"] == "near" else None)
    for row in pq.read_table("cache/corpus/notes/rejected.parquet").to_pylist():
        found = why("notes", row["source_id"])
        assert (found["reason"], found["value"], found["document"]["row"]) == (row["reason"], row["value"], row["row"])
    first = corpora["notes"][0]["source_id"]
    assert why("notes", first)["reason"] is None
    assert missing(printed(capsys, "why", "notes", first), "notes: ", "kept for ", TEXTS[0][:50]) == []
    assert main(["why", "notes", "absent"]) == 2
    assert missing(capsys.readouterr().err, "no document with the id 'absent'", "misspelled") == []


def test_without_a_name_all_data_sets_are_counted_in_the_order_in_which_they_win(
    duplicates: Meta, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = printed(capsys, "duplicates")
    rows = re.findall(r"^(\w+) +([\d,]+) +(\d+) +(\d+) +(\d+) +[\d.]+%$", shown, flags=re.MULTILINE)
    near = duplicates["datasets"]["copies"]["near"]
    least = sorted(row["similarity"] for row in pq.read_table("cache/duplicates/copies.parquet").to_pylist() if row["kind"] == "near")[:4]
    closest = printed(capsys, "duplicates", "copies", "--closest-call", "-n", "4")
    assert re.findall(r"similarity ([\d.]+)$", closest, flags=re.MULTILINE) == [f"{similarity:.3f}" for similarity in least]
    exact = printed(capsys, "duplicates", "copies", "--kind", "exact")
    assert (exact.count("--- exact duplicate\n"), "[[" in exact) == (1, False)
    assert rows == [("notes", "40", "0", "0", "40"), ("copies", "43", "1", str(near), str(42 - near))]
    assert "near: similarity 0.7 of word 5-grams, 14 bands of 9 rows" in shown


def test_duplicates_of_a_corpus_that_was_made_again_are_not_shown(
    registry: Registry, duplicates: Meta, capsys: pytest.CaptureFixture[str]
) -> None:
    write_jsonl(Path("notes.jsonl"), TEXTS[1:])
    prepare_corpus(load_registry(), "notes", root=Path("cache"), processes=1)
    for name in ("notes", "copies"):  # copies' own corpus is the same, but the texts beside it are not
        assert main(["duplicates", name, "--kind", "near" if name == "copies" else "exact"]) == 2
        assert missing(capsys.readouterr().err, "notes: ", "duplicates", "changed") == []


# status and show


def test_status_counts_what_is_left_of_each_corpus(registry: Registry, prepared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def left() -> dict[str, str]:
        main(["status"])
        rows = re.findall(r"^corpus/(\w+) +corpus +(\w+) +(.+?)  +-", capsys.readouterr().out, flags=re.MULTILINE)
        return {name: f"{count}, {state}" for name, state, count in rows if name != "duplicates"}

    assert left() == {"notes": "-, missing", "copies": "-, missing"}
    shutil.copytree(prepared / "corpora", "cache")
    assert left() == {"notes": "40 documents, complete", "copies": "43 documents, complete"}
    config = Path("niels_cache.toml")
    config.write_text(config.read_text().replace("[cleaning]\n", "[cleaning]\nmin_words = 51\n"))
    assert left()["notes"] == "40 documents, stale"
    Path("cache/corpus/notes/meta.json").write_text("{")
    assert left()["notes"] == "-, broken"


def test_show_has_the_stages_of_a_corpus_before_there_is_a_cache(duplicates: Meta, capsys: pytest.CaptureFixture[str]) -> None:
    shown = printed(capsys, "show", "copies")
    near = duplicates["datasets"]["copies"]["near"]
    stages = re.findall(r"^(read|cleaned|without \w+ duplicates) +(\d+) ", shown, flags=re.MULTILINE)
    assert stages == [("read", "43"), ("cleaned", "43"), ("without exact duplicates", "42"), ("without near duplicates", str(42 - near))]
    assert "documents_00000.parquet" in shown
    assert read_meta("cache/corpus/copies/meta.json")["content_sha256"] in shown


# mistakes


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["clean", "none.jsonl"], ("none.jsonl: ", "no such file")),
        (["clean", "notes.docx"], ("notes.docx: ", "its name")),
        (["clean", "nothing"], ("nothing: ", "no file", ".txt")),
        (["clean", "cut.jsonl.gz"], ("cut.jsonl.gz: damaged",)),
        (["clean", "notes.jsonl", "--text-field", "body"], ("body",)),
        (["clean", "notes.jsonl", "--reason", "listpage"], ("did you mean 'list_page'?",)),
        (["clean", "notes.jsonl", "--set", "min_wrds=3"], ("did you mean 'min_words'?",)),
        (["clean", "notes.jsonl", "--set", "min_words=many"], ('min_words = "many": ', "whole number", "--set min_words=50\n")),
        (["clean", "notes.jsonl", "--set", "min_words"], ("is not KEY=VALUE",)),
        (["clean", "notes.jsonl", "--limit", "0"], ("--limit", "at least 1")),
        (["clean", "notes.jsonl", "-n", "-1"], ("-n", "at least 0")),
        (["clean", "--dropped"], ("--dropped",)),
        (["clean", "--dropped", "notse"], ("did you mean 'notes'?",)),
        (["clean", "--dropped", "python_docs"], ("has no corpus", 'prepare = ["clean", "dedup"]')),
        (["clean", "--dropped", "python_help"], ("python_help: ", "SFT")),
        (["clean", "--dropped", "copies"], ("no corpus yet", "niels-cache build-all --only copies")),
        (["clean", "--dropped", "notes", "--reason", "to_short"], ("did you mean 'too_short'?",)),
        (["sample", "notes", "--stage", "corpus", "--split", "val"], ("--split", "corpus")),
        (["sample", "copies", "--stage", "corpus"], ("no corpus yet",)),
        (["duplicates", "notes"], ("duplicates", "drop lists")),
        (["duplicates", "copies"], ("no corpus yet",)),
        (["duplicates", "notes", "-n", "0"], ("-n", "at least 1")),
        (["duplicates", "notes", "--seed", "-1"], ("--seed", "from 0 to")),
    ],
)
def test_a_mistake_is_one_line_with_the_way_out(
    arguments: list[str], expected: tuple[str, ...], corpora: dict[str, Meta], own_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree("cache/corpus/copies")
    (own_folder / "notes.docx").touch()
    (own_folder / "nothing").mkdir()
    (own_folder / "cut.jsonl.gz").write_bytes(gzip.compress(json.dumps({"text": articles(1)[0]}).encode())[:-20])
    assert main(arguments) == 2
    output, errors = capsys.readouterr()
    assert missing(errors, *expected) == []
    assert errors.startswith("niels-cache: error: ")
    assert errors.count("\n") == 1
    assert not output


# side by side

words = st.text(alphabet="ab", min_size=1, max_size=3)
texts = st.lists(words, max_size=30).map(" ".join)


@given(left=texts, right=texts)
@example(left="a " * 13 + "b", right="a " * 13 + "ab")
def test_marks_are_all_that_is_added_and_unmarked_words_are_shared(left: str, right: str) -> None:
    ours, theirs = mark_differences(left, right, characters=1_000)
    for shown, text in ((ours.plain, left), (theirs.plain, right)):
        bare = re.sub(r"\[\[|\]\]", "", shown)
        assert bare == text or (bare.startswith("… ") and text.endswith(bare[2:]))
    shared = [re.sub(r"\[\[.*?\]\] ?", "", shown.plain).split() for shown in (ours, theirs)]
    assert shared[0] == shared[1]


def test_what_is_shown_is_cut_harmless_and_begins_shortly_before_the_first_difference() -> None:
    assert [excerpt("a\n\n\n  \nb", 100), excerpt("one two three", 7), excerpt("\x1b[2J", 100)] == ["a\n\nb", "one two …", "\\x1b[2J"]
    common = [f"common{index}" for index in range(500)]
    left, right = mark_differences(" ".join([*common, "cat", "end"]), " ".join([*common, "dog", "end"]), characters=1_000)
    assert left.plain == "… " + " ".join(common[-12:]) + " [[cat]] end"
    assert right.plain == "… " + " ".join(common[-12:]) + " [[dog]] end"


# the page


def test_the_page_about_cleaning_is_up_to_date() -> None:
    page = runpy.run_path(str(REPOSITORY / "docs" / "cleaning.py"))["page"]
    text = (REPOSITORY / "docs" / "cleaning.md").read_text(encoding="utf-8")
    assert page(text) == text, "run python docs/cleaning.py"
