"""Small data sets with `prepare` that tests make themselves. There are files of made-up documents, a configuration, and a source that can
misbehave.
"""

import json
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from niels_cache_assets.base.documents import Document, DropReport
from niels_cache_assets.project.registry import Registry, load_registry
from niels_cache_assets.sources.errors import SourceUnavailableError
from niels_cache_assets.sources.types import PretrainSource, StreamContext
from niels_cache_runtime.errors import NielsCacheError


def articles(count: int, *, seed: int = 0, sentences_each: int = 10) -> list[str]:
    """Return `count` different made-up documents of about 120 words. All filters except the language filter accept them."""
    from tests.helpers.tiny import sentences  # imported here, because it imports torch, which workers that unpickle a source do not need

    lines = sentences(count * sentences_each, seed=seed)
    return [" ".join(lines[start : start + sentences_each]) for start in range(0, len(lines), sentences_each)]


def nearly(text: str, changed_words: int = 1) -> str:
    """Return the text with some words at its end replaced. Each replaced word changes at most five word 5-grams."""
    return " ".join(text.split()[:-changed_words] + [f"other{index}" for index in range(changed_words)])


def write_jsonl(path: Path, texts: Sequence[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        "".join(json.dumps({"id": f"{path.stem}-{row}", "text": text}) + "\n" for row, text in enumerate(texts)), encoding="utf-8"
    )


def corpus_registry(
    folder: Path, data: Mapping[str, Sequence[str]], *, settings: str = "", table: str = 'prepare = ["clean", "dedup"]\nval_frac = 0.1\n'
) -> Registry:
    """Return a registry with a JSONL data set for each item of `data`, written to `folder`. `settings`: other tables. `table`: lines of
    each data set.
    """
    for name, texts in data.items():
        write_jsonl(folder / f"{name}.jsonl", texts)
    tables = [f'[pretrain.{name}]\nsource = "jsonl"\nfiles = ["{name}.jsonl"]\n{table}' for name in data]
    config = folder / "niels_cache.toml"
    config.write_text("\n".join(['[cleaning]\nskip = ["not_english", "language_error"]', settings, *tables]), encoding="utf-8")
    return load_registry(profile="quickstart", config=str(config))


def with_source(registry: Registry, name: str, source: PretrainSource) -> Registry:
    """Return the registry with another source under this name."""
    return replace(registry, pretrain={**registry.pretrain, name: source})


class MisbehavingSource(PretrainSource):
    """Documents number 0 to `count` - 1, with their own splits if `split`. The other fields make one thing go wrong."""

    source: Literal["misbehaving"] = "misbehaving"
    count: int = 600
    kill_at: int | None = None  # the worker that gets this document dies
    fail_at: int | None = None  # the stream ends with an error here
    refuse_at: int | None = None  # `convert` raises here
    sleep_at: int | None = None  # the worker that gets this document writes its process id to `pid_file` and sleeps
    pid_file: str = ""
    unavailable: bool = False
    split: bool = False
    twins: Mapping[int, int] = Field({})  # documents that have the text of another one

    @property
    def has_own_splits(self) -> bool:
        return self.split

    def identity(self) -> dict[str, Any]:
        return {"count": self.count, "split": self.split, "twins": dict(self.twins)}

    def revision(self, siblings: Mapping[str, PretrainSource]) -> str | None:
        if self.unavailable:
            raise SourceUnavailableError("upstream is down")
        return "revision 1"

    def documents(self, context: StreamContext) -> Iterator[list[Document]]:
        texts = articles(self.count)
        for row in range(self.count):
            if row == self.fail_at:
                raise NielsCacheError("the stream broke")
            split: Any = ("val" if row % 10 == 0 else "train") if self.split else None
            yield [Document(texts[self.twins.get(row, row)], f"misbehaving-{row}", "a file", row, f"Title {row}", split)]

    def convert(self, documents: list[Document]) -> tuple[list[Document], DropReport, list[tuple[str, Document]]]:
        for document in documents:
            if document.row == self.kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            if document.row == self.sleep_at:
                Path(self.pid_file).write_text(str(os.getpid()))
                time.sleep(300)
            if document.row == self.refuse_at:
                raise NielsCacheError(f"{document.source_id}: cannot be converted")
        kept = [document for document in documents if document.row % 7]
        return kept, DropReport({"short_docstring": len(documents) - len(kept)}), []
