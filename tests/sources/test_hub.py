"""Hub sources against a hub on the loopback interface, and the same loading code on local files."""

import gzip
import itertools
import json
import random
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from niels_cache_assets.sources.fineweb_edu import FinewebEdu
from niels_cache_assets.sources.hub.errors import hub_errors
from niels_cache_assets.sources.huggingface import Huggingface
from niels_cache_corpora.gutenberg import Gutenberg
from niels_cache_corpora.wikitext import Wikitext
from niels_cache_runtime.errors import NielsCacheError
from tests.helpers import programs
from tests.helpers.hub_repositories import CRAWL, FINEWEB_FILES, FINEWEB_ROWS, fineweb_row, hub_repositories, json_lines, parquet
from tests.helpers.loopback_faults import ByName, Faults
from tests.helpers.loopback_hub import LoopbackHub
from tests.helpers.messages import missing
from tests.helpers.places import require_every_place_is_exact
from tests.helpers.read_sources import read, read_from

FINEWEB = "HuggingFaceFW/fineweb-edu"


WIDE_ROWS = 40


@pytest.fixture(scope="module")
def hub_reading(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LoopbackHub, list[dict[str, Any]]]]:
    """A hub and what its data sets gave, read in one child process: importing the libraries takes longer than reading."""
    hub = LoopbackHub(hub_repositories(), tmp_path_factory.mktemp("hf_home"))
    noise = random.Random(1)  # test data only: incompressible, so that the column is as wide on disk
    rows = [{"text": f"text {row}", "wide": noise.randbytes(800_000)} for row in range(WIDE_ROWS)]
    hub.repositories["example/wide"] = {"data/train-00000-of-00001.parquet": parquet(rows, row_group_size=20)}
    tables = [{"source": "fineweb_edu"}, {"source": "wikitext"}, {"source": "dolly15k"}]
    more = [{"source": "oasst1", "val_split": "validation"}]
    wide = {"source": "huggingface", "dataset": "example/wide"}
    yield hub, read_from(hub, *tables, *more, wide)
    hub.close()


def test_the_default_data_sets_come_from_the_hub_at_a_pinned_commit(hub_reading: tuple[LoopbackHub, list[dict[str, Any]]]) -> None:
    hub, (fineweb, wikitext, dolly, oasst, *_) = hub_reading

    assert fineweb["revision"] == hub.commit(FINEWEB)
    assert {item["source_id"] for item in fineweb["items"]} == {
        fineweb_row(file, row)["id"] for file in range(FINEWEB_FILES) for row in range(FINEWEB_ROWS)
    }
    for item in fineweb["items"]:
        file = int(item["file"].removeprefix(f"data/{CRAWL}/train-")[:5])
        assert fineweb_row(file, item["row"])["text"] == item["text"]

    assert [(item["title"], item["split"]) for item in wikitext["items"]] == [
        *((f"River {number}", "val") for number in (1, 2)),
        *((f"Town {number}", "train") for number in range(9)),
    ]
    assert len(dolly["items"]) == 30
    assert dolly["items"][0]["messages"][0]["content"] == "What is 0 plus 0?\n\ncontext:\n0 is a number."
    assert [dolly["items"][1][key] for key in ("file", "row", "category")] == ["databricks-dolly-15k.jsonl", 1, "open_qa"]
    assert oasst["facts"] == {"trees": 14}
    assert [item["split"] for item in oasst["items"]] == ["val"] * 4 + ["train"] * 24

    resolved = {path.split("/resolve/")[1].split("/")[0] for _, path, _ in hub.requests if "/resolve/" in path}
    assert resolved == {hub.commit(name) for name in hub.repositories}, "files are read at the commit, never at main"
    assert all(asked for method, path, asked in hub.requests if method == "GET" and path.endswith(".parquet")), "Range reads only"


def test_columns_that_are_not_needed_are_not_downloaded(hub_reading: tuple[LoopbackHub, list[dict[str, Any]]]) -> None:
    hub, (*_, wide) = hub_reading
    assert [item["text"] for item in wide["items"]] == [f"text {row}" for row in range(WIDE_ROWS)]
    (content,) = hub.repositories["example/wide"].values()
    assert 0 < sum(hub.served) < len(content) / 2


