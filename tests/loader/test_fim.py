"""Fill-in-the-middle in packed rows: every rearranged document is found again in the row, and the rate is exact in every epoch."""

import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from niels_cache_inspection.origins import BatchRow
from niels_cache_runtime import FIM, BestFit, Blocks, NielsCacheError, TokenLoader
from niels_cache_runtime.format.layout import DOC_ENDS_DTYPE, file_edges_name
from niels_cache_runtime.loader.packing.document_plan import EpochKeys
from niels_cache_runtime.loader.packing.fim import rearrange
from tests.helpers.hand_made import EOT, rewrite_meta, write_meta_of, write_stream

PRE, SUF, MID, BOS = 5, 6, 7, 8
IDS: dict[str, Any] = {"pre": PRE, "suf": SUF, "mid": MID}
T = 24
SETTINGS: dict[str, Any] = {"T": T, "B": 16, "seed": 5, "packing": "best_fit", "fim": FIM(**IDS)}
SHARD = 50


def write_split(folder: Path, lengths: list[int], *, bos: bool = False) -> tuple[str, np.ndarray, np.ndarray]:
    """Write documents of tokens that tell their place in the stream, each of which ends with EOT."""
    stream, ends = 100 + np.arange(sum(lengths)), np.cumsum(lengths)
    if bos:
        stream[ends - lengths] = BOS
    stream[ends - 1] = EOT
    split = write_stream(folder, stream, shard_tokens=SHARD, doc_ends=ends.tolist())
    if bos:
        rewrite_meta(folder, special_token_ids={"sys": None, "usr": None, "asst": None, "eot": EOT, "bos": BOS})
    return split, stream, ends


def lengths_of(n: int, low: int, high: int, seed: int = 0) -> list[int]:
    return torch.randint(low, high + 1, (n,), generator=torch.Generator().manual_seed(seed)).tolist()


@pytest.fixture
def split(tmp_path: Path) -> tuple[str, np.ndarray, np.ndarray]:
    return write_split(tmp_path / "pretrain" / "notes", lengths_of(70, 1, 70))


def restored(tokens: list[int]) -> tuple[str, list[int]]:
    """Return the order of the tokens of a piece, and the tokens as they are in the document."""
    if PRE not in tokens:
        return "plain", tokens
    assert [tokens.count(each) for each in (PRE, SUF, MID)] == [1, 1, 1]
    pre, suf, mid = (tokens.index(each) for each in (PRE, SUF, MID))
    assert pre < suf < mid
    before, prefix, suffix, middle = tokens[:pre], tokens[pre + 1 : suf], tokens[suf + 1 : mid], tokens[mid + 1 :]
    end = [middle.pop()] if middle and middle[-1] == EOT else []
    assert all(each in ([], [BOS]) for each in (before,))
    assert EOT not in prefix + suffix + middle
    return "psm" if prefix else "spm", before + prefix + middle + suffix + end


