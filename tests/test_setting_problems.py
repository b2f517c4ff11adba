"""Every value of a wrong type, in every key of every table, is answered with what it must be and a text that works when it is typed."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from niels_cache_assets.config.problems import explain_problems
from niels_cache_assets.config.registry import load_registry
from niels_cache_assets.config.running import ClusterSettings, NotifySettings
from niels_cache_assets.config.tables import (
    BlendSettings,
    BuildSettings,
    CleaningSettings,
    DagsterSettings,
    DedupSettings,
    ReportsSettings,
    TokenizerSettings,
)
from niels_cache_assets.config.toml import parse_toml
from niels_cache_assets.sources import PRETRAIN_SOURCES, SFT_SOURCES
from niels_cache_runtime.errors import NielsCacheError
from tests.messages import missing

MODELS: tuple[type[BaseModel], ...] = (
    *PRETRAIN_SOURCES.values(),
    *SFT_SOURCES.values(),
    BuildSettings,
    TokenizerSettings,
    CleaningSettings,
    DedupSettings,
    BlendSettings,
    ReportsSettings,
    DagsterSettings,
    ClusterSettings,
    NotifySettings,
)
VALUES: tuple[Any, ...] = ("abc", "5", "0.5", "true", 5, -1, 2.5, 1e300, float("nan"), True, ["x"], [5], {"a": 1}, {"a": "0.5"}, [], {})


def told(model: type[BaseModel], table: dict[str, Any], key: str) -> list[str]:
    """Return the message about this key."""
    try:
        model.model_validate(table)
    except ValidationError as error:
        return [said for said in explain_problems(error, model, table) if re.match(rf" {key}[. ]", said)]
    return []


def mistakes() -> Iterator[tuple[type[BaseModel], str, str]]:
    seen = set()
    for model in MODELS:
        for key, field in model.model_fields.items():
            if (key, repr(field)) not in seen:
                seen.add((key, repr(field)))
                for value in VALUES:
                    for said in told(model, {key: value}, key):
                        yield model, key, said


def test_every_value_of_a_wrong_type_comes_with_a_text_that_is_taken_when_it_is_typed() -> None:
    typed = 0
    for model, key, said in mistakes():
        assert not re.search(r"input should|valid (list|integer|string|tuple)|unable to parse", said, flags=re.IGNORECASE), said
        assert "of type" not in said, said
        found = re.search(rf"; write(, for example,)? ({key} = .*)", said)
        if "must" in said:
            assert found, said
        if found:
            typed += 1
            table = parse_toml(found[2])
            assert list(table) == [key], said
            assert not any("must" in again for again in told(model, table, key)), said
    assert typed > 700, "there is something to type"


class Odd(BaseModel):
    """Types that no table of ours has yet."""

    model_config = ConfigDict(extra="forbid", strict=True)
    either: int | list[str] = 1
    sizes: list[int] = Field(default_factory=lambda: [1], max_length=3)
    flags: dict[str, bool] = {}
    mode: Literal["fast", "slow"] | None = None


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"either": 2.5}, (" either = 2.5: ", "whole number", "list of texts", "either = 1")),
        ({"either": "a"}, (' either = "a": ', "whole number", "list of texts", 'either = ["a"]')),
        ({"sizes": ["2"]}, (' sizes.0 = "2": ', "whole number", "quotation marks", "sizes = [2]")),
        ({"flags": {"a": "yes"}}, (' flags.a = "yes": ', "true or false", "quotation marks", "flags = { a = true }")),
        ({"mode": "fats"}, (' mode = "fats": ', '"fast" or "slow"', 'mode = "fast"')),
        ({"mdoe": "fast"}, ("unknown key 'mdoe'", "did you mean 'mode'?")),
    ],
)
def test_types_of_every_kind_are_told_apart(table: dict[str, Any], said: tuple[str, ...]) -> None:
    with pytest.raises(ValidationError) as refused:
        Odd.model_validate(table)
    (problem,) = explain_problems(refused.value, Odd, table)
    assert missing(problem, *said) == []
    assert problem.endswith(said[-1])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[tokenizer]\ntrain_on = "books"', ('train_on = "books": ', "list of texts", 'write train_on = ["books"]')),
        ('[pretrain.books]\nsource = "text"', ("[pretrain.books] ", "'files'", 'files = ["..."]')),
        ('[pretrain.fineweb_edu]\ntrain_tokens = "1_000"', ("whole number", "quotation marks", "write train_tokens = 1000")),
        ("[pretrain.wikitext]\nval_frac = 1.5", ("val_frac = 1.5: ", "at least 0", "less than 1", "val_frac = 0")),
        ('[pretrain.wikitext]\nprepare = "clean"', ('"clean" or "dedup"', 'write prepare = ["clean"]')),
        ('[pretrain.wikitext]\nenabled = "no"', ("true or false", "quotation marks", "write enabled = false")),
        ('[tokenizer]\nmodel_type = "unigarm"', ('"bpe" or "bytelevel_bpe"', 'model_type = "unigram"')),
        ("[build]\nshard_bytes = 3", ("shard_bytes = 3: ", "at least 2", "multiple of 2", "shard_bytes = 134_217_728")),
    ],
)
def test_a_mistake_in_the_file_is_answered_with_the_line_to_write(text: str, said: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "niels_cache.toml"
    path.write_text(f'profile = "default"\n{text}\n', encoding="utf-8")
    with pytest.raises(NielsCacheError) as refused:
        load_registry(config=str(path))
    assert missing(refused.value, *said) == []


def test_a_mistake_at_the_prompt_is_answered_with_the_option_to_type(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from niels_cache_assets.cli import main

    common = ("build-all", "--profile", "default", "--cache-dir", str(tmp_path))
    assert main([*common, "--set", "pretrain.wikitext.prepare=clean"]) == 2
    assert "write --set 'pretrain.wikitext.prepare=[\"clean\"]'\n" in capsys.readouterr().err
    assert main([*common, "--sft-val-frac", "2"]) == 2
    assert missing(capsys.readouterr().err, "at least 0", "less than 1", "--sft-val-frac 0.1\n") == []
