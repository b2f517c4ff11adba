"""Caches of preference pairs: their files, their splits by prompt, and everything that reads both sides."""

import json
import pickle
import re
import runpy
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from niels_cache_assets import to_hf_dataset
from niels_cache_assets.base.documents import Conversation, Message
from niels_cache_assets.build_cache import build_sft_cache
from niels_cache_assets.chats.templates import Template
from niels_cache_assets.cli.detection import recognize
from niels_cache_assets.project.registry import Registry
from niels_cache_assets.sources.messages import template_messages
from niels_cache_assets.sources.pairs import dialogue, pair_sides, prompt_hash
from niels_cache_inspection.samples import examples, notable
from niels_cache_pages.measures import measure_cache
from niels_cache_runtime import SFT, NielsCacheError, PreferenceBatch, PreferenceDataset, SFTExampleDataset, TokenLoader, open_cache
from niels_cache_runtime.format.meta import Meta, read_meta
from niels_cache_runtime.loader.preference.rows import PackedPairs
from niels_cache_runtime.verify import verify_cache, verify_dataset
from tests.helpers.builds import build_dataset, build_tokenizer
from tests.helpers.chat_models import MARKED, chat_project, chatml, examples_on_disk, opened_model, template_of
from tests.helpers.hand_made import rewrite_meta
from tests.helpers.tiny import sentences
from tests.helpers.traced_steps import check_steps, take_steps

pytestmark = pytest.mark.usefixtures("short_proofs")
IGNORED = -100


def message(role: Any, content: str) -> Message:
    return Message(role=role, content=content)


def pairs(count: int, *, prompts: int = 0, seed: int = 3) -> list[Conversation]:
    """Pairs with answers of different lengths. Every third prompt has two turns. `prompts`: the number of different prompts."""
    lines = iter(sentences(6 * count, seed=seed, words=6))
    made = []
    for number in range(count):
        asked = f"question {number % (prompts or count)}"
        prompt = [message("user", asked)]
        if number % 3 == 0:
            prompt = [message("user", "first"), message("assistant", "noted"), *prompt]
        chosen, rejected = (" ".join(next(lines) for _ in range(1 + (number + side) % 3)) for side in range(2))
        sides = [*prompt, message("assistant", chosen)], [*prompt, message("assistant", rejected + "!")]
        made.append(Conversation(sides[0], source_id=str(number), row=number, rejected=sides[1]))
    return made


def build(folder: Path, model: Path, items: Sequence[Conversation] | None = None, **changes: Any) -> Meta:
    settings = {"tokenizer": opened_model(model), "val_frac": 0.2, "seed": 2, "template": chatml(), "preference": True, **changes}
    build_sft_cache(pairs(40) if items is None else items, str(folder), **settings)
    assert verify_dataset(folder) == []
    return read_meta(str(folder / "meta.json"))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Path:
    """A data set in a cache root, which no test changes."""
    folder = tmp_path_factory.mktemp("root") / "sft" / "x"
    build(folder, model)
    return folder


@pytest.mark.parametrize("packing", [True, False])
def test_the_steps_of_a_pair_are_found_with_the_columns_of_both_sides(cache: Path, packing: bool) -> None:
    loader: Any = TokenLoader(str(cache), T=80, B=4, seed=1, sft=SFT(packing=packing))
    take_steps(loader, 9)
    assert check_steps(loader, side="chosen") == check_steps(loader, side="rejected") > 30


def by_hand(folder: Path, split: str) -> list[list[tuple[list[int], list[bool]]]]:
    """For each pair, its two sides: tokens, and which of them are targets."""
    sides = examples_on_disk(folder, split)
    return [sides[number : number + 2] for number in range(0, len(sides), 2)]


def text_of(model: Path, ids: Sequence[int], chosen: Sequence[bool] | None = None) -> str:
    return opened_model(model).decode([token for token, is_in in zip(ids, chosen or [True] * len(ids), strict=True) if is_in])


