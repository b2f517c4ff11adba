"""The same input and seed give the same bytes: on any number of threads, for str and Document, again and again."""

import hashlib
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from niels_cache_assets.base.documents import Document, SourceReport
from niels_cache_assets.build_cache import Message, build_pretrain_cache, build_sft_cache
from niels_cache_assets.cli import main
from niels_cache_assets.tokenizer.kinds import SentencePieceTokenizer
from niels_cache_runtime.format.meta import read_meta
from tests.helpers.docs_reader import COMMANDS, blocks_of
from tests.helpers.tiny import sentences

ROOT = Path(__file__).parents[2]
TEXTS = sentences(900)
SETTINGS: dict[str, object] = {"max_train_tokens": 6_000, "max_val_tokens": 500, "shard_bytes": 2_048, "seed": 7, "shuffle_buffer": 100}


def digests(folder: Path) -> dict[str, str]:
    found = {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.rglob("*") if path.is_file()
    }
    assert found
    return found


def build_pretrain(folder: Path, tokenizer: SentencePieceTokenizer, **changes: object) -> dict[str, str]:
    build_pretrain_cache(TEXTS, str(folder), tokenizer=tokenizer, **{**SETTINGS, **changes})  # type: ignore[arg-type]
    return digests(folder)


def conversations(count: int) -> list[list[Message]]:
    lines = sentences(2 * count, seed=3)
    return [
        [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        for question, answer in zip(lines[::2], lines[1::2], strict=True)
    ]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory, tokenizer: SentencePieceTokenizer) -> dict[str, str]:
    """The files of a build that others are compared with."""
    files = build_pretrain(tmp_path_factory.mktemp("reference") / "x", tokenizer)
    assert len([name for name in files if name.startswith("train/")]) > 3
    return files


def test_the_name_of_the_folder_does_not_show_in_the_bytes(
    tmp_path: Path, tokenizer: SentencePieceTokenizer, reference: dict[str, str]
) -> None:
    assert build_pretrain(tmp_path / "two", tokenizer) == reference
    meta = (tmp_path / "two" / "meta.json").read_text()
    assert json.loads(meta)["dataset_name"] is None
    assert str(tmp_path) not in meta


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_the_number_of_threads_does_not_show_in_the_bytes(
    tmp_path: Path, tokenizer: SentencePieceTokenizer, reference: dict[str, str], threads: int
) -> None:
    assert build_pretrain(tmp_path / "x", tokenizer, threads=threads) == reference


def test_neither_do_the_documents_that_a_source_drops_after_the_budget_is_met(tmp_path: Path, tokenizer: SentencePieceTokenizer) -> None:
    def reporting(report: SourceReport) -> Iterator[Document]:
        for text in sentences(5_000):
            report.dropped["null_text"] += 1
            yield Document(text)

    built = []
    for threads in (1, 2, 7):
        report = SourceReport()
        settings = {"max_train_tokens": 9_000, "max_val_tokens": 0, "shard_bytes": 4_096, "seed": 1, "shuffle_buffer": None}
        build_pretrain_cache(
            reporting(report),
            str(tmp_path / str(threads)),
            tokenizer=tokenizer,
            report=report,
            threads=threads,
            **settings,  # type: ignore[arg-type]
        )
        built.append(digests(tmp_path / str(threads)))
    assert built[0] == built[1] == built[2]


def test_neither_do_hash_seed_and_locale_of_the_process(tmp_path: Path, tiny_model: Path, reference: dict[str, str]) -> None:
    script = (
        "import json, sys\nfrom niels_cache_assets.build_cache import build_pretrain_cache\n"
        "from niels_cache_assets.tokenizer.kinds import SentencePieceTokenizer\n"
        f"texts, settings = json.load(sys.stdin)\ntokenizer = SentencePieceTokenizer({str(tiny_model)!r})\n"
        "build_pretrain_cache(texts, sys.argv[1], tokenizer=tokenizer, **settings)"
    )
    told = json.dumps([TEXTS, SETTINGS]).encode()
    environment = {**os.environ, "PYTHONHASHSEED": "4711", "LC_ALL": "C", "TZ": "UTC5"}
    assert environment != os.environ
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "x")], input=told, env=environment, cwd=ROOT, check=True)
    assert digests(tmp_path / "x") == reference


