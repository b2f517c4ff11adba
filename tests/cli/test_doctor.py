"""The command `doctor`. It finds problems, names a repair for each problem, and leaves no file behind."""

import json
from pathlib import Path
from typing import Any

import pytest

from niels_cache_assets.cli import command as exit_codes
from niels_cache_assets.cli import main
from niels_cache_assets.cli.commands import doctor
from niels_cache_assets.sources.errors import SourceUnavailableError
from niels_cache_assets.sources.hub.data import HubData
from niels_cache_runtime.errors import NielsCacheError
from tests.helpers.messages import missing


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for variable in ("NIELS_CACHE_PROFILE", "NIELS_CACHE_CONFIG", "NIELS_CACHE_ROOT", "DAGSTER_HOME"):
        monkeypatch.delenv(variable, raising=False)
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def examined(capsys: pytest.CaptureFixture[str], *arguments: str, code: int) -> dict[str, dict[str, Any]]:
    """The last finding of each kind."""
    assert main(["doctor", "--json", *arguments]) == code
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert findings
    assert all(finding["mend"] for finding in findings if finding["state"] != "ok"), "what is not well has a mend"
    return {finding["what"]: finding for finding in findings}


def test_a_good_environment_has_no_problem_and_stays_as_it_is(
    empty_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(empty_folder / "home"))
    monkeypatch.setattr(doctor, "_versions", lambda: doctor.DoctorFinding("packages", "ok", "as required"))
    found = examined(capsys, "--profile", "quickstart", code=exit_codes.DONE)
    assert {what: finding["state"] for what, finding in found.items() if what != "disk"} == dict.fromkeys(
        ("system", "packages", "configuration", "cache directory", "DAGSTER_HOME", "hub"), "ok"
    )
    assert "2 data sets" in found["configuration"]["found"]
    assert not list(empty_folder.iterdir())


def test_packages_are_held_against_what_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    requirements = ["rich>=1", "numpy>=999", "no-such-package", 'pytest>=999; extra == "dev"']
    monkeypatch.setattr(doctor.metadata, "requires", lambda name: requirements)
    found = doctor._versions()
    assert found.state == "problem"
    assert "numpy>=999 (" in found.found
    assert "no-such-package (missing)" in found.found
    assert "'numpy>=999' 'no-such-package'" in found.fix
    assert "pytest" not in found.found


def test_a_cache_directory_that_cannot_be_written_is_a_problem(capsys: pytest.CaptureFixture[str]) -> None:
    found = examined(capsys, "--offline", "--profile", "quickstart", "--cache-dir", "/proc/niels_cache", code=exit_codes.FAILED)
    assert found["cache directory"]["state"] == "problem"
    assert "hub" not in found, "--offline asks nothing"


