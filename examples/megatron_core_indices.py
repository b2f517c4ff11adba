"""Build the indices of a Megatron-LM run before it starts, with megatron-core itself: on a CPU machine, in one process, without torchrun.

    python examples/megatron_core_indices.py FLAGS-OF-THE-RUN

Paste the flags of the run. These decide the names of the index files: the data, --split, the sizes, --seq-length, --seed and the
tokenizer, spelled as in the run. All other flags are printed as ignored. The files go to --data-cache-path, where the run finds them.

megatron-core never looks at the data again. So indices that are older than the .bin or .idx of one of their data sets are removed first.
An index whose build was killed may be cut off: empty the folder then.
"""

import argparse
import json
from pathlib import Path
from unittest import mock

import torch

KEPT = {"action": "store_true"}
LIST = {"nargs": "+"}
NUMBER = {"type": int}
FLAGS = {  # the flags of Megatron-LM 0.16, and its defaults
    "data-path": LIST, "data-args-path": {}, "train-data-path": LIST, "valid-data-path": LIST, "test-data-path": LIST, "split": {},
    "data-cache-path": {"required": True}, "seq-length": {**NUMBER, "required": True}, "seed": {**NUMBER, "default": 1234},
    "train-iters": NUMBER, "train-samples": NUMBER, "global-batch-size": {**NUMBER, "required": True},
    "eval-iters": {**NUMBER, "default": 100}, "eval-interval": {**NUMBER, "default": 1000}, "full-validation": KEPT,
    "mid-level-dataset-surplus": {"type": float, "default": 0.005},
    "tokenizer-type": {"required": True}, "tokenizer-model": {}, "tokenizer-metadata": {}, "tokenizer-special-tokens": LIST,
    "tokenizer-sentencepiece-legacy": KEPT, "tokenizer-hf-use-fast": KEPT, "tokenizer-hf-include-special-tokens": KEPT,
    "trust-remote-code": KEPT, "tiktoken-pattern": {}, "tiktoken-num-special-tokens": {**NUMBER, "default": 1000}, "vocab-size": NUMBER,
    "vocab-file": {}, "merge-file": {},
}  # fmt: skip


def remove_stale(folder: Path) -> int:
    """Remove the indices that are older than their data, and return how many there were."""
    stale = 0
    for description in folder.glob("*-description.txt"):
        identifiers = json.loads(description.read_text())
        prefixes = {each["dataset_path"] for each in identifiers.get("datasets", [identifiers])}
        data = [Path(f"{prefix}.{end}") for prefix in prefixes for end in ("bin", "idx")]
        if any(file.exists() and file.stat().st_ctime >= description.stat().st_mtime for file in data):
            stale += 1
            for path in [description, *folder.glob(description.name.replace("description.txt", "*.npy"))]:
                path.unlink()
    return stale


def main(arguments: list[str] | None = None) -> None:
    from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
    from megatron.core.datasets.utils import get_blend_from_list
    from megatron.core.tokenizers.text.utils.build_tokenizer import build_tokenizer

    parser = argparse.ArgumentParser(allow_abbrev=False)
    for flag, settings in FLAGS.items():
        parser.add_argument(f"--{flag}", **settings)
    args, ignored = parser.parse_known_args(arguments)
    print("ignored:", *ignored or ["nothing"])
    folder = Path(args.data_cache_path)
    print(f"{remove_stale(folder)} stale indices removed from {folder}")
    before = set(folder.glob("*-description.txt"))

    blend = get_blend_from_list(args.data_path or (args.data_args_path and Path(args.data_args_path).read_text().split()))
    per_split = [get_blend_from_list(paths) for paths in (args.train_data_path, args.valid_data_path, args.test_data_path)]
    data = {"blend": blend, "split": args.split or "969, 30, 1"} if blend else {"blend_per_split": per_split}
    config = GPTDatasetConfig(
        **data, random_seed=args.seed, sequence_length=args.seq_length, tokenizer=build_tokenizer(args), path_to_cache=str(folder),
        mid_level_dataset_surplus=args.mid_level_dataset_surplus, create_attention_mask=False,
        reset_position_ids=False, reset_attention_mask=False, eod_mask_loss=False,
    )  # fmt: skip
    steps, batch = args.train_iters or args.train_samples // args.global_batch_size, args.global_batch_size
    valid = None if args.full_validation else (steps // args.eval_interval + 1) * args.eval_iters * batch
    sizes = [args.train_samples or steps * batch, valid, args.eval_iters * batch]
    print("target sizes (compare them with those that Megatron-LM prints):", *sizes)
    with mock.patch.object(torch.distributed, "get_rank", return_value=0):  # a blend asks for the rank even without a process group
        BlendedMegatronDatasetBuilder(GPTDataset, sizes, lambda: True, config).build()
    after = set(folder.glob("*-description.txt"))
    print(f"{len(after - before)} indices built, {len(after)} in {folder}")


if __name__ == "__main__":
    main()
