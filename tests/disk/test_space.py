"""Checks of the disk space before a build. A build that certainly does not fit is refused. An estimate only warns. An unknown size is not
estimated.
"""

import gzip
import json
import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from niels_cache_assets.disk import space
from niels_cache_assets.disk.journal import partial_directory
from niels_cache_assets.disk.space import SpaceNeed, explain_disk_full, name_path, pretrain_need, require_free_space
from niels_cache_assets.disk.staging import atomic_directory
from niels_cache_assets.project.registry import Registry, load_registry
from niels_cache_assets.sources.reading.files import file_bytes
from niels_cache_formats.megatron_import import Vocabulary, import_megatron
from niels_cache_runtime import NielsCacheError
from niels_cache_runtime.format.layout import Split
from niels_cache_runtime.format.npy_files import create_npy
from tests.helpers.builds import build_dataset, build_tokenizer, prepare_corpus
from tests.helpers.corpora import articles
from tests.helpers.messages import missing
from tests.helpers.small_project import STAGES, small_project


def full(*_: object) -> None:
    raise OSError(28, "No space left on device")


def leave_free(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(space.shutil, "disk_usage", lambda path: SimpleNamespace(free=count))


def test_what_is_needed_follows_from_budgets_and_from_text_where_they_are_known() -> None:
    def need(train: int | None, val: int | None, text: int | None, *, exact: bool = False, token_bytes: int = 2) -> tuple[int, bool] | None:
        found = pretrain_need(train_tokens=train, val_tokens=val, token_bytes=token_bytes, text_bytes=text, exact=exact)
        return None if found is None else (found.bytes, found.certain)

    assert need(1000, 10, None) == (2020, False)  # a stream of unknown length may end before
    assert need(1000, None, 16_000, exact=True) == (2000, True)
    assert need(1000, None, 15_999, exact=True) == (2000, False), "there may be fewer tokens"
    assert need(1000, None, 10_000) == (2000, False)  # files may hold more than text
    assert need(1000, 10, 400) == (200, False)  # the source ends before the budget
    assert need(None, None, 400, exact=True) == (200, False)
    assert need(None, None, None) is None
    assert need(1000, 10, None, token_bytes=4) == (4040, False)
    assert need(1000, 10, 400, token_bytes=4) == (400, False)


def test_a_build_that_surely_does_not_fit_is_refused_and_a_guess_warns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leave_free(monkeypatch, 1_500_000)
    told: list[str] = []
    require_free_space(tmp_path / "a", None, log=told.append)
    require_free_space(
        tmp_path / "a", SpaceNeed(bytes=1_500_000, reason="750,000 tokens", certain=True, is_from_budget=True), log=told.append
    )
    assert not told
    with pytest.raises(NielsCacheError) as caught:
        require_free_space(
            tmp_path / "a", SpaceNeed(bytes=2_000_000, reason="1,000,000 tokens", certain=True, is_from_budget=True), log=told.append
        )
    parts = [f"{tmp_path / 'a'}: 1,000,000 tokens ", " 2.0 MB", "1.5 MB are free", "make room", "another cache directory", "fewer tokens"]
    assert missing(caught.value, *parts) == []
    require_free_space(tmp_path / "a", SpaceNeed(bytes=2_000_000, reason="the tokens of 4.0 MB of text", certain=False), log=told.append)
    [warning] = told
    assert missing(warning, f"warning: {tmp_path / 'a'} may not fit", "4.0 MB of text", " 2.0 MB", "1.5 MB are free") == []


def test_an_unfinished_build_behind_a_link_counts_and_files_of_another_process_may_vanish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_free(monkeypatch, 10)
    (tmp_path / "large/a").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "large/books")
    assert space.free_bytes(tmp_path / "link") == 10, "of a target that the first build makes"
    (tmp_path / "a").symlink_to(tmp_path / "large/a")
    partial = partial_directory(tmp_path / "a")
    partial.mkdir()
    for name in ("journal.json", "gone", "shard"):
        (partial / name).write_bytes(bytes(90 if name == "shard" else 1))
    real = os.stat

    def vanishing(path: str, **settings: bool) -> os.stat_result:
        if os.path.basename(path) == "gone":
            raise FileNotFoundError(path)
        return real(path, **settings)

    monkeypatch.setattr(os, "stat", vanishing)
    require_free_space(tmp_path / "a", SpaceNeed(bytes=100, reason="50 tokens", certain=True), log=pytest.fail)
    (partial / "shard").write_bytes(bytes(88))
    with pytest.raises(NielsCacheError):
        require_free_space(tmp_path / "a", SpaceNeed(bytes=100, reason="50 tokens", certain=True), log=pytest.fail)


