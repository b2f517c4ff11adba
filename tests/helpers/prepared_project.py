"""A small project with two data sets that have a corpus, for the tests of reports and of Dagster."""

import json
from pathlib import Path

from tests.helpers.dagster_tools import Project
from tests.helpers.tiny import sentences

# One process, because workers take seconds to start, and no byte depends on their number.
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
    """Return a project without builds, with the data sets of `add_corpora`."""
    project = Project(folder, tokenizer_model)
    add_corpora(project, threshold=threshold, more=more)
    return project


def add_corpora(project: Project, *, threshold: float = 0.85, more: str = "") -> None:
    """Add `books` (one book is too short for cleaning) and `letters` (one equals a book, one equals a letter, one is nearly equal to a
    letter). `notes` has no `prepare`. `more`: lines after the table of letters.
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
    """Return a near duplicate. Its last words differ, so that 113 of 119 shingles are the same (Jaccard 0.95)."""
    words = text.split()
    words[-3:] = ["other", "last", "words"]
    return " ".join(words)
