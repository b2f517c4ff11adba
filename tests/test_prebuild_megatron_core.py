"""`niels-cache prebuild-index --for megatron-core`: its own builder then builds nothing, and gives the same samples."""

import gc
import json
import multiprocessing
import os
import pickle
import re
import shlex
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from niels_cache_assets.cli import main
from niels_cache_assets.cli.parser import parse_arguments
from niels_cache_assets.config.tables import MEGATRON_SURPLUS
from niels_cache_assets.indices import prebuild as prebuilding
from niels_cache_assets.indices.megatron_core_run import target_sizes
from niels_cache_assets.indices.megatron_core_tokenizer import TYPES, tokenizer_of_flags
from niels_cache_runtime.megatron.blended import SURPLUS
from tests import megatron_core
from tests.docs_reader import REPOSITORY, commands_of
from tests.messages import missing

NULL = "--tokenizer-type NullTokenizer --vocab-size 200"
SETTINGS = f"--seed 7 --seq-length 16 {NULL} --data-cache-path cache"
STEPS = "--train-iters 20 --global-batch-size 4 --eval-interval 10 --eval-iters 1"  # 80, 12, 4
SIZES = [80, 12, 4]
A, B, C = "a_document", "./b_document", "c_document"  # written as they are hashed
LONG = "long_document"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with three data sets; c has a dtype of its own, and empty documents."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(prebuilding, "_is_long", lambda plan: False)  # a child takes seconds to start
    megatron_core.load()
    for seed, (prefix, count, dtype) in enumerate([(A, 60, np.uint16), (B, 60, np.uint16), (C, 60, np.int32)]):
        lengths = megatron_core.random_lengths(count, seed=seed, mean=30, empty=0.1 if prefix == C else 0)
        megatron_core.write_documents(Path(prefix), lengths, seed=seed, dtype=dtype)
    return tmp_path


@pytest.fixture
def one_process() -> Iterator[None]:
    """Make a process group of this process, because megatron-core needs a group to build a blend."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def prebuild(words: str) -> int:
    return main(["prebuild-index", "--for", "megatron-core", *shlex.split(words)])


@pytest.fixture(scope="module", autouse=True)
def _without_garbage() -> None:
    """Collect what other files left. megatron-core reads arrays on a thread, and numpy parses their headers. If the collector runs there
    and logs an error, such as of a database that belongs to another thread, Python 3.11 may fail (python/cpython#106905).
    """
    gc.collect()


def null_tokenizer() -> Any:
    from megatron.core.tokenizers.text.utils.build_tokenizer import build_tokenizer

    return build_tokenizer(SimpleNamespace(tokenizer_type="NullTokenizer", vocab_size=200))


def build(folder: str, *, sizes: list[int | None] = SIZES, seed: int = 7, tokenizer: Any = None, **config: Any) -> list[Any]:
    """Return train, valid and test, as megatron-core's BlendedMegatronDatasetBuilder builds them."""
    core = megatron_core.load()
    settings = {
        "random_seed": seed,
        "sequence_length": 16,
        "reset_position_ids": False,
        "reset_attention_mask": False,
        "eod_mask_loss": False,
        "create_attention_mask": False,
        "tokenizer": tokenizer or null_tokenizer(),
        "path_to_cache": folder,
        **config,
    }
    return core.builder.BlendedMegatronDatasetBuilder(
        core.gpt.GPTDataset, sizes, lambda: True, core.gpt.GPTDatasetConfig(**settings)
    ).build()


def forbid_building(patch: pytest.MonkeyPatch) -> None:
    """Let nothing of megatron-core make an index, or write one."""
    from megatron.core.datasets import helpers

    def refuse(*arguments: Any, **settings: Any) -> None:
        raise AssertionError("megatron-core builds")

    for name in ("build_sample_idx", "build_blending_indices", "build_exhaustive_blending_indices"):
        assert hasattr(helpers, name)
        patch.setattr(helpers, name, refuse)
    patch.setattr(np, "save", refuse)
    for name in ("_build_document_index", "_build_shuffle_index"):
        patch.setattr(megatron_core.load().gpt, name, refuse)


def files_in(folder: str) -> dict[str, bytes]:
    """Those of megatron-core."""
    return {path.name: path.read_bytes() for path in Path(folder).iterdir() if not path.name.startswith(".")}


def states_of(folder: str) -> dict[str, tuple[int, int]]:
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in Path(folder).iterdir() if not path.name.endswith(".lock")}


