"""Caches of conversations in a chat template: their files, and everything that reads their targets."""

import json
import pickle
import shutil
import warnings
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from niels_cache_assets import to_hf_dataset
from niels_cache_assets.artifacts.input_problems import input_problems
from niels_cache_assets.base.documents import Message
from niels_cache_assets.build_cache import build_sft_cache
from niels_cache_assets.chats.templates import Template
from niels_cache_assets.cli import main
from niels_cache_assets.project.registry import Registry, load_registry
from niels_cache_assets.publish.hub import data_card
from niels_cache_assets.publish.pull import only_split
from niels_cache_assets.tokenizer.tokenizer_json import HuggingFaceTokenizer
from niels_cache_inspection.samples import notable
from niels_cache_pages.measures import measure_cache
from niels_cache_runtime import NielsCacheError, TokenLoader
from niels_cache_runtime.cache import targets as target_spans
from niels_cache_runtime.format.meta import Meta, read_meta, write_meta
from niels_cache_runtime.loader.packing.rows import PackedExamples
from niels_cache_runtime.verify import verify_cache, verify_dataset
from tests.helpers.builds import build_dataset, build_tokenizer
from tests.helpers.chat_models import MARKED, UNMARKED, chat_project, chatml, examples_on_disk, opened_model
from tests.helpers.hand_made import learned_tokens, rewrite_meta
from tests.helpers.tiny import sentences

IGNORED = -100
FILES = {f"{split}_{what}" for split in ("train", "val") for what in ("targets.npy", "target_ends.npy")}


def chats(count: int, *, seed: int = 5) -> list[list[Message]]:
    lines = sentences(4 * count, seed=seed, words=5)
    turns = [2 if number % 3 else 4 for number in range(count)]
    return [
        [Message(role="assistant" if turn % 2 else "user", content=lines[4 * number + turn]) for turn in range(turns[number])]
        for number in range(count)
    ]


def build(folder: Path, model: Path, template: Template | None = None, *, count: int = 40, **changes: Any) -> Meta:
    settings = {"tokenizer": opened_model(model), "val_frac": 0.1, "seed": 2, "template": template or chatml(), **changes}
    build_sft_cache(chats(count), str(folder), **settings)
    assert verify_dataset(folder) == []
    return read_meta(str(folder / "meta.json"))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Path:
    """A data set in a cache root, which no test changes."""
    folder = tmp_path_factory.mktemp("root") / "sft" / "x"
    build(folder, model)
    return folder


@pytest.fixture
def copy(cache: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(cache, tmp_path / "x"))


def by_hand(folder: Path, split: str, tokenizer: HuggingFaceTokenizer) -> list[tuple[list[int], list[bool]]]:
    """Each example of a ChatML cache, with which of its tokens are targets, read token by token."""
    tokens = np.fromfile(folder / f"{split}_tokens.bin", "<u2").tolist()
    starts = [*np.load(folder / f"{split}_idx.npy").tolist(), len(tokens)]
    begin, end = tokenizer.token_id("<|im_start|>"), tokenizer.token_id("<|im_end|>")
    head = len(tokenizer.encode("assistant\n"))
    examples = []
    for start, stop in pairwise(starts):
        example, targets, place = tokens[start:stop], [], 0
        while place < len(example):
            assert example[place] == begin
            close = example.index(end, place)
            after = example.index(begin, close) if begin in example[close:] else len(example)
            is_reply = tokenizer.decode(example[place + 1 : place + 1 + head]) == "assistant\n"
            targets += [is_reply and place + head < number <= close for number in range(place, after)]
            place = after
        examples.append((example, targets))
    return examples


def test_a_cache_has_spans_and_its_template(cache: Path, model: Path) -> None:
    meta = read_meta(str(cache / "meta.json"))
    assert meta["forms"] == ["spans"]
    assert {*meta["files"]} >= FILES | {"chat_template.jinja"}
    assert (cache / "chat_template.jinja").read_text(encoding="utf-8") == chatml().text
    assert meta["template"] == {"name": "chatml", "sha256": chatml().sha256, "marks": True}
    for split in ("train", "val"):
        bounds, ends = np.load(cache / f"{split}_targets.npy"), np.load(cache / f"{split}_target_ends.npy")
        assert bounds.dtype == ends.dtype == np.uint64
        assert bounds.shape == (meta["targets"][split], 2)
        expected = by_hand(cache, split, opened_model(model))
        assert examples_on_disk(cache, split) == expected
        assert ends.tolist() == np.cumsum([spans(targets) for _, targets in expected]).tolist()


def spans(targets: list[bool]) -> int:
    return sum(target and not before for before, target in zip([False, *targets], targets, strict=False))


