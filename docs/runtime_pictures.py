"""Draws the pictures of docs/runtime.md from the code that they explain, the same ones every time.

python docs/runtime_pictures.py
"""

import tempfile
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from niels_cache_runtime import TokenLoader
from niels_cache_runtime.format.layout import TOKEN_DTYPE, shard_name
from niels_cache_runtime.loader.blend import Blend
from niels_cache_runtime.loader.blocks import BlockOrder
from niels_cache_runtime.loader.documents import document_ids, document_mask
from niels_cache_runtime.loader.order import Order
from niels_cache_runtime.loader.packing.plan import place_examples, shape_rows

TARGET = Path(__file__).parent / "images"
NAMES, WEIGHTS = ("web", "code", "books", "maths"), (0.4, 0.1, 0.3, 0.2)
COLOURS = ("#4269d0", "#efb118", "#3ca951", "#ff725c")
GREY = "#777777"


def figure_of(width: float, height: float, *, columns: Sequence[float] = (1,), rows: Sequence[float] = (1,)) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(width, height), layout="constrained")
    panels = figure.subplots(len(rows), len(columns), width_ratios=columns, height_ratios=rows, squeeze=False)
    return figure, list(panels.flat)


def bare(panel: Axes, *, x: tuple[float, float], y: tuple[float, float]) -> None:
    panel.set(xlim=x, ylim=y)
    panel.axis("off")


def cell(panel: Axes, x: float, y: float, colour: object, label: object = "", *, height: float = 0.8, width: float = 1.0) -> None:
    panel.add_patch(Rectangle((x, y - height / 2), width, height, facecolor=colour, edgecolor="white", linewidth=1))  # type: ignore[arg-type]
    panel.text(x + width / 2, y, str(label), ha="center", va="center", fontsize=8, color="white")


def windows(panel: Axes, y: float, numbers: Sequence[int], *, of: int, start: int = 0) -> None:
    """Draw a row of cells, one for each window, coloured by its position in the stream."""
    for index, number in enumerate(numbers):
        cell(panel, start + index, y, colormaps["viridis"](0.05 + 0.8 * number / of), number)


def brace(panel: Axes, first: float, last: float, y: float, label: str) -> None:
    panel.plot([first + 0.08, last - 0.08], [y, y], color=GREY, linewidth=1.2, solid_capstyle="butt")
    panel.text((first + last) / 2, y - 0.12, label, ha="center", va="top", fontsize=8, color=GREY)


def title(panel: Axes, y: float, label: str) -> None:
    panel.text(-0.4, y, label, ha="right", va="center", fontsize=9)


