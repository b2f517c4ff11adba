"""Write texts for profiles.py that nobody has seen while the profiles were written: one JSON object a line, with `kind` and `text`.

    python benchmarks/profile_texts.py FOLDER --out texts.jsonl [--fuzz 20000] [--seed 0]

FOLDER has the unpacked packages of Debian (`apt-get download NAME`, `dpkg -x`): their HTML pages as plain text by resiliparse (the extra
`documents`), every second one reduced to its main content, and their manuals in other formats. Edge cases are such texts with one or two
changes that real pages have: other line ends, odd blanks, lists, long lines, boilerplate. `--fuzz` writes mixtures of fragments instead,
each of which has given some tokenizer trouble.
"""

import argparse
import gzip
import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

LENGTHS = range(200, 20_000)  # characters; longer texts are cut
EPIGRAMS = "epigrams"
_LANGUAGE = re.compile(
    r"[/.](?:ar|bg|ca|cs|da|de|el|es|fa|fi|fr|he|hr|hu|id|it|ja|ko|lt|nb|nl|pl|pt|ro|ru|sk|sv|tr|uk|vi|zh)(?=[-_./][A-Za-z]{0,4}|$)"
)
_MANUALS = re.compile(r"\.(?:pod|txt|rst|md|1|7)(?:\.gz)?$|/(?:README|NEWS|changelog|TODO|FAQ|NOTES)[\w.+-]*(?:\.gz)?$", re.IGNORECASE)

_WORDS = (
    "the of and to that with have be The a I U.S. e.g. i.e. Dr. a.m. 10am 5km $5.00 £20 20% 1,000.50 3.14 -5 +1 #1 C++ C# .NET "
    "don't can't I'll you've he'd it's y'all 'tis rock'n'roll cannot gonna o'clock ma'am DON'T Don’t they’re ’90s ‘quoted’ "
    "http://a.b/c?d=e#f www.example.org me@example.com a.b.c foo.bar() x=1 a/b and/or w/o -- --- – — … ... .... . ? ! ?! !!! ; "
    ":) :-( ;-) :D <3 ^_^ (╯°□°)╯ ¯\\_(ツ)_/¯ 😀 👍🏽 👨‍👩‍👧 🇩🇪 © ® ™ ½ ² µm °C 10°C • · ‣ - * [1] [12][13] [edit] [citation needed] [] "
    "( ) [ ] { } { < > << >> \" ' ` “ ” « » „ ‚ ‹ › & &amp; &nbsp; <br> </p> \\n \\t @ ~ ^ | \\ / _ __init__ snake_case camelCase "
    "naïve café Größe straße ſ ﬁ ﬀ İ ı ŉ ß ẞ Ω Å Å Σ ς привет Ёж שלום مرحبا हिन्दी ไทย 日本語 中文。 你好！ 한국어 「引用」 、 。 ？ ، "
    "lorem ipsum Lorem Ipsum LOREM javascript JavaScript privacy policy Terms of Use cookie cookies IS_ALPHA LIKE_NUM XX"
)
FRAGMENTS = (
    *_WORDS.split(),
    "uses cookies",
    "lorem ipsum",
    "terms of use",
    "[citation needed]",
    "We use cookies.",
    "word " * 60,
    "A sentence is here. And another one! Is it the last? Perhaps.",
    "x" * 40,
    "x" * 1001,
    "ab" * 600,
    "7" * 30,
    ". " * 20,
    "...",
    "\u200b",
    "\u200d",
    "\ufeff",
    "\u00ad",
    "\u0301",
    "\ufffd",
    "\u202e",
    "\u2060",
    "\ufe0f",
    "\x00",
    "\x07",
)
JOINTS = (
    *[" "] * 24,
    *["\n"] * 6,
    "",
    "",
    "",
    "\n\n",
    "\n\n\n",
    "  ",
    "\t",
    "\r\n",
    "\r",
    "\u00a0",
    "\u2028",
    "\x85",
    "\x0b",
    "\x1c",
    "\u3000",
)


