"""docs/megatron.md: its commands are commands, its configuration is one, its Python runs, its links lead somewhere."""

import re
import shlex
from pathlib import Path

import pytest
import torch

from niels_cache_assets.blends.prebuild import plan_of, read_blend_file
from niels_cache_assets.cli.parser import parse_arguments
from niels_cache_assets.registry import load_registry
from tests.exports import random_documents, write_documents_cache

REPOSITORY = Path(__file__).resolve().parents[1]
PAGE = (REPOSITORY / "docs" / "megatron.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)


def test_its_commands_are_commands() -> None:
    commands = re.findall(r"^niels-cache (.+)$|`niels-cache ([^`]+)`", PAGE, flags=re.MULTILINE)
    assert len(commands) >= 7
    for line, inline in commands:
        assert parse_arguments(shlex.split(line or inline)) is not None


def test_its_links_lead_somewhere() -> None:
    links = re.findall(r"\]\((?!http)([^)#]+)", PAGE)
    assert links
    assert [link for link in links if not (REPOSITORY / "docs" / link).exists()] == []
    headings = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in re.findall(r"^#+ (.+)$", PAGE, flags=re.MULTILINE)}
    anchors = re.findall(r"\]\(#([^)]+)\)", PAGE)
    assert anchors
    assert set(anchors) <= headings


def test_its_configuration_and_its_file_are_the_same_blend(tmp_path: Path) -> None:
    (table,), (text,) = blocks("toml"), blocks("text")
    (tmp_path / "niels_cache.toml").write_text(table, encoding="utf-8")
    (tmp_path / "blend.txt").write_text(text, encoding="utf-8")
    registry = load_registry(profile="default", config=str(tmp_path / "niels_cache.toml"))
    assert registry.blend_keys() == ["mix"]
    plan = plan_of(registry, "mix", root=tmp_path)
    paths, weights = read_blend_file(tmp_path / "blend.txt")
    assert weights is not None
    assert tuple(weights) == plan.weights
    assert [Path(path).name.removesuffix("_text_document") for path in paths] == list(plan.labels)


def test_its_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate(("fineweb_edu", "wikitext")):
        write_documents_cache(Path("cache/pretrain") / name, {"train": random_documents(50, seed=seed)}, shard_tokens=1 << 20)
    ours, provider = blocks("python")
    scope: dict[str, object] = {}
    exec(ours, scope)
    batch = scope["batch"]
    assert isinstance(batch, dict)
    assert batch["tokens"].shape == batch["labels"].shape == (8, 128)
    assert torch.equal(batch["tokens"][:, 1:], batch["labels"][:, :-1])
    assert set(batch) == {"tokens", "labels", "loss_mask", "position_ids", "dataset_id"}
    compile(provider, "provider", "exec")
