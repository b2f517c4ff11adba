"""Caches of uint32 tokens: everything that reads tokens gives what it gives for uint16, with the ids that do not fit uint16."""

import json
import pickle
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
from niels_cache_runtime.format.meta import _warned, read_meta
from niels_cache_runtime.format.reading import BLOCK_BYTES
from niels_cache_runtime.loader.batch import Batch
from niels_cache_runtime.loader.packing.rows import PackedExamples
from niels_cache_runtime.loader.windows import PretrainWindows
from niels_cache_runtime.megatron import CacheSplit, IndexedDataset, MegatronGPTDataset, open_blend, plan_indexed, write_indexed
from niels_cache_runtime.verify import verify_cache
from tests import megatron_core
from tests.exports import random_documents, write_documents_cache
from tests.hand_made import (
    ASST,
    EOT,
    WIDE,
    rewrite_meta,
    widened,
    write_cache,
    write_meta_of,
    write_pair,
    write_pretrain,
    write_sft,
    write_stream,
    write_wide,
)
from tests.saying import Saying

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


@pytest.mark.parametrize("name", ["pretrain/notes", "pretrain/books"])
def test_random_windows(narrow: Path, wide: Path, name: str) -> None:
    theirs, ours = (PretrainTokenStreamDataset(str(root / name / "train"), T=T, device="cpu") for root in (narrow, wide))
    assert ours.total_windows == theirs.total_windows
    for dataset in (ours, pickle.loads(pickle.dumps(ours))):
        expected = theirs.get_batch(B=64, generator=torch.Generator().manual_seed(1))
        found = dataset.get_batch(B=64, generator=torch.Generator().manual_seed(1))
        assert int(found[0].min()) > WIDE
        for batch, of_narrow in zip(found, expected, strict=True):
            assert batch.dtype == torch.int64
            assert np.array_equal(batch.numpy(), widened(of_narrow))


def test_sft_examples_by_number(narrow: Path, wide: Path) -> None:
    pairs = [[str(root / "sft/chats" / name) for name in ("train_tokens.bin", "train_idx.npy")] for root in (narrow, wide)]
    theirs, ours = (SFTExampleDataset(*pair, T=T, device="cpu", eot_id=EOT) for pair in pairs)
    x, y, y_masked = ours.get_batch(B=40, generator=torch.Generator().manual_seed(1))
    for found, expected in zip((x, y, y_masked), theirs.get_batch(B=40, generator=torch.Generator().manual_seed(1)), strict=True):
        assert np.array_equal(found.numpy(), widened(expected))
    assert (y_masked > WIDE).any()
    assert (y_masked == -100).any()


@pytest.mark.parametrize("name", ["pretrain/notes", "pretrain/books"])
def test_sequential_chunks_and_their_state(narrow: Path, wide: Path, name: str) -> None:
    theirs, ours = (DatasetLoader(3, T, 0, 1, str(root / name / "train"), "cpu") for root in (narrow, wide))
    assert ours.files == theirs.files
    for step in range(2 * theirs.steps_per_epoch):
        if step == 3:
            state = json.loads(json.dumps(ours.state_dict()))
            ours = DatasetLoader(3, T, 0, 1, str(wide / name / "train"), "cpu")
            ours.load_state_dict(state)
        for found, expected in zip(ours.get_batch(), theirs.get_batch(), strict=True):
            assert np.array_equal(found.numpy(), widened(expected))


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


def test_every_token_of_a_trace_is_in_the_file_that_it_names(wide: Path) -> None:
    loader = TokenLoader(splits(wide, *NAMES), T=T, B=6, seed=7, weights=WEIGHTS)
    trace, places = loader.trace(3), 0
    for row, column in np.ndindex(trace.tokens.shape):
        origin = trace.token(row, column)
        if origin.file is not None:
            assert np.fromfile(origin.file, WIDTH)[origin.offset] == origin.token
            places += 1
    assert places > T


def test_a_source_reads_rows_of_uint32(wide: Path) -> None:
    for source in (PretrainWindows(str(wide / "pretrain/notes/train"), T=T), PackedExamples(str(wide / "sft/chats/train"), T=T, seed=0)):
        rows = source.read(np.arange(source.samples), epoch=0, boundaries=True)
        assert rows.tokens.dtype == WIDTH
        assert int(rows.tokens.max()) > WIDE


