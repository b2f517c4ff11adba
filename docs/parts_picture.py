"""Draws the picture of a data set in parts in docs/howto.md, from the plan that the code makes, the same one every time.

python -m docs.parts_picture
"""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from docs.runtime_pictures import COLOURS, GREY, TARGET, bare, figure_of, title
from niels_cache_assets.parts.plan import plan_parts
from niels_cache_assets.sources.types import ListedFile

SIZES = (64, 40, 75, 52, 31, 68, 47, 90, 38, 56, 70, 45, 60, 49)  # of the files; a token is one unit wide
PARTS, VAL_TOKENS, SHARD = 4, 96, 60
GAP = 26  # between two parts
LIGHT, VAL = 0.45, "#444444"


def box(panel: Axes, x: float, y: float, width: float, colour: str, label: str = "", *, alpha: float = 1.0) -> None:
    panel.add_patch(Rectangle((x, y - 0.36), width, 0.72, facecolor=colour, alpha=alpha, edgecolor="white", linewidth=1.2))
    panel.text(x + width / 2, y, label, ha="center", va="center", fontsize=8, color="white" if alpha == 1 else "black")


def arrow(panel: Axes, start: tuple[float, float], end: tuple[float, float], colour: str) -> None:
    panel.annotate(
        "", xy=end, xytext=start, arrowprops={"arrowstyle": "-|>", "color": colour, "linewidth": 1.2, "shrinkA": 0, "shrinkB": 0}
    )


def shards_of(tokens: int) -> list[int]:
    """Return the sizes of the shards of a part. The last one may be short."""
    return [min(SHARD, tokens - start) for start in range(0, tokens, SHARD)]


def parts() -> Figure:
    """Draw the files, the files of each part in the plan, the parts with their val first, and the sealed cache."""
    files = [ListedFile(f"{number:02d}", size, "", None) for number, size in enumerate(SIZES)]
    plan = plan_parts(files, PARTS, train_tokens=None, val_tokens=VAL_TOKENS)
    total = sum(SIZES)
    figure, (panel,) = figure_of(10, 3.3)
    bare(panel, x=(-195, total + GAP * PARTS), y=(-5.4, 0.6))

    def left(row: float, name: str, note: str) -> None:
        title(panel, row + 0.16, name)
        panel.text(-0.4, row - 0.26, note, ha="right", va="center", fontsize=7.5, color=GREY)

    left(0, "files", "sorted by name")
    left(-1.2, "plan", "a run of files for each part")
    left(-2.4, "parts", "built in any order")
    left(-4.6, "sealed cache", "hard links")
    at, x, val, train, number = 0.0, 0.0, 0.0, VAL_TOKENS + GAP, 0
    for part, colour in zip(plan.parts, COLOURS, strict=True):
        tokens, head = sum(file.bytes for file in part.files), part.val_tokens or 0
        begin = at
        for file in part.files:
            box(panel, at, 0, file.bytes, colour, file.name, alpha=LIGHT)
            at += file.bytes
        panel.plot([begin + 3, at - 3], [-0.55, -0.55], color=colour, linewidth=2, solid_capstyle="butt")
        arrow(panel, ((begin + at) / 2, -0.6), (x + tokens / 2, -1.95), colour)
        box(panel, x, -2.4, head, VAL)
        box(panel, val, -4.6, head, VAL)
        panel.text(x + tokens / 2, -3.02, part.name, ha="center", va="center", fontsize=8, color=GREY)
        inside, first = x + head, train
        for size in shards_of(tokens - head):
            box(panel, inside, -2.4, size, colour)
            box(panel, train, -4.6, size, colour, str(number))
            inside, train, number = inside + size, train + size, number + 1
        arrow(panel, (x + (tokens + head) / 2, -3.25), ((first + train) / 2, -4.15), colour)
        x, val = x + tokens + GAP, val + head
    panel.text(val / 2, -5.2, "val: the head of each part", ha="center", va="center", fontsize=8, color=GREY)
    panel.text(
        (VAL_TOKENS + GAP + train) / 2, -5.2, "train: the shards, with new numbers", ha="center", va="center", fontsize=8, color=GREY
    )
    return figure


def main(folder: Path = TARGET) -> None:
    folder.mkdir(exist_ok=True)
    parts().savefig(folder / "parts.png", dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    main()
