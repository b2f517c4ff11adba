"""Links of README and docs. Their files, headings and pictures exist."""

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.helpers.docs_reader import PAGES, REPOSITORY, page_name

_LINK = re.compile(r"""\]\(([^)\s]+)\)|(?:src|href)="([^"]+)\"""")
_FENCE = re.compile(r"^( *)```.*?^\1```", re.MULTILINE | re.DOTALL)
_MACHINE = re.compile(r"(?<![\w.~/-])/(?:home|root|work|Users|tmp)/\w+")


def prose(path: Path) -> str:
    return re.sub(r"`[^`\n]*`", "", _FENCE.sub("", path.read_text(encoding="utf-8")))


def links_of(path: Path) -> list[str]:
    return [link or source for link, source in _LINK.findall(prose(path)) if not (link or source).startswith(("http://", "https://"))]


def anchors_of(path: Path) -> set[str]:
    """Return the anchors that GitHub makes from headings: lower case, no punctuation, a hyphen for a blank, a number for a repetition."""
    seen: Counter[str] = Counter()
    anchors = set()
    for heading in re.findall(r"^#+ +(.+?) *$", _FENCE.sub("", path.read_text(encoding="utf-8")), re.MULTILINE):
        anchor = re.sub(r"[^\w -]", "", re.sub(r"\]\([^)]*\)", "", heading).lower()).replace(" ", "-")
        anchors.add(f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor)
        seen[anchor] += 1
    return anchors


def test_there_is_something_to_follow() -> None:
    assert len(PAGES) > 10
    assert sum(len(links_of(path)) for path in PAGES) > 100


@pytest.mark.parametrize("path", PAGES, ids=page_name)
def test_links_lead_somewhere(path: Path) -> None:
    for link in links_of(path):
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        assert target.exists(), link
        assert target.is_relative_to(REPOSITORY), f"{link}: outside of the repository"
        if anchor:
            assert target.suffix == ".md", link
            assert anchor in anchors_of(target), f"{link}: no such heading"


@pytest.mark.parametrize("path", PAGES, ids=page_name)
def test_no_path_of_a_machine_is_on_a_page(path: Path) -> None:
    assert _MACHINE.findall(path.read_text(encoding="utf-8")) == []


def test_every_page_is_in_the_index_and_every_picture_on_a_page() -> None:
    index = REPOSITORY / "docs/README.md"
    listed = {(index.parent / link.partition("#")[0]).resolve() for link in links_of(index)}
    assert {path for path in PAGES if path.parent.name == "docs"} - {index} <= listed
    shown = {(path.parent / link).resolve() for path in PAGES for link in links_of(path)}
    assert set((REPOSITORY / "docs/images").glob("*.png")) <= shown
