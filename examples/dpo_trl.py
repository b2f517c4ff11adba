"""Direct preference optimization with trl's DPOTrainer, on batches of a preference cache: a small Llama from scratch, on the CPU.

    pip install trl
    niels-cache init pairs.jsonl                        # rows with `chosen` and `rejected`
    niels-cache build-all
    python examples/dpo_trl.py --cache cache --data chats

The cache already holds tokens and targets, so the trainer tokenizes nothing. TokenLoader gives one pair a row, in an order that can be
resumed. For a model that exists, load it instead of the small one, and build the cache with its tokenizer and `template = "model"`.
"""

import argparse
import sys
from collections.abc import Iterator
from typing import Any, cast

import torch

from niels_cache_runtime import SFT, NielsCacheError, PreferenceBatch, TokenLoader, open_cache


class Batches(torch.utils.data.IterableDataset[dict[str, torch.Tensor]]):
    """The batches of a loader in the form that DPOTrainer takes."""

    def __init__(self, loader: TokenLoader) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        for batch in self.loader:
            yield cast(PreferenceBatch, batch).padded_inputs(padding="longest")


def train(args: argparse.Namespace) -> None:
    try:
        from datasets import Dataset
        from tokenizers import Tokenizer, models
        from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
        from trl import DPOConfig, DPOTrainer
    except ImportError as error:
        sys.exit(f"this example needs trl ({error.name} is missing): pip install trl")

    class TrainerOfCache(DPOTrainer):
        """A DPOTrainer that takes its batches from a cache."""

        def _prepare_dataset(self, dataset: Any, *settings: Any) -> Any:
            return dataset  # nothing is left to tokenize

        def get_train_dataloader(self) -> Any:
            return torch.utils.data.DataLoader(Batches(loader), batch_size=None)

    meta = open_cache(args.cache).sft[args.data].meta
    eot = meta["special_token_ids"]["eot"]
    loader = TokenLoader(f"{args.cache}/sft/{args.data}/train", T=args.T, B=args.B, seed=0, sft=SFT(packing=False, overflow="drop"))
    config = LlamaConfig(
        vocab_size=meta["vocab_size"],
        hidden_size=64,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=args.T + 1,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=eot,
        pad_token_id=eot,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    reference = LlamaForCausalLM(config)
    reference.load_state_dict(model.state_dict())
    unused = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"-": 0}, unk_token="-")), pad_token="-", eos_token="-")
    settings: dict[str, Any] = {
        "output_dir": args.out,
        "max_steps": args.steps,
        "per_device_train_batch_size": args.B,
        "learning_rate": 1e-3,
        "logging_steps": args.log_every,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": not torch.cuda.is_available(),
        "seed": 0,
        "bf16": False,
        "remove_unused_columns": False,
    }
    trainer = TrainerOfCache(
        model=model,
        ref_model=reference,
        args=DPOConfig(**settings),
        train_dataset=Dataset.from_dict({"prompt": ["-"], "chosen": ["-"], "rejected": ["-"]}),  # the batches come from the cache
        data_collator=lambda rows: rows,
        processing_class=unused,
    )
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    print(f"loss {float(losses[0]):.3f} at the start, {float(losses[-1]):.3f} at the end")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", default="cache", help="the folder with sft/ (default: %(default)s)")
    parser.add_argument("--data", default="chats", help="a data set of preference pairs (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--out", default="cache/dpo_trl", help="the trainer's own folder (default: %(default)s)")
    parser.add_argument("--log-every", type=int, default=5, metavar="STEPS")
    parser.add_argument("-T", type=int, default=128, help="tokens a row (default: %(default)s)")
    parser.add_argument("-B", type=int, default=4, help="pairs a batch (default: %(default)s)")
    args = parser.parse_args(arguments)
    try:
        train(args)
    except NielsCacheError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
