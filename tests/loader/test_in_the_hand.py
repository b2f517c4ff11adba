"""The loader and its batches in a notebook or a shell: a root and names, what they show, and what a wrong guess is told."""

import pickle
import warnings
from collections.abc import Iterable, Iterator
from html import escape
from operator import length_hint
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import niels_cache_runtime
from niels_cache_runtime import (
    SFT,
    Batch,
    NielsCacheError,
    PreferenceBatch,
    PretrainTokenStreamDataset,
    SFTExampleDataset,
    TokenLoader,
    open_cache,
)
from tests.helpers.hand_made import write_meta_of, write_stream

T = 10
SETTINGS = {"T": T, "B": 4, "seed": 0}


@pytest.fixture
def root(tmp_path: Path) -> str:
    for name in ("notes", "web"):
        write_stream(tmp_path / "pretrain" / name, np.arange(1001), shard_tokens=130, doc_ends=[500, 1001])
        write_meta_of(tmp_path / "pretrain" / name, kind="pretrain")
    return str(tmp_path)


@pytest.fixture
def batch(root: str) -> Batch:
    return next(iter(TokenLoader(root, "notes", mask_cross_document_targets=True, fields=["document_ids"], **SETTINGS)))


def test_a_root_and_names_are_the_folders_of_these_data_sets(root: str, tmp_path: Path) -> None:
    by_name, by_folder = TokenLoader(root, "notes", **SETTINGS), TokenLoader(f"{root}/pretrain/notes", **SETTINGS)
    assert by_name.state_dict() == by_folder.state_dict()
    assert TokenLoader(root, "pretrain/notes", **SETTINGS).names == ("notes",)
    assert TokenLoader(root, "notes", "web", weights={"notes": 1, "web": 2}, **SETTINGS).names == ("notes", "web")
    for family in ("pretrain", "sft"):
        (tmp_path / family / "both").mkdir(parents=True)
        (tmp_path / family / "both" / "meta.json").write_text("{}")
    with pytest.raises(NielsCacheError, match=r"2 data sets 'both'; .*sft/both"):
        TokenLoader(root, "both", **SETTINGS)


@pytest.mark.parametrize(
    ("folder", "names", "said"),
    [
        (".", ["note"], "did you mean 'notes'"),
        (".", ["xyz"], "pretrain/notes or pretrain/web"),
        (".", [1024, 8], "1024"),
        ("pretrain/notes", ["train"], "no cache root"),
        ("nowhere", ["notes"], "no such folder"),
    ],
)
def test_a_name_that_is_not_there_is_told_what_is(root: str, folder: str, names: list[str], said: str) -> None:
    with pytest.raises(NielsCacheError, match=said):
        TokenLoader(f"{root}/{folder}", *names, **SETTINGS)


def test_a_batch_is_unpacked_and_indexed(root: str, batch: Batch) -> None:
    x, targets = batch
    assert x is batch["x"] is batch.input_ids is batch.x
    assert targets is batch["y_masked"]
    assert "document_ids" in batch
    assert "position_ids" not in batch
    plain = next(iter(TokenLoader(root, "notes", **SETTINGS)))
    x, targets = plain
    assert targets is plain.y
    with pytest.raises(KeyError, match="'chosen', 'rejected'"):
        x, targets = PreferenceBatch(chosen=plain, rejected=batch)
    copy = pickle.loads(pickle.dumps(batch))
    assert torch.equal(copy.labels, batch.labels)


@pytest.mark.parametrize("is_masked", [False, True])
def test_labels_give_the_loss_of_a_model_that_shifts_them_itself(root: str, is_masked: bool) -> None:
    batch = next(iter(TokenLoader(root, "notes", mask_cross_document_targets=is_masked, T=600, B=2, seed=0)))
    targets = [*batch][1]
    assert bool((targets == -100).any()) == is_masked
    assert bool(((batch.labels == batch.input_ids) | (batch.labels == -100)).all())
    logits = torch.randn(*batch.x.shape, 1001, generator=torch.Generator().manual_seed(0))
    shifted_by_the_model = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch.labels[:, 1:].flatten())
    ours = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), targets[:, :-1].flatten())
    assert torch.equal(shifted_by_the_model, ours)


def test_with_a_stride_of_one_less_no_target_of_labels_is_lost(root: str) -> None:
    loader = TokenLoader(root, "notes", stride=T - 1, shuffle=False, epochs=1, **SETTINGS)
    targets = torch.cat([batch.labels[:, 1:].flatten() for batch in loader])
    assert torch.equal(targets, torch.arange(1, len(targets) + 1))
    assert len(targets) > 900


