"""`niels-cache account`: sums, values, what runs have read, and the files. A root with two pretrain data sets and chats is built once."""

import csv
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import torch

from niels_cache_assets.base.documents import Document
from niels_cache_assets.build_cache.base import Provenance
from niels_cache_assets.build_cache.pretrain import PretrainBuild
from niels_cache_assets.cli import main
from niels_cache_assets.tokenizer.kinds import SentencePieceTokenizer
from niels_cache_inspection.account.croissant import describe_local
from niels_cache_inspection.account.dimensions import UNKNOWN, Dimensions
from niels_cache_inspection.account.domains import Domains
from niels_cache_inspection.account.ledger import make_ledger
from niels_cache_inspection.account.output import write_file
from niels_cache_inspection.account.runs import runs_of, samples_read
from niels_cache_inspection.account.splits import AccountedCache, PlannedSplit
from niels_cache_inspection.account.tables import COLUMNS, INDEX, NO_DOCUMENT, POSITIONS, no_figures
from niels_cache_runtime import SFT, BestFit
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import IGNORE_INDEX, META_NAME, SPLITS, documents_name
from niels_cache_runtime.format.meta import read_meta, sha256_file
from niels_cache_runtime.loader.loader import TokenLoader
from niels_cache_runtime.loader.packing.fim import FIM
from niels_cache_runtime.loader.phases import Phase, PhasedLoader
from niels_cache_runtime.loader.preference.batch import make_maker
from niels_cache_runtime.loader.steps import BatchSizes, Position
from tests.helpers import olmo_env
from tests.helpers.messages import missing
from tests.helpers.tiny import sentences
from tests.helpers.traced_root import build_chats, put_tokenizer

T = 24
TEXTS = [" ".join(sentences(1 + number % 3, seed=number % 30, words=4)) for number in range(40)]  # ten texts are there twice
KEPT: list[dict[str, Any]] = [
    {"url": "https://www.a.co.uk/1", "license": "MIT", "language": "en", "date": "2019-04-21T18:54:04Z"},
    {"url": "http://b.a.co.uk:80/x?y", "license": ["MIT", "Apache-2.0"], "language": "de", "date": 2021},
    {"url": None, "license": "", "language": None, "date": "long ago"},
]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, tokenizer: SentencePieceTokenizer) -> Path:
    root = tmp_path_factory.mktemp("account") / "cache"
    put_tokenizer(root, tokenizer)
    for name, texts, kept in (("web", TEXTS, KEPT), ("notes", TEXTS[:6], None)):
        documents = [
            Document(text, source_id=f"{name}-{row}", file="a.jsonl", row=row, kept=None if kept is None else json.dumps(kept[row % 3]))
            for row, text in enumerate(texts)
        ]
        PretrainBuild(
            items=documents,
            out_dir=str(root / "pretrain" / name),
            tokenizer=tokenizer,
            max_train_tokens=100_000,
            max_val_tokens=60 if kept else 0,
            shard_bytes=256,
            seed=1,
            shuffle_buffer=None,
            provenance=Provenance(dataset_name=name),
            keep=() if kept is None else ("url", "license", "language", "date"),
        ).build(None)
    build_chats(root, tokenizer, sentences(30, seed=9))
    return root


def caches(root: Path) -> list[AccountedCache]:
    return [AccountedCache.open(root / place) for place in ("pretrain/web", "pretrain/notes", "sft/chats")]


def save(loader: Any, path: Path, steps: int) -> Path:
    path.write_text(json.dumps(loader.state_dict(steps=steps)), encoding="utf-8")
    return path


def open_blend(root: Path, **changes: Any) -> TokenLoader:
    sources = {name: str(root / f"pretrain/{name}/train") for name in ("web", "notes")}
    return TokenLoader(sources, **{"T": T, "B": 3, "seed": 4, "weights": {"web": 1, "notes": 2}, **changes})


def counted_by_hand(loader: TokenLoader, steps: int, special: Mapping[str, Sequence[int]]) -> dict[str, np.ndarray]:
    """Count every token of the batches of a run, by source, from its trace. The last row of each source has what is in no document."""
    found: dict[str, Any] = {name: [no_figures()[0] for _ in range(200)] for name in loader.names}
    seen: set[tuple[str, int, int]] = set()
    maker = make_maker(loader._sources, loader._settings, torch.device("cpu"))
    for step in range(steps):
        trace: Any = loader.trace(step)
        batch: Any = maker.make(loader._run_order.locate(trace.samples))
        for row, column in np.ndindex(len(trace.tokens), T):
            origin, following = trace.token(row, column), trace.token(row, column + 1)
            figures, place = found[origin.dataset], (origin.dataset, origin.document, origin.document_offset)
            if origin.document is None:
                kind = "padding"
            elif origin.is_sentinel:
                kind = "fim"
            elif origin.token in special[origin.dataset]:
                kind = "special"
            else:
                kind = "repeats" if place in seen else "unique"
                seen.add(place)
            figures[-1 if origin.document is None else origin.document][INDEX[kind]] += 1
            is_masked = batch.y_masked is not None and batch.y_masked[row, column] == IGNORE_INDEX
            figures[-1 if following.document is None else following.document][INDEX["masked" if is_masked else "targets"]] += 1
    return {name: np.array(figures) for name, figures in found.items()}