@pytest.mark.parametrize("overflow", ["truncate_right", "truncate_left", "drop"])
@pytest.mark.parametrize("loss_on", ["assistant", "last_assistant", "all"])
def test_packed_rows_agree_with_a_token_by_token_reading(cache: Path, model: Path, loss_on: str, overflow: str) -> None:
    expected = by_hand(cache, "train", opened_model(model))
    lengths = sorted(len(example) for example, _ in expected)
    for T in (lengths[2], lengths[20], 200):
        wanted = learned_tokens(expected, T, loss_on=loss_on, overflow=overflow)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            source = PackedExamples(str(cache / "train"), T=T, seed=3, loss_on=loss_on, overflow=overflow)  # type: ignore[arg-type]
        numbers = np.arange(source.samples)
        rows, origins = source.read(numbers, epoch=0), source.origins(numbers, epoch=0)
        assert rows.targets is not None
        learned: dict[int, list[int]] = {}
        for row, column in zip(*np.nonzero(rows.targets), strict=True):
            learned.setdefault(int(origins.documents[row, column + 1]), []).append(int(rows.tokens[row, column + 1]))
        assert len(learned) > 0
        assert [learned[number] for number in sorted(learned)] == wanted
        again = pickle.loads(pickle.dumps(source)).read(numbers, epoch=0)
        assert np.array_equal(again.targets, rows.targets)


def test_the_loader_trace_sample_plots_and_hf_read_the_spans(cache: Path, model: Path) -> None:
    tokenizer = opened_model(model)
    expected = by_hand(cache, "train", tokenizer)
    loader = TokenLoader(str(cache / "train"), T=400, B=2, seed=0, epochs=1)
    trace = loader.trace(0)
    batch = next(iter(loader))
    assert batch.y_masked is not None
    for row in range(2):
        for column in range(400):
            origin = trace.token(row, column + 1)
            if origin.document is not None and origin.document_offset:
                assert (batch.y_masked[row, column] != IGNORED) == expected[origin.document][1][origin.document_offset]
    for drawn in notable(cache, "sft", "train", length=10_000, tokenizer=tokenizer):
        assert drawn.is_target.tolist() in [targets for example, targets in expected if example == drawn.tokens.tolist()]
    measures = measure_cache(cache, "sft", read_meta(str(cache / "meta.json")))
    assert measures.conversations is not None
    wanted = expected + by_hand(cache, "val", tokenizer)
    assert measures.conversations.target_tokens == sum(sum(targets) for _, targets in wanted)
    assert sum(replies * count for replies, count in measures.conversations.turns.items()) == sum(spans(targets) for _, targets in wanted)
    for T in (None, 9):
        dataset = to_hf_dataset("x", cache_dir=cache.parent.parent, T=T)
        assert len(dataset) == len(expected)
        for row, (example, targets) in zip(dataset.select(range(5)), expected, strict=False):
            assert row.keys() == {"input_ids", "labels"}
            assert row["input_ids"] == example[:T]
            assert row["labels"] == [token if target else IGNORED for token, target in zip(example, targets, strict=True)][:T]
        assert pickle.loads(pickle.dumps(dataset))[3] == dataset[3]


def test_labels_survive_what_a_trainer_makes_of_the_columns(cache: Path) -> None:
    dataset = to_hf_dataset("x", cache_dir=cache.parent.parent, T=60)
    kept = dataset.remove_columns([name for name in dataset.column_names if name not in ("input_ids", "attention_mask", "labels")])
    assert kept[3] == dataset[3]
    assert any(label != IGNORED for label in kept[3]["labels"])
    counted = dataset.map(lambda row: {"replies": sum(label != IGNORED for label in row["labels"])})
    assert counted[3]["replies"] == sum(label != IGNORED for label in counted[3]["labels"]) > 0
    negated = dataset.map(lambda row: {"labels": [-1 for _ in row["labels"]]})
    assert {*negated[3]["labels"]} == {-1}
    assert dataset.remove_columns("labels")[3] == {"input_ids": dataset[3]["input_ids"]}
    assert list(dataset["input_ids"])[3] == dataset[3]["input_ids"]
    with pytest.raises(NielsCacheError, match="whole rows"):
        dataset.select_columns("labels")[3]


