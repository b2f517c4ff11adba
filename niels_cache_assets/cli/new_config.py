"""The text of a first niels_cache.toml: what was wished as tables, what else may be set as comments beside it."""

from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from niels_cache_assets import defaults
from niels_cache_assets.cli.cleaning import files_in, sources_of
from niels_cache_assets.registry import PROFILES, is_valid_name, load_registry
from niels_cache_assets.sources.compressed import COMPRESSIONS
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.formats import FAMILIES


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What somebody wants built; paths as they were typed, relative to the working directory. `folder`: where the file will lie."""

    folder: str = "."
    profile: str = PROFILES[0]
    only_mine: bool = False
    files: tuple[str, ...] = ()
    notes: str | None = None
    roam: str | None = None
    hub: tuple[str, ...] = ()
    chats: tuple[str, ...] = ()
    cache_dir: str | None = None
    tokenizer: str | None = None
    vocab_size: int | None = None


def render(wishes: Wishes) -> str:
    """The file. Raises NielsCacheError for files that are not there, or whose names do not say what they hold."""
    return "\n\n".join(_sections(wishes)) + "\n"


def _sections(wishes: Wishes) -> Iterator[str]:
    yield f"""\
# What niels-cache builds here. Every key is explained in docs/configuration.md; paths are relative to this file.

profile = {_toml(wishes.profile)}  # what this file adds to: {" or ".join(PROFILES)}"""
    shipped = load_registry(profile=wishes.profile, config=os.devnull)
    usual = os.path.relpath(shipped.build.cache_dir, os.path.dirname(os.devnull))
    cache_dir = f"# cache_dir = {_toml(usual)}" if wishes.cache_dir is None else f"cache_dir = {_toml(_path(wishes.cache_dir, wishes))}"
    yield f"""\
[build]
{cache_dir}  # root of all caches
# seed = {shipped.build.seed}  # of shuffles and splits; the same seed makes the same bytes"""
    yield _tokenizer(wishes, shipped.tokenizer.vocab_size)
    taken = {name for family in FAMILIES for name in shipped.datasets(family)}
    for family in FAMILIES if wishes.only_mine else ():
        for name in shipped.partition_keys(family):
            if shipped.source(name).enabled:
                yield f"[{family}.{name}]\nenabled = false"
    yield from _pretrain(wishes, taken)
    if wishes.chats:
        files = [_existing(path, wishes, option="--chats", folder=False) for path in wishes.chats]
        yield f"""\
[sft.{_name("chats", taken)}]  # lines of {{"messages": [{{"role": "user", "content": ...}}, {{"role": "assistant", ...}}]}}
source = "chat_jsonl"
files = {_toml(files)}
# val_frac = 0.1  # share of the conversations that goes to val"""
    if not (wishes.files or wishes.notes or wishes.hub or wishes.chats):
        yield """\
# A data set of your own is a table with a name of your choice:
#
# [pretrain.books]
# source = "text"  # or jsonl, parquet, markdown_folder, huggingface, wikipedia, ...
# files = ["books/*.txt"]
#
# [sft.chats]
# source = "chat_jsonl"
# files = ["chats.jsonl"]"""


def _tokenizer(wishes: Wishes, usual: int) -> str:
    if wishes.tokenizer is not None:
        model = _existing(wishes.tokenizer, wishes, option="--tokenizer", folder=False)
        return f"[tokenizer]\nmodel = {_toml(model)}  # used as it is, instead of training one"
    size = f"# vocab_size = {usual:_}" if wishes.vocab_size is None else f"vocab_size = {wishes.vocab_size:_}"
    return f"""\
[tokenizer]
{size}  # pieces in all, at most 65_536: tokens are uint16
# model = "my.model"  # a SentencePiece model to use instead of training one"""