def samples_of(dataset: Any) -> list[dict[str, Any]]:
    if isinstance(dataset, list):
        return [sample for each in dataset for sample in samples_of(each)]
    return [] if dataset is None else [dataset[index] for index in range(len(dataset))]


PER_SPLIT = '{"train": ["0.3", "a_document", "0.7", "./b_document"], "valid": "c_document", "test": null}'
SPLIT = "80,15,5"
# The arguments of the command and of the builder. Each index has its own files (3 arrays or 2, and a description).
RUNS: dict[str, tuple[str, dict[str, Any], int]] = {
    "one prefix": (f"--data-path {A} --split {SPLIT} {STEPS}", {"blend": ([A], None), "split": SPLIT}, 3 * 4),
    "the default split": (f"--data-path {LONG} {STEPS}", {"blend": ([LONG], None), "split": "969, 30, 1"}, 3 * 4),
    "a split of one part": (f"--data-path {A} --split 1 {STEPS}", {"blend": ([A], None), "split": "1"}, 4),
    "train is nothing": (f"--data-path {A} --split 0,1 {STEPS}", {"blend": ([A], None), "split": "0,1"}, 4),
    "one prefix with a weight": (f"--data-path 3 {A} --split 1 {STEPS}", {"blend": ([A], [3.0]), "split": "1"}, 4 + 3),
    "weights": (f"--data-path 30 {A} 70 {B} --split {SPLIT} {STEPS}", {"blend": ([A, B], [30.0, 70.0]), "split": SPLIT}, 3 * 11),
    "one data set twice": (f"--data-path 1 {A} 1 {A} --split 1 {STEPS}", {"blend": ([A, A], [1.0, 1.0]), "split": "1"}, 4 + 3),
    "a file of weights": (f"--data-args-path blend.txt --split 1 {STEPS}", {"blend": ([A, C], [0.25, 4.0]), "split": "1"}, 11),
    "without weights": (f"--data-path {A} {B} {C} --split {SPLIT} {STEPS}", {"blend": ([A, B, C], None), "split": SPLIT}, 3 * 15),
    "every sample once": (
        f"--data-path {A} {B} {C} --split 8,2 --target-sizes None,none,none",
        {"blend": ([A, B, C], None), "split": "8,2", "sizes": [None, None, None]},
        2 * 15,
    ),
    "many epochs": (
        f"--data-path 1 {A} 2 {C} --split 1 --train-samples 2000 --global-batch-size 4",
        {"blend": ([A, C], [1.0, 2.0]), "split": "1", "sizes": [2000, 400, 400]},
        11,
    ),
    "another surplus": (
        f"--data-path 1 {A} 2 {C} --split 1 {STEPS} --mid-level-dataset-surplus 0.5",
        {"blend": ([A, C], [1.0, 2.0]), "split": "1", "mid_level_dataset_surplus": 0.5},
        11,
    ),
    "own data": (
        f"--train-data-path 0.3 {A} 0.7 {B} --valid-data-path 5 {C} {STEPS}",
        {"blend_per_split": [([A, B], [0.3, 0.7]), ([C], [5.0]), None]},
        11 + 4,
    ),
    "a file of parts": (
        f"--per-split-data-args-path parts.json {STEPS}",
        {"blend_per_split": [([A, B], [0.3, 0.7]), ([C], None), None]},
        11 + 4,
    ),
    "whole validation": (
        f"--train-data-path {A} --valid-data-path {B} {C} --test-data-path {A} {STEPS} --full-validation",
        {"blend_per_split": [([A], None), ([B, C], None), ([A], None)], "sizes": [80, None, 4]},
        4 + 11 + 4,
    ),
    "validation sets of their own": (
        f"--train-data-path {A} --valid-data-path {B} {C} {STEPS} --multiple-validation-sets",
        {"blend_per_split": [([A], None), ([B, C], None), None], "multiple_validation_sets": True},
        3 * 4,
    ),
    "nothing is evaluated": (
        f"--data-path 1 {A} 2 {C} --split {SPLIT} --train-iters 20 --global-batch-size 4 --eval-iters 0",
        {"blend": ([A, C], [1.0, 2.0]), "split": SPLIT, "sizes": [80, 0, 0]},
        3 * 11,
    ),
    "nothing is evaluated without weights": (
        f"--data-path {A} {C} --split {SPLIT} --train-iters 20 --global-batch-size 4 --eval-iters 0",
        {"blend": ([A, C], None), "split": SPLIT, "sizes": [80, 0, 0]},
        3 * 11,
    ),
    "nothing is evaluated of one prefix": (
        f"--data-path {A} --split {SPLIT} --train-iters 20 --global-batch-size 4 --eval-iters 0",
        {"blend": ([A], None), "split": SPLIT, "sizes": [80, 0, 0]},
        3 * 4,
    ),
}