def test_a_cache_opened_by_name(narrow: Path, wide: Path) -> None:
    for name in ("notes", "books"):
        theirs, ours = (open_cache(root).pretrain[name].train for root in (narrow, wide))
        assert ours.tokens == theirs.tokens > 0
        assert ours.bytes == theirs.bytes + 2 * theirs.tokens
        assert len(ours) == len(theirs) > 1
        for row in range(len(ours)):
            assert ours[row].dtype == WIDTH
            assert ours[row].tolist() == widened(theirs[row]).tolist()
    theirs, ours = (open_cache(root).sft["chats"].train for root in (narrow, wide))
    assert ours[-1].tolist() == widened(theirs[-1]).tolist()
    assert isinstance(ours.sampler(T=T), SFTExampleDataset)


def test_to_cuda_the_narrow_type_travels(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sent array has as many bytes as the rows, and becomes int64 on the device. Any device shows this."""
    sent: list[torch.Tensor] = []

    def send(array: np.ndarray, device: torch.device) -> torch.Tensor:
        sent.append(torch.from_numpy(array))
        return sent[-1]

    monkeypatch.setattr(gather, "send", send)
    maker = gather.PairMaker(torch.device("cpu"))
    monkeypatch.setattr(maker, "_is_cuda", True)
    for dtype, largest in ((NARROW, 2**16 - 1), (WIDTH, 2**31 - 1)):
        rows = np.array([[1, 2, largest], [largest, 3, 4]], dtype=dtype)
        x, y = maker.pairs(rows)
        assert sent.pop().nbytes == rows.nbytes
        assert x.dtype == y.dtype == torch.int64
        assert (x.tolist(), y.tolist()) == (rows[:, :-1].tolist(), rows[:, 1:].tolist())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_cuda_batches_equal_those_of_the_cpu(narrow: Path, wide: Path) -> None:
    sources = {**splits(narrow, *NAMES), **splits(wide, "pretrain/books")}
    on_cpu, on_cuda = (islice(TokenLoader(sources, T=T, B=6, seed=7, weights=WEIGHTS, device=device), 20) for device in ("cpu", "cuda"))
    for expected, found in zip(on_cpu, on_cuda, strict=True):
        for theirs, ours in zip(expected.tensors(), found.tensors(), strict=True):
            assert torch.equal(theirs, ours.cpu())


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
        lambda: CacheSplit(folder),
        lambda: open_cache(wide).pretrain["notes"],
    ]
    for opener in openers:
        with pytest.raises(NielsCacheError, match=message) as caught:
            opener()
        assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("name", ["uint32-le", "uint32", "<u4"])
def test_a_meta_of_another_program_may_say_uint32(tmp_path: Path, name: str) -> None:
    _warned.clear()
    folder, eot, asst = tmp_path / "pretrain" / "theirs", 100_000, 2**31 - 1
    known = {"token_dtype": name, "vocab_size": 2**31, "special_token_ids": {"eot": eot, "asst": asst}}
    for split, tokens in (("train", np.arange(70_000, 71_000)), ("val", np.arange(5))):
        (folder / split).mkdir(parents=True)
        tokens.astype("<u4").tofile(folder / split / "shard_00000.bin")
    (folder / META_NAME).write_text(json.dumps({**known, "train_tokens": 1000, "val_tokens": 5}))
    with pytest.warns(UserWarning, match="another program"):
        loader = TokenLoader(str(folder / "train"), T=T, B=1, seed=0, shuffle=False)
    assert next(iter(loader)).x.tolist() == [[*range(70_000, 70_000 + T)]]
    assert open_cache(tmp_path).pretrain["theirs"].train.tokens == 1000
    assert verify_cache(folder) == []
    chats = tmp_path / "chats"
    chats.mkdir()
    np.array([1, eot, asst, 70_001, eot], dtype="<u4").tofile(chats / "train_tokens.bin")
    np.save(chats / "train_idx.npy", np.array([0]))
    (chats / META_NAME).write_text(json.dumps({**known, "train_examples": 1, "val_examples": 0}))
    with pytest.warns(UserWarning, match="another program"):
        dataset = SFTExampleDataset(str(chats / "train_tokens.bin"), str(chats / "train_idx.npy"), T=5, device="cpu", eot_id=eot)
    y_masked = dataset.get_batch(B=1, generator=torch.Generator())[2]
    assert y_masked.tolist() == [[-100, -100, 70_001, eot, -100]]


def test_the_same_bytes_read_as_another_dtype_are_other_samples(tmp_path: Path) -> None:
    """Without a list of hashes, a state belongs to the dtype too."""
    fingerprints = set()
    for name in ("uint16", "uint32"):
        folder = tmp_path / name
        (folder / "train").mkdir(parents=True)
        np.arange(1000, dtype="<u4").tofile(folder / "train" / "shard_00000.bin")
        counts = {"train_tokens": 1000 if name == "uint32" else 2000, "val_tokens": 0}
        (folder / META_NAME).write_text(json.dumps({"token_dtype": name, "vocab_size": 1000, "special_token_ids": {"eot": 1}, **counts}))
        _warned.clear()
        with pytest.warns(UserWarning, match="another program"):
            fingerprints.add(PretrainWindows(str(folder / "train"), T=T).fingerprint)
    assert len(fingerprints) == 2


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


def test_verify_accepts_a_whole_cache_of_both_dtypes(tmp_path: Path) -> None:
    root = write_cache(tmp_path / "cache")
    write_wide(root / "pretrain/notes", root / "pretrain/wide")
    write_wide(root / "sft/chats", root / "sft/wide")
    assert verify_cache(root) == []


# Megatron


def wide_split(folder: Path, *, seed: int = 1, shard_tokens: int = PAGE) -> tuple[Path, list[list[int]]]:
    documents = random_documents(400, seed=seed)
    narrow = write_documents_cache(folder / "narrow", {"train": documents}, shard_tokens=shard_tokens)
    return write_wide(narrow, folder / "wide") / "train", [widened(document).tolist() for document in documents]


@pytest.mark.parametrize("link", ["copy", "hardlink"])
def test_an_export_has_the_bytes_of_megatron_core_in_int32(tmp_path: Path, link: Any) -> None:
    core = megatron_core.load().indexed
    split, documents = wide_split(tmp_path, shard_tokens=20_000)
    [part] = write_indexed(tmp_path / "ours", split, link=link)
    builder = core.IndexedDatasetBuilder(str(tmp_path / "core.bin"), dtype=np.int32)
    for document in documents:
        builder.add_document(torch.tensor(document), [len(document)])
    builder.finalize(str(tmp_path / "core.idx"))
    for ending in (".bin", ".idx"):
        assert Path(f"{part.prefix}{ending}").read_bytes() == (tmp_path / f"core{ending}").read_bytes()
    assert (part.bin_bytes, part.idx_bytes) == tuple((tmp_path / f"core{ending}").stat().st_size for ending in (".bin", ".idx"))
    read = core.IndexedDataset(part.prefix)
    assert [read[sequence].tolist() for sequence in range(len(read))] == documents


def test_a_split_is_presented_as_its_export_and_in_a_blend(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"num_samples": 40, "sequence_length": 16, "seed": 1}
    folder, documents = wide_split(tmp_path)
    split = CacheSplit(folder)
    write_indexed(tmp_path / "export", folder)
    exported = IndexedDataset(tmp_path / "export")
    assert split.dtype == exported.dtype == np.int32
    assert split.fingerprint == exported.fingerprint
    assert split.sequence_pointers.tolist() == exported.sequence_pointers.tolist()
    assert split.tokens.tolist() == exported.tokens.tolist() == [token for document in documents for token in document]
    of_narrow = MegatronGPTDataset(CacheSplit(tmp_path / "narrow" / "train"), **settings)
    of_split = MegatronGPTDataset(split, **settings)
    for dataset in (of_split, MegatronGPTDataset(exported, **settings), pickle.loads(pickle.dumps(of_split))):
        assert len(dataset) == len(of_narrow) >= 40
        for index in range(len(dataset)):
            for name in ("tokens", "labels"):
                assert dataset[index][name].tolist() == widened(of_narrow[index][name]).tolist()
    blend = open_blend([folder, tmp_path / "narrow" / "train"], [0.5, 0.5], **settings)
    largest = [int(blend[index]["tokens"].max()) for index in range(len(blend))]
    assert min(largest) < WIDE < max(largest)


def test_max_bytes_counts_the_bytes_of_the_dtype(tmp_path: Path) -> None:
    folder, documents = wide_split(tmp_path)
    total = 4 * sum(map(len, documents))
    assert [part.bin_bytes for part in plan_indexed(tmp_path / "out", folder, max_bytes=total)] == [total]
    parts = plan_indexed(tmp_path / "out", folder, max_bytes=total // 2)
    assert len(parts) > 1
    assert max(part.bin_bytes for part in parts) <= total // 2
    longest = max(map(len, documents))
    with pytest.raises(NielsCacheError, match=f"{4 * longest} bytes"):
        plan_indexed(tmp_path / "out", folder, max_bytes=4 * longest - 1)