def test_the_code_in_a_data_card_opens_the_cache(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cache").symlink_to(cache.parent.parent)
    code = data_card("hf://me/x", "sft", "x", read_meta(str(cache / "meta.json"))).split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(code, names)
    assert names["batch"].y_masked.shape == (16, 1024)


BROKEN: dict[str, Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]] = {
    "a span leaves its example": lambda bounds, ends: (np.concatenate([bounds[:-1], bounds[-1:] + 10_000]), ends),
    "a span is empty": lambda bounds, ends: (np.concatenate([bounds[:1, [0, 0]], bounds[1:]]), ends),
    "spans in another order": lambda bounds, ends: (bounds[::-1].copy(), ends),
    "a span is of the example before": lambda bounds, ends: (bounds, np.concatenate([ends[:3], ends[3:4] + 1, ends[4:]])),
    "an entry is missing": lambda bounds, ends: (bounds, ends[:-1]),
    "a span is missing": lambda bounds, ends: (bounds[:-1], ends),
    "another form": lambda bounds, ends: (bounds.reshape(-1), ends),
}


@pytest.mark.parametrize("how", BROKEN)
def test_broken_spans_are_found(copy: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target_spans, "_BLOCK_EXAMPLES", 3)
    assert PackedExamples(str(copy / "train"), T=400, seed=0).report().examples > 3
    paths = copy / "train_targets.npy", copy / "train_target_ends.npy"
    for path, array in zip(paths, BROKEN[how](np.load(paths[0]), np.load(paths[1])), strict=True):
        np.save(path, array)
    rewrite_meta(copy)
    assert any("target" in str(finding) for finding in verify_dataset(copy))
    with pytest.raises(NielsCacheError, match=r"train_target\w+\.npy"):
        PackedExamples(str(copy / "train"), T=400, seed=0)


def test_a_cache_whose_record_hides_the_spans_is_refused(copy: Path) -> None:
    write_meta(str(copy / "meta.json"), {**read_meta(str(copy / "meta.json")), "forms": []})
    with pytest.raises(NielsCacheError, match="spans"):
        PackedExamples(str(copy / "train"), T=400, seed=0)


def test_one_split_alone_is_a_cache(copy: Path) -> None:
    found, empty = only_split(read_meta(str(copy / "meta.json")), "train")
    for path in copy.glob("val_*"):
        path.unlink()
    for name, content in empty.items():
        (copy / name).write_bytes(content)
    write_meta(str(copy / "meta.json"), found)
    assert verify_dataset(copy) == []


def project(folder: Path, model: Path, template: str, *, data: str = "") -> Registry:
    table = data or '[sft.chats]\nsource = "chat_jsonl"\nfiles = ["chats.jsonl"]\n'
    rows = [{"messages": messages} for messages in chats(30)]
    return chat_project(folder, model, f"{table}template = {json.dumps(template)}\n", chats=rows)


def built(folder: Path, registry: Registry, name: str = "chats") -> Any:
    build_tokenizer(registry, root=folder / "cache")
    return build_dataset(registry, name, root=folder / "cache")


def test_a_template_is_part_of_the_fingerprint_and_its_place_is_not(tmp_path: Path, model: Path) -> None:
    (tmp_path / "own.jinja").write_text(UNMARKED, encoding="utf-8")
    registry = project(tmp_path, model, "own.jinja")
    assert [built(tmp_path, registry).state for _ in range(2)] == ["built", "cache_hit"]
    (tmp_path / "own.jinja").rename(tmp_path / "other.jinja")
    assert built(tmp_path, project(tmp_path, model, "other.jinja")).state == "cache_hit"
    (tmp_path / "other.jinja").write_text(MARKED, encoding="utf-8")
    assert built(tmp_path, project(tmp_path, model, "other.jinja")).state == "built"
    assert verify_cache(tmp_path / "cache") == []


def test_a_wrong_template_is_one_line(tmp_path: Path, model: Path) -> None:
    for given, keyword in [("chatlm", "chatml"), ("x.txt", ".jinja")]:
        with pytest.raises(NielsCacheError, match=keyword):
            project(tmp_path, model, given)
    with pytest.raises(NielsCacheError, match=r"none\.jinja"):
        built(tmp_path, project(tmp_path, model, "none.jinja"))
    (tmp_path / "silent.jinja").write_text("{{ messages[0].content }}{% generation %}{% endgeneration %}", encoding="utf-8")
    with pytest.raises(NielsCacheError, match=r"no_target 30.*silent\.jinja") as raised:
        built(tmp_path, project(tmp_path, model, "silent.jinja"))
    assert "\n" not in str(raised.value)