def test_files_that_are_not_there_or_damaged_are_problems_of_the_table_that_names_them(
    empty_folder: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("empty").mkdir()
    Path("a.jsonl").write_text('{"text": "a"}\n')
    tables = {"globbed": ("jsonl", 'files = ["no*.jsonl"]'), "hollow": ("markdown_folder", 'path = "empty"')}
    tables |= {"graph": ("roam", 'path = "graph.json"'), "stepped": ("jsonl", 'files = ["a.jsonl"]\nsteps = ["nowhere:step"]')}
    whole = tiny_model.read_bytes()
    place = whole.index("▁".encode())
    Path("x.model").write_bytes(whole[:place] + b"\xff" + whole[place + 1 :])
    config = [f'[pretrain.{name}]\nsource = "{kind}"\n{line}\n' for name, (kind, line) in tables.items()]
    Path("niels_cache.toml").write_text("".join(['[tokenizer]\nmodel = "x.model"\n', *config]))
    main(["doctor", "--offline", "--json"])
    found = [finding for finding in json.loads(capsys.readouterr().out)["findings"] if finding["what"] == "data"]
    damaged = [finding["found"] for finding in found if "x.model: a damaged" in finding["found"]]
    found = [finding for finding in found if finding["found"] not in damaged]
    steps = found.pop(0)
    assert (steps["state"], missing(steps["found"], "[pretrain.stepped] steps", "'nowhere'")) == ("problem", [])
    assert (len(damaged), [finding["state"] for finding in found]) == (1, ["problem"] * 3)
    assert [finding["found"].split("]")[0] for finding in found] == ["[pretrain.globbed", "[pretrain.hollow", "[pretrain.graph"]
    assert all(finding["mend"] for finding in found)
    assert "matches no file" in found[0]["found"]
    assert missing(found[1]["found"].replace(str(empty_folder) + "/", ""), "'empty'", "no file", ".md") == []
    assert "graph.json does not" in found[2]["found"]


def test_a_file_system_without_locks_and_a_relative_home_are_problems(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "_has_locks", lambda folder: False)
    monkeypatch.setattr("niels_cache_runtime.format.commit.can_exchange", lambda folder: False)
    monkeypatch.setenv("DAGSTER_HOME", "home")
    found = examined(capsys, "--offline", "--profile", "quickstart", code=exit_codes.FAILED)
    assert [found[what]["state"] for what in ("locks", "exchange", "DAGSTER_HOME")] == ["problem", "note", "problem"]


def test_every_data_set_of_the_hub_is_asked_for_until_the_hub_is_away(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    def ask(source: HubData, siblings: object) -> str:
        dataset = source.dataset
        asked.append(dataset)
        if "fineweb" in dataset:
            raise NielsCacheError(f"{dataset}: this data set is gated; accept its terms")
        if "dolly" in dataset:
            raise SourceUnavailableError(f"{dataset}: the hub cannot be reached now (timeout); try again")
        return "1"

    monkeypatch.setattr(HubData, "revision", ask)
    assert main(["doctor", "--json", "--profile", "default"]) == exit_codes.FAILED
    findings = [finding for finding in json.loads(capsys.readouterr().out)["findings"] if finding["what"] == "hub"]
    assert [finding["state"] for finding in findings] == ["problem", "problem"]
    assert findings[0]["mend"] == "accept its terms"
    assert "HF_ENDPOINT" in findings[1]["mend"]
    assert len(asked) == 3, "what would come after a hub that is away is not waited for"


def test_the_first_conversations_are_rendered_with_the_template(empty_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    calls = [{"type": "function", "function": {"name": "f", "arguments": "{}"}}]
    answers: list[dict[str, Any]] = [{"content": "a"}, {"content": None, "tool_calls": calls}, {"content": [{"type": "image_url"}]}]
    chats = [[{"role": "user", "content": "q"}, {"role": "assistant", **answer}] for answer in answers]
    Path("a.jsonl").write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats))
    template = "{% for m in messages %}{% if m.tool_calls %}{{ raise_exception('no form for calls') }}{% endif %}"
    Path("t.jinja").write_text(template + "<|im_start|>{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}")
    Path("niels_cache.toml").write_text('[sft.a]\nsource = "chat_jsonl"\nfiles = ["a.jsonl"]\ntemplate = "t.jinja"\n')
    assert main(["doctor", "--offline", "--json"]) == exit_codes.DONE
    found = [each["found"] for each in json.loads(capsys.readouterr().out)["findings"] if each["what"] == "data"]
    facts = ("<|im_start|>", "1 of the first 3 rows", "an image", "no form for calls")
    assert (len(found), missing("\n".join(found), "[sft.a]", *facts)) == (3, [])


def test_a_misspelt_source_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    Path("niels_cache.toml").write_text('[pretrain.a]\nsourc = "jsonl"\nfiles = ["a.jsonl"]\n')
    assert "rename 'sourc' to 'source'" in examined(capsys, "--offline", code=exit_codes.FAILED)["configuration"]["found"]
