"""A hostile or random niels_cache.toml. Each value is refused in one line, or the result is a registry that works."""

import math
import re
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, ValidationError

from niels_cache_assets.base.toml import parse_toml
from niels_cache_assets.cleaning.settings import CleaningSettings
from niels_cache_assets.dedup.settings import DedupSettings
from niels_cache_assets.project import tables
from niels_cache_assets.project.problems import explain_problems
from niels_cache_assets.project.registry import Registry, is_valid_name, load_registry
from niels_cache_assets.project.running import ClusterSettings, NotifySettings
from niels_cache_assets.sources import PRETRAIN_SOURCES, SFT_SOURCES
from niels_cache_assets.tokenizer.settings import TokenizerSettings
from niels_cache_runtime import NielsCacheError
from tests.helpers.hostile import CASES, TEXTS, Draws, fuzz
from tests.helpers.messages import missing

_VALUES = ["true", "false", "0", "1", "-1", "9223372036854775808", "1e400", "nan", "inf", "-0.0", "0.5", "[]", "[[]]", "{}", "{ a = 1 }"]
_VALUES += [
    "1979-05-27",
    "07:32:00",
    "'~nobody-of-that-name/x'",
    "'$HOME'",
    "'https://'",
    "'hf://x'",
    "['../x']",
    "{ a = inf }",
    "{ a = nan }",
]
_VALUES += ["'" + text.replace("\0", "") + "'" for text in TEXTS if text.isprintable()] + ['"a\\u0000b"', '"a\\nb"', "'" + "[" * 50 + "'"]
_TABLES = ["build", "tokenizer", "cleaning", "dedup", "pretrain.notes", "sft.chats", "blend.mix", "reports", "cluster", "notify"]
_TABLES += ["pretrain", "sft", "blend", "other", "pretrain.'../x'", 'pretrain."a\\u0000b"', "pretrain.''", "sft.'.x'", "blend.'a/b'"]
_TABLES += ["pretrain.tokenizer", "sft.notes"]
_SOURCES = {**PRETRAIN_SOURCES, **SFT_SOURCES}
_SETTINGS = [tables.BuildSettings, TokenizerSettings, CleaningSettings, DedupSettings, tables.BlendSettings]
_SETTINGS += [tables.ReportsSettings, tables.DagsterSettings, ClusterSettings, NotifySettings]
_KEYS = [*sorted({key for model in (*_SETTINGS, *_SOURCES.values()) for key in model.model_fields}), "title", "revision", "''"]


def config(draws: Draws) -> str:
    """TOML of a few tables; some of it valid, some not even TOML."""
    lines = [f"profile = {draws.of(_VALUES)}"] if draws.integer(0, 9) == 9 else []
    for table in draws.shuffled(_TABLES)[: draws.integer(0, 4)]:
        lines.append(f"[{table}]")
        if "." in table and draws.integer(0, 3):
            lines.append(f"source = '{draws.of([*_SOURCES, 'hub_text'])}'")
        for key in draws.shuffled(_KEYS)[: draws.integer(0, 4)]:
            lines.append(f"{key} = {draws.of(_VALUES)}")
    text = "\n".join(lines)
    if draws.integer(0, 9) == 9:
        place = draws.integer(0, len(text))
        text = text[:place] + draws.of(["[", "]", "=", "'", '"', "\\", "\r", "\t", "#", "."]) + text[place:]
    return text


def ask(registry: Registry) -> None:
    """Ask a registry for the values that every command needs before it opens a file."""
    for family in ("pretrain", "sft"):
        for name in registry.datasets(family):
            assert is_valid_name(name)
            source = registry.source(name)
            source.identity()
            source.describe()
            source.missing_setting()
        registry.partition_keys(family)
    registry.prepared()
    registry.blend_keys()
    registry.unconfigured()
    settings = [registry.build, registry.tokenizer, registry.cleaning, registry.dedup, registry.reports, registry.dagster]
    settings += [registry.cluster, registry.notify]
    for table in [*settings, *registry.pretrain.values(), *registry.sft.values(), *registry.blend.values()]:
        assert all(math.isfinite(value) for value in table.model_dump().values() if isinstance(value, float))


@pytest.mark.parametrize("profile", ["default", "quickstart"])
@pytest.mark.parametrize("cases", CASES)
def test_any_configuration_is_refused_in_one_line_or_can_be_asked(tmp_path: Path, profile: str, cases: int) -> None:
    path, accepted = tmp_path / "niels_cache.toml", 0

    def check(text: str) -> None:
        nonlocal accepted
        path.write_text(text, encoding="utf-8", newline="")
        try:
            registry = load_registry(profile=profile, config=str(path))
        except NielsCacheError as error:
            message = str(error)
            assert len(message.splitlines()) == 1, message
            return
        accepted += 1
        ask(registry)

    fuzz(cases, config, check)
    assert accepted