def read(loader: TokenLoader, stream: np.ndarray, ends: np.ndarray) -> tuple[Counter[tuple[str, int, int]], Counter[int]]:
    """Read an epoch, check every row, and return the pieces (order, first token, length) and the places that are targets."""
    pieces: Counter[tuple[str, int, int]] = Counter()
    learned: Counter[int] = Counter()
    for step, batch in enumerate(loader, loader.step):
        trace: Any = loader.trace(step)
        assert np.array_equal(trace.tokens[:, :-1], batch.x.numpy())
        assert np.array_equal(trace.tokens[:, 1:], batch.y.numpy())
        is_known, is_sentinel = trace.files >= 0, (trace.files < 0) & (trace.documents >= 0)
        assert np.array_equal(is_sentinel, np.isin(trace.tokens, [PRE, SUF, MID]))
        places = np.where(is_known, trace.files * SHARD + trace.offsets, -1)
        assert np.array_equal(trace.tokens[is_known], stream[places[is_known]])
        assert np.array_equal(trace.documents[is_known], ends.searchsorted(places[is_known], side="right"))
        is_target = (batch.y_masked != -100).numpy()
        assert not is_target[(trace.documents[:, 1:] < 0)].any()
        learned.update(places[:, 1:][is_target & is_known[:, 1:]].tolist())
        ids = np.concatenate([batch["document_ids"].numpy(), np.full((len(batch.x), 1), -1)], axis=1)
        for row in range(len(batch.x)):
            last = trace.documents[row, T] >= 0 and trace.documents[row, T] == trace.documents[row, T - 1]
            ids[row, T] = ids[row, T - 1] + (0 if last else 1)
            for number in range(ids[row].max() + 1):
                own = (ids[row] == number) & (trace.documents[row] >= 0)
                if not own.any():
                    continue
                assert len({*trace.documents[row, own].tolist()}) == 1
                order, tokens = restored(trace.tokens[row, own].tolist())
                known = np.sort(places[row, own & is_known[row]])
                assert np.array_equal(np.diff(known), np.ones(len(known) - 1))
                assert tokens == stream[known].tolist()
                pieces[order, int(known[0]), len(known)] += 1
    return pieces, learned


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"fim": FIM(rate=1, spm_rate=0, **IDS)},
        {"fim": FIM(rate=0.3, level="row", **IDS)},
        {"packing": BestFit(pad_documents_to=8), "max_documents": 2},
        {"packing": BestFit(pad_documents_to=4), "fim": FIM(level="row", **IDS)},
        {"order": Blocks(shards=4, lanes=2), "max_documents": 3},
        {"shuffle": False},
    ],
)
def test_every_piece_is_found_again_and_every_token_is_a_target_once(split: Any, settings: dict[str, Any]) -> None:
    folder, stream, ends = split
    loader = TokenLoader(folder, **SETTINGS | settings, epochs=1)
    epochs = [read(loader, stream, ends) for _ in range(2)]
    begins = {0, *ends[:-1].tolist()}
    lengths = np.diff(ends, prepend=0)
    for pieces, learned in epochs:
        assert {*pieces.values()} == {1}
        rearranged = {first for order, first, _ in pieces if order != "plain"}
        expected = Counter(place for place in range(len(stream)) if place not in begins or place in rearranged)
        for first, length in zip(ends - lengths, lengths, strict=True):
            if length == 1:
                del expected[int(first)]
        assert learned == expected
        unfit = int(((lengths >= T - 1) & (lengths <= T + 1)).sum())
        fits = sum(length <= T - 2 for _, _, length in pieces)
        report: Any = loader.report(1).sources[0].details
        count = sum(order != "plain" for order, *_ in pieces)
        fim: Any = (SETTINGS | settings)["fim"]
        assert (count, unfit) == (report.fim, report.fim_unfit)
        assert len(pieces) == fits + unfit == report.pieces
        assert abs(count - fim.rate * fits) <= 1
    assert epochs[0][0] != epochs[1][0]


def test_the_rate_of_each_length_is_exact_in_every_epoch_and_other_documents_are_chosen(tmp_path: Path) -> None:
    lengths = [4, 9, 9, 30, 22, 23, 24, 25, 26] * 20
    folder, stream, ends = write_split(tmp_path / "notes", lengths)
    rate = 0.4
    loader = TokenLoader(folder, **SETTINGS | {"fim": FIM(rate=rate, spm_rate=0.25, **IDS)}, epochs=1)
    chosen = []
    for _ in range(3):
        pieces, _ = read(loader, stream, ends)
        sizes: Counter[int] = Counter()
        counts: Counter[int] = Counter()
        orders = Counter(order for order, *_ in pieces)
        for order, _, length in pieces:
            sizes[length] += 1
            counts[length] += order != "plain"
        assert {length: size for length, size in sizes.items() if length >= T - 1} == {23: 20, 24: 20, 25: 20}
        for length, size in sizes.items():
            assert abs(counts[length] - rate * size) < (1 if length < T - 1 else rate * size + 1)
            assert counts[length] == 0 or length < T - 1
        assert sum(counts.values()) == round(rate * sum(size for length, size in sizes.items() if length < T - 1))
        assert orders["spm"] > orders["psm"] / 8
        chosen.append({first for order, first, _ in pieces if order != "plain"})
    assert len(chosen[0]) > 40
    assert 0 < len(chosen[0] & chosen[1]) < len(chosen[0]) / 1.5
    assert chosen[0] != chosen[2]


