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
    texts = [*READMES, DEPLOY / "compose/compose.yaml", DEPLOY / "slurm/part.sbatch"]
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


def program(path: Path, code: str) -> None:
    path.write_text(f"#!{sys.executable}\nimport json, os, sys\n{code}\n")
    path.chmod(0o755)


def test_slurm_gets_a_job_for_each_missing_step(tmp_path: Path) -> None:
    """Programs in place of sbatch and niels-cache."""
    keys = ["plan/web", "val_part/web", "part/web/part-00003", "part/web/part-00017", "pretrain/web"]
    steps = [{"key": key, "action": "build", "estimate": {"core_seconds": 1800, "memory_bytes": 2**30}} for key in keys]
    steps.append({"key": "part/web/part-00004", "action": "cache_hit", "estimate": None})
    program(tmp_path / _PROGRAM, f"print(json.dumps({{'steps': {steps}}}))")
    program(tmp_path / "sbatch", "print(json.dumps(sys.argv[1:]), file=sys.stderr)\nprint(7)")
    words, env = [sys.executable, DEPLOY / "slurm/submit.py", "web"], {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=True)
    first, array, seal = map(json.loads, done.stderr.splitlines())
    assert first[-2:] == ["web", "--val"]
    assert {"--array=3,17", "--dependency=afterok:7", "--time=90", "--mem=2G"} <= set(array)
    assert {"--dependency=afterany:7", f"{_PROGRAM} part web --seal"} <= set(seal)


@pytest.mark.parametrize(("codes", "attempts"), [("1 137 0", 3), ("1 1 1 0", 3), ("2", 1), ("143", 1), ("0", 1)])
def test_a_task_of_slurm_repeats_a_failed_attempt(tmp_path: Path, codes: str, attempts: int) -> None:
    program(tmp_path / "sleep", "")
    program(
        tmp_path / _PROGRAM, f"print(sys.argv[1:])\nopen('n', 'a').write('x')\nsys.exit(int('{codes}'.split()[len(open('n').read()) - 1]))"
    )
    words, env = ["bash", DEPLOY / "slurm/part.sbatch", "web"], {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(words, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["['part', 'web']"] * attempts
    assert done.returncode == int(codes.split()[attempts - 1])


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


def test_the_scheduled_workflow_tries_both_ends_of_dagsters_range() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/dagster.yml").read_text(encoding="utf-8"))
    oldest, newest, _ = workflow["jobs"]["test"]["strategy"]["matrix"]["version"]
    assert f'"dagster{oldest.replace("==", ">=")},{newest}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert not workflow[True].keys() & {"push", "pull_request"}, "YAML reads the key `on` as True"
