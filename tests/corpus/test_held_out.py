"""A mixture holds no val document of a member. This holds for every way to split the member, and for any order of builds."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from niels_cache_assets.artifacts.base import Outcome
from niels_cache_assets.artifacts.graph import graph
from niels_cache_assets.base.defaults import SPECIAL_TOKENS
from niels_cache_assets.base.documents import Document
from niels_cache_assets.disk.journal import BYTES_VARIABLE
from niels_cache_assets.project.registry import Registry, load_registry
from niels_cache_assets.sources.jsonl import Jsonl
from niels_cache_assets.sources.types import StreamContext
from niels_cache_assets.streaming import encode
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import SPLITS, Split, documents_name
from tests.helpers.builds import build_dataset, build_tokenizer, find_duplicates, prepare_corpus
from tests.helpers.corpora import nearly, write_jsonl
from tests.helpers.hub_repositories import parquet
from tests.helpers.tiny import sentences, train_tiny_tokenizer

BUDGETS = "train_tokens = 6_000\nval_tokens = 3_000\n"
FILES = 'source = "jsonl"\nfiles = ["a.jsonl"]\n'
MIRROR = 'source = "huggingface"\ndataset = "local/mirror"\nfiles = ["a.parquet"]\n'
CLEAN = 'prepare = ["clean"]\ncleaning = { skip = ["not_english", "language_error", "repetitive", "no_stopwords", "too_short"] }\n'
RULES = {
    "budgets": FILES + BUDGETS,
    "budgets, builder shuffles": FILES + BUDGETS + "shuffle_buffer = 50\n",
    "budgets, stream shuffles": MIRROR + BUDGETS + "shuffle_buffer = 50\n",
    "budgets, cleaned": FILES + BUDGETS + CLEAN,
    "budgets, deduplicated and shuffled": FILES + BUDGETS + 'shuffle_buffer = 50\nprepare = ["dedup"]\n',
    "budgets, decontaminated exactly": FILES + BUDGETS + 'shuffle_buffer = 50\ndecontaminate = "exact"\n',
    "budgets, cleaned and decontaminated": FILES + BUDGETS + CLEAN + 'decontaminate = "near"\n',
    "val_frac": FILES + "val_frac = 0.2\n",
    "val_frac, stream shuffles": MIRROR + "val_frac = 0.2\nshuffle_buffer = 50\n",
    "val_frac, cleaned": FILES + "val_frac = 0.2\n" + CLEAN,
    "val_frac, decontaminated nearly": FILES + 'val_frac = 0.2\ndecontaminate = "near"\n',
    "upstream's split, decontaminated": MIRROR + 'val_files = ["val.parquet"]\ndecontaminate = "exact"\n',
}
MIX = 'source = "interleave"\nmembers = { a = 3, b = 1 }\nval_frac = 0.1\n'
DOCUMENTS, OTHERS = 240, 120


def texts_of_a() -> list[str]:
    """Every fourth is an earlier one in capitals or but for its last word; the first holds a special token, so it takes no budget."""
    texts = [f"{text} {number}." for number, text in enumerate(sentences(DOCUMENTS, words=40))]
    for number in range(40, DOCUMENTS, 4):
        copied = texts[number % 37]
        texts[number] = nearly(copied) if number % 8 else copied.upper()
    return [f"It says {SPECIAL_TOKENS['eot']} here.", *texts]


def project(folder: Path, model: Path, rule: str, mix: str = MIX, *, build: str = "") -> Registry:
    """`a` with the rule, `b` and the mixture of both."""
    texts, other = texts_of_a(), sentences(OTHERS, seed=9, words=40)
    write_jsonl(folder / "a.jsonl", texts)
    write_jsonl(folder / "b.jsonl", [*other, texts[3].upper()])
    (folder / "a.parquet").write_bytes(parquet([{"id": f"a-{row}", "text": text} for row, text in enumerate(texts)]))
    (folder / "val.parquet").write_bytes(parquet([{"id": f"v-{row}", "text": text} for row, text in enumerate(texts[10:60])]))
    config = folder / "niels_cache.toml"
    config.write_text(
        f"[tokenizer]\nmodel = {json.dumps(str(model))}\n[build]\nthreads = 2\nshard_bytes = 4096\n{build}\n"
        f'[pretrain.a]\n{rule}\n[pretrain.b]\nsource = "jsonl"\nfiles = ["b.jsonl"]\n[pretrain.mix]\n{mix}',
        encoding="utf-8",
    )
    return load_registry(profile="quickstart", config=str(config))


def ready(registry: Registry, root: Path) -> Registry:
    build_tokenizer(registry, root=root)
    for name in registry.prepared():
        prepare_corpus(registry, name, root=root, processes=1)
    if registry.prepared("dedup"):
        find_duplicates(registry, root=root)
    return registry


def ids(root: Path, name: str, split: Split) -> list[str]:
    found: list[str] = pq.read_table(root / "pretrain" / name / documents_name(split))["source_id"].to_pylist()  # type: ignore[arg-type]
    return found


def mixed(root: Path) -> list[str]:
    return [each for split in SPLITS for each in ids(root, "mix", split)]


def files_of(outcome: Outcome) -> dict[str, str]:
    return {name: entry["sha256"] for name, entry in outcome.meta["files"].items()}


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule not in ("budgets", "budgets, cleaned")])  # which other rules are, and more
def test_nothing_that_a_member_keeps_for_val_is_in_a_mixture_whatever_is_built_first(tmp_path: Path, tiny_model: Path, rule: str) -> None:
    registry, first = project(tmp_path, tiny_model, RULES[rule]), tmp_path / "first"
    before = build_dataset(ready(registry, first), "mix", root=first)
    member = build_dataset(registry, "a", root=first)
    after = build_dataset(registry, "mix", root=first, force=True)
    assert files_of(before) == files_of(after)
    assert before.meta["dropped"] == after.meta["dropped"]
    val, inside = set(ids(first, "a", "val")), set(mixed(first))
    assert len(val) > 20
    assert len([each for each in inside if each.startswith("a-")]) > 100
    assert val & inside == set()
    assert before.meta["dropped"]["member_val"] >= len(val)
    if "decontaminate" in rule:
        texts = {f"a-{row}": text.casefold() for row, text in enumerate(texts_of_a())}
        texts |= {f"v-{row}": texts[f"a-{row + 10}"] for row in range(50)} | {f"b-{OTHERS}": texts["a-3"]}
        seen = {texts[each] for each in val}
        assert member.meta["dropped"]["in_val"] > 0
        assert seen & {texts[each] for each in inside if each in texts} == set()
        assert before.meta["dropped"]["in_val_of_member"] > 0
        if "near" in rule:
            near = {" ".join(text.split()[:-1]) for text in seen}
            assert near & {" ".join(texts[each].split()[:-1]) for each in inside if each in texts} == set()
            assert before.meta["dropped"]["near_val_of_member"] > 0


@pytest.mark.parametrize("rule", ["budgets, builder shuffles", "budgets, stream shuffles", "budgets, cleaned"])
def test_train_of_a_member_is_mixed_however_far_its_own_cache_reaches(tmp_path: Path, tiny_model: Path, rule: str) -> None:
    mix = 'source = "interleave"\nmembers = { a = 1 }\nval_frac = 0\n'
    registry = ready(project(tmp_path, tiny_model, RULES[rule], mix), tmp_path)
    member = build_dataset(registry, "a", root=tmp_path)
    build_dataset(registry, "mix", root=tmp_path)
    train, val = ids(tmp_path, "a", "train"), ids(tmp_path, "a", "val")
    cut = member.meta["cut_document"]["val"]
    assert cut == len(val) - 1, "the budget cuts its last document"
    assert val[cut] not in mixed(tmp_path), "nor does its rest go to the mixture"
    assert set(train) <= set(mixed(tmp_path))
    assert len(mixed(tmp_path)) == DOCUMENTS - len(val) > len(train)


def test_a_mixture_is_built_again_when_a_member_keeps_another_val(tmp_path: Path, tiny_model: Path) -> None:
    registry = ready(project(tmp_path, tiny_model, RULES["budgets, cleaned"]), tmp_path)
    build_dataset(registry, "mix", root=tmp_path)
    assert build_dataset(registry, "mix", root=tmp_path).state == "cache_hit"
    assert graph(registry, tmp_path).dataset_state("mix").state == "in sync"
    for old, new in (("val_tokens = 3_000", "val_tokens = 2_000"), ("train_tokens", 'decontaminate = "exact"\ntrain_tokens')):
        changed = project(tmp_path, tiny_model, RULES["budgets, cleaned"].replace(old, new))
        assert graph(changed, tmp_path).dataset_state("mix").state == "other settings"
        outcome = build_dataset(changed, "mix", root=tmp_path)
        assert outcome.state == "built"
        build_dataset(changed, "a", root=tmp_path)
        assert set(ids(tmp_path, "a", "val")) & set(mixed(tmp_path)) == set()


def test_a_mixture_that_is_taken_up_again_leaves_out_the_same(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mix = 'source = "interleave"\nmembers = { a = 3, b = 1 }\ntrain_tokens = 20_000\nval_tokens = 1_000\ndecontaminate = "exact"\n'
    monkeypatch.setattr(encode, "_CHUNK_ITEMS", 64)
    monkeypatch.setattr(encode, "_CHUNKS_PER_TASK", 1)
    registry = project(tmp_path, tiny_model, RULES["budgets, builder shuffles"], mix, build="seed = 3\n")
    whole, torn = tmp_path / "whole", tmp_path / "torn"
    expected = files_of(build_dataset(ready(registry, whole), "mix", root=whole))
    ready(registry, torn)
    monkeypatch.setenv(BYTES_VARIABLE, "1")
    calls = np.zeros(1, dtype=int)

    def interrupt(progress: object) -> None:
        calls[0] += 1
        if calls[0] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_dataset(registry, "mix", root=torn, on_progress=interrupt)
    build_dataset(registry, "a", root=torn)
    outcome = build_dataset(registry, "mix", root=torn)
    assert outcome.resumed > 0
    assert files_of(outcome) == expected
    assert set(ids(torn, "a", "val")) & set(mixed(torn)) == set()


PREPARED_MIX = MIX + CLEAN


def test_a_prepared_mixture_of_members_with_budgets_takes_the_tokenizer_first(tmp_path: Path, tiny_model: Path) -> None:
    registry = project(tmp_path, tiny_model, RULES["budgets"], PREPARED_MIX)
    with pytest.raises(NielsCacheError, match=r"mix: .*budgets.*'tokenizer'"):
        prepare_corpus(registry, "mix", root=tmp_path, processes=1)
    build_dataset(ready(registry, tmp_path), "a", root=tmp_path)
    outcome = build_dataset(registry, "mix", root=tmp_path)
    val = set(ids(tmp_path, "a", "val"))
    assert len(val) > 20
    assert outcome.meta["dropped"]["member_val"] >= len(val)
    assert val & set(mixed(tmp_path)) == set()
    assert prepare_corpus(registry, "mix", root=tmp_path, processes=1).state == "cache_hit"
    seeded = project(tmp_path, tiny_model, RULES["val_frac"], PREPARED_MIX)
    assert prepare_corpus(seeded, "mix", root=tmp_path / "other", processes=1).state == "built", "val_frac takes none"


def test_the_corpus_of_a_mixture_is_of_one_tokenizer_and_of_its_members_split_rules(tmp_path: Path, tiny_model: Path) -> None:
    registry = ready(project(tmp_path, tiny_model, RULES["budgets"], PREPARED_MIX), tmp_path)
    assert graph(registry, tmp_path).state("corpus/mix").state == "in sync"
    longer = project(tmp_path, tiny_model, RULES["budgets"].replace("3_000", "4_000"), PREPARED_MIX)
    assert graph(longer, tmp_path).state("corpus/mix").state == "other settings"
    with pytest.raises(NielsCacheError, match=r"other settings.*'mix'"):
        build_dataset(longer, "mix", root=tmp_path)
    other = train_tiny_tokenizer(tmp_path / "other")
    shutil.copy(other, tmp_path / "copy.model")
    with (tmp_path / "copy.model").open("ab") as model:
        model.write(b"\x1a\x00")  # the same pieces, another sha256
    registry = project(tmp_path, tmp_path / "copy.model", RULES["budgets"], PREPARED_MIX)
    build_tokenizer(registry, root=tmp_path)
    assert graph(registry, tmp_path).state("corpus/mix").state == "other settings"
    assert prepare_corpus(registry, "mix", root=tmp_path, processes=1).state == "built"


def test_a_source_whose_documents_nothing_tells_apart_is_refused_as_a_member_with_budgets(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = ready(project(tmp_path, tiny_model, RULES["budgets"]), tmp_path)
    documents = Jsonl.documents

    def without_origins(self: Jsonl, context: StreamContext) -> Iterator[list[Document]]:
        for batch in documents(self, context):
            yield [Document(document.text) for document in batch]

    monkeypatch.setattr(Jsonl, "documents", without_origins)
    assert build_dataset(registry, "a", root=tmp_path).state == "built", "alone it needs no origins"
    with pytest.raises(NielsCacheError, match=r"^a: .*source_id"):
        build_dataset(registry, "mix", root=tmp_path)


@pytest.mark.parametrize("strategy", ["first_exhausted", "all_exhausted"])
def test_a_member_that_is_all_val_is_an_error_that_says_so(tmp_path: Path, tiny_model: Path, strategy: str) -> None:
    mix = MIX.replace("0.1", "0") + f'stopping_strategy = "{strategy}"\n'
    registry = ready(project(tmp_path, tiny_model, FILES + "val_tokens = 1_000_000\n", mix), tmp_path)
    with pytest.raises(NielsCacheError, match=r"^a: .*1,000,000 tokens.*val_tokens"):
        build_dataset(registry, "mix", root=tmp_path)
