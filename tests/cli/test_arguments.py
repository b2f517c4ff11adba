"""The command line in this process, with a fake launcher. Flags become settings, mistakes become one line, and results become a table.

test_build_all.py has real builds.
"""

import re
import shlex
import subprocess
import sys
from dataclasses import replace
from itertools import chain
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from niels_cache_assets.base import defaults
from niels_cache_assets.build_cache import Progress
from niels_cache_assets.cli import command as exit_codes
from niels_cache_assets.cli import main, parser
from niels_cache_assets.cli.overrides import FLAGS, parse_value
from niels_cache_assets.cli.parser import parse_arguments
from niels_cache_assets.cli.progress import LineListener
from niels_cache_assets.project.registry import Registry, load_registry
from tests.helpers.hand_made import write_cache
from tests.helpers.messages import missing

ENVIRONMENT = {"PYTHONPATH": str(Path(__file__).parents[2])}
LOADED = "print([name for name in ('torch', 'dagster', 'datasets', 'pyarrow', 'pydantic', 'rich', 'numpy') if name in sys.modules])"
COMMANDS = tuple(name for commands in parser.COMMANDS.values() for name in commands)
PRETRAIN_META = {
    "kind": "pretrain",
    "built": True,
    "train_tokens": 1_234_567,
    "val_tokens": 89,
    "shard_bytes": 2_000,
    "files": {"train/shard_00000.bin": {"bytes": 2_000, "sha256": "a" * 64}},
    "content_sha256": "0123456789abcdef" * 4,
}


def result(name: str, state: str = "built", **changes: Any) -> SimpleNamespace:
    """Return a result as the launcher would return it for a pretrain data set."""
    given = {"family": "pretrain", "meta": PRETRAIN_META, "directory": Path("cache/pretrain") / name, "seconds": 1.5, "message": None}
    nothing_left_out = {"left_out": None, "drop_warnings": ()}
    return SimpleNamespace(name=name, state=state, **{**given, **nothing_left_out, **changes})