def test_only_the_size_of_plain_local_text_is_known(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(bytes(30))
    (tmp_path / "b.jsonl").write_bytes(bytes(12))
    assert file_bytes([str(tmp_path / "*.jsonl")]) == 42
    assert file_bytes(["https://example.org/a.jsonl"]) is file_bytes(None) is None
    for name in ("c.jsonl.gz", "c.parquet", "c.zip"):
        (tmp_path / name).touch()
        assert file_bytes([str(tmp_path / "a.jsonl"), str(tmp_path / name)]) is None


def project(folder: Path, tokenizer_model: Path, budget: str) -> Registry:
    with gzip.open(folder / "letters.jsonl.gz", "wt", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in articles(20))
    config = folder / "niels_cache.toml"
    config.write_text(
        f"[tokenizer]\nmodel = {json.dumps(str(tokenizer_model))}\n"
        f"[pretrain.letters]\nsource = 'jsonl'\nfiles = ['letters.jsonl.gz']\n{budget}",
        encoding="utf-8",
    )
    return load_registry(profile="quickstart", config=str(config))


def test_a_budget_that_the_corpus_fills_and_the_disk_does_not_is_refused_before_anything_is_written(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry, root = project(tmp_path, tiny_model, "train_tokens = 200\nprepare = ['clean']\n"), tmp_path / "cache"
    build_tokenizer(registry, root=root)
    prepare_corpus(registry, "letters", root=root, processes=1)
    before = sorted(root.rglob("*"))
    with monkeypatch.context() as patch:
        leave_free(patch, 100)
        with pytest.raises(NielsCacheError, match=r"letters: 200 tokens take about 400 bytes, and 100 bytes are free"):
            build_dataset(registry, "letters", root=root)
    assert sorted(root.rglob("*")) == before
    assert build_dataset(registry, "letters", root=root).state == "built"
    leave_free(monkeypatch, 1_000_000)
    told: list[str] = []
    guessed = project(tmp_path, tiny_model, "train_tokens = 1_000_000_000\n")
    assert build_dataset(guessed, "letters", root=root, log=told.append).state == "built", "the source may end before"
    assert any(not missing(line, "may not fit", "1,000,000,000 tokens", " 2.0 GB", "1.0 MB are free") for line in told)


def test_a_refusal_says_what_could_not_be_written_and_what_all_of_it_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leave_free(monkeypatch, 4_100)

    def fail(code: int, need: SpaceNeed | None) -> None:
        with explain_disk_full(need), atomic_directory(tmp_path / "target") as partial, name_path(partial / "shard", writes=65_536):
            raise OSError(code, os.strerror(code))

    def failing(code: int, need: SpaceNeed | None) -> str:
        with pytest.raises(NielsCacheError) as caught:
            fail(code, need)
        return str(caught.value)

    need = SpaceNeed(bytes=1_200_000_000, reason="600,000,000 tokens", certain=False)
    said = failing(28, need)
    assert missing(said, f"{tmp_path}/.target.partial/shard: No space ", "writing 65.5 kB", "4.1 kB are free", "make room") == []
    assert missing(said, "another cache directory", f" yet: {tmp_path}/target; ", "600,000,000 tokens", " 1.2 GB in all") == []
    assert failing(28, None).endswith(f" yet: {tmp_path}/target")
    assert failing(5, need).endswith(f" yet: {tmp_path}/target")


def test_a_build_of_each_kind_whose_size_is_known_or_guessed_says_so_before_it_begins(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = small_project(tmp_path, tiny_model)
    for stage in ("tokenizer", "corpus", "pretrain", "export"):
        STAGES[stage](project)
    registry, root = project.registry, project.root
    leave_free(monkeypatch, 100)
    (root / "sft").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(NielsCacheError) as caught:
            build_dataset(registry, "chats", root=root)
    assert re.search(r" yet: .*/sft/chats; .*tokens .* [\d.]+ kB in all$", str(caught.value))
    told: list[str] = []
    build_dataset(registry, "chats", root=root, log=told.append)
    prepare_corpus(registry, "notes", root=root, processes=1, force=True, log=told.append)
    chats, corpus = (line for line in told if line.startswith("warning: "))
    assert missing(chats, "may not fit", "tokens of", "twice") == []
    assert missing(corpus, "may not fit", "documents of", "compressed") == []
    for guess in (chats, corpus):
        *_, free = sizes = re.findall(r"[\d.]+ (?:kB|bytes)", guess)
        assert (len(sizes), free) == (3, "100 bytes"), "of the text, of what is built, and what is free"
    before = sorted(root.rglob("*"))
    with pytest.raises(NielsCacheError, match=r"duplicates: .* \d+ documents in 8 bands .* [\d.]+ kB, and 100 bytes"):
        STAGES["duplicates"](project)
    with pytest.raises(NielsCacheError, match=r"exports: .* [\d.]+ kB, and 100 bytes"):
        STAGES["export"](project)
    prefixes: dict[Split, str | Path] = {"train": project.exports / "letters_train"}
    with pytest.raises(NielsCacheError, match=r"back: [\d,]+ tokens take about [\d.]+ kB, and 100 bytes are free"):
        import_megatron(prefixes, root / "back", vocabulary=Vocabulary(), shard_bytes=4096)
    assert sorted(root.rglob("*")) == before


def test_an_array_says_how_much_of_a_full_disk_it_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match=r"No space .* 4,128 bytes: '.*/a\.npy'"):
        create_npy(tmp_path / "a.npy", "<u4", (1000,))
