"""Projects of a user with steps, as tests write them: a module in a folder, and a table that names its functions."""

import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from niels_cache_assets.base.documents import Document
from niels_cache_assets.sources import PRETRAIN_SOURCES
from niels_cache_assets.sources.types import PretrainSource

_numbers = count()


@contextmanager
def user_module(folder: Path, code: str) -> Iterator[str]:
    """Write a module, and give its name, which no other test uses. Afterwards, it is no longer imported."""
    name = f"steps_of_a_user_{next(_numbers)}"
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.py").write_text(textwrap.dedent(code), encoding="utf-8")
    try:
        yield name
    finally:
        sys.modules.pop(name, None)
        if str(folder) in sys.path:
            sys.path.remove(str(folder))


def source_with(folder: Path, *steps: Any, **keys: Any) -> PretrainSource:
    """Return the table of a data set with these steps, as it is read from a file in the folder."""
    table = {"source": "jsonl", "files": ["*.jsonl"], "steps": list(steps), **keys}
    return PRETRAIN_SOURCES["jsonl"].model_validate(table, context={"base_dir": str(folder)})


def documents_of(texts: Sequence[str]) -> list[Document]:
    return [Document(text, f"id-{row}", "a.jsonl", row) for row, text in enumerate(texts)]