class FakeLauncher:
    """A launcher that records its arguments, and returns the given results."""

    def __init__(self) -> None:
        self.results: list[SimpleNamespace] = []
        self.registry: Registry | None = None
        self.given: dict[str, Any] = {}

    def launch_builds(self, registry: Registry, *, listener: Any, **given: Any) -> list[Any]:
        self.registry, self.given = registry, given
        return self.results


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> FakeLauncher:
    fake = FakeLauncher()
    module = ModuleType("niels_cache_assets.defs.launcher")
    module.launch_builds = fake.launch_builds  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return fake


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test runs in a folder of its own, without this machine's settings."""
    for variable in ("NIELS_CACHE_PROFILE", "NIELS_CACHE_CONFIG", "NIELS_CACHE_ROOT", "DAGSTER_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def build(launcher: FakeLauncher, *arguments: str) -> Registry:
    """The registry that build-all makes of these arguments."""
    assert main(["build-all", *arguments]) == 0
    assert launcher.registry is not None
    return launcher.registry


def test_only_force_wait_and_cache_dir_go_to_the_launcher(launcher: FakeLauncher) -> None:
    registry = build(launcher)
    assert registry.is_fallback
    assert replace(registry, is_fallback=False, advice=()) == load_registry(profile="default")
    assert launcher.given == {"root": Path("cache"), "only": None, "force": False, "wait": False, "record": False}
    build(launcher, "--only", "wikitext", "tokenizer", "--force", "--wait", "--cache-dir", "elsewhere")
    assert launcher.given == {"root": Path("elsewhere"), "only": ["wikitext", "tokenizer"], "force": True, "wait": True, "record": False}


def test_every_flag_reaches_its_key(launcher: FakeLauncher) -> None:
    values = {"seed": "7", "shard_bytes": "1_024", "threads": "3", "vocab_size": "1_000", "model_type": "bpe", "character_coverage": "0.5"}
    values |= {"train_tokens": "10_000", "val_tokens": "0", "val_frac": "0.25"}
    values |= {"shuffle_buffer": "99", "sft.*.val_frac": "0.2"}
    special = {role: f"<{role}>" for role in defaults.ROLE_KEYS}
    arguments: list[str] = []
    for flag in chain.from_iterable(FLAGS.values()):
        key = flag.key.rpartition(".")[2]
        if key == "special_tokens":
            arguments += [flag.option, *(f"{role}={token}" for role, token in special.items())]
        else:
            arguments += [flag.option, values.get(flag.key, values.get(key, "given"))]
    registry = build(launcher, *arguments)
    assert (registry.build.seed, registry.build.shard_bytes, registry.build.threads) == (7, 1024, 3)
    tokenizer = registry.tokenizer
    assert (tokenizer.vocab_size, tokenizer.model_type, tokenizer.character_coverage) == (1000, "bpe", 0.5)
    assert tokenizer.special_tokens == special
    assert tokenizer.model == str(Path.cwd() / "given")
    fineweb, roam, gutenberg = (registry.pretrain[name].model_dump() for name in ("fineweb_edu", "roam", "gutenberg"))
    expected = {"dataset": "given", "config": "given", "train_tokens": 10_000, "val_tokens": 0, "shuffle_buffer": 99}
    assert {key: fineweb[key] for key in expected} == expected
    assert registry.pretrain["wikitext"].model_dump()["config"] == "given"
    assert (roam["path"], roam["val_frac"]) == (str(Path.cwd() / "given"), 0.25)
    assert (gutenberg["path"], gutenberg["enabled"]) == (str(Path.cwd() / "given"), True)
    assert [source.val_frac for source in registry.sft.values()] == [0.2, 0.2]
    assert registry.pretrain["wikitext"].shuffle_buffer == 0, "only what shuffles takes --shuffle-buffer"


def test_flags_that_have_a_default_say_the_real_one(capsys: pytest.CaptureFixture[str]) -> None:
    registry = load_registry(profile="default")
    tables = {"build": registry.build, "tokenizer": registry.tokenizer, "sft.*": registry.sft["oasst1"]}
    tables |= {f"pretrain.{name}": table for name, table in registry.pretrain.items()} | {"pretrain.*": registry.pretrain["fineweb_edu"]}
    checked = [flag for flag in chain.from_iterable(FLAGS.values()) if flag.default is not None]
    assert len(checked) > 8
    for flag in checked:
        table, _, key = flag.key.rpartition(".")
        real = getattr(tables[table], key)
        assert real == flag.default or (real is None and key == "val_frac"), flag.option


def test_set_takes_toml_values_or_plain_text_and_wins_over_flags(launcher: FakeLauncher) -> None:
    registry = build(
        launcher,
        *("--fineweb-train-tokens", "5", "--set", "pretrain.fineweb_edu.train_tokens=1_000"),
        *("--set", "pretrain.wikitext.enabled=false", "--set", "sft.oasst1.split_by=tree", "--set", 'sft.oasst1.languages=["de", "en"]'),
        *("--sft-val-frac", "0.2", "--set", "sft.dolly15k.val_frac=0.3", "--set", "build.seed=3"),
    )
    assert registry.pretrain["fineweb_edu"].train_tokens == 1000
    assert registry.pretrain["wikitext"].enabled is False
    oasst1 = registry.sft["oasst1"].model_dump()
    assert (oasst1["split_by"], oasst1["languages"], oasst1["val_frac"]) == ("tree", ["de", "en"], 0.2)
    assert registry.sft["dolly15k"].val_frac == 0.3
    assert registry.build.seed == 3
    registry = build(launcher, "--set", "pretrain.my.notes.source=jsonl", "--set", 'pretrain.my.notes.files=["notes.jsonl"]')
    assert registry.pretrain["my.notes"].source == "jsonl"


def test_set_reaches_blends_and_single_entries_of_keys_that_are_tables(launcher: FakeLauncher, tmp_path: Path) -> None:
    (tmp_path / "niels_cache.toml").write_text(
        '[pretrain.wikitext]\n[pretrain."a.b"]\nsource = "text"\nfiles = ["a.txt"]\nprepare = ["clean"]\n'
        "cleaning = { min_words = 2, min_characters = 9 }\n"
        '[blend.mix]\nweights = { "a.b" = 1.0, wikitext = 2.0 }\nsequence_length = 16\nnum_samples = 10\n'
    )
    registry = build(
        launcher,
        *("--config", str(tmp_path / "niels_cache.toml")),
        *("--set", "pretrain.a.b.cleaning.min_words=5", "--set", "pretrain.a.b.cleaning.max_bullet_share=0.4"),
        *("--set", "blend.mix.seed=3", "--set", "blend.mix.weights.a.b=7.0", "--set", "tokenizer.special_tokens.eot=<end>"),
    )
    assert registry.pretrain["a.b"].cleaning == {"min_words": 5, "min_characters": 9, "max_bullet_share": 0.4}
    assert (registry.blend["mix"].seed, registry.blend["mix"].weights) == (3, {"a.b": 7.0, "wikitext": 2.0})
    assert registry.tokenizer.special_tokens["eot"] == "<end>"
    assert registry.tokenizer.special_tokens["sys"].startswith("<|ngpt_sys")


def test_a_value_of_set_is_toml_or_plain_text() -> None:
    values = {"plain text": "plain text", "2024-01-01": "2024-01-01", "": "", '"103"': "103", "200_000": 200_000, "0.5": 0.5}
    values |= {"true": True, '["a", "b"]': ["a", "b"], "{a = 1}": {"a": 1}}
    assert {text: parse_value(text) for text in values} == values


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["biuld-all"], ("did you mean 'build-all'?",)),
        (["--cache-dir", "x", "status"], ("niels-cache status --cache-dir ...",)),
        (["-q"], ("niels-cache COMMAND -q ...",)),
        (["--versoin"], ("'--versoin'", "did you mean '--version'?")),
        (["build-all", "--seeed", "1"], ("did you mean '--seed'?",)),
        (["duplicates", "--kind", "neer"], ("--kind: ", "did you mean 'near'?")),
        (["build-all", "--seed", "many"], ("'many'", "whole number")),
        (["build-all", "--seed", "9" * 5_000], (f"'{'9' * 40}'", "64 bits")),
        (["build-all", "--set", "build.seed=0x" + "f" * 5_000], ("64 bits",)),
        (["build-all", "--set", "blend.mx.seed=3"], ("no blend 'mx'",)),
        (["build-all", "--seed"], ("--seed",)),
        (["build-all", "--sft-val-frac", "half"], ("'half'", "number")),
        (["build-all", "--only", "wikitxt"], ("did you mean 'wikitext'?",)),
        (["build-all", "--profile", "quikstart"], ("error: --profile: ", "'quikstart'", "did you mean 'quickstart'?")),
        (["build-all", "--set", "pretrain.wikitext.enabld=false"], ("line: --set: [pretrain.wikitext] ", "'enabld'", "'enabled'")),
        (["build-all", "--set", "seed=5"], ("is not TABLE.KEY=VALUE",)),
        (["build-all", "--set", "pretrain.wikitext.train_tokens=-5"], ("command line: --set: [pretrain.wikitext] train_tokens = -5",)),
        (["build-all", "--set", "tokenizer.vocab_size=x", "--vocab-size", "5"], ('command line: --set: [tokenizer] vocab_size = "x"',)),
        (["build-all", "--set", "pretrain.wikitext.cleaning={min_words=2}"], ("command line: --set: [pretrain.wikitext]: cleaning ",)),
        (["build-all", "--vocab-size", "3_000_000_000"], ("command line: --vocab-size: [tokenizer] vocab_size = 3000000000",)),
        (["build-all", "--shard-bytes", "3"], ("command line: --shard-bytes: [build] shard_bytes = 3",)),
        (["build-all", "--sft-val-frac", "2"], ("command line: --sft-val-frac: [sft.dolly15k] val_frac = 2.0",)),
        (["build-all", "--set", 'tokenizer.train_on=["wikitxt"]'], ("command line: --set: [tokenizer] train_on ", "'wikitxt'")),
        (["build-all", "--special-tokens", "sys=<s>"], ("--special-tokens", "at least eot")),
        (["build-all", "--special-tokens", "end=<e>"], ("'end=<e>'", "ROLE=TEXT")),
        (["build-all", "--profile", "quickstart", "--fineweb-train-tokens", "5"], ("profile quickstart", "[pretrain.fineweb_edu]")),
        (["build-all", "--profile", "quickstart", "--shuffle-buffer", "5"], ("--set pretrain.NAME.shuffle_buffer=5",)),
        (["build-all", "--config", "none.toml"], ("none.toml: ", "No such file", "correct --config")),
        (["clean", "bad.toml", "--set", "min_wrds=2"], ("command line: clean --set: [cleaning] ", "'min_wrds'")),
        (["build-all", "--config", "bad.toml"], ("bad.toml: ", "TOML")),
        (["build-all", "--cache-dir", "bad.toml/below"], ("choose another --cache-dir",)),
        (["doctor", "extra"], ("unexpected argument 'extra'",)),
        (["build-all", "notes", "books 2"], ("'notes'", "--only notes 'books 2'\n")),
        (["status", "--cache-dir", "bad.toml"], ("bad.toml: ", "is a file", "--cache-dir")),
        (["show"], ("NAME",)),
        (["show", "wikitext"], ("not built yet",)),
        (["show", "roam"], ("it needs path",)),
        (["verify"], ("holds no cache",)),
        (["sample", "tokenizer"], ("tokenizer: ",)),
        (["sample", "zzz"], ("no data set 'zzz'", "fineweb_edu,")),
        (["sample", "wikitext", "-n", "0"], ("at least 1",)),
        (["sample", "wikitext", "--seed", "-1"], ("--seed", "0 to 9223372036854775807", "-1")),
    ],
)
def test_a_mistake_is_one_line_with_the_way_out(
    arguments: list[str], expected: tuple[str, ...], launcher: FakeLauncher, capsys: pytest.CaptureFixture[str], empty_folder: Path
) -> None:
    (empty_folder / "bad.toml").write_text("[build\n")
    (empty_folder / "cache").mkdir()
    require_mistake(arguments, expected, launcher, capsys)


