"""PackedExamples: rows of whole examples, their boundaries and targets, where their tokens come from, and what is refused."""

import pickle
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from niels_cache_runtime import NielsCacheError
from niels_cache_runtime.cache import sft
from niels_cache_runtime.loader.packing.rows import PackedExamples
from niels_cache_runtime.loader.source import SampleRows, SampleSource
from tests.helpers.hand_made import ASST, EOT, SYS, USR, exchange_before, rewrite_meta, write_meta_of, write_pair, write_sft
from tests.helpers.messages import missing

A, B, C, U = 30, 31, 32, 21
OVERFLOWS = ["truncate_right", "truncate_left", "drop"]
LOSSES = ["assistant", "last_assistant", "all"]


def opened(folder: Path, examples: Sequence[Sequence[int]], *, T: int, **settings: Any) -> PackedExamples:
    write_pair(folder, "train", examples)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return PackedExamples(str(folder / "train"), T=T, **{"seed": 0, "eot_id": EOT, "asst_id": ASST, **settings})


def whole_epoch(source: PackedExamples, epoch: int = 0) -> SampleRows:
    return source.read(np.arange(source.samples), epoch=epoch, boundaries=True)


def learned(source: PackedExamples, epoch: int = 0) -> list[list[int]]:
    """The targets of every row, in order."""
    rows = whole_epoch(source, epoch)
    assert rows.targets is not None
    return [row[1:][targets].tolist() for row, targets in zip(rows.tokens, rows.targets, strict=True)]


