"""Configuration: layers, names, paths, and one clear line for every mistake."""

from pathlib import Path

import pytest

from niels_cache_assets.base import defaults
from niels_cache_assets.project.registry import apply_run_settings, cache_root, load_registry
from niels_cache_runtime.errors import NielsCacheError
from tests.helpers.messages import missing


@pytest.fixture(autouse=True)
def _nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for variable in ("NIELS_CACHE_CONFIG", "NIELS_CACHE_PROFILE", "NIELS_CACHE_ROOT"):
        monkeypatch.delenv(variable, raising=False)


def write(text: str, folder: Path = Path()) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "niels_cache.toml").write_text(text, encoding="utf-8")
    return folder / "niels_cache.toml"


def test_the_default_profile_is_the_design_and_roam_waits_for_its_path() -> None:
    registry = load_registry()
    assert list(registry.pretrain) == ["fineweb_edu", "roam", "wikitext", "gutenberg", "wikipedia"]
    assert registry.partition_keys("pretrain") == ["fineweb_edu", "wikitext"]
    assert registry.partition_keys("sft") == ["dolly15k", "oasst1"]
    assert "path" in registry.unconfigured()["roam"]
    assert not registry.pretrain["gutenberg"].enabled
    fineweb = registry.pretrain["fineweb_edu"]
    assert (fineweb.train_tokens, fineweb.val_tokens, fineweb.shuffle_buffer) == (200_000_000, 5_000_000, 10_000)
    assert (registry.build.seed, registry.build.shard_bytes, registry.tokenizer.vocab_size) == (42, 134_217_728, 16_000)


def test_tables_of_a_user_add_to_the_shipped_ones_change_them_or_replace_them() -> None:
    replaced = '[pretrain.wikitext]\nsource = "jsonl"\nfiles = ["x.jsonl"]\n'
    write('[pretrain.roam]\npath = "/graph"\n[pretrain.fineweb_edu]\ntrain_tokens = 7\n[sft.mine]\nsource = "dolly15k"\n' + replaced)
    registry = load_registry()
    assert registry.partition_keys("sft")[-1] == "mine"
    assert registry.pretrain["wikitext"].source == "jsonl"
    with pytest.raises(NielsCacheError, match="did you mean 'wikitext'"):
        registry.family_of("wikitxt")
    with pytest.raises(NielsCacheError, match=r"nowhere\.toml"):
        load_registry(config="nowhere.toml")
    assert "roam" in registry.partition_keys("pretrain")
    assert (registry.pretrain["fineweb_edu"].train_tokens, registry.pretrain["fineweb_edu"].val_tokens) == (7, defaults.FINEWEB_VAL_TOKENS)


def test_relative_paths_are_relative_to_the_file_and_those_typed_to_the_folder(tmp_path: Path) -> None:
    config = write('[pretrain.a]\nsource = "jsonl"\nfiles = ["x.jsonl", "s3://bucket/y.jsonl"]\n', tmp_path / "conf")
    registry = load_registry(config=str(config), overrides={"pretrain": {"b": {"source": "jsonl", "files": ["z.jsonl"]}}})
    assert list(registry.pretrain["a"].files) == [str(tmp_path / "conf/x.jsonl"), "s3://bucket/y.jsonl"]  # type: ignore[attr-defined]
    assert list(registry.pretrain["b"].files) == [str(tmp_path / "z.jsonl")]  # type: ignore[attr-defined]
    typed = load_registry(config=str(config), overrides={"pretrain": {"a": {"exclude": "ids.txt"}}})
    assert typed.pretrain["a"].exclude == str(tmp_path / "ids.txt")


def test_the_file_is_found_here_or_by_its_variable_and_quickstart_reads_it_only_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    config = write('[sft.mine]\nsource = "chat_jsonl"\nfiles = ["x.jsonl"]\n')
    assert "mine" in load_registry().sft
    assert "mine" not in load_registry(profile="quickstart").sft
    assert "mine" in load_registry(profile="quickstart", config=str(config)).sft
    monkeypatch.setenv("NIELS_CACHE_CONFIG", str(config))
    assert "mine" in load_registry(profile="quickstart").sft


