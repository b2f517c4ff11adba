"""The tables [[pretrain.NAME.added]]: files that a data set has grown by, and the number of parts that they are divided into.

The parts of a table come after all parts before it. `niels-cache part NAME --add` writes these tables. This module opens no file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from niels_cache_assets.sources.config_path import ConfigPath


class Added(BaseModel):
    """The keys of every table `added`."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    files: list[str] = Field(min_length=1, description="Globs of the new files; these files no longer count as files of the table above")
    parts: PositiveInt = Field(1, description="Number of parts that the new files are divided into")
    train_tokens: PositiveInt | None = Field(
        None, description="Token budget of train for the new files; None: all of them. Only for a data set with token budgets"
    )


class AddedFiles(Added):
    """The keys of added files of the user."""

    files: list[ConfigPath] = Field(min_length=1, description=Added.model_fields["files"].description)


class AddedOfHub(Added):
    """The keys of added files of the hub. A pattern counts from the right: `CC-MAIN-2026-05/*` names `data/CC-MAIN-2026-05/0.parquet`."""

    revision: str | None = Field(None, description="Git commit of the hub that has the new files; None: that of the data set")


def patterns_without_folders(added: Added) -> list[str]:
    """Return the patterns of a table. Those of local files have no folder, so that they are the same on every machine."""
    return [each if "://" in each else os.path.basename(each) for each in added.files]


def growth_that_counts(added: Sequence[Added]) -> str:
    """Return the part of the revision of a data set that its tables `added` decide, for what reads its documents. Empty without tables.

    The revision of the user's files covers their content, but not the group that a file belongs to. A commit of the hub does not tell which
    of its files were chosen.
    """
    if not added:
        return ""
    groups = [[patterns_without_folders(each), getattr(each, "revision", None)] for each in added]
    return f"\0grown by {json.dumps(groups)}"


def added_problem(added: Sequence[Added], *, has_budgets: bool) -> str | None:
    """Return why a data set cannot have these tables, or None. has_budgets: whether token budgets divide it into train and val."""
    for each in added:
        if each.train_tokens is not None and not has_budgets:
            return "added: train_tokens is for data sets with token budgets, which this one does not have; remove it from added"
        if each.train_tokens is not None and each.train_tokens < each.parts:
            return f"added: train_tokens = {each.train_tokens} is fewer than one token for each of {each.parts} parts; raise it"
    return None