WAYS: dict[str, dict[str, Any]] = {
    "windows": {"mask_cross_document_targets": True},
    "stride": {"stride": 17, "loss_weights": {"notes": 0}},
    "goldfish": {"goldfish": (3, 4)},
    "packed": {"packing": "best_fit"},
    "fim": {"packing": BestFit(pad_documents_to=4), "fim": FIM(rate=1, pre=5, suf=6, mid=7)},
}


@pytest.mark.parametrize("way", [*WAYS, "sft"])
def test_every_token_that_was_read_is_counted_as_the_trace_says(root: Path, tmp_path: Path, way: str) -> None:
    if way == "sft":
        loader = TokenLoader(str(root / "sft/chats/train"), T=T, B=3, seed=4, sft=SFT(loss_on="assistant"))
    else:
        loader = open_blend(root, **WAYS[way])
    ledger = make_ledger(caches(root), runs_of([save(loader, tmp_path / "state.json", 12)], {}), Dimensions())
    of_caches = {cache.name or "chats": cache for cache in caches(root)}
    special = {name: of_caches[Path(loader._sources[name].folder).parent.name].special_ids for name in loader.names}
    by_hand = counted_by_hand(loader, 12, special)
    for name, figures in by_hand.items():
        table = dict(ledger.tables["read"]["source"].rows())[Path(loader._sources[name].folder).parent.name]
        assert table["tokens"] > 0
        assert {column: table[column] for column in COLUMNS[1:]} == dict(zip(COLUMNS[1:], figures.sum(axis=0)[1:].tolist(), strict=True))
        assert table["documents"] == np.count_nonzero(figures[:-1].any(axis=1))
    if "web" in by_hand:  # by document: its number says which language it has
        kept = pyarrow.parquet.read_table(root / "pretrain/web/train_documents.parquet", columns=["kept"]).column(0).to_pylist()
        german = [number for number, values in enumerate(kept) if json.loads(values)["language"] == "de"]
        table = dict(ledger.tables["read"]["language"].rows())["de"]
        assert [table[column] for column in COLUMNS[1:]] == by_hand["web"][german].sum(axis=0)[1:].tolist()


def test_repeats_and_the_union_of_windows_and_rows_are_exact(root: Path, tmp_path: Path) -> None:
    """The same split in windows of two lengths, and packed: what is unique is every text token that any of them has read."""
    loaders = [open_blend(root), open_blend(root, T=16), open_blend(root, packing="best_fit")]
    states = [save(loader, tmp_path / f"{number}.json", 5) for number, loader in enumerate(loaders)]
    seen: set[tuple[str, int, int]] = set()
    special = [token for cache in caches(root)[:2] for token in cache.special_ids]
    for loader in loaders:
        for step in range(5):
            trace: Any = loader.trace(step)
            for row, column in np.ndindex(len(trace.tokens), loader.T):
                origin = trace.token(row, column)
                if origin.document is not None and origin.token not in special:
                    seen.add((origin.dataset, origin.document, origin.document_offset))
    total = dict(zip(COLUMNS, make_ledger(caches(root), runs_of(states, {}), Dimensions()).tables["read"]["source"].total, strict=True))
    assert total["unique"] == len(seen)
    assert total["repeats"] > 0


def test_planned_sums_are_those_of_meta_json(root: Path) -> None:
    ledger = make_ledger(caches(root), [], Dimensions({"year": ["date"]}))
    rows = dict(ledger.tables["train"]["source"].rows())
    for cache in caches(root):
        name = cache.directory.name
        assert rows[name]["tokens"] == sum(rows[name][kind] for kind in POSITIONS) == cache.meta["train_tokens"]
        assert rows[name]["documents"] == cache.count("train")
    assert rows["web"]["special"] == rows["web"]["documents"]  # one EOT each
    assert rows["web"]["repeats"] > 0  # the texts that are there twice
    assert rows["notes"]["repeats"] == 0
    assert rows["chats"]["masked"] > 0 < rows["chats"]["targets"]
    assert {value for value, _ in ledger.tables["train"]["domain"].rows()} == {"a.co.uk", UNKNOWN}
    assert {value for value, _ in ledger.tables["train"]["license"].rows()} == {"MIT", "Apache-2.0, MIT", UNKNOWN}
    assert {value for value, _ in ledger.tables["train"]["year"].rows()} == {"2019", "2021", UNKNOWN}