class Dice:
    """Seeded choices."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def below(self, end: int) -> int:
        return int(torch.randint(end, (), generator=self._generator))

    def choose(self, items: Sequence[Any]) -> Any:
        return items[self.below(len(items))]


def fuzz(dice: Dice) -> str:
    """Return a mixture of fragments."""
    some = [dice.choose(FRAGMENTS) for _ in range(1 + dice.below(12))]
    fragments = FRAGMENTS if dice.below(2) else (*FRAGMENTS[:8], *some)
    return "".join(dice.choose(fragments) + dice.choose(JOINTS) for _ in range(dice.below(160)))


def _inserted(line: str) -> Callable[[str, Dice], str]:
    def change(text: str, dice: Dice) -> str:
        lines = text.split("\n")
        for _ in range(1 + dice.below(3)):
            lines.insert(dice.below(len(lines) + 1), line)
        return "\n".join(lines)

    return change


def _sprinkled(characters: str) -> Callable[[str, Dice], str]:
    def change(text: str, dice: Dice) -> str:
        pieces = text.split(" ")
        for _ in range(len(pieces) // 20 + 1):
            pieces[dice.below(len(pieces))] += dice.choose(tuple(characters))
        return " ".join(pieces)

    return change


CHANGES: tuple[Callable[[str, Dice], str], ...] = (
    lambda text, dice: text.replace("\n", "\r\n"),
    lambda text, dice: text.replace("\n", "\r"),
    lambda text, dice: text.replace(" ", "\u00a0"),
    lambda text, dice: text.replace("\n", "\n\n"),
    lambda text, dice: re.sub(r"\n+", " ", text),
    lambda text, dice: re.sub(r"(\w+)'(\w+)", "\\1\u2019\\2", re.sub(r'"([^"\n]*)"', "\u201c\\1\u201d", text)),
    lambda text, dice: re.sub(r"\. ", ".", text),
    lambda text, dice: re.sub(r"\.(?=\s)", "...", text),
    lambda text, dice: re.sub(r"^", dice.choose(("- ", "* ", "\u2022 ", "1. ", "> ", "# ")), text, flags=re.MULTILINE),
    lambda text, dice: re.sub(r"[.!?]$", "", text, flags=re.MULTILINE),
    lambda text, dice: text.upper(),
    lambda text, dice: text.lower(),
    lambda text, dice: text.replace(" ", ""),
    lambda text, dice: re.sub(r"(\w)(?=\s)", "\\1[12]", text, count=len(text) // 100),
    lambda text, dice: text + "\n" + text[: dice.below(len(text))],
    lambda text, dice: "\n".join(sorted(text.split("\n"))),
    lambda text, dice: re.sub(r"(.{60}\S*)\s", "\\1\n", text),
    _inserted("Lorem ipsum dolor sit amet, consectetur adipiscing elit."),
    _inserted("Please enable JavaScript to see the comments."),
    _inserted("This site uses cookies. By going on you accept our Privacy Policy and Terms of Use."),
    _inserted("function go() { return document.title; }"),
    _inserted("She was born there in 1912.[3][4] Nobody remembers it.[citation needed]"),
    _inserted("y" * 1200 + " is a word. And so on."),
    _inserted("\u7b2c\u4e00\u6b65\uff1a\u6253\u5f00\u95e8\u3002\u7136\u540e\u8d70\u8fdb\u53bb\uff01"),
    _inserted("| 12.5 | 17.25 | -3 | n/a |"),
    _sprinkled("\u200b\u200d\ufeff\u00ad\u2060"),
    _sprinkled("\u2028\u2029\x85\x0b\x0c\x1c\x1d\x1e\x1f"),
    _sprinkled("\u2026\u2014\u2013\u00b7\u2022\u203a\u00bb\u2192\u2713\u00a9\u2122\U0001f600"),
    _sprinkled(",;:!?()[]\"'&%$#@*=/\\"),
    _sprinkled("\u3001\u3002\uff0c\uff1a\uff01\u0964\u060c\u061f"),
)


def edge_case(text: str, dice: Dice) -> str:
    """Return a text with one or two changes."""
    for _ in range(1 + dice.below(2)):
        text = dice.choose(CHANGES)(text, dice)
    return text


def texts_of(folder: Path, number: int, skip: int = 0) -> Iterator[tuple[str, str]]:
    """Yield the kind and the text of about this many documents of each kind, evenly from all packages, without the first `skip`."""
    from resiliparse.extract.html2text import extract_plain_text

    paths: dict[str, dict[str, list[Path]]] = defaultdict(lambda: defaultdict(list))
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_file() and not path.is_symlink() and (kind := _kind_of(name)):
            paths[kind][name.partition("/")[0]].append(path)
    for kind, by_package in paths.items():
        share = -(-number // len(by_package))
        for files in by_package.values():
            for place, path in enumerate(files[skip :: max(1, len(files) // share)][:share]):
                content = path.read_bytes()
                text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode("utf-8", "replace")
                if kind == EPIGRAMS:
                    each = text.split("\n%\n")
                    texts = ["\n\n".join(each[start : start + 4 + start % 20]) for start in range(0, len(each), 25)]
                else:
                    texts = [extract_plain_text(text, main_content=place % 2 == 0) if kind.startswith("HTML") else text]
                yield from ((kind, text[: LENGTHS.stop]) for text in texts if len(text) >= LENGTHS.start)


def _kind_of(name: str) -> str | None:
    if re.search(r"\.html?(?:\.|$)", name):
        return "HTML, other languages" if _LANGUAGE.search(name) else "HTML pages"
    if _MANUALS.search(name):
        return "manuals, changelogs"
    return EPIGRAMS if re.search(r"/fortunes/[^./]+$", name) else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--documents", type=int, default=1_000, help="of each kind")
    parser.add_argument("--fuzz", type=int, default=0, help="write this many mixtures of fragments instead")
    parser.add_argument("--skip", type=int, default=0, help="leave out the first files of each package, for other texts")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    dice = Dice(arguments.seed)
    if arguments.fuzz:
        rows = [("mixtures of fragments", fuzz(dice)) for _ in range(arguments.fuzz)]
    else:
        rows = [*texts_of(arguments.folder, arguments.documents, arguments.skip)]
        rows += [("edge cases", edge_case(dice.choose(rows)[1], dice)) for _ in range(arguments.documents)]
    with arguments.out.open("w", encoding="utf-8") as out:
        out.writelines(json.dumps({"kind": kind, "text": text}) + "\n" for kind, text in rows)
    print(Counter(kind for kind, _ in rows))


if __name__ == "__main__":
    main()
