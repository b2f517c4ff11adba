"""The page of messages quotes words that our code still has, and the cookbook has a recipe for every source."""

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from niels_cache_assets.sources import PRETRAIN_SOURCES, SFT_SOURCES
from tests.helpers.docs_reader import REPOSITORY, blocks_of
from tests.size import BESIDE, PACKAGES

TROUBLESHOOTING = REPOSITORY / "docs/troubleshooting.md"
COOKBOOK = REPOSITORY / "docs/cookbook.md"


def quoted_words(page: Path) -> list[str]:
    """Return the first cell of each row that is code. Readers look for these words in a message."""
    return re.findall(r"^\| `([^`]+)` \|", page.read_text(encoding="utf-8"), re.MULTILINE)


@cache
def said_by_the_packages() -> str:
    """Return every string of the packages, docstrings left out, one on each line."""
    files = [file for package in (*PACKAGES, *BESIDE) for file in (REPOSITORY / package).rglob("*.py")]
    return "\n".join(text for file in files for text in strings(ast.parse(file.read_text(encoding="utf-8"))))


def strings(tree: ast.Module) -> Iterator[str]:
    lone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in lone:
            yield node.value


def test_there_are_words_to_look_for() -> None:
    words = quoted_words(TROUBLESHOOTING)
    assert len(words) > 40
    assert len(set(words)) == len(words), "each has one place on the page"


@pytest.mark.parametrize("words", quoted_words(TROUBLESHOOTING))
def test_a_message_still_has_the_words_that_the_page_quotes(words: str) -> None:
    assert words in said_by_the_packages()


def test_the_cookbook_has_a_recipe_for_every_source() -> None:
    recipes = [tomllib.loads(block.text) for block in blocks_of(COOKBOOK) if block.language == "toml"]
    tables = [table for recipe in recipes for family in ("pretrain", "sft") for table in recipe.get(family, {}).values()]
    assert {table["source"] for table in tables} == {*PRETRAIN_SOURCES, *SFT_SOURCES}
