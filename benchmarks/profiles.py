"""The profiles of `steps` beside datatrove: decisions by rule, edited texts, and megabytes per second on one core.

    python benchmarks/profiles.py [--documents 2000] [--html FOLDER | --texts FILE] [--only fineweb]

Needs datatrove (the extra `bridges`) and spaCy (the extra `spacy`). Documents: the web pages and the Debian documents below
NIELS_CACHE_REAL_DATA, and the HTML files below FOLDER, such as /usr/share/doc after `apt install python3-doc sqlite3-doc`, as plain text by
resiliparse (the extra `documents`), every second one reduced to its main content. With `--texts`, instead, those that profile_texts.py has
written. Every program takes one document at a time in one thread,
after a first round over 20 documents. Speeds are megabytes of UTF-8 for each second of processor time.
"""

import argparse
import gzip
import json
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

Decide = Callable[[str], tuple[str | None, str | None]]  # the reason, or the text that is kept
WARM = 20


def datatrove_profile(name: str) -> Decide:
    """Return datatrove's decision for the filters of a profile."""
    from datatrove.data import Document
    from datatrove.pipeline.filters import C4QualityFilter, FineWebQualityFilter, GopherQualityFilter, GopherRepetitionFilter

    quality, repetition = GopherQualityFilter(), GopherRepetitionFilter()
    filters = {
        "gopher": [quality],
        "gopher-repetition": [repetition],
        "c4": [C4QualityFilter()],
        "fineweb": [repetition, quality, C4QualityFilter(filter_no_terminal_punct=False), FineWebQualityFilter()],
    }[name]

    def decide(text: str) -> tuple[str | None, str | None]:
        document = Document(text=text, id="")
        for each in filters:
            result: Any = each.filter(document)
            if result is not True:
                return result[1], None
        return None, document.text

    return decide


def our_profile(name: str, splitter: str) -> Decide:
    """Return our decision."""
    from niels_cache_assets.base.documents import Document
    from niels_cache_assets.steps.step import Drop
    from niels_cache_cleaning.profiles import Profile

    profile = Profile(name, splitter)

    def decide(text: str) -> tuple[str | None, str | None]:
        result = profile(Document(text))
        return (result.reason, None) if isinstance(result, Drop) else (None, result["text"] if isinstance(result, dict) else result.text)

    return decide


def texts(html: list[Path], number: int) -> dict[str, list[str]]:
    """Return texts of each kind."""
    found: dict[str, list[str]] = {}
    if real := os.environ.get("NIELS_CACHE_REAL_DATA"):
        for kind, patterns in (
            ("web pages", ("web_c4/*.gz", "web_c4/*.jsonl", "web_fineweb/*rows.jsonl")),
            ("Debian documents", ("bulk/*.gz",)),
        ):
            paths = [path for pattern in patterns for path in sorted(Path(real).glob(pattern))]
            lines = [line for path in paths for line in (gzip.open if path.suffix == ".gz" else open)(path, "rb")]
            found[kind] = spread([json.loads(line)["text"] for line in lines], number)
    pages = [path for folder in html for path in sorted(folder.rglob("*.html")) if path.is_file() and not path.is_symlink()]
    if pages:
        from resiliparse.extract.html2text import extract_plain_text

        chosen = spread(pages, number)
        sources = [path.read_bytes().decode("utf-8", "replace") for path in chosen]
        found["HTML pages"] = [extract_plain_text(each, main_content=place % 2 == 0) for place, each in enumerate(sources)]
    return {kind: [text for text in each if len(text) < 500_000] for kind, each in found.items()}


def texts_in(path: Path) -> dict[str, list[str]]:
    """Return the texts of a file of profile_texts.py."""
    found: dict[str, list[str]] = defaultdict(list)
    with path.open(encoding="utf-8") as lines:
        for row in map(json.loads, lines):
            found[row["kind"]].append(row["text"])
    return found


def spread(items: list[Any], number: int) -> list[Any]:
    """Return at most this many items, at equal distances."""
    return items[:: max(1, len(items) // number)][:number]


def run(decide: Decide, documents: list[str]) -> tuple[list[tuple[str | None, str | None]], float]:
    """Return all decisions, and the seconds of the processor."""
    for text in documents[:WARM]:
        outcome(decide, text)
    began = time.process_time()
    return [outcome(decide, text) for text in documents], time.process_time() - began


def outcome(decide: Decide, text: str) -> tuple[str | None, str | None]:
    """Return a decision; an error is one too."""
    try:
        return decide(text)
    except Exception as error:
        return f"raises {type(error).__name__}", None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--documents", type=int, default=2_000, help="of each kind")
    parser.add_argument("--html", type=Path, action="append", default=[])
    parser.add_argument("--texts", type=Path)
    parser.add_argument("--differing", type=Path, help="write texts that are decided differently here, as lines of JSON")
    parser.add_argument("--only", action="append")
    arguments = parser.parse_args()
    kinds = texts(arguments.html, arguments.documents) if arguments.texts is None else texts_in(arguments.texts)
    names = arguments.only or ["gopher", "gopher-repetition", "c4", "fineweb"]
    rows, differing, kept = [], Counter[tuple[str, str, str]](), list[dict[str, Any]]()
    for kind, documents in kinds.items():
        size = sum(len(text.encode("utf-8", "surrogatepass")) for text in documents) / 1e6
        for name in names:
            theirs, slow = run(datatrove_profile(name), documents)
            exact, middle = run(our_profile(name, "spacy"), documents)
            ours, fast = run(our_profile(name, "words"), documents)
            for one, other in zip(theirs, ours, strict=True):
                if one != other:
                    differing[name, one[0] or "(kept)", (other[0] or "(kept)") + ("" if other[0] or one[0] else ", other text")] += 1
            for splitter, each in (("spacy", exact), ("words", ours)):
                kept += [
                    {"kind": kind, "profile": name, "splitter": splitter, "datatrove": one[0], "here": other[0], "text": text}
                    for text, one, other in zip(documents, theirs, each, strict=True)
                    if one != other
                ]
            dropped = sum(reason is not None for reason, _ in theirs)
            wrong = [sum(one != other for one, other in zip(theirs, each, strict=True)) for each in (exact, ours)]
            only_kept = sum((one[0] is None) != (other[0] is None) for one, other in zip(theirs, ours, strict=True))
            speeds = f"{size / slow:.2f} | {size / middle:.2f} ({slow / middle:.1f}×) | {size / fast:.1f} ({slow / fast:.0f}×)"
            numbers = f"{len(documents):,} ({size:.1f} MB) | {dropped:,}"
            rows.append(f"| {kind} | {name} | {numbers} | {wrong[0]} | {only_kept} | {wrong[1] - only_kept} | {speeds} |")
            print(rows[-1], flush=True)
    if arguments.differing:
        arguments.differing.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
    columns = ["documents", "profile", "number", "dropped by datatrove", "`spacy` differs", "`words` keeps or drops others"]
    columns += ["only reason or text differs", "datatrove, MB/s", "`spacy`, MB/s", "`words`, MB/s"]
    print(f"\n| {' | '.join(columns)} |", "|---" * len(columns) + "|", *rows, sep="\n")
    print("\n| profile | datatrove | `words` | documents |\n|---|---|---|---|")
    for (name, one, other), count in sorted(differing.items()):
        print(f"| {name} | {one} | {other} | {count} |")


if __name__ == "__main__":
    main()
