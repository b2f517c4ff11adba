"""The cleaning chain and its report. No text crashes the chain, everything is counted, and examples do not depend on chunks. The rules are
also tested on real documents.
"""

import bz2
import gzip
import hashlib
import json
import os
import tracemalloc
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator
from itertools import islice, pairwise
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from niels_cache_assets.base.documents import Document, DocumentBatch
from niels_cache_assets.cleaning.report import EXAMPLES, EXCERPT_CHARACTERS, CleaningReport, RejectedDocument
from niels_cache_assets.cleaning.settings import REASONS, CleaningSettings
from niels_cache_assets.corpus.chunks import ChunkWork, CorpusChunk
from niels_cache_assets.corpus.layout import REJECTED
from niels_cache_assets.sources.jsonl import Jsonl
from niels_cache_assets.sources.types import PretrainSource
from niels_cache_cleaning.chain import Cleaner
from niels_cache_corpora.wikipedia.source import Wikipedia
from tests.golden import Golden
from tests.helpers.depth import cases, sized

PROSE = (
    "The river rises in the hills to the north of the town and flows past several villages before it reaches the sea. "
    "People have lived along its banks since the last ice age, and many of their tools can be seen in a small museum. "
    "In summer the water is low enough to be crossed on foot; floods come with the melting snow, and have carried away bridges. "
    "Mills, which used to grind corn for most of the county, stand idle now that nobody needs them."
)
CLEANER = Cleaner(CleaningSettings())


def documents(count: int) -> list[Document]:
    """Return documents. Every third is kept, and the others are dropped for two different reasons."""
    texts = (PROSE, "short", "* the end of a list\n" * 100)
    return [Document(f"{texts[number % 3]} {number}", f"id{number}", "file", number, f"Title {number}") for number in range(count)]


def report_of(given: list[Document], first: int = 0, seed: int = 42) -> CleaningReport:
    report = CleaningReport(seed, first)
    for document in given:
        CLEANER.clean(document, report)
    return report


def test_a_document_that_stays_keeps_everything_but_its_markup() -> None:
    document = Document(f"<p>{PROSE}</p>\n[[File:a.png]]", "id", "folder/file", 7, "River & sea", "val")
    assert CLEANER.clean(document) == document._replace(text=PROSE)


def test_normalizers_that_are_skipped_do_not_run() -> None:
    code = "\n".join(f"def of_{number}(that):\n    return '<b>the</b>' {{{{x}}}} == [[{number}]]" for number in range(30))
    kept = Cleaner(CleaningSettings(skip=("tags", "templates", "links", "blanks", "repetitive", "no_stopwords", "low_alpha_ratio")))
    assert kept.clean(Document(code + "\0")) == Document(code + " ")
    assert isinstance(kept.clean(Document(" \n\0 \n")), RejectedDocument)


def test_what_a_source_has_made_plain_text_of_is_not_searched_for_markup(tmp_path: Path) -> None:
    shown = "if [[ $a == b ]]; then echo '{{x}} &lt; <b>'; fi"
    page = f"{PROSE} {{{{stub}}}} [[Town|towns]]\n<syntaxhighlight lang='bash'>{shown}</syntaxhighlight>"
    (tmp_path / "dump.xml.bz2").write_bytes(bz2.compress(b"<mediawiki></mediawiki>"))

    def cleaned(source: PretrainSource) -> str:
        work = ChunkWork(source=source, seed=1, cleaning=CleaningSettings(), signer=None)
        chunk = CorpusChunk(0, DocumentBatch.of([Document(page, file="dump.xml.bz2")]))
        done = work(chunk)
        (row,) = done.rows(chunk)
        assert done.counts.report.kept == 1
        return row.text

    from_dump, from_rows = cleaned(Wikipedia(files=[str(tmp_path / "*")])), cleaned(Jsonl(files=["rows.jsonl"]))
    assert from_dump.startswith(PROSE + " towns")
    assert from_dump.endswith(shown)
    assert "{{x}}" not in from_rows
    assert Cleaner(CleaningSettings(), plain_text=True).clean(Document(f"  {PROSE}\0  {shown}")) == Document(f"{PROSE} {shown}")