def order() -> Figure:
    """Draw 24 windows: where they are, when two epochs read them, and which rank does."""
    n, per_step = 24, 8
    figure, (panel,) = figure_of(9.5, 2.9)
    bare(panel, x=(-5.2, n), y=(-4.75, 0.45))
    title(panel, 0, "the split's stream")
    windows(panel, 0, range(n), of=n)
    made = Order(n, seed=0)
    for epoch in range(2):
        title(panel, -1.2 - 0.95 * epoch, f"epoch {epoch} reads")
        windows(panel, -1.2 - 0.95 * epoch, made.at(np.arange(n), epoch).tolist(), of=n)
    for y, ranks in ((-2.9, 2), (-3.55, 4)):
        B = per_step // ranks
        title(panel, y - 0.18, f"{ranks} ranks, B={B}")
        for first in range(0, n, B):
            brace(panel, first, first + B, y, f"rank {first // B % ranks}")
    for step in range(n // per_step):
        panel.text((step + 0.5) * per_step, -4.6, f"step {step}", ha="center", fontsize=9)
        if step:
            panel.vlines(step * per_step, -4.7, -0.65, color="black", linewidth=1)
    return figure


def blocks() -> Figure:
    """Draw 25 windows in seven blocks: the row of an epoch, its two lanes, and what each of two machines reads at each step."""
    starts = np.array([0, 4, 8, 12, 16, 19, 23, 25])
    n, lanes, per_step = int(starts[-1]), 2, 4
    made = BlockOrder(starts, seed=1, lanes=lanes)
    row = BlockOrder(starts, seed=1).at(np.arange(n), 0)
    blocks_of = starts.searchsorted(np.arange(n), side="right") - 1
    figure, (panel,) = figure_of(9.5, 4.1)
    bare(panel, x=(-6.4, n), y=(-6.35, 0.45))

    def coloured(y: float, numbers: NDArray[np.int64]) -> None:
        for index, number in enumerate(numbers.tolist()):
            cell(panel, index, y, colormaps["tab10"](blocks_of[number]), number)

    title(panel, 0, "the split's stream")
    coloured(0, np.arange(n))
    title(panel, -1.9, "the row of epoch 0")
    coloured(-1.9, row)
    for y, order in ((-0.5, np.arange(n)), (-2.4, row)):
        edges = [0, *(np.flatnonzero(np.diff(blocks_of[order])) + 1).tolist(), n]
        for first, last in pairwise(edges):
            brace(panel, first, last, y, f"block {blocks_of[order[first]]}")
    cuts = made.row(0).cuts.tolist()
    for lane in range(lanes):
        first, last = (cuts[lane], cuts[lane + 1]) if lane % 2 == 0 else (cuts[lane + 1], cuts[lane])
        inset = 0.15 if first < last else -0.15
        panel.annotate("", (last - inset, -3.2), (first + inset, -3.2), arrowprops={"arrowstyle": "->", "linewidth": 1.2})
        panel.text((first + last) / 2, -3.3, f"lane {lane}", ha="center", va="top", fontsize=9)
    panel.vlines([cuts[1]] * 2, [-2.38, -3.45], [-1.42, -2.9], color="black", linewidth=1.2, linestyle=":")
    order = made.at(np.arange(n), 0)
    for machine in range(lanes):
        title(panel, -4.4 - 0.95 * machine, f"machine {machine} reads lane {machine}")
        coloured(-4.4 - 0.95 * machine, order[machine::lanes])
    for step in range(-(-n // (lanes * per_step))):
        panel.text((step + 0.5) * per_step, -6.2, f"step {step}", ha="center", fontsize=9)
        if step:
            panel.vlines(step * per_step, -6.25, -3.85, color="black", linewidth=1)
    return figure


def blend() -> Figure:
    """Draw the sources of the first samples, and how far the counts of the blend and of random draws are from exact shares."""
    shown, counted = 30, 300
    figure, (strip, panel) = figure_of(9.5, 4.4, rows=(1, 2.8))
    made = Blend(NAMES, [(0, dict(zip(NAMES, WEIGHTS, strict=True)))])
    sources, numbers = made.at(np.arange(counted))
    bare(strip, x=(-0.2, shown), y=(-0.62, 1.5))
    for index in range(shown):
        cell(strip, index, 0, COLOURS[sources[index]], numbers[index])
    strip.set_title(f"The first {shown} samples: which source, and which of its samples", fontsize=10)
    for index, (name, weight) in enumerate(zip(NAMES, WEIGHTS, strict=True)):
        cell(strip, 3.2 + 6.6 * index, 1.0, COLOURS[index], height=0.4, width=0.7)
        strip.text(4.1 + 6.6 * index, 1.0, f"{name}, {weight:.0%}", va="center", fontsize=9)
    drawn = torch.multinomial(torch.tensor(WEIGHTS), counted, replacement=True, generator=torch.Generator().manual_seed(0)).numpy()
    for taken, style in ((drawn, {"linewidth": 0.8, "alpha": 0.45}), (sources, {"linewidth": 1.4})):
        off = deviations(taken)
        for index, colour in enumerate(COLOURS):
            panel.plot(np.arange(1, counted + 1), off[:, index], color=colour, **style)
    panel.axhspan(-1, 1, color="black", alpha=0.08, linewidth=0)
    panel.text(counted + 2, 0, "blend:\nless than 1", va="center", fontsize=9)
    panel.text(counted + 2, deviations(drawn)[-1].max() - 1, "drawn at\nrandom", va="top", fontsize=9, color=GREY)
    panel.set_title("Samples taken from each source, less its exact share of all samples so far", fontsize=10)
    panel.set(xlabel="samples so far", ylabel="samples", xlim=(0, counted))
    panel.spines[["top", "right"]].set_visible(False)
    return figure


def deviations(sources: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the count of every source after each sample, less its share: (samples, sources) for sources (samples,)."""
    taken = np.cumsum(sources[:, None] == np.arange(len(WEIGHTS)), axis=0)
    return taken - np.arange(1, len(sources) + 1)[:, None] * np.array(WEIGHTS)


def resume() -> Figure:
    """Draw one run straight through, and one that is stopped twice and resumes with different numbers of ranks and batch sizes."""
    n, T = 32, 4
    figure, (panel,) = figure_of(11, 4.5)
    bare(panel, x=(-5.2, n + 0.1), y=(-6.7, 0.45))
    with tempfile.TemporaryDirectory() as folder:
        np.arange(n * T + 1, dtype=TOKEN_DTYPE).tofile(Path(folder, shard_name(0)))  # so that a token tells its window

        def run(y: float, name: str, *, steps: int, ranks: int, B: int, state: dict[str, object] | None) -> dict[str, object]:
            loaders = [TokenLoader({"windows": folder}, T=T, B=B, seed=0, rank=rank, world_size=ranks) for rank in range(ranks)]
            for loader in loaders:
                if state is not None:
                    loader.load_state_dict(state)
            iterators = [iter(loader) for loader in loaders]
            for _ in range(steps):
                first = loaders[0].samples
                for rank, iterator in enumerate(iterators):
                    windows(panel, y, (next(iterator).x[:, 0] // T).tolist(), of=n, start=first + rank * B)
                    brace(panel, first + rank * B, first + (rank + 1) * B, y - 0.5, f"rank {rank}")
                panel.text(first + ranks * B / 2, y - 1.25, f"step {loaders[0].step - 1}", ha="center", fontsize=9)
                panel.vlines([first, first + ranks * B], y - 1.3, y + 0.45, color="black", linewidth=1)
            title(panel, y, f"{name}\n{ranks} rank{'s' if ranks > 1 else ''}, B={B}")
            return loaders[0].state_dict()

        run(0, "never stopped", steps=4, ranks=1, B=8, state=None)
        state: dict[str, object] | None = None
        for y, name, steps, ranks, B in (
            (-1.85, "stopped", 2, 1, 8),
            (-3.6, "resumed, stopped", 1, 4, 2),
            (-5.35, "resumed again", 2, 2, 2),
        ):
            if state is not None:
                panel.text(
                    int(str(state["samples"])) - 0.3, y, f'state_dict: "samples": {state["samples"]}', ha="right", va="center", fontsize=9
                )
            state = run(y, name, steps=steps, ranks=ranks, B=B, state=state)
    return figure


def packing() -> Figure:
    """Draw examples one to a row, the same packed, and what attention sees in the first packed row."""
    capacity, examples = 512, 24
    lengths = torch.randn(examples, generator=torch.Generator().manual_seed(3)).mul(0.7).add(4.9).exp().long().clamp(20, capacity).numpy()
    shapes = shape_rows(lengths, capacity=capacity)
    plan = place_examples(shapes, lengths, seed=0, epoch=0)
    packed = [row.tolist() for row in np.split(plan, shapes.row_starts[1:-1])]
    figure, (single, dense, mask) = figure_of(11, 3.9, columns=(1, 1, 0.8))
    for panel, rows, name in ((single, [[index] for index in range(examples)], "One example a row"), (dense, packed, "Packed")):
        for row, members in enumerate(rows):
            at = 0
            for example in members:
                colour = colormaps["tab20"](example % 20)
                panel.add_patch(Rectangle((at, row + 0.08), lengths[example], 0.84, facecolor=colour, edgecolor="white"))
                panel.text(at + lengths[example] / 2, row + 0.52, str(example), ha="center", va="center", fontsize=7)
                at += int(lengths[example])
            panel.add_patch(
                Rectangle((at, row + 0.08), capacity - at, 0.84, facecolor="#eeeeee", edgecolor="#bbbbbb", hatch="////", linewidth=0)
            )
        panel.set(xlim=(0, capacity), ylim=(examples, 0), yticks=[], xlabel="tokens")
        panel.set_title(f"{name}: {len(rows)} rows, {lengths.sum() / (len(rows) * capacity):.0%} full", fontsize=10)
        panel.spines[["top", "right", "left"]].set_visible(False)
    ends = np.cumsum(lengths[packed[0]])
    starts = np.unique(np.array([0, *ends, capacity], dtype=np.int32))
    ids = torch.from_numpy(document_ids(starts, rows=1, T=capacity))
    allowed = document_mask(ids)[0, 0].numpy()
    colours = np.array([colormaps["tab20"](example % 20) for example in [*packed[0], 15]])[ids[0].numpy()]
    mask.imshow(np.where(allowed[..., None], colours[:, None], 1.0), interpolation="nearest")
    mask.set(xlabel="may attend to token", ylabel="token")
    mask.set_title("Attention in the first packed row", fontsize=10)
    return figure


PICTURES: tuple[Callable[[], Figure], ...] = (order, blocks, blend, resume, packing)


def main(folder: Path = TARGET) -> None:
    folder.mkdir(exist_ok=True)
    for picture in PICTURES:
        picture().savefig(folder / f"runtime_{picture.__name__}.png", dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    main()
