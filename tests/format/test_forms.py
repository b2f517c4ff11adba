"""The forms of a cache in meta.json: every reader refuses by name one that it does not know, or that the other keys do not have."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from niels_cache_assets.artifacts.state import unlisted_state
from niels_cache_assets.cli import main
from niels_cache_assets.disk.staging import finished_meta
from niels_cache_assets.publish.push import open_local_build
from niels_cache_runtime import NielsCacheError, open_cache, read_meta
from niels_cache_runtime.cache.opening import open_meta
from niels_cache_runtime.format.layout import CACHE_FORMS, META_NAME
from niels_cache_runtime.remote.record import Record, published_of
from niels_cache_runtime.verify import verify_dataset
from tests.helpers.hand_made import rewrite_meta, write_cache

KEYS: dict[str, tuple[str, dict[str, Any]]] = {  # form -> data set, and the keys that give its meta.json this form
    "fim_copies": ("pretrain/notes", {"fim": {"copies": 2}}),
    "pairs": ("sft/chats", {"sides": ["chosen", "rejected"]}),
    "target_weights": ("sft/chats", {"files": {"train_target_weights.npy": {"bytes": 0, "sha256": ""}}}),
    "parts": ("pretrain/notes", {"parts": []}),
    "spans": ("sft/chats", {"targets": {"train": 1, "val": 0}}),
    "tombstones": ("pretrain/notes", {"tombstones": {"token_id": 1}}),
    "uint32": ("pretrain/notes", {"token_dtype": "uint32-le"}),
}


def problem_of_state(folder: Path) -> str:
    found = unlisted_state(folder.parent.name, folder.name, root=folder.parents[1])  # type: ignore[arg-type]
    assert found.state == "unreadable"
    return found.advice


def problem_of_show(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["show", str(folder)]) != 0
    return capsys.readouterr().err


def said(read: Callable[[], object]) -> str:
    with pytest.raises(NielsCacheError) as caught:
        read()
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def published(folder: Path) -> object:
    """Read the meta.json of `folder` as that of a published cache."""
    content = (folder / META_NAME).read_bytes()
    entry = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    family: Any = folder.parent.name
    record = Record(family=family, name=folder.name, content_sha256="0" * 64, meta_sha256="0" * 64, beside={META_NAME: entry})
    return published_of(record, {META_NAME: content}, "s3://bucket/meta.json")


def problems(folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """Return what each reader of meta.json says of a cache that it refuses."""
    family, name = folder.parent.name, folder.name
    return {
        "read_meta": said(lambda: read_meta(str(folder / META_NAME))),
        "opening": said(lambda: open_meta(folder)),
        "open_cache": said(lambda: getattr(open_cache(folder.parents[1]), family)[name].train),
        "verify": " ".join(finding.problem for finding in verify_dataset(folder)),
        "status": problem_of_state(folder),
        "show": problem_of_show(folder, capsys),
        "push": said(lambda: open_local_build(folder)),
        "published": said(lambda: published(folder)),
    }


def test_the_forms_are_those_that_this_test_has_keys_for() -> None:
    assert list(CACHE_FORMS) == sorted(KEYS)


@pytest.mark.parametrize("form", KEYS)
def test_a_form_is_listed_and_a_reader_that_does_not_know_it_refuses_it(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name, keys = KEYS[form]
    folder = write_cache(tmp_path / "cache") / name
    assert read_meta(str(folder / META_NAME))["forms"] == []
    rewrite_meta(folder, **keys)
    assert read_meta(str(folder / META_NAME))["forms"] == [form]
    monkeypatch.delitem(CACHE_FORMS, form)
    for reader, problem in problems(folder, capsys).items():
        assert (reader, f"'{form}'" in problem, "knows only" in problem) == (reader, True, True), problem
    assert finished_meta(folder) is None


@pytest.mark.parametrize("name", ["pretrain/notes", "sft/chats"])
@pytest.mark.parametrize("forms", [["columns"], ["columns", "parts"], *([form] for form in KEYS)], ids=str)
def test_a_form_that_is_unknown_or_that_the_other_keys_do_not_have_is_refused(
    tmp_path: Path, name: str, forms: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_cache(tmp_path / "cache") / name
    rewrite_meta(folder, forms=forms)
    for reader, problem in problems(folder, capsys).items():
        assert (reader, f"'{forms[0]}'" in problem) == (reader, True), problem
    assert finished_meta(folder) is None


@pytest.mark.parametrize("form", KEYS)
def test_a_cache_that_does_not_list_its_form_is_refused(tmp_path: Path, form: str, capsys: pytest.CaptureFixture[str]) -> None:
    name, keys = KEYS[form]
    folder = write_cache(tmp_path / "cache") / name
    rewrite_meta(folder, **keys, forms=[])
    for reader, problem in problems(folder, capsys).items():
        assert (reader, f"'{form}'" in problem) == (reader, True), problem


@pytest.mark.parametrize("forms", ["uint32", None, 1, {"uint32": True}, [["uint32"]], [1]], ids=str)
def test_forms_that_are_no_list_of_texts_are_refused(tmp_path: Path, forms: object) -> None:
    folder = write_cache(tmp_path / "cache") / "pretrain" / "notes"
    rewrite_meta(folder, forms=forms)
    assert "list of texts" in said(lambda: read_meta(str(folder / META_NAME)))
