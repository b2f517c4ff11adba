"""Roots in which one stage of a small project must be built again, because the existing stage has other settings. Tests of bad disks use
these roots.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.helpers.small_project import SmallProject, small_project

TARGETS = {
    "tokenizer": "tokenizer",
    "corpus": "corpus/notes",
    "duplicates": "duplicates",
    "pretrain": "pretrain/letters",
    "prepared pretrain": "pretrain/notes",
    "sft": "sft/chats",
    "index": "index",
    "export": "exports",
}


@dataclass(frozen=True, kw_only=True)
class Rebuilds:
    """Two roots. new: a root with everything, as after the rebuild. old: a root with other settings, as before the rebuild."""

    new: SmallProject
    old: SmallProject

    def before(self, stage: str, root: Path) -> SmallProject:
        """Return a root in which this stage must be built again. Earlier stages are done, and the stage itself has other settings."""
        shutil.copytree(self.new.root, root, dirs_exist_ok=True)
        target = root / TARGETS[stage]
        shutil.rmtree(target)
        if stage not in ("tokenizer", "index"):  # imported from the same file; under the hash of its settings
            shutil.copytree(self.old.root / TARGETS[stage], target)
        return self.new.in_root(root)


def make_rebuilds(folder: Path, tokenizer_model: Path) -> Rebuilds:
    new = small_project(folder, tokenizer_model)
    new.build_all()
    old = small_project(folder, tokenizer_model, seed=7, threshold=0.5).in_root(folder / "old")
    old.build_all()
    for stage in TARGETS:
        assert in_root(new.root, stage)
        assert stage == "tokenizer" or in_root(new.root, stage) != in_root(old.root, stage), stage
    return Rebuilds(new=new, old=old)


def visible(folder: Path) -> dict[str, bytes]:
    """Return every file below the folder, except hidden files, files in hidden folders, and reports, which show the time of a build."""
    files = {path.relative_to(folder): path for path in sorted(folder.rglob("*")) if path.is_file()}
    return {
        name.as_posix(): path.read_bytes()
        for name, path in files.items()
        if not any(part.startswith(".") or part == "reports" for part in name.parts)
    }


def in_root(root: Path, stage: str) -> dict[str, bytes]:
    """Return the files that this stage makes, by path relative to the root."""
    return {name: content for name, content in visible(root).items() if name.startswith(f"{TARGETS[stage]}/")}
