"""Options and help of prebuild-index."""

from __future__ import annotations

import argparse

from niels_cache_assets.cli.command import Command
from niels_cache_assets.cli.overrides import whole_number


def _add_prebuild_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", nargs="?", help="a blend of the configuration: table [blend.NAME]")
    parser.add_argument("--blend", metavar="FILE", help="weights and paths of a blend that is not configured")
    parser.add_argument("--sequence-length", metavar="L", type=whole_number, help="tokens of a sample (--seq-length)")
    parser.add_argument(
        "--num-samples", metavar="N", type=whole_number, help="samples of the run; needed with weights (default: every sample once)"
    )
    parser.add_argument("--seed", metavar="S", type=whole_number, help="Megatron-LM's --seed (default: 1234, as there)")
    parser.add_argument("--split", metavar="A,B,C", help='shares of train, valid and test, such as "99,1,0" (default: all is train)')
    parser.add_argument("--part", metavar="PART", help="train, valid or test: which of the three to build (default: train)")


COMMAND = Command(
    name="prebuild-index",
    module="prebuilding",
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
and is found there by MegatronGPTDataset and open_blend of niels_cache_runtime.megatron.""",
    examples="""\
  niels-cache prebuild-index mix                                              [blend.mix] of niels_cache.toml
  niels-cache prebuild-index --blend blend.txt --sequence-length 4096 --num-samples 10_000_000 --seed 1234
  niels-cache prebuild-index --blend blend.txt --sequence-length 4096 --num-samples 50_000 --split 99,1,0 --part valid""",
    add_options=_add_prebuild_options,
    has_json=True,
)