def test_a_template_is_checked_before_a_tokenizer_is_trained(tmp_path: Path, model: Path) -> None:
    (tmp_path / "wrong.jinja").write_text("{% for %}", encoding="utf-8")
    (tmp_path / "own.jinja").write_text(MARKED, encoding="utf-8")

    def problems(template: str) -> list[str]:
        return [str(each) for each in input_problems(project(tmp_path, model, template))]

    assert [problems(each) for each in ("sentinels", "chatml", "model", "own.jinja")] == [[], [], [], []]
    for template, keyword in [("none.jinja", "none.jinja"), ("wrong.jinja", "line 1")]:
        (found,) = problems(template)
        assert "[sft.chats]" in found
        assert keyword in found
    registry = project(tmp_path, model, "chatml")
    trained = replace(registry, tokenizer=registry.tokenizer.model_copy(update={"model": None}))
    assert ["im_start" in str(each) for each in input_problems(trained)] == [True]


def test_another_template_is_another_version_of_what_dagster_observes(tmp_path: Path, model: Path) -> None:
    from niels_cache_assets.defs.assets.upstream import _observation, version_of

    def version(template: str) -> str:
        return version_of(_observation(project(tmp_path, model, template), "chats", "r1", root=tmp_path / "cache"))

    (tmp_path / "own.jinja").write_text(MARKED, encoding="utf-8")
    versions = [version(template) for template in ("sentinels", "chatml", "own.jinja")]
    assert versions[2] == version("own.jinja")
    (tmp_path / "own.jinja").write_text(UNMARKED, encoding="utf-8")
    assert len({*versions, version("own.jinja")}) == 4


def test_a_broken_row_stops_a_build_that_then_goes_on_without_it(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIELS_CACHE_JOURNAL_BYTES", "1")
    lines = [json.dumps({"messages": messages}) for messages in chats(900)]
    table = '[sft.chats]\nsource = "chat_jsonl"\nfiles = ["chats.jsonl"]\n'

    def opened(folder: Path, rows: list[str], more: str = "") -> Registry:
        registry = project(folder, model, "chatml", data=table + more)
        (folder / "chats.jsonl").write_text("\n".join(rows), encoding="utf-8")
        return registry

    good = built(tmp_path / "a", opened(tmp_path / "a", lines[:40]))
    before = {path.name: path.read_bytes() for path in good.directory.iterdir()}
    dirty = [*lines[:700], json.dumps({"messages": [{"role": "usr", "content": "q"}, {"role": "assistant", "content": "a"}]}), *lines[700:]]
    with pytest.raises(NielsCacheError, match=r"\[sft\.chats\] chats\.jsonl: row 700: .*'usr' .*'user'.*on_broken") as raised:
        built(tmp_path / "a", opened(tmp_path / "a", dirty))
    assert "\n" not in str(raised.value)
    assert {path.name: path.read_bytes() for path in good.directory.iterdir()} == before
    outcome = built(tmp_path / "a", opened(tmp_path / "a", dirty, 'on_broken = "drop"\n'))
    assert (outcome.state, outcome.meta["dropped"]) == ("built", {"unknown_role": 1})
    assert outcome.resumed > 0
    at_once = built(tmp_path / "b", opened(tmp_path / "b", dirty, 'on_broken = "drop"\n'))
    assert at_once.resumed == 0
    assert at_once.meta["content_sha256"] == outcome.meta["content_sha256"]
    assert built(tmp_path / "b", opened(tmp_path / "b", dirty)).state == "cache_hit"
    without = built(tmp_path / "c", opened(tmp_path / "c", lines))
    for name in ("train_tokens.bin", "val_tokens.bin"):
        assert (without.directory / name).read_bytes() == (outcome.directory / name).read_bytes()


def test_init_names_the_template_of_the_model(
    tmp_path: Path, model: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [json.dumps({"messages": messages}) for messages in chats(30)]
    (tmp_path / "chats.jsonl").write_text("\n".join(rows), encoding="utf-8")
    assert main(["init", "chats.jsonl", "--tokenizer", str(model)]) == 0
    registry = load_registry(config=str(tmp_path / "niels_cache.toml"))
    assert registry.sft["chats"].template == "model"
    assert built(tmp_path, registry).state == "built"
    assert main(["init", "chats.jsonl", "--tokenizer", str(tiny_model), "--force"]) == 0
    assert "template" not in (tmp_path / "niels_cache.toml").read_text(encoding="utf-8")
    capsys.readouterr()
    broken = json.dumps({"messages": [{"role": "usr", "content": "q"}, {"role": "assistant", "content": "a"}]})
    (tmp_path / "chats.jsonl").write_text("\n".join([*rows, broken]), encoding="utf-8")
    assert main(["init", "chats.jsonl", "--tokenizer", str(model), "--force"]) == 0
    assert "[sft.chats] chats.jsonl: row 30" in capsys.readouterr().err
    assert (tmp_path / "niels_cache.toml").exists()
    assert main(["doctor", "--offline"]) != 0
    assert "row 30" in "".join(capsys.readouterr())