@pytest.mark.parametrize("name", ["../x", "a/b", "a\\b", ".x", "", "a..b", "a\0b", "a\n", "ü", " ", "x" * 300])
def test_a_name_that_is_no_folders_name_is_refused(tmp_path: Path, name: str) -> None:
    overrides: dict[str, Any] = {"pretrain": {name: {"source": "text", "files": ["a.txt"]}}}
    with pytest.raises(NielsCacheError, match="valid name") as caught:
        load_registry(profile="quickstart", overrides=overrides)
    assert len(str(caught.value).splitlines()) == 1


def test_a_byte_order_mark_that_an_editor_wrote_is_no_part_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "niels_cache.toml").write_bytes(b"\xef\xbb\xbf[build]\nseed = 7\n")
    assert load_registry(config=str(tmp_path / "niels_cache.toml")).build.seed == 7


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[pretrain.notes]\nsource = 'text'\nfiles = [\"a\\u0000b\"]", "holds a NUL"),
        ("[build]\ncache_dir = '~nobody-of-that-name/x'", "no home directory"),
        ("[build]\nseed = " + "9" * 5000, "more than 64 bits"),
        ("[build]\nseed = 0x" + "f" * 5000, r"64 bits: build\.seed"),
        ("a = " + "[" * 5000, "nested too deeply|not valid TOML"),
        ("a.b" * 3000 + " = 1", "not valid TOML|unknown table"),
        ("[pretrain.mix]\nsource = 'interleave'\nmembers = { wikitext = inf }", "finite|infinity"),
        ("[pretrain.mix]\nsource = 'interleave'\nmembers = { wikitext = nan }", "nan|finite"),
        ("[build]\nnetwork_patience = inf", r"build\.network_patience|network_patience = inf"),
    ],
)
def test_a_value_that_would_be_found_out_late_is_refused_at_once(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "niels_cache.toml").write_text(text)
    with pytest.raises(NielsCacheError, match=message) as caught:
        load_registry(profile="default", config=str(tmp_path / "niels_cache.toml"))
    assert len(str(caught.value).splitlines()) == 1


# Every value of a wrong type is answered with what it must be, and a text that works when it is typed.


MODELS: tuple[type[BaseModel], ...] = (
    *PRETRAIN_SOURCES.values(),
    *SFT_SOURCES.values(),
    *(tables.BuildSettings, TokenizerSettings, CleaningSettings, DedupSettings, tables.BlendSettings),
    *(tables.ReportsSettings, tables.DagsterSettings, ClusterSettings, NotifySettings),
)
VALUES: tuple[Any, ...] = ("abc", "5", "0.5", "true", 5, -1, 2.5, 1e300, float("nan"), True, ["x"], [5], {"a": 1}, {"a": "0.5"}, [], {})


def told(model: type[BaseModel], table: dict[str, Any], key: str) -> list[str]:
    """Return the message about this key."""
    try:
        model.model_validate(table)
    except ValidationError as error:
        return [said for said in explain_problems(error, model, table) if re.match(rf" {key}[. ]", said)]
    return []


class Plugin(BaseModel):
    """A table with a type that has no JSON Schema, and with a date, which TOML writes without quotation marks."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    registry: Registry | None = None
    since: date | None = None
    days: int = 3


def test_a_table_of_a_plug_in_with_any_types_has_the_same_messages() -> None:
    assert told(Plugin, {"days": "x"}, "days") == [
        ' days = "x": must be a whole number, without quotation marks; write, for example, days = 3'
    ]
    assert told(Plugin, {"since": "x"}, "since") == [' since = "x": must be a date']
    assert len(told(Plugin, {"registry": 5}, "registry")) == 1


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


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[tokenizer]\ntrain_on = "books"', ('train_on = "books": ', "list of texts", 'write train_on = ["books"]')),
        ('[pretrain.books]\nsource = "text"', ("[pretrain.books] ", "'files'", 'files = ["..."]')),
        ('[pretrain.fineweb_edu]\ntrain_tokens = "1_000"', ("whole number", "quotation marks", "write train_tokens = 1000")),
        ("[pretrain.wikitext]\nval_frac = 1.5", ("val_frac = 1.5: ", "at least 0", "less than 1", "val_frac = 0")),
        ('[pretrain.wikitext]\nprepare = "clean"', ('"clean", "dedup", "lines" or "spans"', 'write prepare = ["clean"]')),
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
