"""Options and help of prebuild-index."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from niels_cache_assets.cli.command import Command
from niels_cache_assets.cli.overrides import fraction, whole_number

MEGATRON_CORE = "megatron-core"
_BLEND: dict[str, Any] = {"metavar": "PREFIX", "nargs": "+"}
_FLAG: dict[str, Any] = {"action": "store_true"}
_NUMBER: dict[str, Any] = {"metavar": "N", "type": whole_number}


def _add_prebuild_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", nargs="?", help="a blend of the configuration: table [blend.NAME]")
    parser.add_argument("--for", dest="reader", metavar="PROGRAM", help="megatron-core: its own file names, for one whole run; see below")
    parser.add_argument(
        "--blend", "--data-args-path", dest="blend", metavar="FILE", help="weights and paths of a blend that is not configured"
    )
    parser.add_argument(
        "--sequence-length", "--seq-length", dest="sequence_length", metavar="L", type=whole_number, help="tokens of a sample"
    )
    parser.add_argument(
        "--num-samples", metavar="N", type=whole_number, help="samples of the run; needed with weights (default: every sample once)"
    )
    parser.add_argument("--seed", metavar="S", type=whole_number, help="Megatron-LM's --seed (default: 1234, as there)")
    parser.add_argument("--split", metavar="A,B,C", help='shares of train, valid and test, such as "99,1,0" (default: all is train)')
    parser.add_argument(
        "--part", metavar="PART", help="train, valid or test: which of the three to build (default: train; for megatron-core: all)"
    )
    _add_run_options(parser.add_argument_group("with --for megatron-core: the run, as Megatron-LM's command line has it"))
    _add_tokenizer_options(parser.add_argument_group("with --for megatron-core: its tokenizer, which is a part of the names"))


def _add_run_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--data-cache-path", metavar="DIR", help="where megatron-core looks for indices, and where they are written")
    group.add_argument(
        "--data-path",
        **_BLEND,
        help="PREFIX, or WEIGHT PREFIX WEIGHT PREFIX ..., or PREFIX PREFIX ...; --split cuts it (default: 969, 30, 1)",
    )
    group.add_argument("--train-data-path", **_BLEND, help="the same for train alone, without --split")
    group.add_argument("--valid-data-path", **_BLEND, help="for valid alone")
    group.add_argument("--test-data-path", **_BLEND, help="for test alone")
    group.add_argument("--per-split-data-args-path", metavar="FILE", help="these three, as JSON with train, valid and test")
    group.add_argument("--train-iters", **_NUMBER, help="steps of the run")
    group.add_argument("--train-samples", **_NUMBER, help="samples of the run, instead of its steps")
    group.add_argument("--global-batch-size", **_NUMBER, help="samples of a step")
    group.add_argument("--eval-interval", **_NUMBER, help="steps between evaluations (default: 1000)")
    group.add_argument("--eval-iters", **_NUMBER, help="steps of an evaluation (default: 100)")
    group.add_argument("--full-validation", **_FLAG, help="valid is read once, whole")
    group.add_argument("--multiple-validation-sets", **_FLAG, help="each data set of valid is one of its own")
    group.add_argument(
        "--target-sizes",
        metavar="A,B,C",
        help="samples of train, valid and test, or none for every sample once, instead of steps: the builder's sizes, "
        'which Megatron-LM prints as "datasets target sizes"',
    )
    group.add_argument("--mid-level-dataset-surplus", metavar="X", type=fraction, help="surplus of a blend's data sets (default: 0.005)")


def _add_tokenizer_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--tokenizer-type", metavar="TYPE", help="such as SentencePieceTokenizer, HuggingFaceTokenizer or NullTokenizer")
    group.add_argument("--tokenizer-model", metavar="PATH", help="its model, written as the run writes it")
    group.add_argument("--tokenizer-metadata", metavar="FILE", help="the JSON beside it, where the run names one")
    group.add_argument("--tokenizer-special-tokens", metavar="TOKEN", nargs="+")
    group.add_argument("--tokenizer-sentencepiece-legacy", **_FLAG)
    group.add_argument("--tokenizer-hf-use-fast", **_FLAG)
    group.add_argument("--tokenizer-hf-include-special-tokens", **_FLAG)
    group.add_argument("--trust-remote-code", **_FLAG, help="a part of the name; nothing is executed")
    group.add_argument("--tiktoken-pattern", metavar="V")
    group.add_argument("--tiktoken-num-special-tokens", **_NUMBER, help="(default: 1000)")
    group.add_argument("--vocab-size", **_NUMBER)
    group.add_argument("--vocab-file", metavar="PATH")
    group.add_argument("--merge-file", metavar="PATH")
    group.add_argument(
        "--tokenizer-identifiers",
        metavar="JSON",
        help="instead, for any class: the tokenizer's unique_identifiers as JSON, or a file of them, such as a *-description.txt "
        "that megatron-core wrote in an earlier run",
    )


def _names_of(*adders: Callable[[argparse._ArgumentGroup], None]) -> tuple[str, ...]:
    """Where argparse puts what these options are given."""
    parser = argparse.ArgumentParser(add_help=False)
    for adder in adders:
        adder(parser.add_argument_group())
    return tuple(action.dest for action in parser._actions)


OF_MEGATRON_CORE = _names_of(_add_run_options, _add_tokenizer_options)

COMMAND = Command(
    name="prebuild-index",
    module="prebuild_index",
    usage="[NAME] ",
    summary="build a blend's indices before training asks for them",
    description="""\
Build the GPT and blend indices of a training run ahead of it, on a CPU machine: which sample comes
when, as Megatron-LM numbers them. Prints where each index lies and its hash. NAME is a table
[blend.NAME] of the configuration; or say it all here: --blend FILE and the settings of the run.

FILE is what Megatron-LM's --data-args-path takes: WEIGHT PATH WEIGHT PATH ..., or paths alone (each
is read once). PATH is the prefix of a .bin and an .idx, or a split of a cache, such as
cache/pretrain/wikitext/train; both have the same index if they hold the same.

What is built lies in index/ of the cache directory under a hash of every setting and of the data,
and is found there by MegatronGPTDataset and open_blend of niels_cache_runtime.megatron.

With --for megatron-core, all indices of a run are written into --data-cache-path under the names
that megatron-core 0.16.1 gives them, so that it builds none: train, valid and test, of the .bin and
.idx that `niels-cache export megatron` wrote. Copy the flags from the run's command line: prefixes
and the tokenizer's path are a part of the names, exactly as they are written there. Another version
of megatron-core may name indices otherwise; it then builds its own. A second call builds nothing;
after a new export to the same prefix, it replaces what is out of date.""",
    examples="""\
  niels-cache prebuild-index mix                                              [blend.mix] of niels_cache.toml
  niels-cache prebuild-index --blend blend.txt --sequence-length 4096 --num-samples 10_000_000 --seed 1234
  niels-cache prebuild-index --blend blend.txt --sequence-length 4096 --num-samples 50_000 --split 99,1,0 --part valid
  niels-cache prebuild-index --for megatron-core --data-path data/wikitext_text_document --split 969,30,1 --seq-length 4096 \\
      --train-iters 10000 --global-batch-size 1024 --tokenizer-type SentencePieceTokenizer \\
      --tokenizer-model cache/tokenizer/spm.model --data-cache-path /scratch/megatron""",
    add_options=_add_prebuild_options,
    has_json=True,
)