def test_rebuilding_over_an_old_cache_gives_the_same_bytes_and_leaves_nothing_else(
    tmp_path: Path, tokenizer: SentencePieceTokenizer, reference: dict[str, str]
) -> None:
    other = build_pretrain(tmp_path / "x", tokenizer, seed=8)
    assert other["train/shard_00000.bin"] != reference["train/shard_00000.bin"], "another seed gives another order"
    assert build_pretrain(tmp_path / "x", tokenizer) == reference
    assert sorted(path.name for path in tmp_path.iterdir()) == [".x.lock", "x"]


def test_shard_bytes_cuts_the_stream_but_does_not_change_it(tmp_path: Path, tokenizer: SentencePieceTokenizer) -> None:
    build_pretrain(tmp_path / "small", tokenizer)
    build_pretrain(tmp_path / "large", tokenizer, shard_bytes=1 << 20)
    small = b"".join(path.read_bytes() for path in sorted((tmp_path / "small" / "train").iterdir()))
    assert small == (tmp_path / "large" / "train" / "shard_00000.bin").read_bytes()


def test_text_and_documents_give_the_same_tokens(tmp_path: Path, tokenizer: SentencePieceTokenizer) -> None:
    settings = {**SETTINGS, "shuffle_buffer": None}
    build_pretrain_cache(TEXTS, str(tmp_path / "str"), tokenizer=tokenizer, **settings)  # type: ignore[arg-type]
    build_pretrain_cache([Document(text) for text in TEXTS], str(tmp_path / "doc"), tokenizer=tokenizer, **settings)  # type: ignore[arg-type]
    first, second = (read_meta(str(tmp_path / name / "meta.json")) for name in ("str", "doc"))
    assert first["content_sha256"] == second["content_sha256"]


def test_neither_folder_nor_threads_show_in_the_bytes_of_an_sft_cache(tmp_path: Path, tokenizer: SentencePieceTokenizer) -> None:
    for name, threads in (("one", 1), ("two", 2)):
        build_sft_cache(conversations(200), str(tmp_path / name), tokenizer=tokenizer, val_frac=0.1, seed=5, threads=threads)
    assert digests(tmp_path / "one") == digests(tmp_path / "two")


def test_the_recipe_of_the_page_finds_no_difference(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/determinism.md says which files are equal. The recipe runs as printed, with a small data set in the place of python_docs."""
    (block,) = [block for block in blocks_of(ROOT / "docs/determinism.md") if block.language in COMMANDS]
    *builds, compare = block.text.splitlines()
    assert [build.split()[:2] for build in builds] == 2 * [["niels-cache", "build-all"]]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in sentences(300)), encoding="utf-8")
    config = f'[tokenizer]\nmodel = "{tiny_model}"\n[pretrain.python_docs]\nsource = "jsonl"\nfiles = ["texts.jsonl"]\n'
    (tmp_path / "niels_cache.toml").write_text(config, encoding="utf-8")
    monkeypatch.setenv("NIELS_CACHE_CONFIG", str(tmp_path / "niels_cache.toml"))
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    for build in builds:
        assert main(build.split()[1:]) == 0
    assert subprocess.run(shlex.split(compare), check=False).returncode == 0
    shard = tmp_path / "cache/twice/pretrain/python_docs/train/shard_00000.bin"
    shard.write_bytes(shard.read_bytes()[:-1] + b"?")
    assert subprocess.run(shlex.split(compare), check=False).returncode == 1