def test_values_come_from_the_first_column_that_a_document_has() -> None:
    kept: list[Any] = [
        {"lang": "fr", "created": "3 May 1999", "url": "x"},
        {"meta": {"l": "it"}, "year": 1987.0},
        {"date": "1999 to 2001"},
        {"year": float("nan")},
        {"year": float("inf")},
        None,
    ]
    found = Dimensions({"language": ["lang", "meta.l"]}).values([values and json.dumps(values) for values in kept])
    assert found["language"] == ["fr", "it", *[UNKNOWN] * 4]
    assert found["year"] == ["1999", "1987", *[UNKNOWN] * 4]
    assert found["domain"] == [UNKNOWN] * 6


@pytest.mark.parametrize(
    ("url", "domain"),
    [
        ("HTTPS://user:secret@www.Example.CO.UK:443/a//b?c", "example.co.uk"),
        ("somebody.github.io/page", "somebody.github.io"),
        ("http://b\u00fccher.example.de", "example.de"),
        ("http://192.168.0.1:80/", "192.168.0.1"),
        ("http://[2001:db8::1]/", "2001:db8::1"),
        ("example.com/?next=//other.org", "example.com"),
        (f"http://{'a' * 300}.com/", None),
        ("http://localhost/", None),
        ("not an address", None),
        ("", None),
    ],
)
def test_the_domain_of_an_address(url: str, domain: str | None) -> None:
    assert Domains().of(url) == domain


def test_states_of_one_run_are_united_and_branches_count_once_up_to_where_they_part(root: Path, tmp_path: Path) -> None:
    first, branched = {"web": 1.0, "notes": 2.0}, {"web": 5.0, "notes": 1.0}
    early, late = save(open_blend(root), tmp_path / "early.json", 4), save(open_blend(root, B=2), tmp_path / "late.json", 9)
    branch = save(open_blend(root, weights=[(0, first), (10, branched)]), tmp_path / "branch.json", 5)
    other = save(open_blend(root, seed=5), tmp_path / "other.json", 2)
    runs = runs_of([early, late, branch, other], {})
    assert {Path(run.name).name: run.ranges for run in runs} == {"late.json": [(0, 18)], "branch.json": [(10, 15)], "other.json": [(0, 6)]}


def test_samples_of_a_batch_that_was_dropped_are_not_read() -> None:
    sizes = [BatchSizes(0, 0, 4, 2), BatchSizes(3, 29, 4, 2), BatchSizes(5, 45, 2, 1)]
    assert samples_read(Position(samples=47, step=6, pass_start=29, batches=tuple(sizes))) == [(0, 24), (29, 47)]


def test_the_phases_of_a_run_are_counted(root: Path, tmp_path: Path) -> None:
    sources = {"web": str(root / "pretrain/web/train")}
    phases = [Phase(T=16, B=2, tokens=160), Phase(T=T, B=2, packing="best_fit")]
    loader = PhasedLoader(sources, phases=phases, seed=3, lot_tokens=64, lanes=1)
    ledger = make_ledger([], runs_of([save(loader, tmp_path / "state.json", 9)], {}), Dimensions())
    assert [run["T"] for run in ledger.runs] == [16, T]
    assert sum(epoch.tokens for epoch in ledger.epochs) == sum(run["rows"] * run["T"] for run in ledger.runs) > 200


def test_a_cache_whose_counts_disagree_is_an_error(root: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(root / "pretrain/web", tmp_path / "web"))
    table = pyarrow.parquet.read_table(folder / "train_documents.parquet")
    tokens = table.column("tokens").to_numpy().copy()
    tokens[[3, 4]] += [1, -1]  # the sum stays
    changed = table.set_column(table.column_names.index("tokens"), "tokens", pyarrow.array(tokens))
    pyarrow.parquet.write_table(changed, folder / "train_documents.parquet")
    with pytest.raises(NielsCacheError) as caught:
        make_ledger([AccountedCache.open(folder)], [], Dimensions())
    assert missing(str(caught.value), "train_documents.parquet", "differ", "rebuild") == []
    cache = AccountedCache(name="web", family="pretrain", directory=root / "pretrain/web", meta=caches(root)[0].meta | {"train_tokens": 7})
    with pytest.raises(NielsCacheError, match="says 7"):
        PlannedSplit(cache, "train")


