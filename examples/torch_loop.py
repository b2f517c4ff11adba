"""A plain torch loop over a cache: pretraining, then fine-tuning on conversations. Only the loader depends on the cache.

    make cache
    python examples/torch_loop.py

The same few lines serve both: ignored targets are -100 in `y_masked`, and cross_entropy skips them. For checkpoints, resume
and attention inside documents, see train_tiny.py.
"""

import argparse
import sys

import torch
from torch import Tensor, nn

from niels_cache_runtime import NielsCacheError, TokenLoader, open_cache


class TinyModel(nn.Module):
    """One causal layer of attention: enough for the loss to fall while you watch."""

    def __init__(self, *, vocab_size: int, T: int, width: int = 96) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab_size, width), nn.Embedding(T, width)
        self.layer = nn.TransformerEncoderLayer(width, nhead=4, dim_feedforward=4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(width, vocab_size)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(T), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (B, T, vocab_size) of x (B, T) int64."""
        h = self.tokens(x) + self.positions.weight
        return self.head(self.layer(h, src_mask=self.mask, is_causal=True))


def train(model: nn.Module, loader: TokenLoader, *, steps: int, lr: float, title: str) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    for step, batch in zip(range(steps), loader, strict=False):
        targets = batch.y if batch.y_masked is None else batch.y_masked
        loss = nn.functional.cross_entropy(model(batch.x).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0 or step == steps - 1:
            print(f"{title}  step {step:4d}  loss {loss.item():.3f}", flush=True)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", default="cache/quickstart", help="the folder with pretrain/ and sft/ (default: %(default)s)")
    parser.add_argument("--pretrain", default="python_docs", help="a pretrain data set (default: %(default)s)")
    parser.add_argument("--sft", default="python_help", help="an SFT data set (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=100, help="of each of the two (default: %(default)s)")
    parser.add_argument("-T", type=int, default=128, help="tokens a row (default: %(default)s)")
    parser.add_argument("-B", type=int, default=8, help="rows a batch (default: %(default)s)")
    args = parser.parse_args(arguments)
    try:
        cache = open_cache(args.cache)
        pretrain, sft = cache.pretrain[args.pretrain], cache.sft[args.sft]
        torch.manual_seed(0)
        model = TinyModel(vocab_size=pretrain.meta["vocab_size"], T=args.T)
        train(model, pretrain.train.loader(T=args.T, B=args.B, seed=0), steps=args.steps, lr=3e-3, title="pretrain")
        train(model, sft.train.loader(T=args.T, B=args.B, seed=0), steps=args.steps, lr=1e-3, title="sft")
    except NielsCacheError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
