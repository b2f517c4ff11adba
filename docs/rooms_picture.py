"""Draws the picture of the layers in docs/architecture.md: the subpackages of both packages, and the imports between them.

Each subpackage is a box with its number of tokens, in the order of the tables in docs/architecture.md. Imports of subpackages below are the
grey curves on the left. Imports of subpackages above are the red arrows on the right, with their numbers. Subpackages that import each
other in a cycle are red, too.

    python -m docs.rooms_picture [--revision REV] [--output FILE]

The default is docs/images/rooms.svg, of the working tree.
"""

import argparse
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.helpers.layout import circles, imports, modules
from tests.size import count_tokens

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "docs/images/rooms.svg"
PACKAGES = ("niels_cache_assets", "niels_cache_runtime")
MODULES = "*.py"  # the box of the modules that are in no subpackage
LEFT, WIDTH, GAP, TOP = 220, 190, 5, 44  # of the boxes
LEAST_HEIGHT, TOKENS_PER_PIXEL = 19, 3_000
STYLE = """
text { font: 12px system-ui, sans-serif; fill: #1f2328 } .title { font-weight: 600 } .small { font-size: 11px; fill: #59636e }
.box { fill: #dfe9f8; stroke: #6f8fc4 } .knot { fill: #fde4e4; stroke: #d1242f } .down { fill: none; stroke: #8b98a8; stroke-opacity: .45 }
.up { fill: none; stroke: #d1242f; marker-end: url(#head) } .head, .number { fill: #d1242f } .number { font-size: 11px; font-weight: 600 }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .small { fill: #9aa5b1 } .box { fill: #1d2b44; stroke: #5b7fbd } .knot { fill: #46222a; stroke: #ff7b72 }
.up { stroke: #ff7b72 } .head, .number { fill: #ff7b72 } }
"""


class Package(NamedTuple):
    """The subpackages of a package from top to bottom, with their tokens, and the number of pairs of modules by (importer, imported)."""

    name: str
    tokens: dict[str, int]
    imports: Counter[tuple[str, str]]


def rooms_in_order(page: str, package: str) -> list[str]:
    """Return the subpackages in the table of a package, from top to bottom. A table with a column of imports begins with the lowest one."""
    for table in re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE):
        header, _, *rows = table.splitlines()
        names = [name for row in rows for name in re.findall(r"`(\w+)/`", row.split("|")[1])]
        if f"`{package}`" in header and names:
            return names[::-1] if "imports" in header else names
    raise SystemExit(f"docs/architecture.md has no table of the subpackages of {package}")


def read_package(root: Path, name: str) -> Package:
    rooms = rooms_in_order((root / "docs/architecture.md").read_text(encoding="utf-8"), name)
    files = modules(root / name)
    box = {module: part if (part := module.split(".")[1]) in rooms else MODULES for module in files if module != name}
    tokens = dict.fromkeys([*rooms, MODULES], 0)
    for module, path in files.items():
        tokens[box.get(module, MODULES)] += count_tokens(path)
    pairs = ((box[module], box[other]) for module, found in imports(files).items() for other in found if {module, other} <= box.keys())
    # The modules of the package itself are entry points, or import no subpackage.
    between = Counter(pair for pair in pairs if pair[0] not in (MODULES, pair[1]))
    if not any(other == MODULES for _, other in between):
        del tokens[MODULES]
    return Package(name, tokens, between)


def upward(package: Package) -> dict[tuple[str, str], int]:
    """Return the imports of subpackages above, by (importer, imported)."""
    order = list(package.tokens)
    return {pair: count for pair, count in package.imports.items() if order.index(pair[1]) < order.index(pair[0])}


def in_a_cycle(package: Package) -> set[str]:
    """Return the subpackages that import themselves through others."""
    return set().union(*circles({room: {other for one, other in package.imports if one == room} for room in package.tokens}))