def test_the_command_writes_the_same_files_again(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state, out = save(open_blend(root, packing="best_fit"), tmp_path / "state.json", 6), tmp_path / "out"
    (tmp_path / "niels_cache.toml").write_text("", encoding="utf-8")
    where = ["--cache-dir", str(root), "--config", str(tmp_path / "niels_cache.toml"), "--state", str(state), "--date", "2026-11-30"]
    assert main(["account", "--out", str(out), *where, "--column", "year=date"]) in (0, None)
    assert missing(capsys.readouterr().out, "as read", "by license", "a.co.uk", "account.html") == []
    before = {path.relative_to(out): path.read_bytes() for path in out.rglob("*") if path.is_file()}
    (out / "croissant/pretrain/gone.json").write_text("{}")  # of a data set that is not there any more
    assert main(["account", "--out", str(out), *where, "--column", "year=date", "--json"]) in (0, None)
    assert {path.relative_to(out): path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    facts = json.loads((out / "account.json").read_text(encoding="utf-8"))
    assert json.loads(capsys.readouterr().out) == facts
    for section, tables in facts["tables"].items():
        for dimension, table in tables.items():
            with (out / f"tables/{section}_{dimension}.csv").open(encoding="utf-8", newline="") as file:
                rows = [*csv.DictReader(file)]
            assert len(rows) == table["values"] > 0
            assert (
                sum(int(row["tokens"]) for row in rows) == sum(row["tokens"] for row in table["rows"]) == facts["totals"][section]["tokens"]
            )
    assert NO_DOCUMENT in [row["value"] for row in facts["tables"]["read"]["domain"]["rows"]]
    assert facts["draft"]["tokens"] == facts["totals"]["read"]["unique"]
    page = (out / "account.html").read_text(encoding="utf-8")
    assert missing(page, facts["draft"]["notice"], "a.co.uk", f"{facts['totals']['read']['tokens']:,}") == []
    (out / "account.json").write_text("{}", encoding="utf-8")
    assert main(["account", "--out", str(out), *where]) == 2  # it is not ours, so it stays
    assert (out / "account.json").read_text(encoding="utf-8") == "{}"
    (out / "account.json").unlink()
    (out / "account.html").write_text("<p>a page of mine</p>")
    assert main(["account", "--out", str(out), *where]) == 2
    assert not (out / "account.json").exists()


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "croissant").write_text("")
    with pytest.raises(NielsCacheError, match=r"croissant.* cannot be written: .*--out"):
        write_file(tmp_path / "croissant" / "pretrain" / "web.json", "{}")
    assert [path.name for path in tmp_path.iterdir()] == ["croissant"]


def test_a_description_in_croissant_lists_every_file_and_column(root: Path, tmp_path: Path) -> None:
    for cache in caches(root):
        found = json.loads(describe_local(cache, tmp_path, licenses=[], published=None))
        assert found["license"] == [UNKNOWN]
        assert {file["@id"] for file in found["distribution"]} == {META_NAME, *read_meta(cache.directory / META_NAME)["files"]}
        for file in found["distribution"]:
            path = tmp_path / file["contentUrl"]
            assert (sha256_file(str(path)), f"{path.stat().st_size} B") == (file["sha256"], file["contentSize"])
        assert len(found["recordSet"]) == 2
        for records in found["recordSet"]:
            columns = [field["source"]["extract"]["column"] for field in records["field"]]
            [path] = {field["source"]["fileObject"]["@id"] for field in records["field"]}
            assert {*columns} <= {*pyarrow.parquet.read_schema(cache.directory / path).names}
            assert ("kept" in columns) == ("keep" in cache.meta)


def test_mlcroissant_reads_lineage_through_the_description(root: Path, tmp_path: Path) -> None:
    web = caches(root)[0]
    path = tmp_path / "web.json"
    path.write_text(describe_local(web, tmp_path, licenses=["MIT"], published=None), encoding="utf-8")
    found = olmo_env.ask("croissant_reader.py", {"path": str(path)}, package="mlcroissant", title="mlcroissant", folder=tmp_path)
    assert found["errors"] == found["warnings"] == []
    for split in SPLITS:
        records = found["records"][f"{split}_documents"]
        columns = [name.removeprefix(f"{split}_documents/") for name in records[0]]
        lineage = pyarrow.parquet.read_table(web.directory / documents_name(split), columns=columns)
        assert [[*record.values()] for record in records] == [[*row.values()] for row in lineage.to_pylist()]
        assert sum(record[f"{split}_documents/tokens"] for record in records) == web.meta[f"{split}_tokens"]