@pytest.mark.parametrize("template", [chatml(), None, template_of(MARKED)], ids=["chatml", "sentinels", "marked"])
def test_both_sides_are_written_with_targets_after_the_prompt(tmp_path: Path, model: Path, template: Template | None) -> None:
    meta = build(tmp_path / "x", model, template=template)
    assert meta["forms"] == ["pairs", "spans"]
    assert meta["sides"] == ["chosen", "rejected"]
    assert meta["train_examples"] + meta["val_examples"] == 40
    expected = {pair.source_id: pair for pair in pairs(40)}
    for split in ("train", "val"):
        lineage = pq.read_table(tmp_path / "x" / f"{split}_examples.parquet").to_pylist()
        found = by_hand(tmp_path / "x", split)
        assert len(found) == len(lineage) == meta[f"{split}_examples"] > 0
        for row, sides in zip(lineage, found, strict=True):
            pair = expected[row["source_id"]]
            assert row["tokens"] == sum(len(ids) for ids, _ in sides)
            assert row["group"] == prompt_hash(pair.messages, pair.rejected or [])
            for (ids, targets), messages in zip(sides, (pair.messages, pair.rejected or []), strict=True):
                assert messages[0]["content"] in text_of(model, ids)
                learned = text_of(model, ids, targets)
                assert learned.startswith(messages[-1]["content"])
                assert "noted" not in learned


def test_a_prompt_is_never_in_both_splits(tmp_path: Path, model: Path) -> None:
    meta = build(tmp_path / "x", model, pairs(60, prompts=10))
    groups = [set(pq.read_table(tmp_path / "x" / f"{split}_examples.parquet")["group"].to_pylist()) for split in ("train", "val")]
    assert not groups[0] & groups[1]
    assert len(groups[1]) == round(0.2 * len(groups[0] | groups[1]))
    assert meta["facts"]["straddling_groups"] == 0
    again = build(tmp_path / "y", model, pairs(60, prompts=10))
    assert again["content_sha256"] == meta["content_sha256"]


def test_pairs_that_are_none_are_dropped_with_their_reasons(tmp_path: Path, model: Path) -> None:
    ask, other, answer = message("user", "a"), message("user", "b"), message("assistant", "c")
    odd = {
        "equal_sides": ([ask, answer], [ask, answer]),
        "special_token_collision": ([ask, answer], [ask, message("assistant", "<|im_end|>")]),
        "no_assistant_at_end": ([ask, answer, ask], [ask, message("assistant", "d")]),
        "prompts_differ": ([ask, answer], [other, message("assistant", "d")]),
        "too_long": ([ask, message("assistant", "long " * 300)], [ask, answer]),
    }
    items = pairs(10) + [Conversation(chosen, source_id=reason, rejected=rejected) for reason, (chosen, rejected) in odd.items()]
    meta = build(tmp_path / "x", model, items, on_invalid="drop", max_tokens=250)
    assert meta["dropped"] == dict.fromkeys(odd, 1)
    assert meta["train_examples"] + meta["val_examples"] == 10
    for reason in ("equal_sides", "prompts_differ"):
        with pytest.raises(NielsCacheError, match=f"{reason}.*{reason}"):
            build(tmp_path / "y", model, [item for item in items if item.source_id == reason])
    with pytest.raises(NielsCacheError, match="preference pair"):
        build(tmp_path / "y", model, items[-1:], on_invalid="drop", max_tokens=20)


ASK, GOOD, BAD = message("user", "q"), message("assistant", "good"), message("assistant", "bad")
HUMAN = "\n\nHuman: q\n\nAssistant"
FORMS: dict[str, tuple[Any, Any, Any]] = {
    "whole conversations": (None, [ASK, GOOD], [ASK, BAD]),
    "whole conversations and their prompt again": ("q", [ASK, GOOD], [ASK, BAD]),
    "messages after a prompt": ([ASK], [GOOD], [BAD]),
    "messages after a prompt of text": ("q", [GOOD], [BAD]),
    "one message": ("q", GOOD, BAD),
    "text": ("q", "good", "bad"),
    "text after messages": ([ASK], "good", "bad"),
    "dialogues": (None, f"{HUMAN}: good", f"{HUMAN}: bad"),
    "the rest of a dialogue": (f"{HUMAN}:", " good", " bad"),
    "whole conversations and their prompt with a newline": ("q\n", [ASK, GOOD], [ASK, BAD]),
    "dialogues and their beginning": (f"{HUMAN}:", f"{HUMAN}: good", f"{HUMAN}: bad"),
    "dialogues and their question": ("q", "Human: q\n\nAssistant: good", "Human: q\n\nAssistant: bad"),
}