WRONG: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"source": "huggingface", "dataset": "no/such"}, ("no/such:", "private", "https://huggingface.co/datasets/no/such", "HF_TOKEN")),
    ({"source": "huggingface", "dataset": "not a name"}, ("'not a name'", "owner/name")),
    ({"source": "fineweb_edu", "config": "CC-MAIN-2024-11"}, ("'CC-MAIN-2024-11'", f"did you mean '{CRAWL}'")),
    ({"source": "fineweb_edu", "config": None}, ("config", f": {CRAWL}, sample-10BT")),
    ({"source": "fineweb_edu", "split": "trian"}, ("split", "'trian'", "did you mean 'train'")),
    ({"source": "fineweb_edu", "pinned_revision": "v9"}, ("'v9'", "pinned_revision")),
    ({"source": "fineweb_edu", "text_field": "body"}, ("text_field", ": text, id, dump, url")),
    ({"source": "dolly15k", "dataset": "OpenAssistant/oasst1"}, ("OpenAssistant/oasst1:", "instruction", "response")),
    ({"source": "huggingface", "dataset": "example/options"}, ("example/options:", "card", "sep = ';'", "files")),
    ({"source": "wikitext"}, ("Salesforce/wikitext:", "gated", "https://huggingface.co/datasets/Salesforce/wikitext")),
]
DOWN = {"source": "fineweb_edu", "dataset": "down/data"}


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Return the errors for the tables of WRONG and of DOWN. One child process reads all of them."""
    hub = LoopbackHub(hub_repositories(), tmp_path_factory.mktemp("hf_home"))
    card = b"---\nconfigs:\n- config_name: default\n  data_files: a.csv\n  sep: ';'\n---\n"
    hub.repositories["example/options"] = {"a.csv": b"text;id\na;1\n", "README.md": card}
    hub.gated.add("Salesforce/wikitext")
    hub.faults = ByName({"down": Faults(itertools.repeat("503"))})
    hub.env["HF_TOKEN"] = "hf_secretsecretsecret"
    tables = [DOWN, *(table for table, _ in WRONG)]
    results = read_from(hub, *tables)
    hub.close()
    return {json.dumps(table): result for table, result in zip(tables, results, strict=True)}


@pytest.mark.parametrize(("table", "expected"), WRONG)
def test_what_does_not_exist_on_the_hub_is_an_error_that_says_what_to_do(
    table: dict[str, Any], expected: tuple[str, ...], errors: dict[str, dict[str, Any]]
) -> None:
    result = errors[json.dumps(table)]
    assert missing(result["error"], *expected) == []
    assert not result["unavailable"]
    assert "\n" not in result["error"]
    assert "hf_secretsecretsecret" not in result["error"]


def test_a_token_with_a_stray_character_is_named_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secretsecret\u20ac")
    with pytest.raises(NielsCacheError, match=r"HF_TOKEN.*characters") as told, hub_errors("me/data", None):
        "hf_secretsecret\u20ac".encode("ascii")
    assert "secret" not in str(told.value)


def test_a_hub_that_cannot_be_reached_is_no_error_of_the_user(errors: dict[str, dict[str, Any]], hub: LoopbackHub, tmp_path: Path) -> None:
    """Whether the data set is there is told where this machine has read it before."""
    (tmp_path / "hf_home/hub/datasets--known--data").mkdir(parents=True)
    hub.close()
    gone, unknown, known = read_from(hub, *({"source": "huggingface", "dataset": name} for name in ("a/b", "no/such", "known/data")))
    for name, result in (("down/data", errors[json.dumps(DOWN)]), ("a/b", gone), ("no/such", unknown), ("known/data", known)):
        assert result["unavailable"]
        expected = (f"{name}:", "reached", f"https://huggingface.co/datasets/{name}", 'files = ["/path/to/copy/*.parquet"]')
        assert missing(result["error"], *expected) == []
        assert ("unknown whether" in result["error"], "before" in result["error"]) == (result is not known, result is known)


def write_mirror(folder: Path) -> list[str]:
    """Three Parquet files of 40 rows in row groups of 16."""
    paths = [folder / f"train-{file}.parquet" for file in range(FINEWEB_FILES)]
    for file, path in enumerate(paths):
        path.write_bytes(parquet([fineweb_row(file, row) for row in range(FINEWEB_ROWS)]))
    return [str(path) for path in paths]


def test_a_damaged_mirror_names_the_file(tmp_path: Path) -> None:
    write_mirror(tmp_path)
    damaged = tmp_path / "train-1.parquet"
    content = bytearray(damaged.read_bytes())
    content[100:2000] = bytes(1900)
    damaged.write_bytes(content)
    with pytest.raises(NielsCacheError, match=r"train-1\.parquet: .*damaged"):
        read(FinewebEdu(files=[str(tmp_path / "*.parquet")]))


def test_an_empty_mirror_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"")
    with pytest.raises(NielsCacheError, match=r"a\.jsonl: .*no row"):
        read(Gutenberg(files=[str(tmp_path / "a.jsonl")]))


def test_documents_come_in_the_order_of_plain_load_dataset(hub: LoopbackHub) -> None:
    script = f"""
        import json
        from datasets import load_dataset
        from niels_cache_assets.sources.fineweb_edu import FinewebEdu
        from tests.helpers.read_sources import read
        ours, _ = read(FinewebEdu())
        plain = load_dataset("{FINEWEB}", "{CRAWL}", split="train", streaming=True)
        print(json.dumps([[document.text for document in ours], [row["text"] for row in plain]]))
    """
    done = programs.run("-c", textwrap.dedent(script), env=hub.env, check=True)
    ours, plain = json.loads(done.stdout)
    assert len(plain) == FINEWEB_FILES * FINEWEB_ROWS
    assert ours == plain


@pytest.mark.parametrize("kind", [Huggingface, Gutenberg, Wikitext])
@pytest.mark.parametrize("content", [b'null\n{"text": "a"}\n', b'{"text": "a"}\n5\n', b'[1, {"text": "a"}]'])
def test_a_line_that_is_no_object_is_refused(tmp_path: Path, kind: type[Huggingface | Gutenberg | Wikitext], content: bytes) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(NielsCacheError, match=r"a\.json: .*object"):
        read(kind(dataset="a/b", files=[str(tmp_path / "a.json")]))


@pytest.mark.parametrize("name", ["a.csv", "a.tsv.gz"])
def test_records_of_csv_files_are_strings_that_where_compares_as_numbers(tmp_path: Path, name: str) -> None:
    table = '\ufeffid,score,text\r\n007,0.5,"one, two"\r\n\r\n8,0.9,"three\n""four"""\r\n9,,5\r\n10\r\n'
    content = (table if ".csv" in name else table.replace(",", "\t").replace("one\t", "one,")).encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    source = {"dataset": "a/b", "files": [str(tmp_path / name)], "id_field": "id"}
    documents, context = read(Huggingface(**source))  # type: ignore[arg-type]
    assert [document[:4] for document in documents] == [
        ("one, two", "007", name, 0),
        ('three\n"four"', "8", name, 1),
        ("5", "9", name, 2),
    ]
    assert context.report.dropped == {"null_text": 1}
    documents, context = read(Huggingface(**source, where="score > 0.6"))  # type: ignore[arg-type]
    assert [document.row for document in documents] == [1]
    assert context.report.dropped == {"where": 3}