def draw(packages: Sequence[Package], *, title: str) -> str:
    """Return the picture as an SVG document, which follows the reader's choice of light or dark colours."""
    shapes, numbers, right = list[str](), list[str](), LEFT + WIDTH + 20.0
    y: float = TOP
    for package in packages:
        y += 20
        shapes.append(f'<text class="title" x="{LEFT}" y="{y - 7}">{package.name}</text>')
        middle, knot = dict[str, float](), in_a_cycle(package)
        for room, tokens in package.tokens.items():
            height = LEAST_HEIGHT + tokens / TOKENS_PER_PIXEL
            middle[room] = y + height / 2
            kind = "box knot" if room in knot else "box"
            label = f"{room}/" if room != MODULES else "modules"
            shapes.append(f'<rect class="{kind}" x="{LEFT}" y="{y:.0f}" width="{WIDTH}" height="{height:.0f}" rx="3"/>')
            shapes.append(f'<text x="{LEFT + 8}" y="{middle[room] + 4:.0f}">{label}</text>')
            shapes.append(f'<text class="small" x="{LEFT + WIDTH - 8}" y="{middle[room] + 4:.0f}" text-anchor="end">{tokens:,}</text>')
            y += height + GAP
        order = list(package.tokens)
        for (room, other), count in sorted(package.imports.items()):
            start, end = middle[room], middle[other]
            if order.index(other) > order.index(room):
                bend = LEFT - 14 - 0.42 * (end - start)
                shapes.append(
                    f'<path class="down" stroke-width="{0.6 + count**0.5 / 5:.1f}" '
                    f'd="M{LEFT} {start:.0f}C{bend:.0f} {start:.0f} {bend:.0f} {end:.0f} {LEFT} {end:.0f}"/>'
                )
                continue
            edge = LEFT + WIDTH
            bend = edge + 34 + 0.5 * (start - end)
            top = edge + 0.75 * (bend - edge)  # the rightmost point of the curve
            right = max(right, top + 22)
            shapes.append(
                f'<path class="up" stroke-width="{0.8 + count**0.5 / 4:.1f}" '
                f'd="M{edge} {start:.0f}C{bend:.0f} {start:.0f} {bend:.0f} {end:.0f} {edge + 5} {end:.0f}"/>'
            )
            numbers.append(f'<text class="number" x="{top + 2:.0f}" y="{(start + end) / 2 + 4:.0f}">{count}</text>')
        y += 12
    up = sum(count for package in packages for count in upward(package).values())
    said = f"{up:,} of {sum(package.imports.total() for package in packages):,} go up" if up else "all go down"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {right:.0f} {y:.0f}" width="{right:.0f}" height="{y:.0f}" role="img">'
        f"<title>{title}: {said}</title><style>{STYLE}</style>"
        '<defs><marker id="head" viewBox="0 0 6 6" refX="5" refY="3" markerWidth="7" markerHeight="7" markerUnits="userSpaceOnUse" '
        'orient="auto"><path class="head" d="M0 0L6 3L0 6z"/></marker></defs>'
        f'<text class="title" x="20" y="20">{title}: {said}</text>'
        + "\n".join([*shapes, *numbers])
        + f'<text class="small" x="{LEFT}" y="{y - 4:.0f}">numbers: tokens of Python</text></svg>\n'
    )


def main(folder: Path = TARGET.parent, *, name: str = TARGET.name, revision: str | None = None) -> None:
    """Draw the working tree or a git revision, and print the imports that go up."""
    with tempfile.TemporaryDirectory() as temporary:
        root = ROOT
        if revision:
            root = Path(temporary)
            archive = ["git", "archive", revision, "docs/architecture.md", *PACKAGES]
            content = subprocess.run(archive, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
            subprocess.run(["tar", "-x"], cwd=root, check=True, input=content)
        packages = [read_package(root, package) for package in PACKAGES]
    (folder / name).write_text(draw(packages, title="Imports between subpackages"), encoding="utf-8")
    for package in packages:
        for (room, other), count in sorted(upward(package).items()):
            print(f"{package.name}: {room}/ imports {other}/ above it, {count} times")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--revision", metavar="REV", help="draw the tree of this git revision instead of the working tree")
    parser.add_argument("--output", metavar="FILE", type=Path, default=TARGET)
    arguments = parser.parse_args()
    main(arguments.output.parent, name=arguments.output.name, revision=arguments.revision)