def test_a_document_that_goes_is_given_as_it_was_normalized_with_what_was_measured() -> None:
    assert CLEANER.clean(Document("{{stub}} Too  short.", "id")) == RejectedDocument(Document("Too short.", "id"), "too_short", 10.0)


def test_names_can_be_written_whatever_was_in_them() -> None:
    result = CLEANER.clean(Document(PROSE, "i\0d", "fi\udcffle", 0, "Ti\ud800tle"))
    assert result == Document(PROSE, "i d", "fi\ufffdle", 0, "Ti\ufffdtle")


@pytest.mark.parametrize("compiled", [False, True])
def test_a_long_document_takes_a_few_times_its_memory(compiled: bool) -> None:
    text = (PROSE + "\n") * 15_000
    assert len(text) > 6_000_000
    document = Document("{{stub}}" + text)
    cleaner = Cleaner(CleaningSettings(skip=("repetitive",)), compiled=compiled)
    cleaner.clean(Document(PROSE))  # loads numba
    tracemalloc.start()
    result = cleaner.clean(document)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert result == Document(text.strip())
    assert peak < 6 * len(text)


WORDS = st.sampled_from([*PROSE.split(), "\n\n", "* ", "#", "{{a|", "}}", "&amp;", "\ud800", "\0"]) | st.text(max_size=3)
TEXTS = sized(WORDS, 120).map(" ".join) | st.text(alphabet=st.characters(), max_size=400)


@given(text=TEXTS, title=st.none() | st.text(alphabet=st.characters()))
@example(text=PROSE, title=None)
def test_no_document_crashes_the_chain_and_each_is_counted_once(text: str, title: str | None) -> None:
    report = CleaningReport(1)
    result = Cleaner(CleaningSettings(skip=("too_short",))).clean(Document(text, title=title), report)
    assert report.documents == report.kept + report.dropped.total() == 1
    kept = result if isinstance(result, Document) else result.document
    json.dumps(kept, ensure_ascii=False).encode("utf-8")
    if isinstance(result, RejectedDocument):
        assert result.reason in REASONS
        assert report.dropped == {result.reason: 1}


def test_reasons_and_languages_are_counted() -> None:
    report = report_of(documents(300))
    assert (report.documents, report.kept) == (300, 100)
    assert report.dropped == {"too_short": 100, "list_page": 100}
    assert report.languages == {"en": 200}  # those that are too short went before they were asked
    german = Document(("Der Fluss entspringt in den Hügeln und fließt an Dörfern vorbei, bevor er das Meer erreicht. " * 8) + "the of")
    lenient = Cleaner(CleaningSettings(skip=("repetitive",)))
    lenient.clean(german, report)
    lenient.clean(Document("of the " + " ".join("ᚠᚢᚦᚨ" + chr(0x16A0 + number % 75) for number in range(200))), report)
    assert report.languages["de"] == 1
    assert report.dropped["not_english"] == 1
    assert report.languages["und"] == 1
    assert report.dropped["language_error"] == 1


def test_fifty_examples_of_each_reason_are_kept_with_all_columns() -> None:
    report = report_of(documents(600))
    rows = report.rows()
    assert Counter(row["reason"] for row in rows) == {"too_short": EXAMPLES, "list_page": EXAMPLES}
    assert [row["reason"] for row in rows] == ["too_short"] * EXAMPLES + ["list_page"] * EXAMPLES  # in the order of the filters
    for row in rows:
        assert set(row) == set(REJECTED)
        assert row["title"] == f"Title {row['row']}"
        assert row["source_id"] == f"id{row['row']}"
        assert 0 < len(row["excerpt"]) <= EXCERPT_CHARACTERS
    in_input_order = [row["row"] for row in rows if row["reason"] == "too_short"]
    assert in_input_order == sorted(in_input_order)
    assert len(set(in_input_order)) == EXAMPLES


