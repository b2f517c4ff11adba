"""A build that fails says what is wrong, where, and what to do. The last good cache always stays, byte for byte."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from niels_cache_assets.base.documents import Document
from niels_cache_assets.build_cache import build_pretrain_cache, build_sft_cache
from niels_cache_assets.disk.staging import atomic_directory
from niels_cache_assets.tokenizer.kinds import SentencePieceTokenizer
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format import commit
from tests.build_cache.test_determinism import digests
from tests.helpers.tiny import sentences


def build(folder: Path, texts: object, tokenizer: object, **changes: object) -> None:
    settings = {"max_train_tokens": 10**9, "max_val_tokens": 0, "shard_bytes": 1024, "seed": 1, "shuffle_buffer": None, **changes}
    build_pretrain_cache(texts, str(folder), tokenizer=tokenizer, **settings)  # type: ignore[arg-type]


@pytest.fixture
def good(tmp_path: Path, tokenizer: SentencePieceTokenizer) -> Iterator[Path]:
    """A finished cache that must be unchanged after the test, without partial files beside it."""
    folder = tmp_path / "good"
    build(folder, sentences(50), tokenizer)
    before = digests(folder)
    yield folder
    assert digests(folder) == before
    assert not (tmp_path / ".good.partial").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_train_tokens": 0}, "train budget is 0"),
        ({"max_train_tokens": -1}, "train budget is -1"),
        ({"max_val_tokens": -1}, "val budget is -1"),
        ({"shard_bytes": 3}, "shard_bytes is 3"),
        ({"shard_bytes": 0}, "shard_bytes is 0"),
        ({"shuffle_buffer": 0}, "shuffle_buffer is 0"),
        ({"shard_bytes": 1e6}, "shard_bytes is 1000000.0.*whole number"),
        ({"seed": 2**70}, "seed is"),
        ({"seed": -1}, "seed is -1"),
        ({"threads": 0}, "threads is 0"),
        ({"max_val_tokens": 10**8}, "for val.*max_val_tokens=100,000,000"),
    ],
)
def test_settings_that_cannot_work(good: Path, tokenizer: SentencePieceTokenizer, changes: dict[str, int], message: str) -> None:
    with pytest.raises(NielsCacheError, match=message):
        build(good, sentences(5), tokenizer, **changes)


def test_an_empty_source_and_one_that_drops_everything(good: Path, tokenizer: SentencePieceTokenizer) -> None:
    with pytest.raises(NielsCacheError, match="no usable document"):
        build(good, [], tokenizer)
    with pytest.raises(NielsCacheError, match=r"no usable document \(dropped: invalid_unicode 2\)"):
        build(good, ["\ud800", "\udfff"], tokenizer)


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (Document(None, file="a.jsonl", row=7), "a.jsonl row 7: .*NoneType"),  # type: ignore[arg-type]
        (None, "item 0 .*NoneType"),
        (Document("x", split="test"), "split is 'test'"),  # type: ignore[arg-type]
        (Document("x", source_id=5), "source_id and file .*str"),  # type: ignore[arg-type]
    ],
)
def test_a_document_that_is_not_one(good: Path, tokenizer: SentencePieceTokenizer, item: object, message: str) -> None:
    with pytest.raises(NielsCacheError, match=message):
        build(good, [item], tokenizer)
    with pytest.raises(NielsCacheError, match="into a list"):
        build(good, "one text in place of many", tokenizer)


@pytest.mark.parametrize("example", [{"messages": []}, "hello", ["hello"]])
def test_an_example_that_is_no_list_of_messages(tmp_path: Path, tokenizer: SentencePieceTokenizer, example: object) -> None:
    with pytest.raises(NielsCacheError, match="message"):
        build_sft_cache([example], str(tmp_path / "x"), tokenizer=tokenizer, val_frac=0.1, seed=1)  # type: ignore[list-item]


def test_a_source_that_fails_half_way(good: Path, tokenizer: SentencePieceTokenizer) -> None:
    def failing() -> Iterator[str]:
        yield from sentences(600)
        raise NielsCacheError("a.jsonl line 601: not valid JSON")

    with pytest.raises(NielsCacheError, match="line 601"):
        build(good, failing(), tokenizer)


class Tokenizer:
    """A duck-typed tokenizer that is wrong in the way that a test requests."""

    vocab_size: object = 300

    def encode(self, text: str) -> list[int]:
        return [1] * len(text)

    def special_token_ids(self) -> dict[str, int | None]:
        return {"eot": 299}


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"vocab_size": 2**31 + 1}, "2,147,483,649 ids"),
        ({"vocab_size": "many"}, "vocab_size is 'many'"),
        ({"special_token_ids": lambda: {"usr": 3}}, "token for eot"),
        ({"special_token_ids": lambda: {"eot": 300}}, "eot id 300 is not below"),
        ({"special_token_ids": None}, "no special_token_ids"),
        ({"encode": lambda text: [300]}, "outside its vocab_size"),
        ({"encode": lambda text: [-1]}, "outside its vocab_size"),
    ],
)
def test_a_tokenizer_that_cannot_work(good: Path, attributes: dict[str, object], message: str) -> None:
    tokenizer = Tokenizer()
    for name, value in attributes.items():
        setattr(tokenizer, name, value)
    with pytest.raises(NielsCacheError, match=message):
        build(good, ["text"], tokenizer)


@pytest.mark.parametrize("val_frac", [-0.1, 1.0])
def test_an_sft_cache_needs_all_special_tokens_and_a_val_frac_in_its_range(
    tmp_path: Path, tokenizer: SentencePieceTokenizer, val_frac: float
) -> None:
    with pytest.raises(NielsCacheError, match=r"sys, usr, asst"):
        build_sft_cache([], str(tmp_path / "x"), tokenizer=Tokenizer(), val_frac=0.1, seed=1)
    with pytest.raises(NielsCacheError, match="val_frac is"):
        build_sft_cache([], str(tmp_path / "x"), tokenizer=tokenizer, val_frac=val_frac, seed=1)


def test_a_folder_of_somebody_elses_files_is_never_replaced(tmp_path: Path, tokenizer: SentencePieceTokenizer) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "one.jpg").write_bytes(b"precious")
    with pytest.raises(NielsCacheError, match=r"photos.*not a cache"):
        build(tmp_path / "photos", sentences(5), tokenizer)
    (tmp_path / "photos" / "meta.json").write_text("{}")
    with pytest.raises(NielsCacheError, match=r"holds 'one\.jpg'"):
        build(tmp_path / "photos", sentences(5), tokenizer)
    assert (tmp_path / "photos" / "one.jpg").read_bytes() == b"precious"


def test_a_cache_that_is_a_link_to_another_disk_stays_one(tmp_path: Path, tokenizer: SentencePieceTokenizer) -> None:
    (tmp_path / "big" / "x").mkdir(parents=True)
    (tmp_path / "x").symlink_to(tmp_path / "big" / "x")
    for _ in range(2):
        build(tmp_path / "x", sentences(5), tokenizer)
        assert (tmp_path / "x").is_symlink()
        assert (tmp_path / "big" / "x" / "meta.json").exists()
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


def test_a_cache_directory_that_cannot_be_written(tmp_path: Path, tokenizer: SentencePieceTokenizer) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(NielsCacheError, match="cannot write there"):
        build(tmp_path / "file" / "x", sentences(5), tokenizer)
    with pytest.raises(NielsCacheError, match="is a file"):
        build(tmp_path / "file", sentences(5), tokenizer)


def test_a_read_only_cache_directory(tmp_path: Path, tokenizer: SentencePieceTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(commit.os, "open", refused)  # a chmod would not keep root out
    with pytest.raises(NielsCacheError, match="cannot write there"):
        build(tmp_path / "x", sentences(5), tokenizer)


def test_a_full_disk_is_one_line_and_no_harm(good: Path, tokenizer: SentencePieceTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(*_: object) -> None:
        raise OSError(28, "No space left on device", "shard_00000.bin")

    monkeypatch.setattr("niels_cache_assets.disk.writers.os.fsync", no_space)
    with pytest.raises(NielsCacheError, match=r"No space left.*last good cache"):
        build(good, sentences(5), tokenizer)


def test_a_second_build_of_the_same_cache_is_told_so(good: Path, tokenizer: SentencePieceTokenizer) -> None:
    def inner() -> Iterator[str]:
        with pytest.raises(NielsCacheError, match="another build"):
            build(good, sentences(5), tokenizer)
        raise NielsCacheError("seen")
        yield ""

    with pytest.raises(NielsCacheError, match="seen"):
        build(good, inner(), tokenizer)


def test_where_the_system_cannot_exchange_the_old_directory_is_renamed_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "swap_paths", lambda first, second: False)
    for content in ("one", "two"):
        with atomic_directory(tmp_path / "x") as partial:
            (partial / "meta.json").write_text(content)
    assert (tmp_path / "x" / "meta.json").read_text() == "two"
    assert sorted(path.name for path in tmp_path.iterdir()) == [".x.lock", "x"]


def test_a_reader_keeps_the_build_it_opened_while_another_takes_its_place(tmp_path: Path, tokenizer: SentencePieceTokenizer) -> None:
    import torch

    from niels_cache_runtime.samplers.pretrain_dataset import PretrainTokenStreamDataset

    build(tmp_path / "x", sentences(60), tokenizer)
    dataset = PretrainTokenStreamDataset(str(tmp_path / "x" / "train"), T=16, device="cpu")
    before = dataset.get_batch(B=8, generator=torch.Generator().manual_seed(1))[0]
    build(tmp_path / "x", sentences(60, seed=5), tokenizer)
    assert torch.equal(dataset.get_batch(B=8, generator=torch.Generator().manual_seed(1))[0], before)
    fresh = PretrainTokenStreamDataset(str(tmp_path / "x" / "train"), T=16, device="cpu")
    assert not torch.equal(fresh.get_batch(B=8, generator=torch.Generator().manual_seed(1))[0], before)
