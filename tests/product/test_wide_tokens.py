"""Caches of uint32 tokens: everything that reads tokens gives what it gives for uint16, with the ids that do not fit uint16."""

import json
from collections.abc import Callable
from dataclasses import fields
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from niels_cache_runtime import (
    SFT,
    DatasetLoader,
    NielsCacheError,
    PretrainTokenStreamDataset,
    SFTExampleDataset,
    TokenLoader,
    open_cache,
)
from niels_cache_runtime.cache import gather
from niels_cache_runtime.format.layout import CACHE_FORMS, META_NAME, TOKEN_DTYPES
from niels_cache_runtime.format.meta import read_meta
from niels_cache_runtime.format.reading import BLOCK_BYTES
from niels_cache_runtime.loader.batch import Batch
from niels_cache_runtime.megatron import MegatronCacheSplit
from niels_cache_runtime.verify import verify_cache
from tests.helpers.exports import write_documents_cache
from tests.helpers.hand_made import (
    ASST,
    EOT,
    rewrite_meta,
    widened,
    write_meta_of,
    write_pair,
    write_pretrain,
    write_sft,
    write_stream,
    write_wide,
)
from tests.helpers.saying import Saying

T = 12
PAGE = 2048  # tokens of uint16 in a page; also whole pages of uint32
NAMES = ["pretrain/notes", "pretrain/books", "sft/chats"]
WEIGHTS = {"notes": 2, "books": 1, "chats": 1}
NARROW, WIDTH = TOKEN_DTYPES.values()


@pytest.fixture
def narrow(tmp_path: Path) -> Path:
    """Shards that lie back to back (books), shards that do not (notes), and conversations."""
    root = tmp_path / "narrow"
    write_stream(root / "pretrain" / "notes", np.arange(10_000, 11_001), shard_tokens=130, doc_ends=[3, 100, 101, 500, 1001])
    write_stream(root / "pretrain" / "books", np.arange(20_000, 25_000), shard_tokens=PAGE, doc_ends=[700, 2500, 5000])
    rewrite_meta(root / "pretrain" / "notes", documents={"train": 5, "val": 0})
    rewrite_meta(root / "pretrain" / "books", documents={"train": 3, "val": 0})
    chats = root / "sft" / "chats"
    write_pair(chats, "train", [[2, 10, 4, 3, *range(100 * i, 100 * i + 1 + i % 7), 4] for i in range(50)])
    write_pair(chats, "val", [])
    write_meta_of(chats, kind="sft", train_examples=50)
    return root


@pytest.fixture
def wide(narrow: Path, tmp_path: Path) -> Path:
    for folder in sorted(narrow.glob("*/*")):
        write_wide(folder, tmp_path / "wide" / folder.relative_to(narrow))
    return tmp_path / "wide"


def splits(root: Path, *names: str) -> dict[str, str]:
    return {path.parent.name: str(path) for name in names for path in [root / name / "train"]}


def assert_widened(ours: Batch, theirs: Batch) -> None:
    """Every field of a batch of uint32 caches is that of the uint16 caches, and ids are `widened`."""
    for field in fields(Batch):
        found, expected = getattr(ours, field.name), getattr(theirs, field.name)
        if field.name in ("x", "y", "y_masked") and expected is not None:
            assert found.dtype == torch.int64
            expected = torch.from_numpy(widened(expected))
        assert torch.equal(found, expected) if isinstance(expected, torch.Tensor) else found == expected


@pytest.mark.parametrize(
    ("names", "settings"),
    [
        (["pretrain/notes"], {"shuffle": False}),
        (["pretrain/notes"], {"fields": ("document_ids", "position_ids", "cu_seqlens"), "mask_cross_document_targets": True}),
        (["pretrain/books"], {"prefetch": 2}),
        (["sft/chats"], {}),
        (["sft/chats"], {"sft": SFT(loss_on="last_assistant", overflow="truncate_left")}),
        (NAMES, {"fields": ("dataset_ids",), "weights": WEIGHTS}),
    ],
    ids=lambda value: "-".join(value),
)
def test_a_loader_and_its_resumption(narrow: Path, wide: Path, names: list[str], settings: dict[str, Any]) -> None:
    theirs, ours = (TokenLoader(splits(root, *names), T=T, B=6, seed=7, **settings) for root in (narrow, wide))
    expected = list(islice(theirs, 30))
    found = list(islice(ours, 11))
    state = json.loads(json.dumps(ours.state_dict()))
    found += islice(TokenLoader.from_state(state), 19)
    for batch, of_narrow in zip(found, expected, strict=True):
        assert_widened(batch, of_narrow)


def test_a_blend_of_both_dtypes_and_its_trace(narrow: Path, wide: Path) -> None:
    settings: dict[str, Any] = {"T": T, "B": 6, "seed": 7, "weights": WEIGHTS, "fields": ("dataset_ids",)}
    sources = splits(narrow, *NAMES)
    theirs, ours = TokenLoader(sources, **settings), TokenLoader({**sources, **splits(wide, "pretrain/books")}, **settings)
    seen = set()
    for step, (found, expected) in enumerate(islice(zip(ours, theirs, strict=False), 30)):
        assert found.dataset_ids is not None
        of_books = found.dataset_ids == ours.names.index("books")
        seen.add((bool(of_books.any()), bool(of_books.all())))
        for batch, of_narrow in ((found.x, expected.x), (found.y, expected.y)):
            assert torch.equal(batch, torch.where(of_books[:, None], torch.from_numpy(widened(of_narrow)), of_narrow))
        trace = ours.trace(step)
        assert np.array_equal(trace.tokens[:, :-1], found.x.numpy())
        assert np.array_equal(trace.tokens[:, 1:], found.y.numpy())
    assert (True, False) in seen, "rows of both dtypes in one batch"


