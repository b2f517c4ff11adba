"""SFTExampleDataset and assistant_target_mask: which tokens are targets, which examples are sampled, what is refused."""

import pickle
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from niels_cache_runtime import NielsCacheError, SFTExampleDataset, TokenLoader, assistant_target_mask, write_meta
from niels_cache_runtime.format.layout import IDX_DTYPE, IGNORE_INDEX
from tests.helpers.hand_made import ASST, EOT, SYS, USR, rewrite_meta, write_meta_of, write_pair, write_sft

A, B, S, U = 30, 31, 20, 21
PAD = IGNORE_INDEX


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def only_row(tmp_path: Path, example: list[int], *, T: int) -> tuple[list[int], list[int], list[int]]:
    """x, y, y_masked of a data set with that one example."""
    paths = write_pair(tmp_path, "train", [example])
    dataset = SFTExampleDataset(*paths, T=T, device="cpu", eot_id=EOT, asst_id=ASST)
    x, y, y_masked = (batch[0].tolist() for batch in dataset.get_batch(B=1, generator=generator()))
    return x, y, y_masked


@pytest.mark.parametrize(
    ("example", "T", "masked"),
    [
        pytest.param([SYS, S, EOT, USR, U, EOT, ASST, A, B, EOT], 9, [*[PAD] * 6, A, B, EOT], id="a whole conversation"),
        pytest.param([USR, U, EOT, ASST, A, EOT], 8, [PAD, PAD, PAD, A, EOT, PAD, PAD, PAD], id="padding, which is EOT"),
        pytest.param([USR, U, EOT, ASST, A], 7, [PAD, PAD, PAD, A, PAD, PAD, PAD], id="padding after an answer without EOT"),
        pytest.param([USR, U, EOT, ASST, A, B, A, B, EOT], 5, [PAD, PAD, PAD, A, B], id="cut inside an answer"),
        pytest.param(
            [USR, U, EOT, ASST, A, EOT, USR, U, EOT, ASST, EOT], 10, [PAD, PAD, PAD, A, EOT, *[PAD] * 4, EOT], id="an empty answer"
        ),
    ],
)
def test_only_answers_and_their_eot_are_targets(tmp_path: Path, example: list[int], T: int, masked: list[int]) -> None:
    x, y, y_masked = only_row(tmp_path, example, T=T)
    whole = [*example, *[EOT] * (T + 1 - len(example))][: T + 1]
    assert (x, y, y_masked) == (whole[:-1], whole[1:], masked)


def by_hand(tokens: list[int]) -> list[bool]:
    inside, mask = False, []
    for token in tokens:
        mask.append(inside and token != ASST)
        inside = token == ASST or (inside and token != EOT)
    return mask


def test_the_mask_agrees_with_a_token_by_token_reading_on_random_sequences() -> None:
    tokens = torch.randint(1, 7, (300, 40), generator=generator()).numpy().astype(np.uint16)
    expected = np.array([by_hand(row) for row in tokens.tolist()])
    assert 0 < expected.sum() < expected.size
    assert np.array_equal(assistant_target_mask(tokens, ASST, EOT), expected)
    assert np.array_equal(assistant_target_mask(tokens[0], ASST, EOT), expected[0])
    assert assistant_target_mask(tokens[:, :0], ASST, EOT).shape == (300, 0)


def test_batches_are_whole_examples_drawn_by_one_use_of_the_generator(tmp_path: Path) -> None:
    examples = [[USR, 10 + k, EOT, ASST, *[20 + k] * (k + 1), EOT] for k in range(6)]
    dataset = SFTExampleDataset(*write_pair(tmp_path, "train", examples), T=12, device="cpu", eot_id=EOT, asst_id=ASST)
    assert dataset.examples_without_target == 0
    ours, plain = generator(5), generator(5)
    x, y, y_masked = dataset.get_batch(B=50, generator=ours)
    drawn = torch.randint(6, (50,), generator=plain).tolist()
    assert torch.equal(ours.get_state(), plain.get_state())
    assert x[:, 0].tolist() == [USR] * 50
    assert (x[:, 1] - 10).tolist() == drawn
    assert set(drawn) == set(range(6))
    for batch in (x, y, y_masked):
        assert (batch.dtype, batch.shape) == (torch.int64, (50, 12))
        assert batch.is_contiguous()
    assert torch.equal(y[:, :-1], x[:, 1:])
    assert torch.equal((y_masked != PAD).sum(1), torch.tensor([k + 2 for k in drawn]))
    assert torch.equal(y_masked[y_masked != PAD], y[y_masked != PAD])