def _pretrain(wishes: Wishes, taken: set[str]) -> Iterator[str]:
    hints = f"""\
# val_frac = {defaults.VAL_FRAC:g}  # share of the documents that goes to val
# prepare = ["clean", "dedup"]  # filter and deduplicate first (docs/cleaning.md)"""
    if wishes.files:
        given = [str(Path(path).expanduser()) for path in wishes.files]
        sources = sources_of(list(chain.from_iterable(_patterns(path) if os.path.isdir(path) else [path] for path in given)))
        for source in sources:
            kind = source.source
            name = _name(f"my_{kind}" if len(sources) > 1 else "my_text", taken)
            files = [_path(path, wishes) for path in getattr(source, "files", [])]
            yield f"[pretrain.{name}]\nsource = {_toml(kind)}\nfiles = {_toml(files)}\n{hints}"
    if wishes.notes:
        name = _name("my_notes", taken)
        path = _existing(wishes.notes, wishes, option="--notes", folder=True)
        yield f'[pretrain.{name}]\nsource = "markdown_folder"\npath = {_toml(path)}\n{hints}'
    if wishes.roam:
        table = "[pretrain.roam]" if wishes.profile == "default" else f'[pretrain.{_name("roam", taken)}]\nsource = "roam"'
        yield f"{table}\npath = {_toml(_existing(wishes.roam, wishes, option='--roam'))}\n{hints}"
    for dataset in wishes.hub:
        owner_name, _, config = dataset.partition(":")
        if not re.fullmatch(r"[\w.-]+/[\w.-]+", owner_name):
            raise NielsCacheError(f"--hub {dataset}: is no name of a hub data set; write OWNER/NAME or OWNER/NAME:CONFIG")
        name = _name(re.sub(r"[^A-Za-z0-9_]+", "_", owner_name.rpartition("/")[2]).lower(), taken)
        chosen = f"config = {_toml(config)}" if config else '# config = "en"  # where the data set has several'
        yield f"""\
[pretrain.{name}]
source = "huggingface"
dataset = {_toml(owner_name)}
{chosen}
# text_field = "text"  # which column is read
train_tokens = 10_000_000  # budgets: as much of the stream as that is read; without them all of it
val_tokens = 100_000
# pinned_revision = "main"  # a commit, to have the same text for ever"""


def _patterns(folder: str) -> list[str]:
    """One for all files below it that end alike, so that what is put there later is read, too.

    Where links make other files of that than walking does, which enters every real folder once: one for each folder.
    """
    found: list[str] = []
    by_ending: dict[str, list[str]] = {}
    for file in files_in(folder):
        path = Path(file)
        ending = "".join(path.suffixes[-2:] if path.suffix.lower() in COMPRESSIONS else path.suffixes[-1:])
        by_ending.setdefault(re.sub(r"-p\d+p\d+", "-p*p*", ending), []).append(file)  # parts of a Wikipedia dump
    for ending, files in by_ending.items():
        pattern = os.path.join(glob.escape(folder), "**", f"*{ending}")
        if len(glob.glob(pattern, recursive=True)) == len(files):
            found.append(pattern)
        else:
            found += dict.fromkeys(os.path.join(glob.escape(os.path.dirname(file)), f"*{ending}") for file in files)
    return found


def _name(wanted: str, taken: set[str]) -> str:
    """A valid name that no other data set has."""
    base = wanted if is_valid_name(wanted) else "my_data"
    name = next(name for name in (base, *(f"{base}_{number}" for number in range(2, 1000))) if name not in taken)
    taken.add(name)
    return name


def _existing(path: str, wishes: Wishes, *, option: str, folder: bool | None = None) -> str:
    """For the file, once it is there and a folder or none, where that matters."""
    if "://" not in path:
        found = Path(path).expanduser()
        if not found.exists():
            raise NielsCacheError(f"{path}: is not there; correct {option}")
        if folder not in (None, found.is_dir()):
            raise NielsCacheError(f"{path}: is {'no' if folder else 'a'} folder; {option} takes {'a folder' if folder else 'files'}")
    return _path(path, wishes)


def _path(path: str, wishes: Wishes) -> str:
    """As a file in `folder` has to name it."""
    if "://" in path or path.startswith("~") or os.path.isabs(path):
        return path
    return os.path.relpath(path, wishes.folder)


def _toml(value: Any) -> str:
    """A string or a list of them; JSON's strings are TOML's."""
    return json.dumps(value, ensure_ascii=False)
