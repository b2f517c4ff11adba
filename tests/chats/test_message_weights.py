"""Messages that are marked not to be trained on: how they are read, which targets they leave out, and what reads these targets."""

import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from niels_cache_assets.base.documents import Conversation
from niels_cache_assets.build_cache import Resume, build_sft_cache
from niels_cache_assets.chats.templates import Template
from niels_cache_assets.sources.messages import (
    WEIGHT_KEYS,
    masked_messages,
    message_weights,
    plain_messages,
    template_messages,
    weight_problem,
)
from niels_cache_assets.tokenizer.tokenizer_json import HuggingFaceTokenizer
from niels_cache_runtime import NielsCacheError, SFTExampleDataset, TokenLoader
from niels_cache_runtime.format.meta import Meta, read_meta
from niels_cache_runtime.verify import verify_dataset
from tests.helpers.builds import build_dataset, build_tokenizer
from tests.helpers.chat_models import MARKED, UNMARKED, chat_project, chatml, examples_on_disk, opened_model, template_of
from tests.helpers.hand_made import rewrite_meta
from tests.helpers.tiny import sentences

pytestmark = pytest.mark.usefixtures("short_proofs")
IGNORED = -100
ROLE_TOKENS = {"system": "<|sys|>", "user": "<|usr|>", "assistant": "<|asst|>"}
WEIGHT_FILES = {"train_target_weights.npy", "val_target_weights.npy"}
SPAN_FILES = {f"{split}_{what}" for split in ("train", "val") for what in ("targets.npy", "target_ends.npy")}
TWO_MARKS = """\
{%- for message in messages %}
{%- if message.role == 'assistant' %}
[A] {% generation %}{{ message.content[:3] }}{% endgeneration %} |
{%- generation %}{{ message.content[3:] }}{{ eos_token }}{% endgeneration %}

{%- else %}
[{{ message.role }}] {{ message.content }}
{% endif %}
{%- endfor %}
"""
TEMPLATES: dict[str, Template] = {
    "chatml": chatml(),
    "marks": template_of(MARKED),
    "two marks a message": template_of(TWO_MARKS),
    "no marks": template_of(UNMARKED),
}
NUMBERS = ("weight", "loss_scale")  # keys that may have any weight
Example = tuple[list[int], list[bool]]


def chat(number: int, lines: Sequence[str]) -> list[Any]:
    """A conversation of two or three replies. Of three conversations, one has a masked first reply, and one a masked last reply."""
    replies = 2 + number % 2
    messages: list[Any] = [{"role": "system", "content": f"Be brief {number}."}] if number % 4 == 0 else []
    for turn in range(replies):
        messages.append({"role": "user", "content": lines[2 * turn]})
        masked = (number % 3 == 0 and turn == 0) or (number % 3 == 1 and turn == replies - 1)
        messages.append({"role": "assistant", "content": lines[2 * turn + 1], **({"weight": 0} if masked else {})})
    return messages


def chats(count: int) -> list[list[Any]]:
    lines = sentences(6 * count, seed=4, words=5)
    return [chat(number, lines[6 * number : 6 * number + 6]) for number in range(count)]


def without_weights(conversations: Sequence[list[Any]]) -> list[list[Any]]:
    return [[{key: value for key, value in message.items() if key not in WEIGHT_KEYS} for message in each] for each in conversations]


def build(folder: Path, model: Path, items: Iterable[Any], **changes: Any) -> Meta:
    settings = {"tokenizer": opened_model(model), "val_frac": 0.2, "seed": 2, **changes}
    build_sft_cache(items, str(folder), **settings)
    assert verify_dataset(folder) == []
    return read_meta(str(folder / "meta.json"))


def by_hand(messages: Sequence[Any], tokenizer: HuggingFaceTokenizer) -> Example:
    """The tokens of a conversation with sentinels, and which of them are targets."""
    ids: list[int] = []
    targets: list[bool] = []
    eot = tokenizer.token_id("<|endoftext|>")
    assert eot is not None
    for message in messages:
        role = tokenizer.token_id(ROLE_TOKENS[message["role"]])
        assert role is not None
        content = [*tokenizer.encode(message["content"]), eot]
        ids += [role, *content]
        targets += [False, *[message["role"] == "assistant" and message.get("weight") != 0] * len(content)]
    return ids, targets