@pytest.mark.parametrize("form", FORMS)
def test_rows_of_every_form_are_the_same_pair(tmp_path: Path, form: str) -> None:
    assert pair_sides(*FORMS[form], template_messages) == ([ASK, GOOD], [ASK, BAD])
    keys = ("prompt", "chosen", "rejected")
    path = tmp_path / "pairs.jsonl"
    rows = [{key: value for key, value in zip(keys, FORMS[form], strict=True) if value is not None}] * 3
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (proposal,) = recognize([str(path)])
    assert (proposal.kind.source, dict(proposal.kind.keys)) == ("chat_jsonl", {"kind": "preference"})


def test_a_prompt_of_text_is_asked_after_the_system_and_is_no_dialogue_by_chance() -> None:
    system = message("system", "s")
    assert pair_sides("q", [system, GOOD], [system, BAD], template_messages) == ([system, ASK, GOOD], [system, ASK, BAD])
    asked = message("user", "Human: a word of Latin?")
    answers = [message("assistant", "yes"), message("assistant", "no")]
    assert pair_sides(asked["content"], "yes", "no", template_messages) == ([asked, answers[0]], [asked, answers[1]])
    assert (pair_sides(None, "good", "bad", template_messages), pair_sides("q", 3, "bad", template_messages)) == (
        "no_prompt",
        "malformed_pair",
    )
    assert dialogue("Human: a\n\nAssistant: b") == [message("user", "a"), message("assistant", "b")]
    assert dialogue("So\n\nHuman: a") is None


def test_prompts_that_differ_in_white_space_or_in_ids_are_one_prompt() -> None:
    def hash_of(*prompt: Any) -> str:
        return prompt_hash([*prompt, GOOD], [*prompt, BAD])

    asked = message("user", "what is\nit?")
    same = [message("user", "what is\r\nit?"), message("user", " what  is it? "), {**asked, "id": "7"}]
    assert {hash_of(each) for each in same} == {hash_of(asked)}
    others = [message("user", "what is that?"), message("system", "what is it?"), {**asked, "tool_calls": [{"name": "f"}]}]
    assert len({hash_of(asked), hash_of(asked, asked), *map(hash_of, others)}) == 5


def sides_in(batch: Any) -> list[tuple[list[int], ...]]:
    """For each pair of a batch, its targets of both sides."""
    found = []
    for row, count in enumerate(batch.pairs.tolist()):
        for number in range(count):
            mine = [side.y_masked[row][side.document_ids[row] == number] for side in (batch.chosen, batch.rejected)]
            found.append(tuple(side[side != IGNORED].tolist() for side in mine))
    return found


@pytest.mark.parametrize("packing", [True, False])
def test_rows_hold_whole_pairs_on_both_sides(cache: Path, model: Path, packing: bool) -> None:
    expected = [
        tuple([token for token, target in zip(ids, targets, strict=True) if target] for ids, targets in pair)
        for pair in by_hand(cache, "train")
    ]
    loader = TokenLoader(str(cache / "train"), T=300, B=2, seed=1, epochs=1, sft=SFT(packing=packing))
    batches: list[Any] = list(loader)
    found = [pair for batch in batches for pair in sides_in(batch)]
    assert sorted(found) == sorted(expected)
    counts = [count for batch in batches for count in batch.pairs.tolist()]
    assert (max(counts) > 1) == packing
    assert sum(counts) == len(expected) > 10
    report = PackedPairs(str(cache / "train"), T=300, seed=1, pack=packing).report()
    assert report.examples == len(expected)
    assert report.tokens + report.padding == 2 * 301 * report.rows
    for batch in batches:
        padding = [side.x[~(side.document_ids < batch.pairs[:, None])] for side in (batch.chosen, batch.rejected)]
        assert {token for each in padding for token in each.tolist()} <= {opened_model(model).special_token_ids()["eot"]}