def require_mistake(arguments: list[str], expected: tuple[str, ...], launcher: FakeLauncher, capsys: pytest.CaptureFixture[str]) -> None:
    """Require one line of error with these facts, and that nothing was launched."""
    assert main(arguments) == 2
    output, errors = capsys.readouterr()
    assert errors.startswith("niels-cache: error: ")
    assert errors.count("\n") == 1
    assert missing(errors, *expected) == []
    assert not output
    assert launcher.registry is None


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["doctor", "cache"], ("'cache'", "niels-cache doctor --cache-dir cache\n")),
        (["status", "cache"], ("cache root", "--cache-dir cache\n")),
        (["status", "--cache-dir", "cache/pretrain/notes"], ("pretrain", " notes, ", "type --cache-dir cache\n")),
        (["build-all", "--cache-dir", "cache/pretrain"], ("folder of pretrain", "type --cache-dir cache\n")),
        (["verify", "--cache-dir", "cache/pretrain/notes/train"], ("split train", "notes", "type --cache-dir cache\n")),
        (["verify", "--cache-dir", "nowhere"], ("nowhere: ", "no such folder")),
        (["verify", "--cache-dir", "."], ("no cache root", ": cache\n")),
        (["verify", "cache/pretrain/notes"], ("pretrain", " notes, ", "type notes --cache-dir cache\n")),
        (["verify", "cache"], ("cache: ", "cache root", "NAME --cache-dir cache\n")),
        (["show", "./cache"], ("cache root", "type niels-cache status --cache-dir cache\n")),
        (["show", "cache/pretrain/notes/train"], ("split train", "type niels-cache show cache/pretrain/notes\n")),
        (["show", "cache/pretrain/notes/meta.json"], ("file meta.json", "notes; type niels-cache show cache/pretrain/notes\n")),
        (["show", "cache/pretrain/none"], ("cache/pretrain/none: ", "no such folder", "name")),
    ],
)
def test_a_path_that_is_something_else_is_said_to_be_that_and_what_to_type(
    arguments: list[str], expected: tuple[str, ...], launcher: FakeLauncher, capsys: pytest.CaptureFixture[str], empty_folder: Path
) -> None:
    write_cache(empty_folder / "cache")
    require_mistake(arguments, expected, launcher, capsys)


