"""The examples in deploy/ and of continuous integration: valid files, settings that are read, and commands that exist."""

import importlib.util
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from niels_cache_assets.base.toml import parse_toml
from niels_cache_assets.cli.parser import build_parsers, parse_arguments
from niels_cache_assets.project.running import ClusterSettings

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
READMES = sorted(DEPLOY.rglob("README.md"))
KUBERNETES = ("kubernetes/job.yaml", "kubernetes/seal.yaml")
_PROGRAM = "niels-cache"


def documents(name: str) -> list[dict[str, Any]]:
    found = [*yaml.safe_load_all((DEPLOY / name).read_text(encoding="utf-8"))]
    assert found
    return found


def test_kubernetes_accepts_the_manifests() -> None:
    validator = pytest.importorskip("kubernetes_validate", reason="there is no kubernetes-validate")
    [parts], [seal] = map(documents, KUBERNETES)
    for manifest in (parts, seal):
        validator.validate(manifest, "1.31", strict=True)
        [rule] = manifest["spec"]["podFailurePolicy"]["rules"]
        assert (rule["action"], rule["onPodConditions"][0]["type"]) == ("Ignore", "DisruptionTarget")
        assert manifest["spec"]["template"]["spec"]["restartPolicy"] == "Never", "a failure policy needs it"
    assert parts["spec"]["completionMode"] == "Indexed"
    parts["spec"]["completionMode"] = 3
    with pytest.raises(validator.ValidationError):
        validator.validate(parts, "1.31", strict=True)


@pytest.mark.parametrize("name", [*KUBERNETES, "ray/parts.py", "dask/parts.py", "celery/worker.py"])
def test_an_example_has_at_most_25_lines(name: str) -> None:
    assert 5 < len((DEPLOY / name).read_text(encoding="utf-8").splitlines()) <= 25


def commands_in(value: object) -> list[list[str]]:
    """Return all lists of words that begin with the program, anywhere in a YAML document."""
    if isinstance(value, dict):
        return [found for each in value.values() for found in commands_in(each)]
    if isinstance(value, list):
        return [value] if value[:1] == [_PROGRAM] else [found for each in value for found in commands_in(each)]
    return []


def test_the_commands_of_the_examples_exist() -> None:
    found = [words for name in KUBERNETES for each in documents(name) for words in commands_in(each)]
    texts = [*READMES, DEPLOY / "compose/compose.yaml", DEPLOY / "slurm/array.sbatch"]
    for path in texts:
        for command in re.findall(rf"^\s*(?:\$ )?({_PROGRAM} [^#|\n]*)", path.read_text(encoding="utf-8"), re.MULTILINE):
            found.append(shlex.split(command))
    assert len(found) >= 4
    _, parsers = build_parsers()
    for words in found:
        assert words[1] in parsers, words
        options = [word for word in words if word.startswith("--")]
        assert set(options) <= parsers[words[1]]._option_string_actions.keys(), words


def test_the_settings_of_the_examples_are_read() -> None:
    tables = [
        parse_toml(text)["cluster"]
        for path in READMES
        for text in re.findall(r"```toml\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL)
    ]
    assert len(tables) >= 2
    for table in tables:
        assert ClusterSettings.model_validate(table).command


def test_compose_has_its_services_and_no_open_port() -> None:
    [compose] = documents("compose/compose.yaml")
    assert compose["services"].keys() == {"postgres", "code", "webserver", "daemon", "worker"}
    dockerfile = (DEPLOY / "compose/Dockerfile").read_text(encoding="utf-8")
    assert not re.search(r"^ENTRYPOINT", dockerfile, re.MULTILINE), "the chart of Kubernetes sets only arguments"
    own = [service for name, service in compose["services"].items() if name != "postgres"]
    assert all(service["command"] and "entrypoint" not in service for service in own)
    ports = [port for service in compose["services"].values() for port in service.get("ports", ())]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)
    [home] = documents("compose/dagster.yaml")
    assert home["storage"]["postgres"]["postgres_db"]["scheme"] == "postgresql+psycopg2"
    for name in ("compose/workspace.yaml", "kubernetes/values.yaml"):
        assert documents(name)


@pytest.mark.parametrize(("val", "before"), [("yes", "--val"), ("", "0")])
def test_the_script_of_slurm_is_a_script(tmp_path: Path, val: str, before: str) -> None:
    """A program in place of sbatch prints what it gets."""
    (tmp_path / "sbatch").write_text(
        "#!/usr/bin/env python3\nimport json, sys\nprint(json.dumps(sys.argv[1:]), file=sys.stderr)\nprint(7)\n"
    )
    (tmp_path / "sbatch").chmod(0o755)
    script = ["bash", str(DEPLOY / "slurm/array.sbatch"), "web", "64"]
    done = subprocess.run(script, env={"PATH": f"{tmp_path}:/usr/bin:/bin", "VAL": val}, capture_output=True, text=True, check=True)
    first, array, seal = map(json.loads, done.stderr.splitlines())
    assert f"{_PROGRAM} part web {before}" in first
    waits = {"--dependency=afterok:7", "--kill-on-invalid-dep=yes"}
    assert waits | {"--array=0-63", f"{_PROGRAM} part web"} <= set(array)
    assert waits | {f"{_PROGRAM} part web --seal"} <= set(seal)


ROOT = Path(__file__).parents[2]
TEXT = (ROOT / ".github" / "workflows" / "cache.yml").read_text(encoding="utf-8")
WORKFLOW: dict[Any, Any] = yaml.safe_load(TEXT)
STEPS: list[dict[str, Any]] = WORKFLOW["jobs"]["build"]["steps"]
COMMANDS = [shlex.split(step["run"]) for step in STEPS if "run" in step]


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