@given(cuts=st.lists(st.integers(0, 200), max_size=8), seed=st.integers(0, 2**63 - 1))
@cases(8)
def test_reports_of_chunks_merge_into_the_report_of_the_whole(cuts: list[int], seed: int) -> None:
    given_documents = documents(200)
    whole = report_of(given_documents, seed=seed)
    merged = CleaningReport(seed)
    bounds = [0, *sorted(cuts), 200]
    for start, end in pairwise(bounds):
        merged.merge(report_of(given_documents[start:end], start, seed))
    assert merged.rows() == whole.rows()
    assert len(merged.rows()) == 2 * EXAMPLES
    assert vars(merged).keys() == vars(whole).keys()
    for name in ("documents", "kept", "dropped", "languages"):
        assert getattr(merged, name) == getattr(whole, name)


def test_examples_are_drawn_evenly_and_another_seed_draws_others() -> None:
    rejected = [RejectedDocument(Document("x", row=number), "too_short", 1.0) for number in range(500)]
    drawn: Counter[int] = Counter()
    samples = []
    for seed in range(200):
        report = CleaningReport(seed)
        for result in rejected:
            report.add(result)
        samples.append(tuple(row["row"] for row in report.rows()))
        drawn.update(samples[-1])
    assert len(set(samples)) == 200
    # 200 draws of 50 out of 500: 20 each, standard deviation 4.2
    assert max(abs(drawn[number] - 20) for number in range(500)) < 5 * 4.3


DATA = Path(os.environ.get("NIELS_CACHE_REAL_DATA", "/nonexistent"))
MEDIAWIKI = "{http://www.mediawiki.org/xml/export-0.10/}"


def json_rows(path: Path) -> Iterator[Document]:
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            yield Document(row["text"], title=row.get("title"))


def pages_as_written(path: Path) -> Iterator[Document]:
    """Pages of a dump with all their wikitext: the hardest input that normalizers can get."""
    with bz2.open(path) as file:
        for _, element in ElementTree.iterparse(file):
            if element.tag == f"{MEDIAWIKI}page":
                text = element.findtext(f"{MEDIAWIKI}revision/{MEDIAWIKI}text") or ""
                yield Document(text, title=element.findtext(f"{MEDIAWIKI}title"))
                element.clear()


SAMPLES = {  # every how many documents are cleaned, and the reasons that must be among those found
    "wikipedia/enwiki_extracted_dev.jsonl": (2, {"disambiguation"}),
    "wikipedia/enwiki_pages_dev.xml.bz2": (3, {"redirect", "disambiguation"}),
    "bulk/debian_docs_dev.jsonl.gz": (90, {"too_short", "low_alpha_ratio", "list_page", "repetitive"}),
    "web_fineweb/fineweb_rows.jsonl": (1, set()),
}


@pytest.mark.real_data
@pytest.mark.skipif("NIELS_CACHE_REAL_DATA" not in os.environ, reason="NIELS_CACHE_REAL_DATA does not name the folder of real samples")
def test_reasons_and_texts_of_real_documents(golden: Golden) -> None:
    """What cleaning makes of a document decides the bytes of a cache."""
    found = {}
    for name, (every, expected) in SAMPLES.items():
        read = pages_as_written if name.endswith(".bz2") else json_rows
        results = [CLEANER.clean(document) for document in islice(read(DATA / name), 0, None, every)]
        reasons = Counter(result.reason if isinstance(result, RejectedDocument) else "kept" for result in results)
        assert {"kept", *expected} <= reasons.keys()
        texts = [(result.document if isinstance(result, RejectedDocument) else result).text for result in results]
        found[name] = {"reasons": reasons, "texts": hashlib.sha256(json.dumps(texts).encode()).hexdigest()}
    golden.hold("cleaning", found, libraries=("langdetect-rs",))
