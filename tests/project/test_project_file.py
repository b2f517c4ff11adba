"""A project consists of the data sets in its file. The tests cover the catalog, the fallback, data sets that are switched off, and the
messages.
"""

import json
import os
import re
import shutil
from pathlib import Path

import pytest

from niels_cache_assets.artifacts.input_problems import InputsError, hub_problems, input_problems, require_inputs
from niels_cache_assets.cli import command as exit_codes
from niels_cache_assets.cli import main
from niels_cache_assets.cli.new_config import catalog_table
from niels_cache_assets.project.editing import TableNotWrittenError, set_key
from niels_cache_assets.project.registry import Registry, load_registry
from niels_cache_assets.project.shipped import ABOUT, catalog, profile_tables
from niels_cache_assets.sources.errors import SourceUnavailableError
from niels_cache_assets.sources.hub.data import HubData
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import FAMILIES
from tests.helpers.builds import build_dataset, build_tokenizer
from tests.helpers.messages import missing
from tests.helpers.tiny import sentences

NOTES = '[pretrain.notes]\nsource = "text"\nfiles = ["notes.txt"]\nsample_by = "line"\n'
SMALL = "[tokenizer]\nvocab_size = 380\nsample_bytes = 50_000\n"
OFF = '[pretrain.off]\nsource = "text"\nfiles = ["not there"]\nenabled = false\n'


@pytest.fixture(autouse=True)
def _nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for variable in ("NIELS_CACHE_CONFIG", "NIELS_CACHE_PROFILE", "NIELS_CACHE_ROOT"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))