def test_rows_of_level_row_are_rearranged_as_a_whole(split: Any) -> None:
    loader = TokenLoader(split[0], **SETTINGS | {"fim": FIM(level="row", **IDS)}, epochs=1)
    kinds = Counter()
    for step, _ in enumerate(loader):
        trace: Any = loader.trace(step)
        for row in range(len(trace.tokens)):
            documents = {*trace.documents[row].tolist()} - {-1}
            rearranged = {*trace.documents[row][trace.sentinels[row]].tolist()}
            assert rearranged in (set(), documents)
            kinds[bool(rearranged), len(documents) > 1] += 1
    assert len(kinds) == 4


@pytest.mark.parametrize("packing", [BestFit(), BestFit(pad_documents_to=4), BestFit(bos_on_pieces=True)])
def test_a_document_whose_text_has_a_sentinel_is_left_as_it_is_and_counted(tmp_path: Path, packing: BestFit) -> None:
    lengths = lengths_of(60, 2, 60, seed=3)
    _, stream, ends = write_split(tmp_path / "notes", lengths, bos=True)
    spelled = range(3, 60, 4)
    for number in spelled:
        stream[ends[number] - 2 if lengths[number] > 3 else ends[number] - 1] = (PRE, SUF, MID)[number % 3]
    write_stream(tmp_path / "spelled", stream, shard_tokens=SHARD, doc_ends=ends.tolist())
    rewrite_meta(tmp_path / "spelled", special_token_ids={"sys": None, "usr": None, "asst": None, "eot": EOT, "bos": BOS})
    loader = TokenLoader(str(tmp_path / "spelled" / "train"), **SETTINGS | {"fim": FIM(rate=1, **IDS), "packing": packing}, epochs=1)
    last = {int(ends[number]) - 1 for number in spelled}
    seen = 0
    for step, batch in enumerate(loader):
        trace: Any = loader.trace(step)
        assert np.array_equal(trace.tokens[:, 1:], batch.y.numpy())
        places = trace.files * SHARD + trace.offsets
        known = trace.files >= 0
        assert np.array_equal(trace.tokens[known], stream[places[known]])
        targets = (batch.y_masked != -100).numpy()
        before, after = places[:, :-1], places[:, 1:]
        for row, column in np.argwhere(np.isin(places, [*last]) & known).tolist():
            own = trace.documents[row] == trace.documents[row, column]
            assert not trace.sentinels[row, own].any()
            assert (np.diff(places[row, own]) == 1).all()
            seen += 1
        inside = known[:, 1:] & known[:, :-1] & (after == before + 1)
        assert targets[inside].all()
        assert not targets[trace.documents[:, 1:] < 0].any()
        assert (trace.tokens[(trace.documents < 0) & (trace.tokens != BOS)] == EOT).all()
        if packing.pad_documents_to:
            cu, padded = batch["cu_seqlens"], batch["cu_seqlens_padded"]
            is_token = ((trace.documents >= 0) | (trace.tokens == BOS))[:, :-1].ravel()
            assert cu.tolist() == [int(is_token[:end].sum()) for end in padded.tolist()]
    assert seen == len(spelled)
    report: Any = loader.report(1).sources[0].details
    assert len(spelled) / 2 < report.fim_spelled / 3  # the batch, and twice by trace
    assert "its tokens in their text" in str(report)


