"""Hugging Face's Trainer over a cache: a small Llama from scratch, on the mapped tokens.

    make cache
    pip install transformers accelerate
    python examples/hf_trainer.py                       # windows of a pretrain data set
    python examples/hf_trainer.py --data python_help    # conversations: loss on the assistant's answers only

Trainer shuffles and batches; `to_hf_dataset` gives it rows without copying the tokens. For an epoch in an order that does not depend on
the number of processes, packed conversations and blends with exact shares, use TokenLoader (train_tiny.py).
"""

import argparse
import sys
from typing import Any

import torch

from niels_cache_assets import to_hf_dataset
from niels_cache_runtime import NielsCacheError, open_cache

Rows = list[dict[str, list[int]]]


class Collator:
    """A collator of rows of any length, padded on the right: labels -100, attention 0. (B, longest) int64 each."""

    def __init__(self, pad_id: int) -> None:
        self.pad_id = pad_id

    def __call__(self, rows: Rows) -> dict[str, torch.Tensor]:
        longest = max(len(row["input_ids"]) for row in rows)

        def filled(values: list[list[int]], fill: int) -> torch.Tensor:
            return torch.tensor([value + [fill] * (longest - len(value)) for value in values])

        return {
            "input_ids": filled([row["input_ids"] for row in rows], self.pad_id),
            "labels": filled([row["labels"] for row in rows], -100),
            "attention_mask": filled([[1] * len(row["input_ids"]) for row in rows], 0),
        }


def train(args: argparse.Namespace) -> None:
    try:
        import accelerate  # noqa: F401  Trainer needs it
        from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
    except ImportError as error:
        sys.exit(f"this example needs transformers and accelerate ({error.name} is missing): pip install transformers accelerate")

    cache = open_cache(args.cache)
    meta = (cache.sft if args.data in cache.sft else cache.pretrain)[args.data].meta
    eot = meta["special_token_ids"]["eot"]
    train_rows, val_rows = (to_hf_dataset(args.data, split=split, T=args.T, cache_dir=args.cache) for split in ("train", "val"))
    config = LlamaConfig(
        vocab_size=meta["vocab_size"],
        hidden_size=128,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=args.T,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=eot,
        pad_token_id=eot,
    )
    settings: dict[str, Any] = {
        "output_dir": args.out,
        "max_steps": args.steps,
        "per_device_train_batch_size": args.B,
        "per_device_eval_batch_size": args.B,
        "learning_rate": 3e-3,
        "logging_steps": args.log_every,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": not torch.cuda.is_available(),
        "seed": 0,
    }
    torch.manual_seed(0)
    trainer = Trainer(
        model=LlamaForCausalLM(config),
        args=TrainingArguments(**settings),
        train_dataset=train_rows,
        eval_dataset=val_rows.select(range(min(len(val_rows), 64))),
        data_collator=Collator(eot),
    )
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    print(f"loss {float(losses[0]):.2f} at the start, {float(losses[-1]):.2f} at the end, {trainer.evaluate()['eval_loss']:.2f} on val")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", default="cache/quickstart", help="the folder with pretrain/ and sft/ (default: %(default)s)")
    parser.add_argument("--data", default="python_docs", help="a data set of either kind (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--out", default="cache/hf_trainer", help="Trainer's own folder (default: %(default)s)")
    parser.add_argument("--log-every", type=int, default=10, metavar="STEPS")
    parser.add_argument("-T", type=int, default=128, help="tokens a row (default: %(default)s)")
    parser.add_argument("-B", type=int, default=8, help="rows a batch (default: %(default)s)")
    args = parser.parse_args(arguments)
    try:
        train(args)
    except NielsCacheError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