@pytest.fixture(scope="module")
def caches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the caches after a build of SMALL and NOTES."""
    folder = tmp_path_factory.mktemp("built")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_notes()
        registry = configured(SMALL + NOTES)
        build_tokenizer(registry, root=Path("cache"))
        build_dataset(registry, "notes", root=Path("cache"))
    return folder / "cache"


def configured(text: str) -> Registry:
    Path("niels_cache.toml").write_text(text, encoding="utf-8")
    return load_registry()


def write_notes() -> None:
    Path("notes.txt").write_text("\n".join(sentences(300)), encoding="utf-8")


def names(registry: Registry) -> list[str]:
    return [*registry.pretrain, *registry.sft]


def said(capsys: pytest.CaptureFixture[str], *arguments: str, code: int) -> tuple[str, str]:
    assert main([*arguments]) == code
    output = capsys.readouterr()
    return output.out, output.err


def test_a_file_names_all_data_sets_and_without_any_the_build_says_how_to_name_some(capsys: pytest.CaptureFixture[str]) -> None:
    registry = configured(NOTES)
    assert (names(registry), registry.profile, registry.settings_origin) == (["notes"], None, "niels_cache.toml")
    assert not registry.is_fallback
    assert str(registry.build.cache_dir) == "cache"
    assert names(configured(SMALL)) == []
    told = said(capsys, "build-all", code=exit_codes.WRONG_USE)[1]
    assert missing(told, "niels_cache.toml: ", "no data set", 'profile = "default"') == []


def test_without_a_file_the_default_profile_stands_in_unless_a_profile_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = load_registry()
    assert registry.is_fallback
    assert "no niels_cache.toml in" in registry.without_file
    assert registry.without_file.endswith("niels-cache init")
    assert not load_registry(profile="default").is_fallback
    monkeypatch.setenv("NIELS_CACHE_PROFILE", "default")
    assert not load_registry().is_fallback
    assert names(load_registry()) == names(registry)


def test_a_table_without_source_is_one_of_the_catalog_with_one_line_of_advice(capsys: pytest.CaptureFixture[str]) -> None:
    registry = configured("[pretrain.fineweb_edu]\ntrain_tokens = 7\n[pretrain.wikipedia]\n")
    assert registry.partition_keys("pretrain") == ["fineweb_edu", "wikipedia"], "to name it is to want it"
    fineweb = registry.pretrain["fineweb_edu"]
    assert (fineweb.source, fineweb.train_tokens, fineweb.val_tokens, fineweb.decontaminate) == ("fineweb_edu", 7, 5_000_000, "exact")
    assert len(registry.advice) == 2
    assert registry.advice[0].endswith('add source = "fineweb_edu", decontaminate = "exact"')
    assert said(capsys, "status", code=exit_codes.FAILED)[1].splitlines() == [*registry.advice]
    told_in_file = configured(
        '[pretrain.fineweb_edu]\ntrain_tokens = 7\nsource = "fineweb_edu"\ndecontaminate = "exact"\n'
        '[pretrain.wikipedia]\nsource = "wikipedia"\nprepare = ["clean", "dedup"]\n'
    )
    assert (told_in_file.pretrain, told_in_file.advice) == (registry.pretrain, ())


def test_a_table_with_its_own_source_inherits_nothing() -> None:
    registry = configured('[pretrain.fineweb_edu]\nsource = "fineweb_edu"\n[pretrain.wikitext]\nsource = "text"\nfiles = ["a"]\n')
    assert registry.pretrain["fineweb_edu"].decontaminate == "off"
    assert registry.pretrain["wikitext"].model_dump(exclude_unset=True) == {"source": "text", "files": ["a"]}
    assert not registry.advice


def test_every_data_set_of_every_profile_is_in_the_catalog_and_its_table_says_all_of_it() -> None:
    shipped = {name for profile in ("default", "quickstart") for family in FAMILIES for name in profile_tables(profile).get(family, {})}
    assert shipped == set(catalog()) == set(ABOUT)
    assert re.findall(r"^# (\w+_tokens) = [\d_]+ ", catalog_table("fineweb_edu"), re.MULTILINE) == ["train_tokens", "val_tokens"]
    for name in catalog():
        configured(catalog_table(name))
        whole = load_registry()
        bare = configured(f"[{whole.family_of(name)}.{name}]\n")
        assert whole.source(name) == bare.source(name)
        assert whole.source(name).enabled


def test_the_catalog_is_a_table_tables_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    listed = said(capsys, "init", "--list", code=exit_codes.DONE)[0]
    for name in catalog():
        assert f"\n{name} " in listed
    assert said(capsys, "init", "--list", "wikitext", "oasst1", code=exit_codes.DONE)[0].count("source = ") == 2
    (entry,) = json.loads(said(capsys, "init", "--list", "dolly15k", "--json", code=exit_codes.DONE)[0])["data_sets"]
    assert (entry["family"], entry["from"], entry["licence"]) == ("sft", "databricks/databricks-dolly-15k", "CC BY-SA 3.0")
    assert "did you mean 'wikitext'?" in said(capsys, "init", "--list", "wikitxt", code=exit_codes.WRONG_USE)[1]


@pytest.mark.parametrize(
    "arguments",
    [
        ("build-all", "--only", "wikitext"),
        ("build-all", "--set", "pretrain.wikitext.train_tokens=5"),
        ("build-all", "--wikitext-config", "x"),
        ("build-all", "--set", 'dedup.priority=["wikitext"]'),
        ("status", "wikitext"),
        ("sample", "wikitext"),
        ("clean", "--dropped", "wikitext"),
    ],
)
def test_who_asks_for_a_data_set_of_the_catalog_that_is_not_named_is_told_what_to_add(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    write_notes()
    configured(NOTES)
    told = said(capsys, *arguments, code=exit_codes.WRONG_USE)[1]
    assert missing(told, "'wikitext'", " catalog", "add [pretrain.wikitext] to niels_cache.toml") == []
    assert told.count("\n") == 1


@pytest.mark.parametrize(
    "tables",
    [
        "[blend.mix]\nweights = { notes = 1.0, wikitext = 1.0 }\nsequence_length = 8\nnum_samples = 9\n",
        '[pretrain.mix]\nsource = "interleave"\nmembers = { notes = 1, wikitext = 1 }\n',
        '[tokenizer]\ntrain_on = ["wikitext"]\n',
    ],
)
def test_what_refers_to_a_data_set_of_the_catalog_does_not_add_it(tables: str) -> None:
    with pytest.raises(NielsCacheError, match=r"catalog, .*: add \[pretrain\.wikitext\] to niels_cache\.toml"):
        configured(NOTES + tables)


def test_a_misspelt_name_of_the_catalog_is_found_there() -> None:
    with pytest.raises(NielsCacheError, match=r"'wikitxt'; 'wikitext' .* catalog"):
        configured(NOTES).source("wikitxt")
    with pytest.raises(NielsCacheError, match=r"\[pretrain\.wikitxt\] has no source; .*nearest.* \[pretrain\.wikitext\]"):
        configured("[pretrain.wikitxt]\n")


def test_without_a_file_the_looking_commands_say_so_and_list_what_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    output, told = said(capsys, "status", code=exit_codes.FAILED)
    assert "no niels_cache.toml in " in told
    assert "wikitext" not in output
    assert "--all lists 7 more" in output
    assert "\nwikitext " in said(capsys, "status", "--all", code=exit_codes.FAILED)[0]
    assert not said(capsys, "status", "--quiet", code=exit_codes.FAILED)[1]
    findings = json.loads(said(capsys, "doctor", "--json", code=exit_codes.DONE)[0])["findings"]
    (found,) = [finding for finding in findings if finding["what"] == "configuration"]
    assert found["state"] == "note"
    assert found["mend"].endswith(": niels-cache init")
    assert not [finding for finding in findings if finding["what"] == "hub"], "nothing is asked for what nobody named"


def test_caches_that_the_file_does_not_name_are_listed_as_such(caches: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_notes()
    shutil.copytree(caches, "cache")
    configured(SMALL + NOTES.replace("notes]", "other]"))
    listed = said(capsys, "status", code=exit_codes.FAILED)[0]
    (line,) = [line for line in listed.splitlines() if line.startswith("notes ")]
    assert "not in niels_cache.toml" in line
    rows = {row["name"]: row for row in json.loads(said(capsys, "status", "--json", code=exit_codes.FAILED)[0])["data_sets"]}
    assert (rows["notes"]["condition"], rows["notes"]["note"]) == ("complete", "not in niels_cache.toml")
    assert rows["tokenizer"]["condition"] == "complete", "what it was trained on changes nothing"
    assert missing(rows["tokenizer"]["note"], "notes is not", "changes nothing") == []


def test_what_is_switched_off_is_not_listed_and_only_named_where_it_is_asked_for(caches: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_notes()
    shutil.copytree(caches, "cache")
    registry = configured(SMALL + NOTES + OFF)
    assert (registry.partition_keys("pretrain"), registry.switched_off()) == (["notes"], ["off"])
    output = said(capsys, "status", code=exit_codes.DONE)[0]
    assert missing(output, "--all lists 1 more") == []
    assert "\noff " not in output
    assert "\noff " in said(capsys, "status", "--all", code=exit_codes.DONE)[0]
    assert '"name": "off"' in said(capsys, "status", "off", "--json", code=exit_codes.DONE)[0]
    told = said(capsys, "build-all", "--only", "off", code=exit_codes.WRONG_USE)[1]
    assert missing(told, "off is switched", "enabled = true in [pretrain.off]", "--set pretrain.off.enabled=true") == []
    told = said(capsys, "show", "off", code=exit_codes.WRONG_USE)[1]
    assert missing(told, "switched off", "enabled = true in [pretrain.off]") == []


WRONG = """
[pretrain.missing]
source = "text"
files = ["no/*.txt"]
[pretrain.column]
source = "jsonl"
path = "rows.jsonl"
text_field = "txt"
[pretrain.number]
source = "jsonl"
path = "rows.jsonl"
text_field = "n"
[sft.bots]
source = "chat_jsonl"
path = "bots.jsonl"
[sft.form]
source = "chat_jsonl"
path = "rows.jsonl"
"""
EXPECTED = {
    "pretrain.missing": ("'no/*.txt'", "no file"),
    "pretrain.column": ("'txt'", "set text_field ", " of: text", "n"),
    "pretrain.number": ("rows.jsonl: row 0: ", "'n' holds numbers", "set text_field ", " of: text"),
    "sft.bots": ("(human)", "assistant (gpt)", "first 1 row"),
    "sft.form": ("'messages'", "set messages_field ", " of: text", "n"),
}


def write_wrong_data() -> None:
    Path("rows.jsonl").write_text('{"text": "a", "n": 1}\n')
    Path("bots.jsonl").write_text('{"messages": [{"role": "bot", "content": "a"}]}\n')


def test_all_that_can_be_known_is_said_at_once_before_a_tokenizer_is_trained(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_notes()
    write_wrong_data()
    registry = configured(SMALL + NOTES + WRONG)
    found = {problem.table: problem.message for problem in input_problems(registry)}
    assert list(found) == list(EXPECTED)
    for table, parts in EXPECTED.items():
        assert missing(found[table], *parts) == []
    told = said(capsys, "build-all", code=exit_codes.WRONG_USE)[1].splitlines()
    assert missing(told[0], "niels_cache.toml: 5 data sets", "enabled = false") == []
    assert [line.partition("]")[0] for line in told[1:]] == [f"niels-cache: [{table}" for table in EXPECTED]
    assert not Path("cache/tokenizer").exists()
    findings = json.loads(said(capsys, "doctor", "--offline", "--json", code=exit_codes.FAILED)[0])["findings"]
    assert [finding["found"].partition("]")[0] for finding in findings if finding["what"] == "data"] == [f"[{table}" for table in EXPECTED]


ANSWERED = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
TOOL = {"messages": [{"role": "tool", "content": "a"}]}
PAIR = {"instruction": "a", "output": "b"}
PAIRS = 'source = "chat_jsonl"\ninstruction_field = "instruction"\noutput_field = "output"\nsystem_field = "system"'


@pytest.mark.parametrize(
    ("table", "rows", "expected"),
    [
        ('[pretrain.a]\nsource = "jsonl"', [{"text": 5}] * 200 + [{"text": "a"}], None),
        ('[sft.a]\nsource = "chat_jsonl"', [TOOL] * 200 + [ANSWERED], None),
        ('[sft.a]\nsource = "chat_jsonl"', [{"other": 1}] * 200 + [ANSWERED], None),
        (f"[sft.a]\n{PAIRS}", [PAIR] * 200 + [{**PAIR, "system": "s"}], None),
        (f"[sft.a]\n{PAIRS}", [PAIR] * 10_001, None),  # the rest of the rows is not read
        (f"[sft.a]\n{PAIRS}", [PAIR] * 200, "of: instruction"),
        ('[sft.a]\nsource = "chat_jsonl"', [TOOL] * 10_001, "first 10,000 rows"),
    ],
    ids=["text", "roles", "field", "optional", "unknown", "no optional field", "no role"],
)
def test_rows_that_a_build_only_counts_do_not_hold_it_up_because_they_come_first(
    table: str, rows: list[object], expected: str | None
) -> None:
    Path("a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    problems = [problem.message for problem in input_problems(configured(f'{table}\nfiles = ["a.jsonl"]\n'))]
    assert len(problems) == (0 if expected is None else 1)
    assert not expected or expected in problems[0]


def test_a_pipe_is_refused_and_not_waited_for() -> None:
    os.mkfifo("pipe")
    kinds = ("pretrain", "text"), ("pretrain", "parquet"), ("sft", "chat_jsonl")
    tables = (f'[{family}.{kind}]\nsource = "{kind}"\nfiles = ["pipe"]\n' for family, kind in kinds)
    problems = [problem.message for problem in input_problems(configured("".join(tables)))]
    assert [missing(problem, "pipe: ", "regular") for problem in problems] == [[]] * 3


def test_what_is_neither_built_nor_sampled_holds_up_nothing() -> None:
    write_notes()
    write_wrong_data()
    registry = configured(f'{SMALL}train_on = ["notes"]\n{NOTES}{WRONG}')
    require_inputs(registry, ["notes"])
    with pytest.raises(InputsError) as told:
        require_inputs(registry, ["notes", "missing"])
    assert len(told.value.lines) == 2


def test_a_built_tokenizer_lets_the_others_be_built_beside_one_that_is_broken(caches: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_notes()
    shutil.copytree(caches / "tokenizer", "cache/tokenizer")
    configured(SMALL + NOTES + WRONG.partition("[pretrain.column]")[0] + OFF + "[dagster]\nplots = false\n")
    output = said(capsys, "build-all", "--quiet", code=exit_codes.FAILED)[0]
    rows = [line.split()[:2] for line in output.splitlines() if line][2:5]
    assert [(row[0], row[1]) for row in rows] == [("tokenizer", "cache"), ("notes", "built"), ("missing", "failed")]
    assert {path.name for path in Path("cache/pretrain").glob("[!.]*")} == {"notes"}, "neither what is broken nor what is switched off"


WEB = '[pretrain.web]\nsource = "huggingface"\ndataset = "nobody/nothing"\ntrain_tokens = 10\n'


def test_a_hub_that_is_away_is_no_finding_and_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    write_notes()
    registry = configured(SMALL + NOTES + WEB + WEB.replace("web]", "mirror]"))
    asked: list[str] = []

    def away(self: HubData, siblings: object) -> str:
        asked.append(self.dataset)
        raise SourceUnavailableError("away")

    monkeypatch.setattr(HubData, "revision", away)
    assert [problem.is_unreachable for problem in hub_problems(registry)] == [True]
    require_inputs(registry, [])
    assert asked == ["nobody/nothing"] * 2, "once each time"


def test_files_and_path_are_one_key_and_a_folder_is_what_it_holds(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "a.jsonl").write_text('{"text": "a"}\n')
    (folder / "b.txt").write_text("b")
    (folder / "n.md").write_text("c")
    said_so = ['files = ["data/**/*.jsonl"]', 'files = ["data"]', 'files = "data"', 'path = "data"', 'path = ["data"]']
    registries = [configured(f'[pretrain.rows]\nsource = "jsonl"\n{line}\n') for line in said_so]
    assert {registry.pretrain["rows"].revision({}) for registry in registries} == {registries[0].pretrain["rows"].revision({})}
    assert all(registry.pretrain["rows"].identity() == registries[0].pretrain["rows"].identity() for registry in registries)
    notes = [configured(f'[pretrain.n]\nsource = "markdown_folder"\n{line}\n') for line in ('path = "data"', 'files = ["data"]')]
    assert notes[0].pretrain["n"] == notes[1].pretrain["n"]
    for line, message in (('files = ["a", "b"]', "path is one place; give one, not 2"), ('files = "a"\npath = "a"', "are one key")):
        with pytest.raises(NielsCacheError, match=message):
            configured(f'[pretrain.n]\nsource = "markdown_folder"\n{line}\n')


@pytest.mark.parametrize(
    ("text", "edited"),
    [
        ("", '[sft.chats]\nexclude = "erased/chats.txt"\n'),
        ("[sft.chats]\r\nval_frac = 0.1  # a tenth\r\n", '[sft.chats]\r\nval_frac = 0.1  # a tenth\r\nexclude = "erased/chats.txt"\r\n'),
        ("sft = { chats = { val_frac = 0.1 } }\n", 'sft = { chats = { val_frac = 0.1, exclude = "erased/chats.txt"} }\n'),
        ('[sft.chats]\nexclude = "old.txt"\n', '[sft.chats]\nexclude = "erased/chats.txt"\n'),
        ("[sft]\nchats = 1\n", None),
    ],
)
def test_a_key_is_set_and_nothing_else_changes(tmp_path: Path, text: str, edited: str | None) -> None:
    path = tmp_path / "niels_cache.toml"
    path.write_bytes(text.encode())
    if edited is None:
        with pytest.raises(TableNotWrittenError, match="yourself"):
            set_key(path, "sft", "chats", "exclude", "erased/chats.txt")
        assert path.read_bytes() == text.encode()
        return
    assert set_key(path, "sft", "chats", "exclude", "erased/chats.txt") == path
    assert path.read_bytes().decode() == edited
    assert set_key(path, "sft", "chats", "exclude", "erased/chats.txt") == path
    assert path.read_bytes().decode() == edited