def test_a_batch_shows_shapes_and_not_numbers(batch: Batch) -> None:
    shown = repr(batch)
    assert "x: (4, 10)" in shown
    assert "position_ids" not in shown
    assert "cpu" in shown
    assert "document_ids" in batch._ipython_key_completions_()


def test_names_that_a_batch_lacks_are_answered_with_those_that_it_has(batch: Batch) -> None:
    with pytest.raises(AttributeError, match="did you mean 'input_ids'"):
        batch.inputs_ids  # noqa: B018
    with pytest.raises(AttributeError, match="'x', 'y'"):
        batch.shape  # noqa: B018
    for name, said in (("position_ids", "fields="), (0, "'x', 'y'")):
        with pytest.raises(KeyError, match=said):
            batch[name]
    assert not hasattr(batch, "attention_mask")


@pytest.mark.parametrize("arguments", [{"batch_size": 8}, {}, {"batch_size": 2, "num_workers": 1}])
def test_a_data_loader_with_a_batch_size_is_told_to_leave_it_out(root: str, arguments: dict) -> None:
    with pytest.raises(NielsCacheError, match="batch_size=None"):
        next(iter(DataLoader(TokenLoader(root, "notes", **SETTINGS), **arguments)))


def test_a_loader_is_iterable_and_no_iterator(root: str) -> None:
    loader = TokenLoader(root, "notes", **SETTINGS)
    assert isinstance(loader, Iterable)
    assert not isinstance(loader, Iterator)
    with pytest.raises(TypeError, match="not an iterator"):
        next(loader)  # type: ignore[call-overload]


def test_batches_are_not_indexed_and_an_endless_loader_is_no_list(root: str) -> None:
    loader = TokenLoader(root, "notes", **SETTINGS)
    with pytest.raises(TypeError, match="as_dataset"):
        loader[0]
    with pytest.warns(UserWarning, match="epochs=1"):
        assert length_hint(loader) == 0, "Python asks for it before it fills a list"
    with warnings.catch_warnings(action="error"):
        assert len([*TokenLoader(root, "notes", epochs=1, **SETTINGS)]) == 25


def test_an_argument_that_does_not_exist_is_answered_with_the_nearest(root: str) -> None:
    for wrong, meant in (("t", "'T'"), ("batch_size", "'B'"), ("seq_len", "'T'"), ("shufle", "'shuffle'")):
        with pytest.raises(TypeError, match=f"{wrong}.*{meant}"):
            TokenLoader(root, "notes", **{wrong: 8}, **SETTINGS)
    with pytest.raises(TypeError, match="'loss_on'"):
        SFT(loss_onn="all")  # type: ignore[call-arg]
    for sampler in (PretrainTokenStreamDataset, SFTExampleDataset):
        with pytest.raises(TypeError, match="NAME/val"):
            sampler(root, split="val")

    class Mine(TokenLoader):
        def __init__(self, *given: str, rows: int, **settings: int) -> None:
            super().__init__(*given, B=rows, **settings)  # type: ignore[arg-type]

    assert Mine(root, "notes", rows=3, T=8, seed=0).B == 3


def test_loaders_reports_and_catalogs_are_tables_in_a_notebook(root: str) -> None:
    write_meta_of(Path(root, "pretrain/notes"), kind="pretrain", train_tokens=1001)
    loader = TokenLoader(root, "notes", **SETTINGS)
    next(iter(loader))
    for shown in (repr(loader), loader._repr_html_()):
        assert "1,000" in shown
        assert "100" in shown
        assert "step 1" in shown
    cache = open_cache(root)
    shown_by = {
        "actual": loader.report(3),
        "100.0000%": loader.report(3),
        "notes": cache,
        ".pretrain[": cache.pretrain,
        "2 pretrain data sets": cache.pretrain,
        ".train": cache.pretrain.notes,
        "next(iter(loader))  #": cache.pretrain.notes.train,
    }
    for text, value in shown_by.items():
        html = value._repr_html_()  # type: ignore[attr-defined]
        assert escape(text) in html, value
        assert ("<td" in html) != ("<pre" in html)


def test_dir_lists_the_public_names() -> None:
    assert {"TokenLoader", "Batch", "open_cache"} <= set(dir(niels_cache_runtime))
