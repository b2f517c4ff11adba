"""The same input and seed give the same bytes: on any number of threads, for str and Document, again and again."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from niels_cache_assets.build_cache import Message, build_pretrain_cache, build_sft_cache
from niels_cache_assets.documents import Document, SourceReport
from niels_cache_assets.tokenization import SentencePieceTokenizer
from niels_cache_runtime.meta import read_meta
from tests.tiny import sentences

ROOT = Path(__file__).parent.parent


def digests(folder: Path) -> dict[str, str]:
    found = {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.rglob("*") if path.is_file()
    }
    assert found
    return found


def build_pretrain(folder: Path, tokenizer: SentencePieceTokenizer, **changes: object) -> dict[str, str]:
    settings: dict[str, object] = {
        "max_train_tokens": 6_000,
        "max_val_tokens": 500,
        "shard_bytes": 2_048,
        "seed": 7,
        "shuffle_buffer": 100,
    }
    build_pretrain_cache(sentences(900), str(folder), tokenizer=tokenizer, **{**settings, **changes})  # type: ignore[arg-type]
    return digests(folder)


def conversations(count: int) -> list[list[Message]]:
    lines = sentences(2 * count, seed=3)
    return [
        [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        for question, answer in zip(lines[::2], lines[1::2], strict=True)
    ]


def test_a_pretrain_cache_is_byte_identical_when_built_twice(tmp_path: Path, tokenizer: SentencePieceTokenizer) -> None:
    first = build_pretrain(tmp_path / "a" / "same", tokenizer)
    assert len([name for name in first if name.startswith("train/")]) > 3
    assert first == build_pretrain(tmp_path / "b" / "same", tokenizer)


def test_the_name_of_the_folder_does_not_show_in_the_bytes(tmp_path: Path, tokenizer: SentencePieceTokenizer) -> None:
    assert build_pretrain(tmp_path / "one", tokenizer) == build_pretrain(tmp_path / "two", tokenizer)
    assert read_meta(str(tmp_path / "one" / "meta.json"))["dataset_name"] is None
    for name in ("three", "four"):
        build_sft_cache(conversations(20), str(tmp_path / name), tokenizer=tokenizer, val_frac=0.2, seed=1)
    assert digests(tmp_path / "three") == digests(tmp_path / "four")


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_the_number_of_threads_does_not_show_in_the_bytes(tmp_path: Path, tokenizer: SentencePieceTokenizer, threads: int) -> None:
    assert build_pretrain(tmp_path / "one" / "x", tokenizer) == build_pretrain(tmp_path / "two" / "x", tokenizer, threads=threads)


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_neither_do_the_documents_that_a_source_drops_after_the_budget_is_met(
    tmp_path: Path, tokenizer: SentencePieceTokenizer, threads: int
) -> None:
    def reporting(report: SourceReport) -> Iterator[Document]:
        for text in sentences(5_000):
            report.dropped["null_text"] += 1
            yield Document(text)

    built = []
    for folder, count in (("one", 1), ("many", threads)):
        report = SourceReport()
        settings = {"max_train_tokens": 9_000, "max_val_tokens": 0, "shard_bytes": 4_096, "seed": 1, "shuffle_buffer": None}
        build_pretrain_cache(
            reporting(report),
            str(tmp_path / folder / "x"),
            tokenizer=tokenizer,
            report=report,
            threads=count,
            **settings,  # type: ignore[arg-type]
        )
        built.append(digests(tmp_path / folder / "x"))
    assert built[0] == built[1]


def test_neither_do_hash_seed_and_locale_of_the_process(tmp_path: Path, tiny_model: Path) -> None:
    script = (
        "import sys\nfrom pathlib import Path\nfrom niels_cache_assets.tokenization import SentencePieceTokenizer\n"
        "from tests.test_cache_determinism import build_pretrain\n"
        f"build_pretrain(Path(sys.argv[1]), SentencePieceTokenizer({str(tiny_model)!r}))"
    )
    for name, seed, locale in (("a", "1", "C"), ("b", "2", "C.UTF-8")):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "LC_ALL": locale, "TZ": f"UTC{seed}"}
        subprocess.run([sys.executable, "-c", script, str(tmp_path / name / "x")], env=environment, cwd=ROOT, check=True)
    assert digests(tmp_path / "a" / "x") == digests(tmp_path / "b" / "x")


def test_rebuilding_over_an_old_cache_gives_the_same_bytes_and_leaves_nothing_else(
    tmp_path: Path, tokenizer: SentencePieceTokenizer
) -> None:
    first = build_pretrain(tmp_path / "x", tokenizer)
    build_pretrain(tmp_path / "x", tokenizer, seed=8)
    assert build_pretrain(tmp_path / "x", tokenizer) == first
    assert sorted(path.name for path in tmp_path.iterdir()) == [".x.lock", "x"]


def test_another_seed_gives_another_order(tmp_path: Path, tokenizer: SentencePieceTokenizer) -> None:
    first, second = build_pretrain(tmp_path / "a", tokenizer), build_pretrain(tmp_path / "b", tokenizer, seed=8)
    assert first["train/shard_00000.bin"] != second["train/shard_00000.bin"]


def test_shard_bytes_cuts_the_stream_but_does_not_change_it(tmp_path: Path, tokenizer: SentencePieceTokenizer) -> None:
    build_pretrain(tmp_path / "small", tokenizer)
    build_pretrain(tmp_path / "large", tokenizer, shard_bytes=1 << 20)
    small = b"".join(path.read_bytes() for path in sorted((tmp_path / "small" / "train").iterdir()))
    assert small == (tmp_path / "large" / "train" / "shard_00000.bin").read_bytes()


def test_text_and_documents_give_the_same_tokens(tmp_path: Path, tokenizer: SentencePieceTokenizer) -> None:
    settings = {"max_train_tokens": 6_000, "max_val_tokens": 500, "shard_bytes": 2_048, "seed": 7, "shuffle_buffer": None}
    texts = sentences(900)
    build_pretrain_cache(texts, str(tmp_path / "str"), tokenizer=tokenizer, **settings)  # type: ignore[arg-type]
    build_pretrain_cache([Document(text) for text in texts], str(tmp_path / "doc"), tokenizer=tokenizer, **settings)  # type: ignore[arg-type]
    first, second = (read_meta(str(tmp_path / name / "meta.json")) for name in ("str", "doc"))
    assert first["content_sha256"] == second["content_sha256"]


def test_an_sft_cache_is_byte_identical_when_built_twice(tmp_path: Path, tokenizer: SentencePieceTokenizer) -> None:
    for name in ("a", "b"):
        build_sft_cache(
            conversations(200), str(tmp_path / name / "x"), tokenizer=tokenizer, val_frac=0.1, seed=5, threads=1 + (name == "b")
        )
    assert digests(tmp_path / "a" / "x") == digests(tmp_path / "b" / "x")


def test_meta_json_holds_no_path_of_the_machine(tmp_path: Path, tokenizer: SentencePieceTokenizer) -> None:
    build_pretrain(tmp_path / "x", tokenizer)
    assert str(tmp_path) not in (tmp_path / "x" / "meta.json").read_text()