def test_examples_without_a_target_are_left_out_and_reported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("niels_cache_runtime.cache.sft._SCAN_TOKENS", 3)  # so that blocks end inside examples
    examples = [
        [USR, U, EOT, ASST, A, EOT],
        [USR, U, EOT],  # no message of the assistant
        [USR, U, U, U, U, EOT, ASST, A, EOT],  # answered after the cut
        [USR, U, U, EOT, ASST, A, EOT],  # its sentinel is the last token kept, its answer is cut
        [USR, U, EOT, ASST],  # an answer of nothing, followed by another example
        [ASST, A, EOT],
    ]
    paths = write_pair(tmp_path, "train", examples)
    with pytest.warns(UserWarning, match=r"4 of 6 examples .* T=4") as caught:
        dataset = SFTExampleDataset(*paths, T=4, device="cpu", eot_id=EOT, asst_id=ASST)
    assert len(caught) == 1
    assert dataset.examples_without_target == 4
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x, _, y_masked = dataset.get_batch(B=64, generator=generator())
    assert {tuple(row) for row in x.tolist()} == {(USR, U, EOT, ASST), (ASST, A, EOT, EOT)}
    assert bool((y_masked != PAD).any(dim=1).all())


def test_the_assistant_id_comes_from_meta_beside_the_tokens(tmp_path: Path) -> None:
    folder = write_sft(tmp_path / "chats")
    paths = str(folder / "train_tokens.bin"), str(folder / "train_idx.npy")
    dataset = SFTExampleDataset(*paths, T=9, device="cpu", eot_id=EOT)
    assert dataset.asst_id == ASST
    copy = pickle.loads(pickle.dumps(dataset))
    for ours, theirs in zip(dataset.get_batch(B=8, generator=generator()), copy.get_batch(B=8, generator=generator()), strict=True):
        assert torch.equal(ours, theirs)
    with pytest.raises(NielsCacheError, match="eot id is 4, not eot_id=7"):
        SFTExampleDataset(*paths, T=9, device="cpu", eot_id=7)
    with pytest.raises(NielsCacheError, match="asst id is 3, not asst_id=7"):
        SFTExampleDataset(*paths, T=9, device="cpu", eot_id=EOT, asst_id=7)
    stored = pickle.dumps(dataset)
    rewrite_meta(folder, seed=43)
    with pytest.raises(NielsCacheError, match="rebuilt since"):
        pickle.loads(stored)


def test_an_unknown_or_ambiguous_assistant_id_is_refused(tmp_path: Path) -> None:
    paths = write_pair(tmp_path, "train", [[USR, U, EOT, ASST, A, EOT]])
    with pytest.raises(NielsCacheError, match="pass asst_id="):
        SFTExampleDataset(*paths, T=4, device="cpu", eot_id=EOT)
    with pytest.raises(NielsCacheError, match="must differ"):
        SFTExampleDataset(*paths, T=4, device="cpu", eot_id=EOT, asst_id=EOT)


@pytest.mark.parametrize("above", [0, 1, 2])
def test_without_meta_json_the_sentinel_comes_from_a_tokenizer_near_the_files(tmp_path: Path, above: int) -> None:
    folder = tmp_path / "cache" / "sft" / "chats"
    paths = write_pair(folder, "train", [[USR, U, EOT, ASST, A, EOT]])
    tokenizer = (folder, *folder.parents)[above] / "tokenizer" / "meta.json"
    tokenizer.parent.mkdir()
    write_meta(str(tokenizer), {"kind": "tokenizer", "special_token_ids": {"asst": ASST, "eot": EOT}})
    _, _, y_masked = SFTExampleDataset(*paths, T=6, device="cpu", eot_id=EOT).get_batch(B=1, generator=generator())
    assert y_masked.tolist() == [[PAD, PAD, PAD, A, EOT, PAD]]
    with pytest.raises(NielsCacheError, match=f"tokenizer/meta.json: its eot id is {EOT}, not eot_id={U}"):
        SFTExampleDataset(*paths, T=6, device="cpu", eot_id=U)
    loader = TokenLoader(str(folder), T=8, B=1, seed=0)
    assert A in next(iter(loader)).y_masked[0].tolist()  # type: ignore[index]
    whole = Path(paths[0]).read_bytes()
    Path(paths[0]).write_bytes(whole[:5])  # without meta.json, the sizes of both files are compared
    with pytest.raises(NielsCacheError, match="5 bytes"):
        SFTExampleDataset(*paths, T=6, device="cpu", eot_id=EOT)
    Path(paths[0]).write_bytes(whole)
    tokenizer.unlink()
    with pytest.raises(NielsCacheError, match=r"train_tokens.bin: .*tokenizer/meta.json.*pass asst_id=, the id of the assistant sentinel"):
        SFTExampleDataset(*paths, T=6, device="cpu", eot_id=EOT)