@pytest.mark.parametrize("packing", [BestFit(), BestFit(bos_on_pieces=True, pad_documents_to=4)])
def test_bos_and_eot_stay_outside_and_the_first_token_of_a_piece_is_no_target_twice(tmp_path: Path, packing: BestFit) -> None:
    folder, stream, ends = write_split(tmp_path / "notes", lengths_of(60, 3, 70, seed=3), bos=True)
    loader = TokenLoader(folder, **SETTINGS | {"fim": FIM(rate=0.8, **IDS), "packing": packing}, epochs=1)
    learned: Counter[int] = Counter()
    rearranged = 0
    for step, batch in enumerate(loader):
        trace: Any = loader.trace(step)
        places = np.where(trace.files >= 0, trace.files * SHARD + trace.offsets, -1)
        targets = (batch.y_masked != -100).numpy()
        learned.update(places[:, 1:][targets & (places[:, 1:] >= 0)].tolist())
        for row, column in np.argwhere(trace.tokens == PRE).tolist():
            of_document = np.flatnonzero(trace.documents[row] == trace.documents[row, column])
            first = stream[places[row, of_document].max() + 1 - (places[row, of_document] >= 0).sum()]
            assert (trace.tokens[row, column - 1] == BOS) == (first == BOS or packing.bos_on_pieces)
            _, tokens = restored(trace.tokens[row, of_document].tolist())
            known = np.sort(places[row, of_document])
            assert tokens == stream[known[known >= 0]].tolist()
            rearranged += 1
    begins = {0, *ends[:-1].tolist()}
    assert learned == Counter(place for place in range(len(stream)) if place not in begins)
    assert rearranged > 50


def write_files(folder: Path) -> tuple[str, np.ndarray, np.ndarray, np.ndarray]:
    """Write documents of several files, some of them without any. Before each file, there is a marker of three tokens."""
    ends, edges, place = list[int](), list[int](), 0
    for number in range(60):
        place += 1  # BOS
        for size in lengths_of(number % 6 if number % 9 else 0, 1, 60, seed=number):
            edges += [place + 3, place + 3 + size]
            place += 3 + size
        place += 2  # a token after the last file, and EOT
        ends.append(place)
    split, stream, _ = write_split(folder, np.diff(ends, prepend=0).tolist(), bos=True)
    np.save(folder / file_edges_name("train"), np.array(edges, dtype=DOC_ENDS_DTYPE))
    ids = {"sys": None, "usr": None, "asst": None, "eot": EOT, "bos": BOS}
    write_meta_of(folder, kind="pretrain", append_eot=True, special_token_ids=ids, source={"file_start": "# {path}"})
    return split, stream, np.array(ends), np.array(edges).reshape(-1, 2)


@pytest.mark.parametrize(
    ("width", "fim", "packing"),
    [(400, {}, BestFit()), (48, {"spm_rate": 1}, BestFit(bos_on_pieces=True, pad_documents_to=4)), (72, {"level": "row"}, BestFit())],
)
def test_one_file_of_each_document_is_rearranged_in_its_place(tmp_path: Path, width: int, fim: Any, packing: BestFit) -> None:
    split, stream, ends, edges = write_files(tmp_path / "notes")
    lengths = np.diff(ends, prepend=0)
    loader = TokenLoader(split, **SETTINGS | {"T": width, "packing": packing, "fim": FIM(**{"rate": 0.8, **IDS, **fim}), "epochs": 1})
    drawn: Counter[int] = Counter()
    learned: Counter[int] = Counter()
    for step, batch in enumerate(loader):
        trace: Any = loader.trace(step)
        assert np.array_equal(trace.tokens[:, 1:], batch.y.numpy())
        places = np.where(trace.files >= 0, trace.files * SHARD + trace.offsets, -1)
        learned.update(places[:, 1:][(batch.y_masked != -100).numpy() & (places[:, 1:] >= 0)].tolist())
        for row, column in np.argwhere(trace.tokens == PRE).tolist():
            own = np.flatnonzero(trace.documents[row] == trace.documents[row, column])
            found, tokens = places[row, own], trace.tokens[row, own]
            pre, suf, mid = (int(np.flatnonzero(tokens == each)[0]) for each in (PRE, SUF, MID))
            inside = next(place for place in found[pre + 1 :] if place >= 0)
            number = int(edges[:, 0].searchsorted(inside, side="right")) - 1
            begin, stop = found[found >= 0].min(), found.max() + 1
            first, last = max(edges[number, 0], begin), min(edges[number, 1], stop)
            middle = mid + 1, len(found) - (stop - last)
            in_order = [*found[:pre], *found[pre + 1 : suf], *found[slice(*middle)], *found[suf + 1 : mid], *found[middle[1] :]]
            assert in_order == [*range(begin, stop)]
            assert (found[:pre].tolist(), found[middle[1] :].tolist()) == ([*range(begin, first)], [*range(last, stop)])
            drawn[number] += 1
    begins = {0, *ends[:-1].tolist()}
    assert learned == Counter(place for place in range(len(stream)) if place not in begins)
    report: Any = loader.report(1).sources[0].details
    assert report.fim_fileless == (lengths == 3).sum() == 13
    assert "13 without a known file" in str(report)
    assert report.fim - 13 <= sum(drawn.values()) <= report.fim
    assert len(drawn) > 30