@pytest.mark.parametrize("name", RUNS)
def test_megatron_core_finds_all_that_it_would_build_and_builds_nothing(
    name: str, one_process: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    words, config, count = RUNS[name]
    Path("blend.txt").write_text(f"0.25 {A}\n4 {C}\n", encoding="utf-8")
    Path("parts.json").write_text(PER_SPLIT, encoding="utf-8")
    megatron_core.write_documents(Path(LONG), [3] * 700)  # of which a thousandth is one
    assert prebuild(f"{words} {SETTINGS}") == 0
    theirs = build("theirs", **config)
    assert files_in("cache") == files_in("theirs")
    assert len(files_in("cache")) == count

    before = states_of("cache")
    with monkeypatch.context() as patch:
        forbid_building(patch)
        found = build("cache", **config)
    assert states_of("cache") == before
    for mine, its in zip(found, theirs, strict=True):
        ours, own = samples_of(mine), samples_of(its)
        assert len(ours) == len(own)
        for sample, expected in zip(ours, own, strict=True):
            assert sample.keys() == expected.keys()
            assert all(np.array_equal(sample[key], expected[key]) for key in sample)
    assert samples_of(found[0] or found[1])


WEIGHTS, OF_WEIGHTS, _ = RUNS["weights"]


@pytest.mark.parametrize(
    "changed",
    [
        {"seed": 8},
        {"sizes": [81, 12, 4]},
        {"split": "80,15,6"},
        {"split": "80, 15, 5"},
        {"sequence_length": 15},
        {"mid_level_dataset_surplus": 0.9},
        {"blend": ([A, B], [30.0, 71.0])},
        {"blend": ([A, B.removeprefix("./")], [30.0, 70.0])},
        {"tokenizer": megatron_core.Tokenizer()},
    ],
    ids=lambda changed: "-".join(f"{key} {value}" for key, value in changed.items() if key != "tokenizer") or "tokenizer",
)
def test_another_run_is_another_name_so_the_check_can_fail(
    changed: dict[str, Any], one_process: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert prebuild(f"{WEIGHTS} {SETTINGS}") == 0
    forbid_building(monkeypatch)
    build("cache", **OF_WEIGHTS)
    with pytest.raises(AssertionError, match="megatron-core builds"):
        build("cache", **{**OF_WEIGHTS, **changed})


def test_flags_that_no_index_depends_on_change_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert prebuild(f"{WEIGHTS} {SETTINGS}") == 0
    forbid_building(monkeypatch)
    masks = {"reset_position_ids": True, "reset_attention_mask": True, "eod_mask_loss": True, "create_attention_mask": True}
    assert samples_of(build("cache", **OF_WEIGHTS, **masks, mmap_bin_files=False, num_dataset_builder_threads=2)[0])


@pytest.mark.parametrize("name", ["own data", "whole validation"])
def test_the_fast_cache_load_which_never_builds_has_all_that_it_needs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Megatron-LM's --dataloader-fast-cache-load and --dataloader-defer-npy-index-mmap take files for there without a look."""
    words, config, _ = RUNS[name]
    assert prebuild(f"{words} {SETTINGS}") == 0
    plain = [samples_of(dataset) for dataset in build("cache", **config)]
    forbid_building(monkeypatch)
    fast = [samples_of(dataset) for dataset in build("cache", **config, fast_cache_load=True, defer_npy_index_mmap=True)]
    assert [len(samples) for samples in fast] == [len(samples) for samples in plain]
    assert len(fast[0]) >= 80
    for sample, expected in zip(chain(*fast), chain(*plain), strict=True):
        assert torch.equal(sample["tokens"], expected["tokens"])


FLAGS: dict[str, list[str]] = {
    "SentencePieceTokenizer": ["", "--tokenizer-sentencepiece-legacy --tokenizer-special-tokens <a> '<\u00e9>'"],
    "GPTSentencePieceTokenizer": [""],
    "Llama2Tokenizer": ["--vocab-size 5"],
    "HuggingFaceTokenizer": [
        "",
        "--tokenizer-hf-use-fast --tokenizer-special-tokens <a> --vocab-file v --merge-file m --trust-remote-code",
    ],
    "BertWordPieceLowerCase": ["--vocab-file v"],
    "BertWordPieceCase": ["--tokenizer-special-tokens <a>"],
    "GPT2BPETokenizer": ["--vocab-file v --merge-file m --tokenizer-hf-include-special-tokens"],
    "TikTokenizer": ["", "--tiktoken-pattern v2 --vocab-size 131072 --tiktoken-num-special-tokens 5 --tokenizer-special-tokens <s> </s>"],
    "NullTokenizer": ["", "--vocab-size 500"],
}


def parsed(words: str) -> Any:
    arguments = parse_arguments(["prebuild-index", *shlex.split(words)])
    assert arguments is not None
    if arguments.tiktoken_num_special_tokens is None:
        arguments.tiktoken_num_special_tokens = 1000
    return arguments


@pytest.mark.parametrize(("kind", "flags"), [(kind, flags) for kind, several in FLAGS.items() for flags in several])
@pytest.mark.parametrize("metadata", [None, "gpt", "t5", "none"])
def test_the_identifiers_of_a_tokenizer_are_those_of_the_one_that_the_flags_build(
    kind: str, flags: str, metadata: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from megatron.core.tokenizers.text.text_tokenizer import MegatronTokenizerText
    from megatron.core.tokenizers.text.utils.build_tokenizer import build_tokenizer

    monkeypatch.setattr(MegatronTokenizerText, "_restore_model", lambda self, **options: SimpleNamespace())  # nothing is loaded
    model = {"library": "sentencepiece"} | ({} if metadata == "none" else {"model_type": metadata})
    Path("tokenizer_metadata.json").write_text(json.dumps(model), encoding="utf-8")
    named = "" if metadata is None else "--tokenizer-metadata tokenizer_metadata.json"
    given = parsed(f"--tokenizer-type {kind} --tokenizer-model model/x.model {flags} {named}")
    theirs = build_tokenizer(given).unique_identifiers
    ours = tokenizer_of_flags(vars(given), where="here")
    assert json.dumps(ours, indent=4) == json.dumps(theirs, indent=4)


def test_every_tokenizer_type_of_megatron_core_is_known() -> None:
    from megatron.core.tokenizers.text.utils import build_tokenizer as its

    assert (
        set(FLAGS) == set(TYPES) == {*its.MEGATRON_TOKENIZERS, *its.SP_TOKENIZERS, "TikTokenizer", "HuggingFaceTokenizer", "NullTokenizer"}
    )


def test_our_own_tokenizer_is_named_as_its_sentencepiece_class_names_it(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from megatron.core.tokenizers.text.utils.build_tokenizer import build_tokenizer

    kind = f"--tokenizer-type SentencePieceTokenizer --tokenizer-model {tiny_model}"
    assert prebuild(f"{WEIGHTS} --seed 7 --seq-length 16 {kind} --data-cache-path cache") == 0
    forbid_building(monkeypatch)
    assert samples_of(build("cache", tokenizer=build_tokenizer(parsed(kind)), **OF_WEIGHTS)[0])


def test_a_tokenizer_of_any_class_is_given_by_its_identifiers(one_process: None, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    from megatron.core.datasets.megatron_tokenizer import MegatronLegacyTokenizer

    class _OwnTokenizer(MegatronLegacyTokenizer):  # as those of --legacy-tokenizer
        vocab_size, vocab, inv_vocab, eod = 200, None, None, 0

        def tokenize(self, text: str) -> Any:
            raise NotImplementedError

    tokenizer = _OwnTokenizer("spm.model", vocab_extra_ids=0)
    build("theirs", tokenizer=tokenizer, **OF_WEIGHTS)
    identifiers = {"class": "_OwnTokenizer", "tokenizer_path": ["spm.model"], "vocab_extra_ids": "0"}
    Path("tokenizer.json").write_text(json.dumps(identifiers), encoding="utf-8")
    of_one, of_blend = (next(Path("theirs").glob(f"*-{kind}-train-description.txt")) for kind in ("GPTDataset", "BlendedDataset"))
    for number, given in enumerate([json.dumps(identifiers), "tokenizer.json", of_one, of_blend]):
        words = f"{WEIGHTS} --seed 7 --seq-length 16 --data-cache-path cache{number}"
        assert main(["prebuild-index", "--for", "megatron-core", *shlex.split(words), "--tokenizer-identifiers", str(given)]) == 0
        assert files_in(f"cache{number}") == files_in("theirs")


def test_samples_are_counted_as_megatron_lm_counts_them() -> None:
    """`get_train_valid_test_num_samples` of megatron/training/training.py; Megatron-LM itself is no package."""
    given: dict[str, Any] = {"eval_iters": 100, "eval_interval": 1000, "global_batch_size": 1024, "full_validation": False}
    assert target_sizes(train_iters=10_000, train_samples=None, **given) == (10_240_000, 1_126_400, 102_400)
    assert target_sizes(train_iters=None, train_samples=10_240_000, **given) == (10_240_000, 1_126_400, 102_400)
    assert target_sizes(train_iters=999, train_samples=None, **given) == (1_022_976, 102_400, 102_400)
    assert target_sizes(train_iters=999, train_samples=None, **given | {"full_validation": True}) == (1_022_976, None, 102_400)
    assert target_sizes(train_iters=999, train_samples=None, **given | {"eval_iters": 0}) == (1_022_976, 0, 0)
    assert MEGATRON_SURPLUS == SURPLUS


def test_what_is_printed_leads_on_and_a_second_call_builds_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert prebuild(f"{WEIGHTS} {SETTINGS}") == 0
    printed = capsys.readouterr().out
    names = {name.rsplit("-", 1)[0] for name in files_in("cache")}
    assert len(names) == 9
    assert all(f"{name}-*" in printed for name in names)
    assert "train 80, valid 12, test 4" in printed
    assert "for megatron-core 0.16.1" in printed
    assert f"in {folder / 'cache'}: built in" in printed
    assert printed.splitlines()[-1].endswith(": --data-cache-path cache")

    before = states_of("cache")
    monkeypatch.setattr("niels_cache_runtime.megatron.gpt_dataset.build_gpt_indices", lambda *_, **__: pytest.fail("built"))
    assert prebuild(f"{WEIGHTS} {SETTINGS}") == 0
    assert "already built" in capsys.readouterr().out
    assert prebuild(f"{WEIGHTS} {SETTINGS} --json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["state"], told["for"], told["flag"]) == ("cache_hit", "megatron-core 0.16.1", "--data-cache-path cache")
    assert [(part["part"], part["num_samples"], part["state"]) for part in told["parts"]] == [
        ("train", 80, "cache_hit"),
        ("valid", 12, "cache_hit"),
        ("test", 4, "cache_hit"),
    ]
    assert {index["hash"] for part in told["parts"] for index in part["indices"]} == names
    assert states_of("cache") == before


def test_the_names_that_the_page_shows_are_those_of_its_example() -> None:
    """They do not depend on the data."""
    text = (REPOSITORY / "docs/megatron.md").read_text(encoding="utf-8")
    command, shown = text[text.index("niels-cache prebuild-index --for megatron-core") :].split("```")[:3:2]
    Path("data").mkdir()
    for name in ("fineweb_edu", "wikitext"):
        megatron_core.write_documents(Path("data", f"{name}_text_document"), [20] * 60)
    [(_, words)] = commands_of(command)
    assert main(words[1:]) == 0
    names = re.findall(r"[0-9a-f]{32}-\w+-\w+", shown)
    assert len(names) == 3
    assert set(names) <= {name.rpartition("-")[0] for name in files_in("data/index")}


def test_what_a_killed_builder_left_is_cleared_and_nothing_else() -> None:
    left, other = Path("cache", f".{'0f' * 16}-GPTDataset-train.partial"), Path("cache/.books.partial")
    for folder in (left, other):
        folder.mkdir(parents=True)
    assert prebuild(f"{WEIGHTS} {SETTINGS}") == 0
    assert (left.exists(), other.exists()) == (False, True)


def test_one_part_can_be_built_alone() -> None:
    assert prebuild(f"{WEIGHTS} {SETTINGS} --part valid") == 0
    assert {name.split("-")[2] for name in files_in("cache")} == {"valid"}


def test_data_that_was_exported_anew_replaces_the_index_of_the_old_which_megatron_core_would_take(
    one_process: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert prebuild(f"{WEIGHTS} {SETTINGS}") == 0
    old = files_in("cache")
    megatron_core.write_documents(Path("new"), megatron_core.random_lengths(50, seed=9, mean=40))
    for ending in ("bin", "idx"):
        os.replace(f"new.{ending}", f"{A}.{ending}")
    assert prebuild(f"{WEIGHTS} {SETTINGS}") == 0
    build("theirs", **OF_WEIGHTS)
    assert files_in("cache") == files_in("theirs")
    assert files_in("cache").keys() == old.keys(), "a name has nothing of the data"
    assert files_in("cache") != old


def damage_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    "damage", [damage_byte, Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:-1])], ids=["bit", "gone", "cut"]
)
def test_any_damaged_file_is_replaced(damage: Callable[[Path], None], capsys: pytest.CaptureFixture[str]) -> None:
    words = f"--data-path 1 {A} 2 {C} --split 1 {STEPS} {SETTINGS}"
    assert prebuild(words) == 0
    whole = files_in("cache")
    paths = [path for path in sorted(Path("cache").iterdir()) if not path.name.endswith(".lock")]
    assert len(paths) == len(whole) + 3, "a record for each index"
    for path in paths:
        damage(path)
        assert prebuild(words) == 0
        assert files_in("cache") == whole, path
        capsys.readouterr()
        assert prebuild(words) == 0
        assert "already built" in capsys.readouterr().out


def test_what_megatron_core_built_itself_is_kept(one_process: None) -> None:
    build("cache", **OF_WEIGHTS)
    before = states_of("cache")
    assert len(before) == RUNS["weights"][2]
    assert prebuild(f"{WEIGHTS} {SETTINGS}") == 0
    arrays = {name: state for name, state in before.items() if name.endswith(".npy")}
    assert len(arrays) == 24
    assert {name: state for name, state in states_of("cache").items() if name in arrays} == arrays


def looks_finished(name: str) -> bool:
    """Whether megatron-core takes the index for built: all its files are there."""
    arrays = ("dataset_index", "dataset_sample_index") if "Blended" in name else ("document_index", "sample_index", "shuffle_index")
    return all(Path("cache", f"{name}-{file}").is_file() for file in ("description.txt", *(f"{array}.npy" for array in arrays)))


class KilledError(BaseException):
    pass


@pytest.mark.parametrize("over_old", [False, True], ids=["first", "over old"])
def test_a_kill_at_any_step_leaves_nothing_half_that_looks_finished(monkeypatch: pytest.MonkeyPatch, over_old: bool) -> None:
    words = f"--data-path 1 {A} 2 {C} --split 1 {STEPS} {SETTINGS}"
    assert prebuild(words) == 0
    if over_old:
        megatron_core.write_documents(Path("new"), megatron_core.random_lengths(50, seed=9, mean=40), dtype=np.int32)
        for ending in ("bin", "idx"):
            os.replace(f"new.{ending}", f"{C}.{ending}")
    old = files_in("cache")
    assert prebuild(words.replace("path cache", "path whole")) == 0
    whole = files_in("whole")
    assert (whole == old) != over_old

    def killed_after(steps: int) -> bool:
        """Whether the command was killed, in the step after so many that change the folder."""
        for path in Path("cache").iterdir():
            path.unlink()
        for name, content in (old if over_old else {}).items():
            Path("cache", name).write_bytes(content)
        done = 0

        def counted(step: Callable[..., Any]) -> Callable[..., Any]:
            def stepped(*arguments: Any, **settings: Any) -> Any:
                nonlocal done
                if done == steps:
                    raise KilledError
                done += 1
                return step(*arguments, **settings)

            return stepped

        with monkeypatch.context() as patch:
            for where, name in ((os, "rename"), (os, "replace"), (Path, "unlink")):
                patch.setattr(where, name, counted(getattr(where, name)))
            try:
                prebuild(words)
            except KilledError:
                return True
        return False

    steps = 0
    while killed_after(steps):
        for name in {file.rsplit("-", 1)[0] for file in whole}:
            of_index = {file: content for file, content in whole.items() if file.startswith(name)}
            if looks_finished(name):
                found = {file: Path("cache", file).read_bytes() for file in of_index}
                assert found == of_index or (over_old and found == {file: old[file] for file in of_index}), (steps, name)
        assert prebuild(words) == 0
        assert files_in("cache") == whole
        steps += 1
    assert steps >= 3 * 2 + 4 + 3, "a record and a description for each index; four files removed and three arrays renamed"
    assert not list(Path("cache").glob(".*.partial"))


def test_a_long_index_is_built_in_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forked, so that it starts at once; what a child of the command gets by pickle is the plan alone."""
    plans, fork = [], multiprocessing.get_context("fork")
    monkeypatch.setattr(prebuilding, "_is_long", lambda plan: bool(plans.append(plan)))
    assert prebuild(f"{WEIGHTS} {SETTINGS} --part train") == 0
    assert plans
    assert pickle.loads(pickle.dumps(plans)) == plans
    monkeypatch.setattr(prebuilding, "_is_long", lambda plan: True)
    monkeypatch.setattr(prebuilding.multiprocessing, "get_context", lambda method: fork)
    assert prebuild(f"{WEIGHTS} {SETTINGS.replace('path cache', 'path other')} --part train") == 0
    assert files_in("other") == files_in("cache")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (f"{WEIGHTS} --seq-length 16 {NULL}", "--for megatron-core needs --data-cache-path"),
        (f"{WEIGHTS} --data-cache-path cache {NULL}", "--for megatron-core needs --seq-length"),
        (f"{STEPS} {SETTINGS}", "--data-path PREFIX"),
        (f"{WEIGHTS} --train-data-path {A} {SETTINGS}", "--data-path and --train-data-path"),
        (f"--train-data-path {A} --split 1 {STEPS} {SETTINGS}", "--split: divides --data-path"),
        (f"--data-args-path blend.txt {STEPS} {SETTINGS}", "--data-args-path needs --split"),
        (f"--data-path {A} {SETTINGS}", "--global-batch-size"),
        (f"{WEIGHTS} --train-samples 5 {SETTINGS}", "number of samples"),
        (f"{WEIGHTS} --target-sizes 1,1,1 {SETTINGS}", "--target-sizes and --train-iters"),
        (f"--data-path {A} --target-sizes 1,1 {SETTINGS}", "--target-sizes '1,1'"),
        (f"--data-path {A} --train-iters 5 --global-batch-size 0 {SETTINGS}", "--global-batch-size 0: must"),
        (f"{WEIGHTS} --full-validation {SETTINGS}", "valid has weights"),
        (f"{WEIGHTS} --num-samples 5 {SETTINGS}", "--num-samples: does not"),
        (f"mix {WEIGHTS} {SETTINGS}", "NAME: does not"),
        (f"{WEIGHTS} --part trian {SETTINGS}", "did you mean 'train'?"),
        (f"--data-path {A} --split 1 {STEPS} --part test {SETTINGS}", "for test"),
        (f"--data-path {A} --split x {STEPS} {SETTINGS}", "split='x'"),
        (f"--data-path 0 {A} {STEPS} {SETTINGS}", "--data-path: weight 0"),
        (f"--data-path {A} --split 999,1 {STEPS} {SETTINGS}", "valid no tokens"),
        (f"--train-data-path {A} --valid-data-path hollow {STEPS} {SETTINGS}", "hollow: "),
        (f"--data-path nowhere {STEPS} {SETTINGS}", "no nowhere.idx"),
        (f"--data-path {A}.idx {STEPS} {SETTINGS}", "leave out .idx"),
        (f"{WEIGHTS} --mid-level-dataset-surplus -1 {SETTINGS}", "mid_level_dataset_surplus=-1.0"),
        (f"--per-split-data-args-path blend.txt {STEPS} {SETTINGS}", "blend.txt: "),
        (f"--per-split-data-args-path list.json {STEPS} {SETTINGS}", "list.json: train"),
        (f"{WEIGHTS} --seq-length 16 --data-cache-path cache", "no tokenizer"),
        (f"{WEIGHTS} --tokenizer-identifiers {{}} {SETTINGS}", "--tokenizer-type and --tokenizer-identifiers"),
        (f"{WEIGHTS} {SETTINGS.replace('NullT', 'NulT')}", "did you mean 'NullTokenizer'?"),
        (f"{WEIGHTS} {SETTINGS.replace('NullT', 'HuggingFaceT')}", "--tokenizer-type HuggingFaceTokenizer needs --tokenizer-model"),
    ],
)  # fmt: skip
def test_wrong_use_is_one_line_and_writes_nothing(words: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("blend.txt").write_text(f"1 {A}", encoding="utf-8")
    Path("list.json").write_text("[]", encoding="utf-8")
    megatron_core.write_documents(Path("hollow"), [0, 0])
    assert prebuild(words) == 2
    printed = capsys.readouterr()
    assert expected in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""
    assert not Path("cache").exists()


@pytest.mark.parametrize("given", ["{", "[1]", "nowhere.json", '{"class2": 1}', '{"datasets": [], "size": 1}', '{"dataset_path": "a"}'])
def test_identifiers_that_are_none_are_refused(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = f"{WEIGHTS} --seq-length 16 --data-cache-path cache"
    assert main(["prebuild-index", "--for", "megatron-core", *shlex.split(words), "--tokenizer-identifiers", given]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_cache_is_exported_first(capsys: pytest.CaptureFixture[str]) -> None:
    Path("split").mkdir()
    assert prebuild(f"--data-path split {STEPS} {SETTINGS}") == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_its_flags_without_it_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prebuild-index", *shlex.split(f"{WEIGHTS} {SETTINGS}")]) == 2
    assert "--data-cache-path: works only" in capsys.readouterr().err
    assert main(["prebuild-index", "--eval-iters", "0"]) == 2
    assert "--eval-iters: works only" in capsys.readouterr().err
    assert main(["prebuild-index", "--for", "megatron"]) == 2
    assert "did you mean 'megatron-core'?" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_no_wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    Path("cache").write_text("")
    assert prebuild(f"{WEIGHTS} {SETTINGS}") == 1
    assert missing(capsys.readouterr().err, "index", "written") == []