def test_to_cuda_the_narrow_type_travels(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sent array has as many bytes as the rows, and becomes int64 on the device. Any device shows this."""
    sent: list[torch.Tensor] = []

    def send(array: np.ndarray, device: torch.device) -> torch.Tensor:
        sent.append(torch.from_numpy(array))
        return sent[-1]

    monkeypatch.setattr(gather, "to_device", send)
    maker = gather.InputTargetMaker(torch.device("cpu"))
    monkeypatch.setattr(maker, "_is_cuda", True)
    for dtype, largest in ((NARROW, 2**16 - 1), (WIDTH, 2**31 - 1)):
        rows = np.array([[1, 2, largest], [largest, 3, 4]], dtype=dtype)
        x, y = maker.pairs(rows)
        assert sent.pop().nbytes == rows.nbytes
        assert x.dtype == y.dtype == torch.int64
        assert (x.tolist(), y.tolist()) == (rows[:, :-1].tolist(), rows[:, 1:].tolist())


# meta.json


def test_a_reader_that_does_not_know_uint32_refuses_it_by_name(narrow: Path, wide: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [str(root / "pretrain/notes" / META_NAME) for root in (narrow, wide)]
    assert [read_meta(path)["forms"] for path in paths] == [[], ["uint32"]]
    monkeypatch.delitem(CACHE_FORMS, "uint32")
    assert read_meta(paths[0])["token_dtype"] == "uint16-le"
    with pytest.raises(NielsCacheError, match="uint32"):
        TokenLoader(splits(wide, "pretrain/notes"), T=T, B=1, seed=0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"forms": []}, r"meta\.json: forms .*uint32"),
        ({"token_dtype": "float"}, r"meta\.json: .*'float'"),
    ],
    ids=str,
)
def test_a_meta_that_would_misread_tokens_is_refused_in_one_line(wide: Path, changes: dict[str, Any], message: str) -> None:
    rewrite_meta(wide / "pretrain/notes", **changes)
    rewrite_meta(wide / "sft/chats", **changes)
    folder = str(wide / "pretrain/notes/train")
    chats = [str(wide / "sft/chats" / name) for name in ("train_tokens.bin", "train_idx.npy")]
    openers: list[Callable[[], object]] = [
        lambda: PretrainTokenStreamDataset(folder, T=T, device="cpu"),
        lambda: DatasetLoader(1, T, 0, 1, folder, "cpu"),
        lambda: TokenLoader(folder, T=T, B=1, seed=0),
        lambda: SFTExampleDataset(*chats, T=T, device="cpu", eot_id=EOT),
        lambda: MegatronCacheSplit(folder),
        lambda: open_cache(wide).pretrain["notes"],
    ]
    for opener in openers:
        with pytest.raises(NielsCacheError, match=message) as caught:
            opener()
        assert len(str(caught.value).splitlines()) == 1


def test_the_ids_of_special_tokens_are_limited_by_the_dtype(narrow: Path, wide: Path) -> None:
    for root, most in ((narrow, 2**16), (wide, 2**31)):
        pair = [str(root / "sft/chats" / name) for name in ("train_tokens.bin", "train_idx.npy")]
        with pytest.raises(NielsCacheError, match=f"eot_id={most}: .*to {most - 1}"):
            SFTExampleDataset(*pair, T=T, device="cpu", eot_id=most, asst_id=ASST)


# verify


@pytest.mark.parametrize(("write", "name"), [(write_pretrain, "train/shard_00001.bin"), (write_sft, "train_tokens.bin")])
def test_verify_finds_damage(tmp_path: Path, write: Callable[..., Path], name: str) -> None:
    folder = write_wide(write(tmp_path / "narrow"), tmp_path / "wide")
    vocab_size = read_meta(str(folder / META_NAME))["vocab_size"]
    assert vocab_size > 2**16
    assert verify_cache(folder) == []
    tokens = np.fromfile(folder / name, WIDTH)
    for token, problems in ((vocab_size - 1, []), (vocab_size, [(name, Saying(f"id {vocab_size}", f"has {vocab_size}"))])):
        np.where(np.arange(len(tokens)) == 1, token, tokens).astype(WIDTH).tofile(folder / name)
        write_again(folder)
        assert [(finding.path, finding.problem) for finding in verify_cache(folder)] == problems
    tokens.tofile(folder / name)
    (folder / name).write_bytes((folder / name).read_bytes()[:-2])
    write_again(folder)
    assert (name, Saying("bytes", "uint32 tokens")) in [(finding.path, finding.problem) for finding in verify_cache(folder)]
    with pytest.raises(NielsCacheError, match="uint32 tokens"):
        TokenLoader(str(folder / "train"), T=2, B=1, seed=0)


def write_again(folder: Path) -> None:
    """meta.json for the files as they are now, as a build with a mistake would write it."""
    meta = read_meta(str(folder / META_NAME))
    write_meta_of(folder, **{key: value for key, value in meta.items() if key not in ("files", "content_sha256", "meta_sha256")})


def test_verify_counts_documents_over_the_blocks_of_a_shard(tmp_path: Path) -> None:
    documents = [[*[10] * (BLOCK_BYTES // 4096 - 2), EOT]] * 3000
    wide = write_wide(write_documents_cache(tmp_path / "narrow", {"train": documents}, shard_tokens=10_000_000), tmp_path / "wide")
    assert (wide / "train/shard_00000.bin").stat().st_size > 2 * BLOCK_BYTES
    assert verify_cache(wide) == []