def test_the_profile_comes_from_argument_variable_or_file(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_registry().profile == "default"
    write('profile = "quickstart"\n')
    assert load_registry().profile == "quickstart"
    monkeypatch.setenv("NIELS_CACHE_PROFILE", "default")
    assert load_registry().profile == "default"
    assert load_registry(profile="quickstart").profile == "quickstart"


def test_the_root_comes_from_flag_variable_or_file(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = load_registry()
    assert cache_root(registry) == Path("cache")
    assert cache_root(load_registry(profile="quickstart")) == Path("cache/quickstart")
    monkeypatch.setenv("NIELS_CACHE_ROOT", "elsewhere")
    assert cache_root(registry) == Path("elsewhere")
    assert cache_root(registry, "flag") == Path("flag")
    assert cache_root(registry, "~/flag") == Path("~/flag").expanduser()
    assert cache_root(load_registry(profile="quickstart")) == Path("elsewhere/quickstart"), "never shares a tokenizer with the real caches"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ('[pretrain.x]\nsource = "jsnl"\n', ["niels_cache.toml", "[pretrain.x]", "'jsnl'", "did you mean 'jsonl'"]),
        ('[pretrain.x]\nsource = "jsonl"\nfile = ["a"]\n', ["[pretrain.x]", "'file'", "did you mean 'files'"]),
        ('[pretrain.x]\nfiles = ["a"]\n', ["[pretrain.x]", "no source"]),
        ('[pretrain.x]\nsource = "jsonl"\nfiles = ["a"]\ntrain_tokens = 0\n', ["train_tokens", "0"]),
        ('[pretrain.x]\nsource = "jsonl"\nfiles = ["a"]\nval_tokens = -1\n', ["val_tokens", "-1"]),
        ('[pretrain.x]\nsource = "jsonl"\nfiles = ["a"]\ntrain_tokens = 5\nval_frac = 0.1\n', ["[pretrain.x]", "not both"]),
        ('[pretrain.".hidden"]\nsource = "jsonl"\nfiles = ["a"]\n', ["pretrain..hidden", "not a valid"]),
        ('[pretrain."a...b"]\nsource = "jsonl"\nfiles = ["a"]\n', ["pretrain.a...b", "not a valid"]),
        ('[pretrain.tokenizer]\nsource = "jsonl"\nfiles = ["a"]\n', ["pretrain.tokenizer", "choose another"]),
        ('[pretrain.x]\nsource = "jsonl"\nfiles = [""]\n', ["[pretrain.x]", "files.0", "is empty"]),
        ("[build]\nseed = 10000000000000000000000\n", ["[build]", "seed"]),
        ('[tokenizer]\nspecial_tokens = {sys = "x"}\n', ["[tokenizer]", "special_tokens", "at least eot"]),
        ("profile = 3\n", ["no profile", "'3'"]),
        ('[pretrain."a/b"]\nsource = "jsonl"\nfiles = ["a"]\n', ["pretrain.a/b", "not a valid"]),
        ('[pretrian.x]\nsource = "jsonl"\n', ["unknown table", "'pretrian'", "did you mean 'pretrain'"]),
        ("[build]\nshard_bytes = 3\n", ["[build]", "shard_bytes", "3"]),
        ("[build]\nshards = 3\n", ["[build]", "'shards'"]),
        ("[tokenizer]\nvocab_size = 3000000000\n", ["[tokenizer]", "vocab_size", "3000000000"]),
        ('profile = "default"\n[tokenizer]\ntrain_on = ["wikitxt"]\n', ["train_on", "'wikitxt'", "did you mean 'wikitext'"]),
        ('profile = "quick"\n', ["no profile", "'quick'", "did you mean 'quickstart'"]),
        ('[pretrain.wikitext]\n[sft.wikitext]\nsource = "dolly15k"\n', ["wikitext", "both"]),
        ("[pretrain\n", ["not valid TOML"]),
        ("pretrain = 3\n", ["pretrain", "a table"]),
        ('[pretrain.duplicates]\nsource = "text"\nfiles = ["a"]\nprepare = ["clean"]', ["[pretrain.duplicates]", "reserved"]),
    ],
)
def test_a_mistake_is_one_line_that_names_it_and_the_nearest_choice(text: str, parts: list[str]) -> None:
    write(text)
    with pytest.raises(NielsCacheError) as caught:
        load_registry()
    message = str(caught.value)
    assert "\n" not in message
    assert missing(message, *parts) == []


MIX = '[pretrain.mix]\nsource = "interleave"\nmembers = { plain = 1, notes = 1 }\nprepare = ["dedup"]\n'
MEMBERS = '[pretrain.plain]\nsource = "jsonl"\nfiles = ["b"]\n[pretrain.notes]\nsource = "jsonl"\nfiles = ["a"]\nprepare = %s\n'


def test_an_interleave_and_its_member_are_not_both_deduplicated() -> None:
    for text in (MIX + MEMBERS % '["clean", "dedup"]', MEMBERS % '["dedup"]' + MIX):
        write(text)
        with pytest.raises(NielsCacheError, match=r"\[pretrain\.mix\]: mix .* notes .*dedup.* prepare"):
            load_registry()
    for text in (MIX + MEMBERS % '["clean"]', (MIX + MEMBERS % '["dedup"]').replace('["dedup"]', '["clean"]', 1)):
        write(text)
        assert load_registry().pretrain["mix"].prepare


def test_a_wrong_profile_is_blamed_on_what_named_it(monkeypatch: pytest.MonkeyPatch) -> None:
    write('profile = "quick"\n')
    for blamed in ("niels_cache.toml", "NIELS_CACHE_PROFILE", "--profile"):  # each wins over those before it
        if blamed.startswith("NIELS"):
            monkeypatch.setenv(blamed, "quick")
        with pytest.raises(NielsCacheError, match=f"^{blamed}: .*'quick'.*'quickstart'"):
            load_registry(profile="quick" if blamed == "--profile" else None)


def test_run_settings_replace_keys_and_none_keeps_the_registrys() -> None:
    source = load_registry().pretrain["fineweb_edu"]
    changed = apply_run_settings(source, {"train_tokens": 11, "val_tokens": None})
    assert (changed.train_tokens, changed.val_tokens) == (11, source.val_tokens)
    assert apply_run_settings(source, {"train_tokens": None}) is source
    with pytest.raises(NielsCacheError, match="train_tokens"):
        apply_run_settings(source, {"train_tokens": 0})


def test_all_misspelt_keys_of_a_table_are_told_and_not_what_they_leave_missing() -> None:
    write('[pretrain.mine]\nsource = "jsonl"\nfiels = ["x.jsonl"]\nval_farc = 0.1\n')
    with pytest.raises(NielsCacheError) as told:
        load_registry()
    assert missing(told.value, "niels_cache.toml: [pretrain.mine] ", "'fiels'", "'files'", "'val_farc'", "'val_frac'") == []
    assert str(told.value).count(" has ") == 2, "no word of what is missing"
