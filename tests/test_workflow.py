"""The example of continuous integration. Its YAML parses, and all of its commands, options and partitions exist."""

import importlib.util
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml

from niels_cache_assets.cli.parser import parse_arguments
from tests import programs

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / ".github" / "workflows" / "cache.yml").read_text(encoding="utf-8")
WORKFLOW: dict[Any, Any] = yaml.safe_load(TEXT)
STEPS: list[dict[str, Any]] = WORKFLOW["jobs"]["build"]["steps"]
COMMANDS = [shlex.split(step["run"]) for step in STEPS if "run" in step]
MATERIALIZED = [command for command in COMMANDS if command[0].endswith("/dagster")]


def test_every_command_it_runs_is_there() -> None:
    assert len(COMMANDS) >= 6
    targets = re.findall(
        r"^([^\s:#]+):", (ROOT / "Makefile").read_text(encoding="utf-8").replace("$(STAMP)", ".venv/.installed"), re.MULTILINE
    )
    for command in COMMANDS:
        if command[0] == "make":
            assert command[1] in targets
            continue
        program = Path(command[0])
        assert program.parent == Path(".venv/bin")
        assert (Path(sys.executable).parent / program.name).exists()
        if program.name == "niels-cache":
            assert parse_arguments(command[1:]) is not None
        elif program.name == "python":
            assert command[1] == "-m"
            assert importlib.util.find_spec(command[2]) is not None


def test_dagster_takes_the_options_and_finds_assets_and_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    from dagster._cli.asset import asset_materialize_command

    from niels_cache_assets.defs.assembly import build_defs

    monkeypatch.setenv("NIELS_CACHE_PROFILE", WORKFLOW["env"]["NIELS_CACHE_PROFILE"])
    monkeypatch.chdir(ROOT)
    graph = build_defs().resolve_asset_graph()
    families = set()
    assert len(MATERIALIZED) == 3
    for command in MATERIALIZED:
        assert command[1:3] == ["asset", "materialize"]
        options = asset_materialize_command.make_context("materialize", command[3:]).params
        chosen = dg.AssetSelection.from_string(options["select"]).resolve(graph)
        families |= {key.path[0] for key in chosen}
        for key in chosen:
            partitions = graph.get(key).partitions_def
            assert partitions is None if options["partition"] is None else options["partition"] in partitions.get_partition_keys()
    assert families == {"tokenizer", "pretrain", "sft"}


def test_the_home_that_is_kept_is_the_one_that_is_used(tmp_path: Path) -> None:
    (cached,) = [step["with"]["path"].split() for step in STEPS if step.get("uses", "").startswith("actions/cache@")]
    assert WORKFLOW["env"]["DAGSTER_HOME"].endswith("/" + cached[0])
    assert cached[1] == "cache"
    (prepare,) = [command for command in COMMANDS if command[0].endswith("/python")]
    home = tmp_path / ".dagster"
    environment = {"DAGSTER_HOME": str(home), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    done = programs.run(*prepare[1:], cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert (home / "dagster.yaml").exists()
