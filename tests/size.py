"""The size of the packages: tokens of Python, lines and modules by room, of the packages beside them, and of the tests.

Tokens are names, operators, numbers and strings, as `tokenize` sees them; a docstring is one token.

    python -m tests.size
"""

import tokenize
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("niels_cache_assets", "niels_cache_runtime")
BESIDE = (
    "niels_cache_cleaning",
    "niels_cache_corpora",
    "niels_cache_formats",
    "niels_cache_inspection",
    "niels_cache_pages",
    "niels_cache_repeats",
)
COUNTED = (tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING)
if hasattr(tokenize, "FSTRING_START"):  # Python 3.12 splits an f-string; before, it was one string
    COUNTED += (tokenize.FSTRING_START,)


def count_tokens(path: Path) -> int:
    """Count the tokens of one file. An f-string counts as one, whatever stands in its braces."""
    count = inside = 0
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            count += token.type in COUNTED and not inside
            inside += token.type == getattr(tokenize, "FSTRING_START", None)
            inside -= token.type == getattr(tokenize, "FSTRING_END", None)
    return count


def rooms(packages: Iterable[str]) -> dict[str, tuple[int, int, int]]:
    """Map each room of the packages to its tokens, lines and modules."""
    tokens: Counter[str] = Counter()
    lines: Counter[str] = Counter()
    modules: Counter[str] = Counter()
    for package in packages:
        for path in (ROOT / package).rglob("*.py"):
            parts = path.relative_to(ROOT).parts
            room = "/".join(parts[:2] if len(parts) > 2 else parts[:1]) + "/"
            tokens[room] += count_tokens(path)
            lines[room] += len(path.read_text(encoding="utf-8").splitlines())
            modules[room] += 1
    return {room: (tokens[room], lines[room], modules[room]) for room, _ in tokens.most_common()}


def main() -> None:
    found = rooms(PACKAGES)
    total = [sum(column) for column in zip(*found.values(), strict=True)]
    print(f"{'tokens':>8} {'lines':>7} {'modules':>7}  room")
    for room, counts in [*found.items(), ("the two packages", total), *rooms(BESIDE).items()]:
        print("{:>8,} {:>7,} {:>7,}".format(*counts), "", room)
    tests = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in (ROOT / "tests").rglob("*.py"))
    print(f"{tests:>16,}          tests/")


if __name__ == "__main__":
    main()