def test_a_pair_goes_if_one_side_does(cache: Path) -> None:
    pairs_of = by_hand(cache, "train")
    T = sorted(max(len(ids) for ids, _ in pair) for pair in pairs_of)[len(pairs_of) // 2]
    source = PackedPairs(str(cache / "train"), T=T, seed=1, overflow="drop")
    fitting = [number for number, pair in enumerate(pairs_of) if all(len(ids) <= T + 1 for ids, _ in pair)]
    assert 0 < len(fitting) < len(pairs_of)
    numbers = np.arange(source.samples)
    for side in (source, source.rejected):
        documents = np.unique(side.origins(numbers, epoch=0).documents)
        assert documents[documents >= 0].tolist() == fitting
    assert source.report().dropped == {"too_long": len(pairs_of) - len(fitting)}


def test_resume_ranks_workers_and_pickles_give_the_same_rows(cache: Path) -> None:
    folder = str(cache / "train")

    def rows(loader: Any, count: int) -> list[Any]:
        iterator = iter(loader)
        return [torch.cat([*next(iterator).tensors()][:2]).tolist() for _ in range(count)]

    def opened(**changes: Any) -> TokenLoader:
        return TokenLoader(folder, T=120, B=2, seed=1, **changes)

    first = opened()
    rows(first, 3)
    state = json.loads(json.dumps(first.state_dict()))
    assert rows(TokenLoader.from_state(state), 3) == rows(opened(), 6)[3:]
    assert rows(pickle.loads(pickle.dumps(opened())), 2) == rows(opened(prefetch=2), 2)
    ranks = [opened(rank=rank, world_size=2) for rank in range(2)]
    halves = [next(iter(loader)) for loader in ranks]
    both = next(iter(TokenLoader(folder, T=120, B=4, seed=1)))
    joined = torch.cat([half.chosen.x for half in halves])  # type: ignore[union-attr]
    assert sorted(joined.tolist()) == sorted(both.chosen.x.tolist())  # type: ignore[union-attr]
    loaded = torch.utils.data.DataLoader(opened(epochs=1), batch_size=None, num_workers=2)
    assert [torch.cat([*batch.tensors()][:2]).tolist() for batch in loaded] == rows(opened(epochs=1), len(opened(epochs=1)))
    with pytest.raises(NielsCacheError, match="packing"):
        opened(sft=SFT(packing=False)).load_state_dict(state)


def test_trace_leads_from_a_token_of_each_side_to_its_pair(cache: Path) -> None:
    expected = by_hand(cache, "train")
    loader = TokenLoader(str(cache / "train"), T=200, B=2, seed=1)
    batch: Any = next(iter(loader))
    checked = 0
    for place, name in enumerate(("chosen", "rejected")):
        for column in range(0, 200, 7):
            origin: Any = loader.trace(0, 1, column, side=name)
            assert origin.token == getattr(batch, name).x[1, column]
            if origin.document is not None:
                assert origin.token == expected[origin.document][place][0][origin.document_offset]
                checked += 1
    assert checked > 20
    assert np.array_equal(loader.trace(0).tokens, loader.trace(0, side="chosen").tokens)  # type: ignore[union-attr]
    with pytest.raises(NielsCacheError, match="side"):
        loader.trace(0, side="worse")  # type: ignore[arg-type]


def test_the_dataset_draws_one_pair_a_row(cache: Path) -> None:
    expected = by_hand(cache, "train")
    dataset = PreferenceDataset(str(cache / "train"), T=400)
    assert len(dataset) == len(expected)
    generator = torch.Generator().manual_seed(0)
    batch = dataset.get_batch(B=16, generator=generator)
    same = pickle.loads(pickle.dumps(dataset)).get_batch(B=16, generator=torch.Generator().manual_seed(0))
    assert all(torch.equal(one, other) for one, other in zip(batch.tensors(), same.tensors(), strict=True))
    assert batch.pairs.tolist() == [1] * 16
    inputs = batch.padded_inputs()
    for number in range(32):
        ids, attended = inputs["input_ids"][number].tolist(), inputs["attention_mask"][number].tolist()
        pair = [each for each in expected if each[number // 16][0] == ids[: sum(attended)]]
        assert len(pair) == 1
        targets = pair[0][number // 16][1]
        assert inputs["completion_mask"][number].tolist() == [*map(int, targets), *[0] * (401 - len(targets))]
    packed: Any = next(iter(TokenLoader(str(cache / "train"), T=400, B=2, seed=0)))
    with pytest.raises(NielsCacheError, match="packing=False"):
        packed.padded_inputs()


def test_inputs_are_padded_to_the_longest_side_or_a_multiple(cache: Path) -> None:
    loader = TokenLoader(str(cache / "train"), T=399, B=3, seed=0, epochs=1, sft=SFT(packing=False))
    widths = set()
    for batch in loader:
        whole = batch.padded_inputs()  # type: ignore[union-attr]
        longest = int(whole["attention_mask"].sum(dim=1).max())
        assert whole["input_ids"].shape[1] == 400
        for multiple, width in ((None, longest), (16, -(-longest // 16) * 16)):
            found = batch.padded_inputs(padding="longest", pad_to_multiple_of=multiple)  # type: ignore[union-attr]
            assert found.keys() == whole.keys()
            assert all(torch.equal(found[name], whole[name][:, :width]) for name in whole)
            widths.add(width)
    assert len(widths) > 3
    with pytest.raises(NielsCacheError, match=r"pad_to_multiple_of=7.*T=405"):
        batch.padded_inputs(padding="longest", pad_to_multiple_of=7)  # type: ignore[union-attr]
    with pytest.raises(NielsCacheError, match=r"padding='long'.*longest"):
        batch.padded_inputs(padding="long")  # type: ignore[union-attr,arg-type]


def test_readers_of_another_kind_refuse_pairs_and_pairs_refuse_chats(tmp_path: Path, cache: Path, model: Path) -> None:
    with pytest.raises(NielsCacheError, match="preference pairs"):
        SFTExampleDataset(str(cache / "train_tokens.bin"), str(cache / "train_idx.npy"), T=20, device="cpu", eot_id=2)
    chats = [pair._replace(rejected=None) for pair in pairs(10)]
    build(tmp_path / "y", model, chats, preference=False)
    with pytest.raises(NielsCacheError, match="x holds preference pairs, and y does not"):
        TokenLoader({"x": str(cache), "y": str(tmp_path / "y")}, T=200, B=1, seed=0, weights={"x": 1, "y": 1})
    with pytest.raises(NielsCacheError, match="no preference pairs"):
        PreferenceDataset(str(tmp_path / "y" / "train"), T=20)
    with pytest.raises(NielsCacheError, match="packing"):
        TokenLoader(str(tmp_path / "y" / "train"), T=20, B=1, seed=0, sft=SFT(packing=False))
    with pytest.raises(NielsCacheError, match="side"):
        TokenLoader(str(tmp_path / "y" / "train"), T=20, B=1, seed=0).trace(0, side="chosen")


def test_damage_is_found(tmp_path: Path, cache: Path) -> None:
    shutil.copytree(cache, tmp_path / "x")
    path = tmp_path / "x" / "train_idx.npy"
    starts = np.load(path)
    np.save(path, starts[:-1])
    rewrite_meta(tmp_path / "x")
    assert any("odd" in str(finding) for finding in verify_dataset(tmp_path / "x"))
    with pytest.raises(NielsCacheError):
        PreferenceDataset(str(tmp_path / "x" / "train"), T=20)
    np.save(path, starts)
    rewrite_meta(tmp_path / "x", sides=["rejected", "chosen"])
    assert any("sides" in str(finding) for finding in verify_dataset(tmp_path / "x"))


def test_hf_samples_and_the_catalog_show_both_sides(cache: Path, model: Path) -> None:
    meta, expected, root = read_meta(str(cache / "meta.json")), by_hand(cache, "train"), cache.parent.parent
    for T in (None, 30):
        dataset = to_hf_dataset("x", cache_dir=root, T=T)
        assert len(dataset) == len(expected)
        for row, pair in zip(dataset.select(range(5)), expected, strict=False):
            for (ids, targets), side in zip(pair, ("chosen", "rejected"), strict=True):
                assert row[f"{side}_input_ids"] == ids[:T]
                assert row[f"{side}_labels"] == [token if target else IGNORED for token, target in zip(ids, targets, strict=True)][:T]
        assert pickle.loads(pickle.dumps(dataset))[3] == dataset[3]
    measures = measure_cache(cache, "sft", meta)
    assert (measures.noun, measures.items) == ("sides", 2 * (meta["train_examples"] + meta["val_examples"]))
    drawn = [*notable(cache, "sft", "train", length=1000, tokenizer=opened_model(model))]
    drawn += examples(cache, "train", count=3, length=1000, generator=torch.Generator().manual_seed(0), tokenizer=None)
    known = [side for pair in expected for side in pair]
    assert len(drawn) >= 12
    assert all((each.tokens.tolist(), each.is_target.tolist()) in known for each in drawn)
    assert [("chosen" in each.title, "rejected" in each.title) for each in drawn[:2]] == [(True, False), (False, True)]
    split = open_cache(root).sft["x"].train
    assert len(split) == split.rows == len(expected)
    assert split[2].tolist() == expected[2][0][0] + expected[2][1][0]
    assert isinstance(split.sampler(T=80), PreferenceDataset)
    assert isinstance(next(iter(split.loader(T=60, B=1, seed=0))), PreferenceBatch)


def project(folder: Path, model: Path, rows: list[dict[str, Any]], *, more: str = "") -> Registry:
    table = f'[sft.pairs]\nsource = "chat_jsonl"\nkind = "preference"\nfiles = ["pairs.jsonl"]\ntemplate = "chatml"\n{more}'
    return chat_project(folder, model, table, pairs=rows)


def rows_of(items: Sequence[Conversation]) -> list[dict[str, Any]]:
    return [{"chosen": item.messages, "rejected": item.rejected} for item in items]


def test_a_table_builds_pairs_once(tmp_path: Path, model: Path) -> None:
    registry = project(tmp_path, model, [*rows_of(pairs(30)), {"chosen": "a", "rejected": "b"}, {"chosen": "a"}])
    build_tokenizer(registry, root=tmp_path / "cache")
    outcome = build_dataset(registry, "pairs", root=tmp_path / "cache")
    assert outcome.state == "built"
    assert outcome.meta["dropped"] == {"no_prompt": 1, "missing_rejected_field": 1}
    assert "prompt" in outcome.meta["split_rule"]
    assert build_dataset(registry, "pairs", root=tmp_path / "cache").state == "cache_hit"
    shorter = project(tmp_path, model, rows_of(pairs(30)), more="max_tokens = 60\n")
    rebuilt = build_dataset(shorter, "pairs", root=tmp_path / "cache")
    assert rebuilt.state == "built"
    assert rebuilt.meta["dropped"]["too_long"] > 0
    assert verify_cache(tmp_path / "cache") == []


def test_prompts_that_continue_each_other_share_a_split_on_request(tmp_path: Path, model: Path) -> None:
    items = []
    for number in range(60):
        turns = [message(("user", "assistant")[turn % 2], f"{number} turn {turn}") for turn in range(5)]
        for length in (1, 3, 5):  # each prompt begins the next one
            prompt = [message("system", "s"), *turns[:length]]
            sides = [[*prompt, message("assistant", answer)] for answer in ("yes", "no")]
            items.append(Conversation(sides[0], source_id=f"{number} {length}", row=len(items), rejected=sides[1]))

    def splits(folder: Path, **changes: Any) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        build(folder, model, items, val_frac=0.5, **changes)
        for split in ("train", "val"):
            for name in pq.read_table(folder / f"{split}_examples.parquet").column("source_id").to_pylist():
                found.setdefault(name.split()[0], set()).add(split)
        return found

    together = splits(tmp_path / "x", split_by="conversation")
    assert len(together) == 60
    assert all(len(each) == 1 for each in together.values())
    assert {*map(tuple, together.values())} == {("train",), ("val",)}
    assert any(len(each) == 2 for each in splits(tmp_path / "y").values()), "each prompt is one of its own"
    with pytest.raises(NielsCacheError, match="split_by"):
        build(tmp_path / "z", model, [item._replace(rejected=None) for item in items], preference=False, split_by="conversation")


@pytest.mark.walk
def test_the_example_of_trl_lowers_the_loss(tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("trl", reason="trl is not installed: pip install trl")
    answers = [("yes", "no"), ("right", "wrong"), ("good", "bad")]
    rows = [{"prompt": line, "chosen": good, "rejected": bad} for line, (good, bad) in zip(sentences(300), answers * 100, strict=True)]
    registry = project(tmp_path, model, rows)
    build_tokenizer(registry, root=tmp_path / "cache")
    build_dataset(registry, "pairs", root=tmp_path / "cache")
    example = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "dpo_trl.py"))["main"]
    example(["--cache", str(tmp_path / "cache"), "--data", "pairs", "--out", str(tmp_path / "out"), "--steps", "50"])
    found = re.search(r"^loss ([\d.]+) at the start, ([\d.]+) at the end$", capsys.readouterr().out, re.MULTILINE)
    assert found is not None
    assert float(found[2]) < 0.5 * float(found[1])
