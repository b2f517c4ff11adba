"""Roots in which one stage of a small project is to be built anew, in the place of the same of other settings: for tests of bad disks."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.small_project import SmallProject, small_project

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
    """new: a root with everything, as it is to become. old: the same of other settings: what is there before."""

    new: SmallProject
    old: SmallProject

    def before(self, stage: str, root: Path) -> SmallProject:
        """A root in which that stage is to be built anew: stages before it are done, its own is of other settings."""
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
    """Every file below the folder but hidden ones, what lies in hidden folders, and reports, which tell the minute of a build."""
    files = {path.relative_to(folder): path for path in sorted(folder.rglob("*")) if path.is_file()}
    return {
        name.as_posix(): path.read_bytes()
        for name, path in files.items()
        if not any(part.startswith(".") or part == "reports" for part in name.parts)
    }


def in_root(root: Path, stage: str) -> dict[str, bytes]:
    """Return the files that this stage makes, by path relative to the root."""
    return {name: content for name, content in visible(root).items() if name.startswith(f"{TARGETS[stage]}/")}