@pytest.mark.parametrize("key", sorted(WEIGHT_KEYS))
def test_each_key_says_whether_to_train_on_a_message(key: str) -> None:
    ask = {"role": "user", "content": "q"}
    assert {"weight", "train", "trainable", "loss", "loss_mask"} < WEIGHT_KEYS
    for value, learns in [(0, False), (0.0, False), (False, False), (1, True), (1.0, True), (True, True), (None, True)]:
        given = [ask, {"from": "gpt", "value": "a", key: value if value is None or key != "masked" else not value}]
        plain, templated = plain_messages(given), template_messages(given)
        assert isinstance(plain, list)
        assert isinstance(templated, list)
        for messages in (plain, templated):
            assert weight_problem(messages)[0] is None
            assert masked_messages(messages) == (frozenset() if learns else {1})
    for wrong in ("0", "false", -1, [], [0, 1], {}, float("nan"), float("inf"), 1e-7, 1e7, *((0.5, 2) if key not in NUMBERS else ())):
        assert weight_problem([ask, {"role": "assistant", "content": "a", key: wrong}])[0] == "unusable_weight"


def test_keys_may_agree_but_not_contradict_each_other_and_others_than_the_assistant_are_never_targets() -> None:
    ask, say = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}
    assert masked_messages([ask, {**say, "weight": 0, "train": False, "loss": None}]) == {1}
    assert weight_problem([ask, {**say, "weight": 0, "train": True}])[0] == "contradictory_weights"
    assert weight_problem([ask, {**say, "masked": True, "weight": 1}])[0] == "contradictory_weights"
    assert weight_problem([{**ask, "weight": 0, "train": None}, say])[0] is None
    assert masked_messages([{**ask, "weight": 0}, say]) == frozenset()
    assert weight_problem([{**ask, "weight": 1}, say])[0] == "weight_of_other_role"
    assert weight_problem([{**ask, "weight": 0.5}, say])[0] == "weight_of_other_role"
    assert weight_problem([ask, {**say, "weight": 0.5, "loss_scale": 2}])[0] == "contradictory_weights"
    assert weight_problem([ask, {**say, "weight": 0.5, "train": False}])[0] == "contradictory_weights"
    agreeing = [ask, {**say, "weight": 0.5, "train": True, "loss_scale": 0.5}, {**say, "weight": 1}]
    assert weight_problem(agreeing)[0] is None
    assert message_weights(agreeing) == {1: 0.5}


def test_with_sentinels_a_masked_message_brings_spans_and_its_absence_does_not(tmp_path: Path, model: Path) -> None:
    items, tokenizer = chats(30), opened_model(model)
    meta = build(tmp_path / "x", model, items)
    plain = build(tmp_path / "plain", model, without_weights(items))
    ones = [[{**each, "weight": 1} if each["role"] == "assistant" else each for each in messages] for messages in without_weights(items)]
    assert build(tmp_path / "ones", model, ones) == plain
    assert not plain.keys() & {"targets"}
    assert plain["forms"] == []
    assert "masked_messages" not in plain["facts"]
    assert {*meta["files"]} - {*plain["files"]} == SPAN_FILES
    assert not SPAN_FILES & {*plain["files"]}
    for name, entry in plain["files"].items():
        assert meta["files"][name] == entry
    assert meta["forms"] == ["spans"]
    assert meta["facts"]["masked_messages"] == sum(len(masked_messages(each)) for each in items) == 20
    found = examples_on_disk(tmp_path / "x", "train") + examples_on_disk(tmp_path / "x", "val")
    assert sorted(found) == sorted(by_hand(each, tokenizer) for each in items)
    assert meta["targets"] == {split: len(np.load(tmp_path / "x" / f"{split}_targets.npy")) for split in ("train", "val")}


