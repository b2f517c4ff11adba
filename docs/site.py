"""Build the site of the documentation: `python -m docs.site [--serve]`, which `make site` calls.

The pages are copied to build/pages with the folders of the repository, so that links between them stay as they are.
A link to any other file of the repository becomes a link to the repository on the web: REPOSITORY_URL, or none.
The search finds words that our pages do not use, such as "datasets", because they are added to its index.
"""

import json
import os
import posixpath
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "build/pages"
AT_THE_TOP = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
BUILD = ["build", "--clean", "--strict"]
NOT_SEARCHED = ("CHANGELOG.md",)  # long, and about everything: it would come first for most words
LOG = "docs/log/"  # a record for maintainers; on the site, a link to it is a link to the repository
COPIED = {".md", ".png", ".svg"}
SEARCHED_AS = {
    "data set": "datasets",
    "near duplicate": "fuzzy duplicates",
    "weights": "ratio proportions",
}  # our words: words that users type

_LINK = re.compile(r"\[([^\]]*)\]\(([^)\s#:]+)(#[^)\s]*)?\)")  # an address on the web has a colon
_CODE = re.compile(r"(^ *```.*?^ *```[ ]*$|`[^`\n]*`(?!\]))", re.MULTILINE | re.DOTALL)


def copy_pages(target: Path, repository: str | None) -> None:
    """Copy all pages and pictures to `target`, which is emptied first. `repository` is its address on the web."""
    shutil.rmtree(target, ignore_errors=True)
    for source in [*(ROOT / name for name in AT_THE_TOP), *sorted((ROOT / "docs").rglob("*"))]:
        name = source.relative_to(ROOT).as_posix()
        if is_on_site(name):
            copy = target / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            if source.suffix == ".md":
                head = "---\nsearch:\n  exclude: true\n---\n\n" if name in NOT_SEARCHED else ""
                copy.write_text(head + for_the_site(source.read_text(encoding="utf-8"), name, repository), encoding="utf-8")
            else:
                shutil.copyfile(source, copy)


def is_on_site(name: str) -> bool:
    """Return whether a file of the repository, such as `docs/howto.md`, is a page or a picture of the site."""
    inside = name in AT_THE_TOP or name.startswith("docs/")
    return inside and Path(name).suffix in COPIED and not name.startswith(LOG)


def for_the_site(text: str, page: str, repository: str | None) -> str:
    """Return the Markdown of a page, a path in the repository, with its links to code as links to the repository on the web."""

    def rewritten(link: re.Match[str]) -> str:
        words, name, anchor = link[1], link[2], link[3] or ""
        path = posixpath.normpath(posixpath.join(posixpath.dirname(page), name))
        if is_on_site(path):
            return link[0]
        if not (ROOT / path).exists() or path.startswith(".."):
            raise ValueError(f"{page}: there is no {name} in the repository")
        if repository is None:
            return words
        return f"[{words}]({repository}/{'tree' if (ROOT / path).is_dir() else 'blob'}/main/{path}{anchor})"

    parts = _CODE.split(text)
    return "".join(part if number % 2 else _LINK.sub(rewritten, part) for number, part in enumerate(parts))


def run_zensical(command: list[str], folder: Path, repository: str | None) -> subprocess.CompletedProcess[str]:
    """Run Zensical in a folder with mkdocs.yml and the copied pages. Without the address of the repository, pages have no edit link."""
    places = {"REPOSITORY_URL": repository, "EDIT_URI": f"{repository}/edit/main/"} if repository else {}
    program = Path(sys.executable).with_name("zensical")
    return subprocess.run([program, *command], cwd=folder, env={**os.environ, **places}, check=False, text=True)


def add_words_to_search(site: Path) -> None:
    """Add the words of SEARCHED_AS to the search index of a built site, to each section that has our word."""
    path = site / "search.json"
    index = json.loads(path.read_text(encoding="utf-8"))
    for section in index["items"]:
        text = f"{section['title']} {section['text']}".lower()
        section["text"] += "".join(f"<p>{words}</p>" for ours, words in SEARCHED_AS.items() if ours in text)
    path.write_text(json.dumps(index, ensure_ascii=False), encoding="utf-8")


def main(arguments: list[str]) -> int:
    """Copy the pages, then build the site or serve it. Return the exit code of Zensical: a warning, such as a dead link, is an error."""
    repository = os.environ.get("REPOSITORY_URL")
    copy_pages(PAGES, repository)
    if "--serve" in arguments:
        return run_zensical(["serve"], ROOT, repository).returncode
    code = run_zensical(BUILD, ROOT, repository).returncode
    if code == 0:
        add_words_to_search(ROOT / "build/site")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
