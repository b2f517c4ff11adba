"""A small project with two data sets that have a corpus, for the tests of reports and of what Dagster makes of them."""

import json
from pathlib import Path

from tests.dagster_tools import Project
from tests.tiny import sentences

# One process: workers cost seconds to start, and no byte depends on them.
_EXTRA = """prepare = ["clean", "dedup"]
cleaning = {{ min_characters = 20, min_words = 3, skip = ["not_english", "repetitive", "no_stopwords"] }}

[pretrain.letters]
source = "jsonl"
files = ["letters.jsonl"]
prepare = ["dedup"]
{more}
[dedup]
threshold = {threshold}

[build]
threads = 1
"""
LETTERS = 20


def prepare_project(folder: Path, tokenizer_model: Path, *, threshold: float = 0.85, more: str = "") -> Project:
    """A project of which nothing is built, with what `add_corpora` adds."""
    project = Project(folder, tokenizer_model)
    add_corpora(project, threshold=threshold, more=more)
    return project


def add_corpora(project: Project, *, threshold: float = 0.85, more: str = "") -> None:
    """`books` (cleaned: one is too short) and `letters` (one equals a book, one equals a letter, one is near to a letter); `notes` is not
    prepared. `more`: lines after the table of letters.
    """
    (project.folder / "books" / "short.txt").write_text("Brief.", encoding="utf-8")
    book = (project.folder / "books" / "0.txt").read_text(encoding="utf-8")
    letters = sentences(LETTERS, seed=77, words=120)
    write_letters(project, [*letters, book, letters[3].upper(), changed(letters[5])])
    configure(project, threshold=threshold, more=more)


def configure(project: Project, *, threshold: float = 0.85, more: str = "") -> None:
    project.configure(extra=_EXTRA.format(threshold=threshold, more=more))


def write_letters(project: Project, texts: list[str]) -> None:
    lines = (json.dumps({"text": text}) for text in texts)
    (project.folder / "letters.jsonl").write_text("\n".join(lines), encoding="utf-8")


def changed(text: str) -> str:
    """A near duplicate: the last words are others, so that 113 of 119 shingles are the same (Jaccard 0.95)."""
    words = text.split()
    words[-3:] = ["other", "last", "words"]
    return " ".join(words)