@pytest.mark.parametrize("form", TEMPLATES)
def test_with_a_template_only_the_targets_of_masked_messages_are_left_out(tmp_path: Path, model: Path, form: str) -> None:
    items, tokenizer = chats(24), opened_model(model)
    plain = build(tmp_path / "plain", model, without_weights(items), val_frac=0, template=TEMPLATES[form])
    meta = build(tmp_path / "x", model, items, val_frac=0, template=TEMPLATES[form])
    assert meta["facts"]["masked_messages"] == 16
    assert meta["files"]["train_tokens.bin"] == plain["files"]["train_tokens.bin"]
    checked = 0
    for messages, (ids, targets), (_, every) in zip(
        items, examples_on_disk(tmp_path / "x", "train"), examples_on_disk(tmp_path / "plain", "train"), strict=True
    ):
        spans = [[*span] for span in _runs(every)]
        replies = [message for message in messages if message["role"] == "assistant"]
        per_reply = len(spans) // len(replies)
        assert len(spans) == per_reply * len(replies) > 0
        kept = [span for number, span in enumerate(spans) if replies[number // per_reply].get("weight") != 0]
        assert [[*span] for span in _runs(targets)] == kept
        learned = tokenizer.decode([token for token, target in zip(ids, targets, strict=True) if target])
        for reply in replies:
            assert (reply["content"][3:] in learned) == (reply.get("weight") != 0)
            checked += 1
    assert checked > 40


def weighted(count: int) -> list[list[Any]]:
    """Conversations whose replies have the weights 0, 0.5, 2 and, without a key, 1 by turns."""
    items, number = without_weights(chats(count)), 0
    for messages in items:
        for each in messages:
            if each["role"] == "assistant":
                each |= ({"weight": 0}, {"loss_scale": 0.5}, {"weight": 2}, {})[number % 4]
                number += 1
    return items


@pytest.mark.parametrize("form", [None, *TEMPLATES])
def test_weights_of_messages_reach_the_targets_of_batches(tmp_path: Path, model: Path, form: str | None) -> None:
    items, tokenizer = weighted(24), opened_model(model)
    template = {} if form is None else {"template": TEMPLATES[form]}
    meta = build(tmp_path / "sft" / "x", model, items, **template)
    assert meta["forms"] == ["spans", "target_weights"]
    assert {*meta["files"]} >= SPAN_FILES | WEIGHT_FILES
    by_text = {each["content"][3:]: float({"weight": 1, **each}["weight"]) for messages in items for each in messages}
    by_text |= {each["content"][3:]: each["loss_scale"] for messages in items for each in messages if "loss_scale" in each}
    seen = set()
    for batch in TokenLoader(str(tmp_path / "sft" / "x" / "train"), T=200, B=4, seed=0, epochs=1, fields="weights"):
        assert batch.weights is not None
        assert batch.y_masked is not None
        assert torch.equal(batch.weights == 0, batch.y_masked == IGNORED)
        for y, weights in zip(batch.y, batch.weights, strict=True):
            for start, end in _runs((weights != 0).tolist()):
                (weight,) = weights[start:end].unique().tolist()
                text = tokenizer.decode(y[start:end].tolist())
                if found := [each for content, each in by_text.items() if content in text]:
                    assert found == [weight]
                    seen.add(weight)
    assert seen == {0.5, 1.0, 2.0}
    with pytest.warns(UserWarning, match="messages have weights"):
        TokenLoader(str(tmp_path / "sft" / "x" / "train"), T=200, B=4, seed=0)
    path = tmp_path / "sft" / "x" / "train_target_weights.npy"
    for value in (np.nan, -1, 0):
        weights = np.load(path)
        weights[-1] = value
        np.save(path, weights)
        assert "train_target_weights.npy" in " ".join(map(str, verify_dataset(tmp_path / "sft" / "x")))
        with pytest.raises(NielsCacheError, match=r"train_target_weights\.npy: weight \d+ is"):
            TokenLoader(str(tmp_path / "sft" / "x" / "train"), T=200, B=4, seed=0)
    np.save(path, np.load(path)[1:])
    with pytest.raises(NielsCacheError, match=r"train_target_weights\.npy"):
        TokenLoader(str(tmp_path / "sft" / "x" / "train"), T=200, B=4, seed=0)


def test_a_pair_takes_no_weights(tmp_path: Path, model: Path) -> None:
    ask, good, bad = {"role": "user", "content": "q"}, {"role": "assistant", "content": "good"}, {"role": "assistant", "content": "bad"}
    items = [Conversation([ask, good], rejected=[ask, bad]), Conversation([ask, {**good, "weight": 0.5}], rejected=[ask, bad])]  # type: ignore[list-item]
    assert build(tmp_path / "x", model, items, val_frac=0, preference=True, on_invalid="drop")["dropped"] == {"unusable_weight": 1}


def _runs(mask: Sequence[bool]) -> Iterator[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(np.array(mask, dtype=np.int8), prepend=0, append=0)).reshape(-1, 2)
    yield from ((int(start), int(end)) for start, end in edges)


def test_a_pair_whose_answer_is_masked_has_no_target(tmp_path: Path, model: Path) -> None:
    ask, good, bad = {"role": "user", "content": "q"}, {"role": "assistant", "content": "good"}, {"role": "assistant", "content": "bad"}
    items = [Conversation([ask, good], rejected=[ask, bad]), Conversation([ask, {**good, "loss": 0}], rejected=[ask, bad])]  # type: ignore[list-item]
    meta = build(tmp_path / "x", model, items, val_frac=0, preference=True, on_invalid="drop")
    assert (meta["train_examples"], meta["dropped"]) == (1, {"no_target": 1})
    assert "masked_messages" not in meta["facts"]


@pytest.mark.parametrize("template", [None, "chatml"])
def test_a_conversation_without_a_reply_to_learn_is_dropped(tmp_path: Path, model: Path, template: str | None) -> None:
    items = [*chats(3), [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "weight": 0}]]
    given = {"template": TEMPLATES[template]} if template else {}
    with pytest.raises(NielsCacheError, match=r"no_target|no words of the assistant"):
        build(tmp_path / "x", model, items, **given)
    meta = build(tmp_path / "x", model, items, on_invalid="drop", **given)
    assert meta["train_examples"] + meta["val_examples"] == 3
    assert meta["dropped"] == {"no_target": 1}
    assert meta["facts"]["masked_messages"] == 2


def test_the_builder_names_a_message_whose_weight_is_unclear(tmp_path: Path, model: Path) -> None:
    items = [*chats(3), [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "weight": "0"}]]
    with pytest.raises(NielsCacheError, match=r"example 3: message 1 has weight = '0'.*on_invalid"):
        build(tmp_path / "x", model, items)
    assert build(tmp_path / "x", model, items, on_invalid="drop")["dropped"] == {"unusable_weight": 1}


