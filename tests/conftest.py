"""Fixtures that more than one file of tests needs."""

from pathlib import Path

import pytest

from niels_cache_assets.tokenization import SentencePieceTokenizer
from tests.tiny import train_tiny_tokenizer


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained 400-piece SentencePiece model with the four special tokens."""
    return train_tiny_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="session")
def tokenizer(tiny_model: Path) -> SentencePieceTokenizer:
    return SentencePieceTokenizer(str(tiny_model))
