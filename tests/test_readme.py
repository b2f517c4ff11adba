"""What the README and the examples show runs as it stands."""

import re
import runpy
from pathlib import Path

import pytest

from niels_cache_assets.build_cache import build_pretrain_cache, build_sft_cache
from niels_cache_assets.registry import load_registry
from niels_cache_assets.tokenization import SentencePieceTokenizer
from niels_cache_runtime.meta import read_meta
from tests.test_cache_determinism import conversations
from tests.tiny import sentences

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture
def quickstart(tmp_path: Path, tokenizer: SentencePieceTokenizer, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The quickstart's folders with small caches in them."""
    root = tmp_path / "cache" / "quickstart"
    (root / "tokenizer").mkdir(parents=True)
    (root / "tokenizer" / "spm.model").write_bytes(Path(tokenizer.model_path).read_bytes())
    settings = {"max_train_tokens": 20_000, "max_val_tokens": 0, "shard_bytes": 1 << 20, "seed": 1, "shuffle_buffer": None}
    build_pretrain_cache(sentences(2_000), str(root / "pretrain" / "python_docs"), tokenizer=tokenizer, **settings)  # type: ignore[arg-type]
    build_sft_cache(conversations(50), str(root / "sft" / "python_help"), tokenizer=tokenizer, val_frac=0.1, seed=1)
    monkeypatch.chdir(tmp_path)
    return root


def test_the_python_of_the_readme_runs_and_the_loss_falls(quickstart: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) == 3
    scope: dict[str, object] = {}
    for block in blocks:
        exec(block, scope)
    printed = re.search(r"loss (\d+\.\d+)", capsys.readouterr().out)
    assert printed is not None
    assert float(printed[1]) < 6  # ln(4000) = 8.3 before the first step
    assert (quickstart.parent / "mine" / "meta.json").exists()


def test_the_configuration_of_the_readme_is_valid(tmp_path: Path) -> None:
    (table,) = re.findall(r"```toml\n(.*?)```", README, re.DOTALL)
    (tmp_path / "niels_cache.toml").write_text(table, encoding="utf-8")
    registry = load_registry(config=str(tmp_path / "niels_cache.toml"), profile="default")
    assert {"my_notes", "my_corpus", "dumps"} <= set(registry.partition_keys("pretrain"))
    assert "my_chats" in registry.partition_keys("sft")


def test_every_link_of_the_readme_leads_somewhere() -> None:
    links = re.findall(r'(?:\]\(|src=")(?!http)([^)"]+)', README)
    assert len(links) >= 5
    for link in links:
        assert (ROOT / link).exists(), link


def test_the_tiktoken_example_builds_what_tiktoken_encodes(tmp_path: Path) -> None:
    tiktoken = pytest.importorskip("tiktoken")
    bytes_alone = {bytes([value]): value for value in range(256)}
    encoding = tiktoken.Encoding("tiny", pat_str=r"\S+|\s+", mergeable_ranks=bytes_alone, special_tokens={"<|endoftext|>": 256})
    example = runpy.run_path(str(ROOT / "examples" / "gpt2_tokenizer.py"))
    wrapped = example["TiktokenTokenizer"](encoding)
    build_pretrain_cache(
        ["text with <|endoftext|> spelt out", "more"],
        str(tmp_path / "x"),
        tokenizer=wrapped,
        max_train_tokens=1_000,
        max_val_tokens=0,
        shard_bytes=1 << 20,
        seed=1,
        shuffle_buffer=None,
    )
    tokens = (tmp_path / "x" / "train" / "shard_00000.bin").read_bytes()[::2]
    assert tokens == b"text with <|endoftext|> spelt out\x00more\x00"
    assert read_meta(str(tmp_path / "x" / "meta.json"))["special_token_ids"]["eot"] == 256


def test_the_configuration_reference_is_up_to_date() -> None:
    reference = runpy.run_path(str(ROOT / "docs" / "configuration.py"))["reference"]()
    assert (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8") == reference, "run python docs/configuration.py"