def random_examples(seed: int, *, count: int = 40, longest: int = 14) -> list[list[int]]:
    """Any tokens: well formed or not, sentinels and EOT anywhere."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest + 1, (count,), generator=generator).tolist()
    return [torch.randint(1, 8, (length,), generator=generator).tolist() for length in lengths]


@dataclass
class Expected:
    """One example, read token by token: (token, offset in the example, whether it is a target) of what is kept."""

    kept: list[tuple[int, int, bool]]


def by_hand(example: list[int], *, T: int, loss_on: str, overflow: str) -> Expected | None:
    spans: list[int] = []  # the span of each token's target, 0 for a token that is not a target
    inside, span = False, 0
    for offset, token in enumerate(example):
        spans.append(span if inside and token != ASST and offset else 0)
        if token == ASST:
            inside, span = True, span + 1
        elif token == EOT:
            inside = False
    if len(example) > T + 1 and overflow == "drop":
        return None
    first = max(0, len(example) - (T + 1)) if overflow == "truncate_left" else 0
    kept = range(first, min(len(example), first + T + 1))
    learn = {offset for offset in kept if offset > first and (spans[offset] or loss_on == "all")}
    if loss_on == "last_assistant":
        learn = {offset for offset in learn if spans[offset] == max(spans[offset] for offset in learn)}
    return Expected([(example[offset], offset, offset in learn) for offset in kept]) if learn else None


@given(st.integers(0, 2**32), st.integers(1, 16), st.sampled_from(LOSSES), st.sampled_from(OVERFLOWS), st.booleans())
def test_rows_agree_with_a_token_by_token_reading(
    tmp_path_factory: pytest.TempPathFactory, seed: int, T: int, loss_on: str, overflow: str, shuffle: bool
) -> None:
    examples = random_examples(seed)
    wanted = {
        number: expected
        for number, example in enumerate(examples)
        if (expected := by_hand(example, T=T, loss_on=loss_on, overflow=overflow)) is not None
    }
    folder = tmp_path_factory.mktemp("pair")
    if not wanted:
        with pytest.raises(NielsCacheError, match="none of its 40"):
            opened(folder, examples, T=T, loss_on=loss_on, overflow=overflow)
        return
    source = opened(folder, examples, T=T, loss_on=loss_on, overflow=overflow, shuffle=shuffle)
    starts = np.cumsum([0, *map(len, examples)])
    numbers = torch.randperm(source.samples, generator=torch.Generator().manual_seed(seed)).numpy()
    rows, origins = source.read(numbers, epoch=2, boundaries=True), source.origins(numbers, epoch=2)
    assert rows.targets is not None
    assert rows.boundaries is not None
    assert rows.tokens.dtype == np.uint16
    assert rows.tokens.shape == (source.samples, T + 1)
    boundaries, seen, inputs = [], [], 0
    for row in range(source.samples):
        column, begins = 0, []
        documents = origins.documents[row].tolist()
        while column <= T and documents[column] >= 0:
            number = documents[column]
            begins.append(column)
            seen.append(number)
            for token, offset, is_target in wanted[number].kept:
                assert rows.tokens[row, column] == token
                assert origins.files[row, column] == 0
                assert origins.documents[row, column] == number
                assert origins.document_offsets[row, column] == offset
                assert origins.offsets[row, column] == starts[number] + offset
                if column:
                    assert rows.targets[row, column - 1] == is_target
                column += 1
        inputs += min(column, T)
        if column <= T:
            begins.append(column)
            assert (rows.tokens[row, column:] == EOT).all()
            assert not rows.targets[row, column - 1 :].any()
            for array in (origins.files, origins.offsets, origins.documents, origins.document_offsets):
                assert (array[row, column:] == -1).all()
        boundaries += [(row, begin) for begin in begins if 0 < begin < T]
        assert rows.boundaries.continues[row] == (T not in begins)
    assert sorted(seen) == sorted(wanted)
    assert list(zip(rows.boundaries.rows.tolist(), rows.boundaries.columns.tolist(), strict=True)) == boundaries
    assert (source.tokens, source.examples) == (inputs, len(wanted))

    report = source.report()
    cut = [number for number in wanted if len(examples[number]) > T + 1]
    too_long = sum(len(example) > T + 1 for example in examples) if overflow == "drop" else 0
    counts = {"too_long": too_long, "without_target": len(examples) - len(wanted) - too_long}
    assert report.dropped == {reason: count for reason, count in counts.items() if count}
    assert (report.examples, report.rows) == (len(wanted), source.samples)
    assert report.tokens == sum(len(expected.kept) for expected in wanted.values())
    assert report.padding == source.samples * (T + 1) - report.tokens
    assert (report.truncated, report.truncated_tokens) == (len(cut), sum(len(examples[number]) - (T + 1) for number in cut))


def test_blocks_of_the_scan_do_not_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    examples = random_examples(3, count=300)
    for overflow in OVERFLOWS:
        for loss_on in ("assistant", "last_assistant"):
            sources = []
            for tokens in (1 << 22, 50, 1):
                monkeypatch.setattr(sft, "_SCAN_TOKENS", tokens)
                sources.append(opened(tmp_path, examples, T=7, overflow=overflow, loss_on=loss_on))
            assert sources[0].report() == sources[1].report() == sources[2].report()
            assert learned(sources[0]) == learned(sources[1]) == learned(sources[2])
            assert len(learned(sources[0])) > 50


def test_an_epoch_mixes_other_examples_and_without_shuffling_none_does(tmp_path: Path) -> None:
    examples = [[USR, 10 + k % 7, EOT, ASST, *[20 + k % 11] * (k % 3 + 1), EOT] for k in range(200)]
    source = opened(tmp_path, examples, T=31)
    first, second = whole_epoch(source, 0).tokens, whole_epoch(source, 1).tokens
    assert first.shape == second.shape
    assert not np.array_equal(first, second)
    assert np.array_equal(whole_epoch(source, 0).tokens, first)
    assert np.array_equal(whole_epoch(opened(tmp_path, examples, T=31), 1).tokens, second)
    assert not np.array_equal(whole_epoch(opened(tmp_path, examples, T=31, seed=1), 0).tokens, first)
    still = opened(tmp_path, examples, T=31, shuffle=False)
    assert np.array_equal(whole_epoch(still, 0).tokens, whole_epoch(still, 5).tokens)


def test_rows_can_be_read_in_any_order_repeatedly_or_not_at_all(tmp_path: Path) -> None:
    source = opened(tmp_path, random_examples(5), T=9)
    everything = whole_epoch(source)
    numbers = np.array([3, 0, 3, source.samples - 1])
    some = source.read(numbers, epoch=0, boundaries=False)
    assert np.array_equal(some.tokens, everything.tokens[numbers])
    assert some.targets is not None
    assert everything.targets is not None
    assert np.array_equal(some.targets, everything.targets[numbers])
    assert some.boundaries is not None
    none = source.read(numbers[:0], epoch=0, boundaries=True)
    assert (none.tokens.shape, source.origins(numbers[:0], epoch=0).offsets.shape) == ((0, 10), (0, 10))
    for wrong in (-1, source.samples):
        with pytest.raises(NielsCacheError, match=f"rows .* 0 to {source.samples - 1}"):
            source.read(np.array([0, wrong]), epoch=0, boundaries=True)


def test_ids_come_from_meta_and_a_copy_refuses_another_build(tmp_path: Path) -> None:
    folder = write_sft(tmp_path / "chats")
    source: SampleSource = PackedExamples(str(folder / "train"), T=19, seed=0)
    assert isinstance(source, PackedExamples)
    assert (source.eot_id, source.asst_id, source.packs, source.folder) == (EOT, ASST, True, str(folder / "train"))
    assert source.files == [str(folder / "train_tokens.bin")]
    copy = pickle.loads(pickle.dumps(source))
    assert np.array_equal(whole_epoch(copy).tokens, whole_epoch(source).tokens)
    assert copy.fingerprint == source.fingerprint
    with pytest.raises(NielsCacheError, match="eot id is 4, not eot_id=7"):
        PackedExamples(str(folder / "train"), T=19, seed=0, eot_id=7)
    with pytest.raises(NielsCacheError, match="asst id is 3, not asst_id=7"):
        PackedExamples(str(folder / "train"), T=19, seed=0, asst_id=7)
    stored = pickle.dumps(source)
    rewrite_meta(folder, seed=43)
    with pytest.raises(NielsCacheError, match="rebuilt since"):
        pickle.loads(stored)


def test_a_copy_of_a_bare_pair_refuses_changed_files(tmp_path: Path) -> None:
    stored = pickle.dumps(opened(tmp_path, [[USR, U, EOT, ASST, A, EOT]], T=5))
    assert whole_epoch(pickle.loads(stored)).tokens.tolist() == [[USR, U, EOT, ASST, A, EOT]]
    write_pair(tmp_path, "train", [[USR, U, EOT, ASST, B, EOT]])
    with pytest.raises(NielsCacheError, match="changed since"):
        pickle.loads(stored)


def test_the_fingerprint_changes_with_the_split_and_with_what_decides_its_rows_and_with_nothing_else(tmp_path: Path) -> None:
    def fingerprint(folder: Path, **settings: Any) -> str:
        return PackedExamples(str(folder / "train"), **{"T": 19, "seed": 0, **settings}).fingerprint

    folder = write_sft(tmp_path / "chats")
    same = fingerprint(folder)
    assert fingerprint(write_sft(tmp_path / "copy")) == same
    settings = [{"T": 18}, {"seed": 1}, {"shuffle": False}, {"loss_on": "all"}, {"overflow": "drop"}]
    assert len({same, *(fingerprint(folder, **changed) for changed in settings)}) == 6
    write_pair(folder, "val", [[USR, U, EOT, ASST, A, EOT]])
    write_meta_of(folder, kind="sft")
    assert fingerprint(folder) == same
    write_pair(folder, "train", [[USR, U, EOT, ASST, A, EOT]])
    write_meta_of(folder, kind="sft")
    assert fingerprint(folder) != same


@pytest.mark.parametrize("step", ["open_meta", "MappedTokens", "listed_files", "check_sizes", "map_example_starts"])
def test_a_rebuild_while_opening_leaves_one_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    folder, other = tmp_path / "chats", tmp_path / ".chats.partial"
    for path, answers in ((folder, [[A], [A, A, A]]), (other, [[B, B, B], [B]])):  # files of equal sizes, other offsets
        write_pair(path, "train", [[USR, U, EOT, ASST, *answer, EOT] for answer in answers])
        write_meta_of(path, kind="sft", answer=answers[0][0])
    exchange_before(sft, step, folder, other, monkeypatch)
    source = PackedExamples(str(folder / "train"), T=13, seed=0)
    assert learned(source) == [[B, B, B, EOT, B, EOT]]


def test_the_report_reads_as_a_sentence_and_examples_without_a_target_are_warned_of_once(tmp_path: Path) -> None:
    examples = [[USR, U, EOT, ASST, A, EOT]] * 3 + [[USR, *[U] * 30, EOT, ASST, A, EOT], [USR, U, EOT, ASST, *[A] * 20, EOT]]
    write_pair(tmp_path, "train", examples)
    with pytest.warns(UserWarning, match=r"1 of 5 examples .*\(loss_on='assistant'\)") as caught:
        source = PackedExamples(str(tmp_path / "train"), T=12, seed=0, eot_id=EOT, asst_id=ASST)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert source.report().fill == 31 / 39
    told = ("4 examples", "3 rows of 13", "79.49% filled", "8 padding", "1 examples cut by 12", "1 examples left out", "without target")
    assert missing(source.report(), *told) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"T": 0}, "T=0"),
        ({"loss_on": "user"}, "loss_on='user': .*'assistant', 'last_assistant', 'all'"),
        ({"overflow": "split"}, "overflow='split': "),
        ({"eot_id": None}, "pass eot_id="),
        ({"asst_id": None}, "pass asst_id="),
        ({"asst_id": EOT}, "must differ"),
        ({"eot_id": 70_000}, "eot_id=70000: "),
    ],
)
def test_a_setting_that_is_none_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(NielsCacheError, match=message):
        opened(tmp_path, [[USR, U, EOT, ASST, A, EOT]], **{"T": 8, **changes})


def test_without_spans_no_sentinel_is_needed(tmp_path: Path) -> None:
    source = opened(tmp_path, [[SYS, A, EOT], [B]], T=4, loss_on="all", asst_id=None)
    assert learned(source) == [[A, EOT]]
    assert source.report().dropped == {"without_target": 1}


def test_a_split_that_is_not_there_or_empty_is_refused(tmp_path: Path) -> None:
    folder = write_sft(tmp_path / "chats")
    with pytest.raises(NielsCacheError, match=r"val: .*empty \(0 examples\)"):
        PackedExamples(str(folder / "val"), T=8, seed=0)
    with pytest.raises(NielsCacheError, match=r"test_tokens\.bin: no such"):
        PackedExamples(str(folder / "test"), T=8, seed=0)
    with pytest.raises(NielsCacheError, match=r"folder and .*chats/train"):
        PackedExamples(str(folder), T=8, seed=0)
