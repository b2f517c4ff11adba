"""A small GPT trained on the CPU for two minutes from the quickstart cache, and resumed exactly where it was stopped.

    make cache
    python examples/train_tiny.py                          # Ctrl-C at any time
    python examples/train_tiny.py --resume                 # continues with the next batch

The checkpoint holds model, optimizer and the loader's state, a few integers. With the same threads, the losses after a resume are,
bit for bit, those of a run that was never stopped. A window holds several documents: attention and positions stay inside each.
"""

import argparse
import math
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from niels_cache_runtime import NielsCacheError, TokenLoader, document_mask, read_meta

CACHE = "cache/quickstart/pretrain/python_docs"
LEARNING_RATE = 2e-3
SAVE_EVERY = 50  # steps: the most that a kill -9 can lose


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, h: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.norm_1(h)).chunk(3, dim=-1))
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        h = h + self.out(attended.transpose(1, 2).flatten(2))
        return h + self.mlp(self.norm_2(h))


class GPT(nn.Module):
    """A model of 1.3 M parameters with 4,000 tokens. The embedding is the output layer too."""

    def __init__(self, *, vocab_size: int, T: int, width: int = 128, heads: int = 4, layers: int = 4) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab_size, width), nn.Embedding(T, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        for embedding in (self.tokens, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, x: Tensor, position_ids: Tensor, document_ids: Tensor) -> Tensor:
        """Return logits (B, T, vocab_size); all arguments are (B, T)."""
        mask = document_mask(document_ids)
        h = self.tokens(x) + self.positions(position_ids)
        for block in self.blocks:
            h = block(h, mask)
        return self.norm(h) @ self.tokens.weight.T


def loss_of(model: GPT, batch: Any) -> Tensor:
    logits = model(batch.x, batch.position_ids, batch.document_ids)
    return F.cross_entropy(logits.flatten(0, 1), batch.y.flatten())


def open_split(split: str, args: argparse.Namespace, **settings: Any) -> TokenLoader:
    return TokenLoader(f"{args.cache}/{split}", T=args.T, B=args.B, seed=args.seed, fields=("document_ids", "position_ids"), **settings)


@torch.no_grad()
def validate(model: GPT, args: argparse.Namespace) -> float:
    """Return the mean loss over the first batches of the val split, in its own order."""
    batches = zip(range(8), open_split("val", args, shuffle=False, epochs=1), strict=False)
    losses = [loss_of(model, batch).item() for _, batch in batches]
    return sum(losses) / len(losses)


def learn(model: GPT, optimizer: torch.optim.Optimizer, batch: Any, *, step: int) -> float:
    """Do one step, counted from 1. Return its loss."""
    for group in optimizer.param_groups:
        group["lr"] = LEARNING_RATE * min(1.0, step / 50)  # warm-up; constant after that, so that a run has no planned end
    loss = loss_of(model, batch)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.item()


def train(args: argparse.Namespace) -> None:
    meta = read_meta(f"{args.cache}/meta.json")
    torch.manual_seed(args.seed)
    model = GPT(vocab_size=meta["vocab_size"], T=args.T)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.1)
    loader = open_split("train", args)
    losses: list[float] = []

    def save() -> None:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict(), "losses": losses}
        torch.save(state, f"{args.checkpoint}.partial")
        os.replace(f"{args.checkpoint}.partial", args.checkpoint)  # after a kill in the middle, the last whole one remains

    if args.resume:
        state = torch.load(args.checkpoint, weights_only=True)
        loader.load_state_dict(state["loader"])  # first, because its errors are the clearest
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        losses = state["losses"]
        print(f"resumed after step {len(losses)}")
        if args.steps and args.steps <= len(losses):
            sys.exit(f"--steps {args.steps}: {args.checkpoint} is already at step {len(losses)}; give a higher number")

    stopped: list[int] = []

    def stop(number: int, _: Any) -> None:
        stopped.append(number)  # finish this step first, so that the checkpoint is of one step
        signal.signal(number, signal.SIG_DFL)  # a second Ctrl-C ends at once

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters, {args.B * args.T} tokens a step")
    began, first = time.monotonic(), len(losses)
    for batch in loader:
        losses.append(learn(model, optimizer, batch, step=len(losses) + 1))
        step, elapsed = len(losses), time.monotonic() - began
        if step % args.log_every == 0 or step == 1:
            print(f"step {step:5d}  loss {losses[-1]:.4f}  {(step - first) * args.B * args.T / elapsed:,.0f} tokens/s", flush=True)
        done = bool(stopped) or (step >= args.steps if args.steps else elapsed >= args.seconds)
        if done or step % SAVE_EVERY == 0:
            save()
        if done:
            break
    print(f"{'stopped' if stopped else 'done'} after step {len(losses)}: {args.checkpoint}; continue with --resume")
    print(f"loss {losses[0]:.2f} at the start, {sum(losses[-20:]) / len(losses[-20:]):.2f} over the last {len(losses[-20:])} steps", end="")
    on_val = f"{validate(model, args):.2f} on val; " if meta["val_tokens"] > args.T else ""
    print(f", {on_val}a uniform guess scores {math.log(meta['vocab_size']):.2f}")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120, help="train that long (default: 120)")
    parser.add_argument("--steps", type=int, help="train up to that step instead, steps before a resume included")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint")
    parser.add_argument("--checkpoint", default="cache/train_tiny.pt", help="where it is kept (default: %(default)s)")
    parser.add_argument("--cache", default=CACHE, help="a pretrain data set's folder (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log-every", type=int, default=10, metavar="STEPS")
    parser.add_argument("--threads", type=int, default=max(1, (os.cpu_count() or 2) // 2), help="of torch (default: half the processors)")
    parser.add_argument("-T", type=int, default=128, help="tokens a row (default: %(default)s)")
    parser.add_argument("-B", type=int, default=8, help="rows a batch (default: %(default)s)")
    args = parser.parse_args(arguments)
    if not Path(args.cache, "meta.json").exists():
        sys.exit(f"{args.cache}: no cache here; run `make cache` in the repository first, or name one with --cache")
    if args.resume and not Path(args.checkpoint).exists():
        sys.exit(f"{args.checkpoint}: no checkpoint to resume from; run once without --resume")
    torch.set_num_threads(args.threads)
    try:
        train(args)
    except NielsCacheError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