def test_damaged_csv_files(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    source = Huggingface(dataset="a/b", files=[str(path)], max_document_mib=1, max_replaced_share=0.5)
    path.write_bytes(b"text,id\ncaf\xe9 au lait,1\n")
    documents, context = read(source)
    assert [document.text for document in documents] == ["caf\ufffd au lait"]
    assert context.report.facts["replaced"]["bytes"] == 1
    long = b"x" * (1 << 19)
    for content, expected in (
        (b"text,text\na,b\n", "more than one column named 'text'"),
        (b"text\na,b\n", "record 1 has 2 values for 1 columns"),
        (b'text\n"a"b\n', "line 2: not CSV"),
        (b'text\n"' + 4 * (long + b"\n") + b'"\n', "longer than 1 MiB"),
        (b"text,id,x\n" + 3 * (long + b",") + b"\n", "longer than 1 MiB"),
    ):
        path.write_bytes(content)
        with pytest.raises(NielsCacheError, match=rf"^a\.csv: .*{expected}"):
            read(source)


def test_csv_resumes_at_every_place(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.csv").write_text("text\n" + "".join(f'"{name} {row}\nmore"\n' for row in range(700)))
    require_every_place_is_exact(Huggingface(dataset="a/b", files=[str(tmp_path / "*.csv")], shuffle_buffer=0), at_least=4)


def test_lines_of_text_files_are_documents_without_their_ends(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one\r\n\ntwo \nlast")
    documents, context = read(Huggingface(dataset="a/b", files=[str(tmp_path / "a.txt")]))
    assert [(document.text, document.row) for document in documents] == [("one", 0), ("two ", 2), ("last", 3)]
    assert context.report.dropped == {"empty": 1}


def test_a_json_column_of_mixed_types_keeps_its_strings_as_they_are(tmp_path: Path) -> None:
    rows = [{"text": "plain", "id": "x"}, {"text": 5, "id": 7}, {"text": 'line one\nline "two" \u00e9', "id": "y"}, {"text": None}]
    (tmp_path / "a.jsonl").write_bytes(json_lines(rows))
    documents, context = read(Huggingface(dataset="a/b", files=[str(tmp_path / "a.jsonl")]))
    found = sorted((document.text, document.source_id) for document in documents)
    assert found == [('line one\nline "two" \u00e9', "y"), ("plain", "x")]
    assert context.report.dropped == {"non_string_text": 1, "null_text": 1}


@pytest.mark.parametrize("name", ["a.arrow", "a.xml.gz"])
def test_files_of_another_kind_are_an_error_that_names_the_kinds(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"text\nwords\n")
    with pytest.raises(NielsCacheError, match=r"^a\.\w+: .*\.parquet, \.jsonl"):
        read(Huggingface(dataset="a/b", files=[str(tmp_path / name)]))


def test_files_of_two_kinds_are_an_error_that_names_both(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(parquet([{"text": "a"}]))
    (tmp_path / "b.jsonl.gz").write_bytes(b"")
    with pytest.raises(NielsCacheError, match=r"^files: json and parquet files .*one kind"):
        read(Huggingface(dataset="a/b", files=[str(tmp_path / "*")]))