def test_a_file_is_drawn_by_its_tokens_and_without_their_edges_fim_is_refused(tmp_path: Path) -> None:
    edges, counts = np.array([10, 40, 50, 60, 61, 121]), Counter[int]()
    for epoch in range(600):
        pieces = [np.array([0]), np.array([0]), np.array([128]), np.array([0])]
        cutting = {"keys": EpochKeys(3, epoch), "bos": 0, "eot": 1, "spm_rate": 0.5, "T": 200}
        (_, starts, sizes, *_), places, _ = rearrange(pieces, np.array([True]), np.array([125]), edges=edges, **cutting)
        counts[int(sizes[0])] += 1
        assert (starts[0], len(places)) == (0, 3)
    assert [round(counts[size] / 600, 1) for size in (10, 50, 61)] == [0.3, 0.2, 0.5]  # of 125 tokens, 40, 20 and 65
    split = write_files(tmp_path / "notes")[0]
    loader = TokenLoader(split, **SETTINGS | {"fim": None})
    fim = TokenLoader(split, **SETTINGS)
    next(iter(fim))
    (tmp_path / "notes" / file_edges_name("train")).unlink()
    with pytest.raises(NielsCacheError, match="train_file_edges"):
        TokenLoader(split, **SETTINGS)
    ids = {"sys": None, "usr": None, "asst": None, "eot": EOT, "bos": BOS}
    write_meta_of(tmp_path / "notes", kind="pretrain", append_eot=True, special_token_ids=ids, source={"file_start": "# {path}"})
    TokenLoader(split, **SETTINGS | {"fim": None}).load_state_dict(loader.state_dict())  # the tokens are the same
    with pytest.raises(NielsCacheError, match=r"several files.*train_file_edges.*--force"):
        TokenLoader(split, **SETTINGS)
    for wrong in ([1, 2, 3], [5, 4], [0, len(np.fromfile(Path(split) / "shard_00000.bin", "<u2")) * 10**6]):
        np.save(tmp_path / "notes" / file_edges_name("train"), np.array(wrong, dtype=DOC_ENDS_DTYPE))
        write_meta_of(tmp_path / "notes", kind="pretrain", append_eot=True, special_token_ids=ids, source={"file_start": "# {path}"})
        with pytest.raises(NielsCacheError, match="train_file_edges"):
            TokenLoader(split, **SETTINGS)
    np.save(tmp_path / "notes" / file_edges_name("train"), np.array([1, 4], dtype=DOC_ENDS_DTYPE))
    write_meta_of(tmp_path / "notes", kind="pretrain", append_eot=True, special_token_ids=ids, source={"file_start": "# {path}"})
    with pytest.raises(NielsCacheError, match="fingerprint"):
        TokenLoader(split, **SETTINGS).load_state_dict(fim.state_dict())