def test_without_a_command_the_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    text = capsys.readouterr().out
    assert len(COMMANDS) > 10
    assert all(re.search(rf"^  {command} +\w", text, flags=re.MULTILINE) for command in COMMANDS)
    assert all(f"  {code} " in text for code in exit_codes.MEANINGS)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_teaches_by_examples_that_parse(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main([command, "--help"])
    assert left.value.code == 0
    text = re.sub(r" \\\n +", " ", capsys.readouterr().out)  # one that goes on in the next line
    lines = [line.strip() for line in text.splitlines()]
    examples = [line for line in lines if line.startswith("niels-cache ")]
    assert examples
    for example in examples:
        parsed = parse_arguments(shlex.split(example.partition("  ")[0])[1:])
        assert parsed is not None
        assert parsed.command == command
    assert ("--cache-dir" in "\n".join(lines)) == (command not in ("trace", "diff", "pull")), (
        "a loader's state says where its caches lie, diff is given its own, and pull has --out"
    )


def test_the_table_has_a_row_per_data_set_and_the_reasons_below_it(launcher: FakeLauncher, capsys: pytest.CaptureFixture[str]) -> None:
    unbuilt = {"meta": None, "directory": None}
    tokenizer = {"kind": "tokenizer", "vocab_size": 500, "sha256": "f" * 64, "files": {}}
    launcher.results = [
        result("tokenizer", "cache_hit", family="tokenizer", meta=tokenizer),
        result("wikitext"),
        result("fineweb_edu", "failed", message="offline", **unbuilt),
        result("roam", "skipped", message="path", **unbuilt),
        result("gutenberg", "disabled", meta={"kind": "pretrain", "built": False, "files": {}}),
    ]
    assert main(["build-all"]) == 1
    lines = capsys.readouterr().out.splitlines()
    rows = {line.split()[0]: line for line in lines[2:7]}
    assert list(rows) == [entry.name for entry in launcher.results], "in the launcher's order"
    for cell in ("built", "1,234,567 tokens", "89", "2.0 kB", "0123456789ab", "1.5"):
        assert cell in rows["wikitext"]
    assert "cache hit" in rows["tokenizer"]
    assert "500 pieces" in rows["tokenizer"]
    assert "fineweb_edu failed: offline" in lines
    assert "roam skipped: path" in lines
    assert any("sample wikitext" in line for line in lines)


def test_failures_are_told_once_and_last_without_an_empty_table(launcher: FakeLauncher, capsys: pytest.CaptureFixture[str]) -> None:
    unbuilt = {"meta": None, "directory": None}
    launcher.results = [
        result("tokenizer", "failed", family="tokenizer", message="no such host", **unbuilt),
        result("wikitext", "skipped", message="tokenizer could not be built", **unbuilt),
    ]
    assert main(["build-all"]) == 1
    output = capsys.readouterr()
    assert output.out.split("\n", 1)[1].splitlines() == ["wikitext skipped: tokenizer could not be built", "tokenizer failed: no such host"]
    assert "no such host" not in output.err
    LineListener(Console(stderr=True, width=240)).finished(launcher.results[0])  # type: ignore[arg-type]
    assert capsys.readouterr().err == "tokenizer: failed in 1.5 s\n"


def test_lines_come_at_the_start_every_ten_seconds_and_at_the_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr("niels_cache_assets.cli.progress.monotonic", lambda: now)
    listener = LineListener(Console(stderr=True, width=240))
    listener.started("notes", "pretrain")
    listener.logged("notes", "DEBUG: only for the log")
    for second in range(1, 26):
        now = float(second)
        listener.progressed("notes", Progress(documents=second * 10, tokens=second * 1_000_000, share=second / 50))
    listener.finished(result("notes"))  # type: ignore[arg-type]
    assert capsys.readouterr().err.splitlines() == [
        "notes: started",
        "notes: 20%, 100 documents, 10.0M tokens, 1.0M tokens/s, 0:40 left",
        "notes: 40%, 200 documents, 20.0M tokens, 1.0M tokens/s, 0:30 left",
        "notes: built in 1.5 s",
    ]


def test_a_reader_that_leaves_early_is_no_error() -> None:
    command = f"{sys.executable} -m niels_cache_assets.cli status --profile default | true; exit ${{PIPESTATUS[0]}}"
    environment = {**ENVIRONMENT, "PATH": "/usr/bin:/bin"}
    done = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True, check=False)
    assert (done.stderr, done.returncode in (0, 141)) == ("", True)


def test_help_and_parsers_import_nothing_heavy_and_help_of_all_no_command() -> None:
    code = "import sys, niels_cache_assets.cli as cli\ntry: cli.main(['--help'])\nexcept SystemExit: pass\n"
    code += "print([name for name in sys.modules if name.startswith('niels_cache_assets.cli.commands.')])\n"
    code += f"from niels_cache_assets.cli.parser import build_parsers\nprint(len(build_parsers()[1]))\n{LOADED}"
    done = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert "usage: niels-cache" in done.stdout
    assert done.stdout.splitlines()[-3:] == ["[]", str(len(COMMANDS)), "[]"]