@pytest.mark.parametrize("more", ["", 'template = "chatml"\n'], ids=["sentinels", "chatml"])
def test_rows_of_json_lines_and_parquet_give_the_same_and_columns_of_a_row_count_for_nothing(
    tmp_path: Path, model: Path, more: str
) -> None:
    rows = [{"messages": messages, "weight": 0, "train": False, "loss": 0.7} for messages in chats(12)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet")  # messages without a weight have null there
    assert None in [message["weight"] for row in pq.read_table(tmp_path / "x.parquet").to_pylist() for message in row["messages"]]
    tables = (f'[sft.{kind}]\nsource = "chat_jsonl"\nfiles = ["x.{kind}"]\nval_frac = 0\n{more}' for kind in ("jsonl", "parquet"))
    registry = chat_project(tmp_path, model, "".join(tables), x=rows)
    build_tokenizer(registry, root=tmp_path / "cache")
    metas = [build_dataset(registry, name, root=tmp_path / "cache").meta for name in ("jsonl", "parquet")]
    for meta in metas:
        assert meta["facts"]["masked_messages"] == 8
        assert meta["targets"]["train"] == metas[0]["targets"]["train"] > 0
    assert metas[0]["content_sha256"] == metas[1]["content_sha256"]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Path:
    """A data set with sentinels and masked messages, in a cache root."""
    folder = tmp_path_factory.mktemp("root") / "sft" / "x"
    build(folder, model, chats(40))
    return folder


@pytest.fixture(scope="module")
def expected(cache: Path, model: Path) -> list[Example]:
    """The examples of train, by hand, in the order of the files."""
    by_tokens = {tuple(ids): targets for ids, targets in (by_hand(each, opened_model(model)) for each in chats(40))}
    found = [(ids, by_tokens[tuple(ids)]) for ids, _ in examples_on_disk(cache, "train")]
    assert len(found) == 32
    return found


def test_the_sampler_reads_the_spans_beside_its_two_files(cache: Path, expected: list[Example]) -> None:
    ids = read_meta(str(cache / "meta.json"))["special_token_ids"]
    by_tokens = {tuple(each): targets for each, targets in expected}
    files = str(cache / "train_tokens.bin"), str(cache / "train_idx.npy")
    dataset = SFTExampleDataset(*files, T=200, device="cpu", eot_id=ids["eot"], asst_id=ids["asst"])  # naming the sentinel stays right
    x, y, masked = dataset.get_batch(B=64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(masked[masked != IGNORED], y[masked != IGNORED])
    for row in range(64):
        whole = [int(x[row, 0]), *y[row].tolist()]
        (example,) = [each for each in by_tokens if whole[: len(each)] == list(each)]
        learned = [False, *(masked[row] != IGNORED).tolist()]
        assert learned == [*by_tokens[example], *[False] * (len(learned) - len(example))]
    with pytest.raises(NielsCacheError, match="asst id"):
        SFTExampleDataset(*files, T=200, device="cpu", eot_id=ids["eot"], asst_id=ids["usr"])


@pytest.mark.parametrize("name", sorted(SPAN_FILES - {"val_targets.npy", "val_target_ends.npy"}))
def test_a_missing_file_of_spans_is_refused(tmp_path: Path, cache: Path, name: str) -> None:
    shutil.copytree(cache, tmp_path / "x")
    (tmp_path / "x" / name).unlink()
    eot = read_meta(str(cache / "meta.json"))["special_token_ids"]["eot"]
    with pytest.raises(NielsCacheError, match=name):
        SFTExampleDataset(str(tmp_path / "x" / "train_tokens.bin"), str(tmp_path / "x" / "train_idx.npy"), T=99, device="cpu", eot_id=eot)
    with pytest.raises(NielsCacheError, match=name):
        TokenLoader(str(tmp_path / "x" / "train"), T=99, B=1, seed=0)
    assert any(name in problem for problem in map(str, verify_dataset(tmp_path / "x")))


def test_verify_still_checks_the_messages_between_the_spans(tmp_path: Path, cache: Path) -> None:
    shutil.copytree(cache, tmp_path / "x")
    tokens = np.fromfile(tmp_path / "x" / "train_tokens.bin", "<u2")
    tokens[0] = tokens[1]
    tokens.tofile(tmp_path / "x" / "train_tokens.bin")
    meta = read_meta(str(cache / "meta.json"))
    assert verify_dataset(tmp_path / "x") != []
    rewrite_meta(tmp_path / "x", targets={**meta["targets"], "val": 1})
    said = " ".join(map(str, verify_dataset(tmp_path / "x")))
    assert "1 examples do not begin with a role sentinel" in said
    assert "targets.val is 1" in said


def test_a_resumed_build_with_a_masked_message_at_its_end_gives_the_same_bytes(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NIELS_CACHE_JOURNAL_BYTES", "1")
    every = without_weights(chats(900))
    every[-1][-1] = {**every[-1][-1], "loss_mask": 0}
    for number in (3, 500, 800):
        every[number][-1] = {**every[number][-1], "weight": 1 + number}
    told: list[str] = []

    def until(end: int) -> Iterator[Any]:
        yield from every[:end]
        if end < len(every):
            raise RuntimeError("stopped")

    def run(name: str, end: int) -> Meta:
        return build(tmp_path / name, model, until(end), threads=1, resume=Resume(fingerprint="a", log=told.append))

    with pytest.raises(RuntimeError, match="stopped"):
        run("x", 700)
    resumed = run("x", len(every))
    assert any("resuming" in line for line in told)
    assert resumed == run("whole", len(every))
    assert {*resumed["files"]} >= SPAN_FILES | WEIGHT_FILES
    weights = np.concatenate([np.load(tmp_path / "x" / name) for name in sorted(WEIGHT_FILES)])
    assert sorted(weights[weights != 1].tolist()) == [4, 501, 801]
    assert resumed["facts"]["masked_messages"] == 1