def test_a_run_resumes_on_other_ranks_and_other_settings_are_refused(split: Any) -> None:
    fim = FIM(rate=0.7, spm_rate=0.2, **IDS)
    settings = SETTINGS | {"fim": fim, "B": 6}
    whole = [batch for batch, _ in zip(TokenLoader(split[0], **settings), range(30), strict=False)]
    ranks = [TokenLoader(split[0], **settings | {"B": 3}, rank=rank, world_size=2) for rank in (0, 1)]
    for rank in ranks:
        for _ in zip(range(11), rank, strict=False):
            pass
    state = json.loads(json.dumps(ranks[0].state_dict()))
    rest = [batch for batch, _ in zip(TokenLoader.from_state(state, B=6, world_size=1, rank=0), range(19), strict=False)]
    for one, other in zip(rest, whole[11:], strict=True):
        assert torch.equal(one.x, other.x)
        assert torch.equal(one["y_masked"], other["y_masked"])
    for change, named in (
        ({"fim": FIM(rate=0.6, spm_rate=0.2, **IDS)}, r"rate=0.6: the state was saved with rate=0.7"),
        ({"fim": FIM(rate=0.7, spm_rate=0.2, level="row", **IDS)}, "level='row'"),
        ({"fim": None}, "fim=None"),
    ):
        with pytest.raises(NielsCacheError, match=named):
            TokenLoader(split[0], **settings | change).load_state_dict(state)
    plain = TokenLoader(split[0], **SETTINGS | {"fim": None}).state_dict()
    assert "fim" not in plain["settings"]
    with pytest.raises(NielsCacheError, match="fim="):
        TokenLoader(split[0], **settings).load_state_dict(plain)
    for value in (3, {"rate": 2}, {"other": 1}):
        edited = {**state, "settings": {**state["settings"], "fim": value}}
        with pytest.raises(NielsCacheError, match=r"fim=|rate=|other"):
            TokenLoader.from_state(edited)


def test_sentinels_are_found_by_name_and_settings_that_do_not_fit_are_refused(split: Any, tmp_path: Path) -> None:
    def sentinels(**given: Any) -> Any:
        return TokenLoader(split[0], **SETTINGS | {"fim": FIM(**given)})._packed["notes"].sentinels

    with pytest.raises(NielsCacheError, match="StarCoder"):
        sentinels()
    file = tmp_path / "tokenizer" / "tokenizer.json"
    file.parent.mkdir()
    for names in (
        ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
        ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
        ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
        ("▁<PRE>", "▁<SUF>", "▁<MID>"),
    ):
        file.write_text(json.dumps({"added_tokens": [{"id": 21 + place, "content": name} for place, name in enumerate(names)]}))
        assert sentinels() == (21, 22, 23)
        assert sentinels(pre=names[1], suf=3, mid=names[0]) == (22, 3, 21)
    for given, named in (
        ({"pre": "<x>", "suf": 1, "mid": 2}, "<x>"),
        ({"pre": 1, "suf": 65536, "mid": 2}, "from 0 to 65535"),
        ({"pre": 1, "suf": 1, "mid": 2}, "three different"),
        ({"pre": 1}, "give all or none"),
        ({"rate": 1.5}, "rate=1.5"),
        ({"spm_rate": "x"}, "spm_rate"),
        ({"level": "file"}, "level='file'"),
    ):
        with pytest.raises(NielsCacheError, match=named):
            sentinels(**given)
    file.write_text("{")
    with pytest.raises(NielsCacheError, match="cannot be read"):
        sentinels()
    for change, named in (({"packing": None}, "window"), ({"fim": 0.5}, "fim=0.5"), ({"T": 3}, "T=3")):
        with pytest.raises(NielsCacheError, match=named):
            TokenLoader(split[0], **SETTINGS | change)


def test_the_segments_that_the_command_trace_shows_are_parts_of_documents_or_added_tokens(split: Any) -> None:
    trace: Any = TokenLoader(split[0], **SETTINGS).trace(0)
    added = 0
    for number in range(len(trace.tokens)):
        row = BatchRow(trace, number)
        for segment in row.segments:
            origins = [row.origin(column) for column in range(segment.first, segment.last)]
            assert len({(origin.document, origin.is_sentinel) for origin in origins}) == 1
            assert segment.is_padding == (origins[0].document is None)
            if not segment.is_padding and not origins[0].is_sentinel:
                assert [origin.offset for origin in origins] == [*range(origins[0].offset, origins[0].offset + len(origins))]
            added += len(origins) * origins[0].is_sentinel
    assert added == np.isin(trace.tokens, [PRE, SUF, MID]).sum() > 20


def test_rows_are_pinned_for_this_version(split: Any) -> None:
    """The rows are part of the format: a change of this test is a change of DOCUMENT_PLAN_VERSION."""
    rows = torch.cat([batch.x for batch in TokenLoader(split[0], **SETTINGS, epochs=1)])
    digest = hashlib.sha256(rows.numpy().astype("<i8").tobytes()).hexdigest()
    assert digest[:16] == "11c7616600f06e82"
