"""Cuts of repeated lines in data sets: found over all of them, applied in caches, counted, explained, and stale with a reason."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from niels_cache_assets.artifacts.corpus_report import corpus_report
from niels_cache_assets.artifacts.graph import graph
from niels_cache_assets.artifacts.materialize import materialize
from niels_cache_assets.artifacts.prepared_corpora import open_prepared
from niels_cache_assets.artifacts.repeats import Repeats
from niels_cache_assets.base.fingerprint import Identity
from niels_cache_assets.cli import main
from niels_cache_assets.facts.progress import SpeedMeter, describe
from niels_cache_assets.inspection.corpora import cut_counts
from niels_cache_assets.project.registry import Registry
from niels_cache_repeats.cuts import cut_text
from niels_cache_repeats.shown import find_cuts, most_cut
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.verify import verify_cache
from tests.helpers.builds import build_dataset, build_tokenizer, prepare_corpus
from tests.helpers.corpora import corpus_registry, write_jsonl
from tests.repeats.test_lines import FOOT, PROSE

NAMES = ("a", "b", "c", "d", "e")
LINES = 'prepare = ["lines"]\nval_frac = 0.3\n'


def five_data_sets(folder: Path, model: Path, *, settings: str = "", table: str = LINES) -> Registry:
    """Five data sets of three pages, each with a planted line. In the last data set, one document is only this line."""
    texts = {name: [f"{PROSE.format(row, name)}\n{FOOT}\n{PROSE.format(row, name + name)}" for row in range(3)] for name in NAMES}
    texts["e"].append(f"\n{FOOT}\n \t")
    return corpus_registry(folder, texts, settings=f'[tokenizer]\nmodel = "{model}"\n[build]\nthreads = 1\n{settings}', table=table)


def search(registry: Registry, root: Path, **how: Any) -> Repeats:
    for name in registry.prepared():
        prepare_corpus(registry, name, root=root, processes=1)
    materialize(graph(registry, root).repeats("lines"), notify=False, **how)
    return graph(registry, root).repeats("lines")


def texts_of(registry: Registry, root: Path) -> dict[str, list[tuple[str | None, str]]]:
    prepared = {name: open_prepared(registry, name, root=root).documents() for name in NAMES}
    return {name: [(each.split, each.text) for batch in batches for each in batch] for name, batches in prepared.items()}


def test_a_planted_line_stays_only_in_the_first_document_of_val(tmp_path: Path, tiny_model: Path) -> None:
    registry = five_data_sets(tmp_path, tiny_model)
    search(registry, tmp_path)
    found = texts_of(registry, tmp_path)
    assert [(name, split) for name in NAMES for split, text in found[name] if FOOT in text] == [("a", "val")]
    assert {name: len(texts) for name, texts in found.items()} == dict.fromkeys(NAMES, 3)
    last = open_prepared(registry, "e", root=tmp_path)
    assert (last.kept, last.dropped["only_repeats"]) == (3, 1)
    assert [len(document.text.split("\n")) for document in last.select(np.flatnonzero(~last.is_dropped))] == [2, 2, 2]
    counts = last.cuts[0].counts
    assert (counts["cut_documents"], counts["emptied"], counts["cuts"]) == (4, 1, {"line": 4, "paragraph": 0})
    assert counts["bytes"] == 3 * (len(FOOT) + 1) + len(f"\n{FOOT}\n \t")  # also the white space of the emptied document
    assert {(pair["because_dataset"], pair["because_split"]) for pair in counts["pairs"]} == {("a", "val")}


def test_the_search_reports_progress_that_can_be_shown(tmp_path: Path, tiny_model: Path) -> None:
    shown, meter = list[str](), SpeedMeter()
    search(
        five_data_sets(tmp_path, tiny_model),
        tmp_path,
        on_progress=lambda progress: shown.append(describe(progress, meter.estimate(progress, len(shown)), with_share=True)),
    )
    assert [line.partition(",")[0] for line in (shown[0], shown[-1])] == ["10%", "100%"]
    assert shown[-1].startswith("100%, 16 documents")


def test_commands_have_the_cuts(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    registry, root = five_data_sets(tmp_path, tiny_model), tmp_path / "cache"
    search(registry, root)
    last = corpus_report(registry, "e", root=root)["funnel"][-1]
    assert (last["stage"], last["documents"]) == ("without repeated lines", 3)
    assert main(["show", "e"]) == 0
    assert re.search(r"without repeated lines +3 ", capsys.readouterr().out)
    for arguments, named in (
        (["--document", "e-1"], "--document"),
        (["e", "--document", "e-1"], "--document"),
        (["e", "--cuts", "lines", "--kind", "near"], "--kind"),
        (["--cuts", "spans"], 'prepare = [..., "spans"]'),
    ):
        assert main(["duplicates", *arguments]) == 2
        assert named in capsys.readouterr().err
    assert cut_counts(five_data_sets(tmp_path, tiny_model, settings="[lines]\nmax_copies = 9"), root, "e") == {}


def test_ranges_and_row_groups_change_no_byte(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = five_data_sets(tmp_path, tiny_model)
    first = search(registry, tmp_path).finished()
    assert first is not None
    monkeypatch.setattr("niels_cache_repeats.search._ROWS_PER_GROUP", 2)
    monkeypatch.setattr("niels_cache_repeats.lines._SEGMENT_BYTES", 300)
    monkeypatch.setattr("niels_cache_repeats.lines._BUFFER_BYTES", 100)
    ranged = five_data_sets(tmp_path, tiny_model, settings="[lines]\nranges = 3")
    before = texts_of(registry, tmp_path)
    assert materialize(graph(ranged, tmp_path).repeats("lines"), notify=False).state == "cache_hit"
    again = materialize(graph(ranged, tmp_path).repeats("lines"), force=True, notify=False).meta
    assert again["datasets"] == first["datasets"]
    assert again["fingerprint"] == first["fingerprint"]
    assert pq.ParquetFile(tmp_path / "repeats" / "lines" / "e.parquet").num_row_groups == 2
    assert texts_of(ranged, tmp_path) == before


def test_a_cache_has_the_cuts_in_its_lineage_and_is_stale_when_they_change(tmp_path: Path, tiny_model: Path) -> None:
    registry = five_data_sets(tmp_path, tiny_model)
    build_tokenizer(registry, root=tmp_path)
    search(registry, tmp_path)
    outcome = build_dataset(registry, "b", root=tmp_path)
    assert outcome.meta["keep"] == ["lines_cut", "lines_cut_bytes"]
    kept = pq.read_table(outcome.directory / "train_documents.parquet")["kept"].to_pylist()
    assert [json.loads(each) for each in kept] == [{"lines_cut": 1, "lines_cut_bytes": len(FOOT) + 1}] * 2
    assert not verify_cache(tmp_path)
    changed = five_data_sets(tmp_path, tiny_model, settings="[lines]\nmax_copies = 20")
    assert graph(changed, tmp_path).state("repeats/lines").state == "other settings"
    with pytest.raises(NielsCacheError, match="max_copies"):
        open_prepared(changed, "b", root=tmp_path)
    search(changed, tmp_path)
    state = graph(changed, tmp_path).state("pretrain/b")
    assert state.needs_build
    assert [FOOT in text for _, text in texts_of(changed, tmp_path)["b"]] == [True] * 3


def test_searches_are_checked_once_for_all_data_sets(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = five_data_sets(tmp_path, tiny_model, table='prepare = ["lines", "spans"]\nval_frac = 0.3\n')
    search(registry, tmp_path)
    materialize(graph(registry, tmp_path).repeats("spans"), notify=False)
    checked, identity = list[str](), Repeats.identity

    def counted(self: Repeats, revision: str | None = None) -> Identity:
        checked.append(self.step)
        return identity(self, revision)

    monkeypatch.setattr(Repeats, "identity", counted)
    assert len(open_prepared(registry, "e", root=tmp_path).cuts) == 2
    assert sorted(checked) == ["lines", "lines", "spans"]  # lines for this data set, and for all those that spans were searched in


def test_cuts_that_are_replaced_while_a_data_set_is_read_are_an_error(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("niels_cache_assets.streaming.encode._CHUNK_ITEMS", 1)
    monkeypatch.setattr("niels_cache_assets.corpus.store.TEXT_BYTES_PER_GROUP", 1)
    monkeypatch.setattr("niels_cache_repeats.search._ROWS_PER_GROUP", 1)
    registry = five_data_sets(tmp_path, tiny_model)
    search(registry, tmp_path)
    opened, begun = (open_prepared(registry, "b", root=tmp_path) for _ in range(2))
    whole = [document.text for batch in open_prepared(registry, "b", root=tmp_path).documents() for document in batch]
    documents = begun.documents()
    assert [document.text for document in next(documents)] == whole[:1]
    search(five_data_sets(tmp_path, tiny_model, settings="[lines]\nmax_copies = 20"), tmp_path)
    for read in (lambda: list(documents), lambda: list(opened.documents()), lambda: opened.select(np.array([2]))):
        with pytest.raises(NielsCacheError, match=r"repeats/lines: was replaced .*run this again"):
            read()


def test_a_corpus_that_is_replaced_during_the_search_is_an_error_and_the_last_cuts_stay(tmp_path: Path, tiny_model: Path) -> None:
    registry = five_data_sets(tmp_path, tiny_model)
    last = search(registry, tmp_path).finished()

    def replace_corpus(_: Any) -> None:
        write_jsonl(tmp_path / "d.jsonl", [PROSE.format(9, "d")])
        prepare_corpus(registry, "d", root=tmp_path, processes=1)

    changed = five_data_sets(tmp_path, tiny_model, settings="[lines]\nmax_copies = 2")
    with pytest.raises(NielsCacheError, match=r"corpus/d: .* replaced .*run this again"):
        search(changed, tmp_path, on_progress=replace_corpus)
    assert graph(registry, tmp_path).repeats("lines").finished() == last
    assert search(changed, tmp_path).finished() != last


def test_cuts_are_explained_beside_the_copy_that_stays(tmp_path: Path, tiny_model: Path) -> None:
    registry = five_data_sets(tmp_path, tiny_model)
    search(registry, tmp_path)
    (cut,) = find_cuts(registry, tmp_path, "c", "lines", count=1, seed=0, document="c-1")["cuts"]
    assert (cut["text"], cut["because_text"].strip(), cut["because_dataset"], cut["because_split"]) == (f"{FOOT}\n", FOOT, "a", "val")
    assert cut["before"].endswith("it is long.\n")
    assert cut["source_id"] == "c-1"
    assert len(find_cuts(registry, tmp_path, "e", "lines", count=3, seed=0)["cuts"]) == 3
    with pytest.raises(NielsCacheError, match="c-7"):
        find_cuts(registry, tmp_path, "c", "lines", count=1, seed=0, document="c-7")
    meta = graph(registry, tmp_path).repeats("lines").finished()
    assert meta is not None
    assert most_cut(tmp_path, "lines", meta) == [("cut 15 times; stays in a val 0", FOOT)]
    write_jsonl(tmp_path / "a.jsonl", ["another text"])
    prepare_corpus(registry, "a", root=tmp_path, processes=1)
    assert most_cut(tmp_path, "lines", meta) == []


def test_without_lines_nothing_changes_and_with_them_the_corpus_stays(tmp_path: Path, tiny_model: Path) -> None:
    plain = five_data_sets(tmp_path, tiny_model, table='prepare = ["dedup"]\nval_frac = 0.3\n')
    assert "repeats/lines" not in graph(plain, tmp_path).keys
    built = prepare_corpus(plain, "a", root=tmp_path, processes=1)
    assert "cuts" not in open_prepared(plain, "a", root=tmp_path, minus_duplicates=False).identity()
    lined = five_data_sets(tmp_path, tiny_model, table='prepare = ["dedup", "lines"]\nval_frac = 0.3\n')
    assert prepare_corpus(lined, "a", root=tmp_path, processes=1).state == "cache_hit"
    assert built.meta["prepare"] == ["dedup"]
    materialize(graph(lined, tmp_path).duplicates(), notify=False)
    with pytest.raises(NielsCacheError, match="corpus/lines"):
        open_prepared(lined, "a", root=tmp_path)


@pytest.mark.parametrize("prepare", [("lines", "lines"), ("dedup", "lines"), ("dedup", "spans"), ("lines", "spans")])
def test_a_mixture_is_not_compared_with_its_members(tmp_path: Path, prepare: tuple[str, str]) -> None:
    mixture = f'[pretrain.mix]\nsource = "interleave"\nmembers = {{ a = 1.0 }}\nprepare = ["{prepare[0]}"]'
    with pytest.raises(NielsCacheError, match="mix and its member a"):
        corpus_registry(tmp_path, {"a": ["text"]}, settings=mixture, table=f'prepare = ["{prepare[1]}"]\n')


@pytest.mark.parametrize(("starts", "ends"), [([1], [2]), ([0], [9]), ([4, 2], [5, 3]), ([0, 2], [3, 4])])
def test_places_that_do_not_fit_a_text_are_refused(starts: list[int], ends: list[int]) -> None:
    assert cut_text("éabc", [0, 3], [2, 4]) == "ac"
    with pytest.raises(ValueError, match=r"places|utf-8"):
        cut_text("éabc", starts, ends)