@pytest.mark.parametrize("token", [65_536, -1, True, 2.0])
def test_an_id_that_no_token_can_have_is_refused_when_opened(tmp_path: Path, token: int) -> None:
    paths = write_pair(tmp_path, "train", [[USR, U, EOT, ASST, A, EOT]])
    with pytest.raises(NielsCacheError, match=f"eot_id={token}: "):
        SFTExampleDataset(*paths, T=4, device="cpu", eot_id=token, asst_id=ASST)
    with pytest.raises(NielsCacheError, match=f"asst_id={token}: "):
        SFTExampleDataset(*paths, T=4, device="cpu", eot_id=EOT, asst_id=token)
    write_meta_of(tmp_path, kind="sft", special_token_ids={"asst": token})
    with pytest.raises(NielsCacheError, match=f"asst={token}: "):
        SFTExampleDataset(*paths, T=4, device="cpu", eot_id=EOT)


def test_a_pair_without_an_example_to_sample_is_refused(tmp_path: Path) -> None:
    paths = write_pair(tmp_path, "val", [])
    with pytest.raises(NielsCacheError, match=r"empty \(0 examples\)"):
        SFTExampleDataset(*paths, T=4, device="cpu", eot_id=EOT, asst_id=ASST)
    paths = write_pair(tmp_path, "train", [[USR, U, EOT], [USR, U, EOT]])
    with pytest.raises(NielsCacheError, match="none of its 2"):
        SFTExampleDataset(*paths, T=4, device="cpu", eot_id=EOT, asst_id=ASST)


@pytest.mark.parametrize(
    ("idx", "message"),
    [
        (np.array([0, 4], dtype=np.int32), "holds int32"),
        (np.array([[0, 4]], dtype=IDX_DTYPE), "one dimension"),
        (np.array([1, 4], dtype=IDX_DTYPE), "starts at 1, not at 0"),
        (np.array([0, 4, 4], dtype=IDX_DTYPE), "entry 2 is 4 after 4"),
        (np.array([0, 5, 3], dtype=IDX_DTYPE), "entry 2 is 3 after 5"),
        (np.array([0, 6], dtype=IDX_DTYPE), "at 6, .* of 6"),
        (np.array([], dtype=IDX_DTYPE), "no example, .* 6 tokens"),
        (np.array([None, 1]), "not a readable"),
    ],
)
def test_a_bad_idx_is_refused(tmp_path: Path, idx: np.ndarray, message: str) -> None:
    tokens_path, idx_path = write_pair(tmp_path, "train", [[USR, U, EOT, ASST, A, EOT]])
    np.save(idx_path, idx, allow_pickle=True)
    with pytest.raises(NielsCacheError, match=message):
        SFTExampleDataset(tokens_path, idx_path, T=4, device="cpu", eot_id=EOT, asst_id=ASST)


def test_missing_cut_and_swapped_files_are_refused(tmp_path: Path) -> None:
    tokens_path, idx_path = write_pair(tmp_path, "train", [[USR, U, EOT, ASST, A, EOT]])

    def opened(tokens: str = tokens_path, idx: str = idx_path) -> None:
        SFTExampleDataset(tokens, idx, T=4, device="cpu", eot_id=EOT, asst_id=ASST)

    none = str(tmp_path / "none.npy")
    for given, keyword in (({"tokens": none}, "no such tokens"), ({"idx": none}, "no such file"), ({"idx": tokens_path}, "not a readable")):
        with pytest.raises(NielsCacheError, match=keyword):
            opened(**given)
    whole = Path(idx_path).read_bytes()
    for kept in (0, 5, 60, len(whole) - 3):
        Path(idx_path).write_bytes(whole[:kept])
        with pytest.raises(NielsCacheError, match="not a readable"):
            opened()
    Path(tokens_path).write_bytes(b"12345")
    with pytest.raises(NielsCacheError, match="5 bytes"):
        opened()


def test_a_pair_that_is_not_what_meta_says_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "chats"
    paths = write_pair(folder, "train", [[USR, U, EOT, ASST, A, EOT]])
    write_meta_of(folder, kind="sft")
    write_pair(folder, "train", [[USR, U, EOT, ASST, A, A, EOT]])
    with pytest.raises(NielsCacheError, match=r"train_tokens.bin: has 14 bytes, .* 12"):
        SFTExampleDataset(*paths, T=4, device="cpu", eot_id=EOT)
    rewrite_meta(folder, built=False)
    with pytest.raises(NielsCacheError, match="never built"):
        SFTExampleDataset(*paths, T=4, device="cpu", eot_id=EOT)
