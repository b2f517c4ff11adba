"""A hostile or random niels_cache.toml. Each value is refused in one line, or the result is a registry that works."""

import math
from pathlib import Path
from typing import Any

import pytest

from niels_cache_assets.config.registry import Registry, is_valid_name, load_registry
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
from niels_cache_assets.sources import PRETRAIN_SOURCES, SFT_SOURCES
from niels_cache_runtime import NielsCacheError
from tests.hostile import CASES, TEXTS, Draws, fuzz

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
_TABLES = [
    "build",
    "tokenizer",
    "cleaning",
    "dedup",
    "pretrain.notes",
    "sft.chats",
    "blend.mix",
    "reports",
    "cluster",
    "notify",
    "pretrain",
    "sft",
    "blend",
    "other",
    "pretrain.wiki",
]
_TABLES += [
    "pretrain.'../x'",
    "pretrain.'/x'",
    'pretrain."a\\u0000b"',
    "pretrain.''",
    "sft.'.x'",
    "blend.'a/b'",
    "pretrain.tokenizer",
    "sft.notes",
]
_SOURCES = {**PRETRAIN_SOURCES, **SFT_SOURCES}
_SETTINGS = [BuildSettings, TokenizerSettings, CleaningSettings, DedupSettings, BlendSettings, ReportsSettings, DagsterSettings]
_SETTINGS += [ClusterSettings, NotifySettings]
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
    tables = [registry.build, registry.tokenizer, registry.cleaning, registry.dedup, registry.reports, registry.dagster]
    tables += [registry.cluster, registry.notify]
    for table in [*tables, *registry.pretrain.values(), *registry.sft.values(), *registry.blend.values()]:
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


@pytest.mark.parametrize("source", ["[]", "{}", "7"])
def test_an_unknown_table_with_a_source_that_is_no_name_is_refused(tmp_path: Path, source: str) -> None:
    (tmp_path / "c.toml").write_text(f"[other]\nsource = {source}\n", encoding="utf-8")
    with pytest.raises(NielsCacheError, match="other"):
        load_registry(profile="quickstart", config=str(tmp_path / "c.toml"))


def test_a_date_where_a_data_set_belongs_is_refused(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("[pretrain]\nnotes = 1979-05-27\n", encoding="utf-8")
    with pytest.raises(NielsCacheError, match=r"c\.toml.* notes = \"1979-05-27\""):
        load_registry(profile="quickstart", config=str(tmp_path / "c.toml"))


@pytest.mark.parametrize("name", ["../x", "/etc", "a/b", "a\\b", ".x", "..", ".", "", "a..b", "a\0b", "a\nb", "a\n", "ü", " ", "x" * 300])
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
    ],
)
def test_a_value_that_would_be_found_out_late_is_refused_at_once(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "niels_cache.toml").write_text(text)
    with pytest.raises(NielsCacheError, match=message) as caught:
        load_registry(profile="default", config=str(tmp_path / "niels_cache.toml"))
    assert len(str(caught.value).splitlines()) == 1
