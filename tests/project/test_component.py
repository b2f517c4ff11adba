"""The commands find the component of a project of `dg` that a configuration belongs to."""

from pathlib import Path

import pytest

from niels_cache_assets.cli import main
from niels_cache_assets.project.registry import load_registry
from niels_cache_runtime.errors import NielsCacheError
from tests.helpers.messages import missing

TYPE = "type: niels_cache_assets.NielsCacheComponent\n"
TABLE = '[pretrain.notes]\nsource = "text"\nfiles = ["notes.txt"]\n'


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a project in the working folder, with a component that names a file."""
    for variable in ("NIELS_CACHE_CONFIG", "NIELS_CACHE_PROFILE", "NIELS_CACHE_ROOT"):
        monkeypatch.delenv(variable, raising=False)
    write_project(tmp_path)
    add(tmp_path, "nlp", "config: niels_cache.toml, key_prefix: team/nlp")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_project(folder: Path, more: str = "") -> None:
    (folder / "pyproject.toml").write_text(
        f'[tool.dg]\ndirectory_type = "project"\n[tool.dg.project]\nroot_module = "demo"\n{more}', encoding="utf-8"
    )


def add(project: Path, name: str, attributes: str) -> Path:
    """Add a component, and a niels_cache.toml beside it. Return its defs.yaml."""
    folder = project / "src" / "demo" / "defs" / name
    folder.mkdir(parents=True)
    (folder / "niels_cache.toml").write_text(f'{TABLE}[dagster]\ngroup = "mine"\nkey_prefix = "replaced"\n', encoding="utf-8")
    (folder / "defs.yaml").write_text(f"{TYPE}attributes: {{{attributes}}}\n", encoding="utf-8")
    return folder / "defs.yaml"


@pytest.mark.parametrize("named", [None, "defs.yaml", "niels_cache.toml"])
def test_attributes_override_the_file_that_they_name(project: Path, named: str | None) -> None:
    folder = project / "src" / "demo" / "defs" / "nlp"
    found = load_registry(config=named and str(folder / named))
    settings = found.dagster
    assert (settings.key_prefix, settings.group, settings.location) == ("team/nlp", "mine", project.name)
    assert found.origin == str(folder / "niels_cache.toml"), "which messages name, and children read"
    assert found.pretrain["notes"].model_dump()["files"] == [str(folder / "notes.txt")]


def test_inline_tables_are_relative_to_defs_yaml_and_their_location_is_configured(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_project(project, 'code_location_name = "text"\n')
    tables = "tables: {build: {cache_dir: made}, pretrain: {words: {source: text, files: [a.txt]}}}"
    path = add(project, "words", f"key_prefix: '{{{{ env.TEAM }}}}', {tables}")
    monkeypatch.setenv("TEAM", "speech")
    found = load_registry(config=str(path))
    assert (found.origin, found.dagster.key_prefix, found.dagster.location) == (str(path), "speech", "text")
    assert found.build.cache_dir == str(path.parent / "made")
    assert [*found.pretrain] == ["words"]
    monkeypatch.delenv("TEAM")
    with pytest.raises(NielsCacheError) as caught:
        load_registry(config=str(path))
    assert missing(caught.value, f"{path}: ", "TEAM", "env.NAME") == []


def test_several_components_must_be_told_apart(project: Path) -> None:
    other = add(project, "other", "config: niels_cache.toml")
    with pytest.raises(NielsCacheError) as caught:
        load_registry()
    assert missing(caught.value, str(other), str(project / "src/demo/defs/nlp/defs.yaml"), "--config") == []
    assert load_registry(config=str(other)).dagster.key_prefix == "replaced", "its own file says so"


def test_the_component_in_the_working_directory_is_preferred(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = add(project, "words", "key_prefix: words, tables: {pretrain: {words: {source: text, files: [a.txt]}}}")
    (path.parent / "niels_cache.toml").unlink()
    monkeypatch.chdir(path.parent)
    assert load_registry().dagster.key_prefix == "words"


@pytest.mark.parametrize("attributes", ["{config: '{{ secret() }}'}", "{[}", "[1]"])
def test_a_component_that_cannot_be_read_stops_only_its_own_commands(project: Path, attributes: str) -> None:
    other = add(project, "other", "")
    other.write_text(f"{TYPE}attributes: {attributes}\n", encoding="utf-8")
    (project / "src/demo/defs/nlp/defs.yaml").write_text(
        f"# {{{{ a comment }}}}\n{TYPE}attributes: {{config: niels_cache.toml, key_prefix: nlp}}\n", encoding="utf-8"
    )
    assert load_registry(config=str(project / "src/demo/defs/nlp/niels_cache.toml")).dagster.key_prefix == "nlp"
    for file in (other, other.parent / "niels_cache.toml"):
        with pytest.raises(NielsCacheError) as caught:
            load_registry(config=str(file))
        assert missing(caught.value, f"{other}: ") == []


@pytest.mark.parametrize("text", ["tool = 3", "[tool]\ndg = 3", "[tool.dg]\nproject = 3"])
def test_another_pyproject_is_no_project(project: Path, text: str) -> None:
    (project / "pyproject.toml").write_text(f"{text} # directory_type\n", encoding="utf-8")
    (project / "niels_cache.toml").write_text(TABLE, encoding="utf-8")
    assert load_registry().origin == "niels_cache.toml"


@pytest.mark.parametrize(
    ("attributes", "named"),
    [
        ("config: none.toml", ("none.toml: ", "cannot be read")),
        ("key_prefix: nlp", ("config", "tables")),
        ("config: niels_cache.toml, tables: {build: {seed: 1}}", ("config", "tables")),
        ("config: niels_cache.toml, key_prefix: a b", ("defs.yaml: [attributes]", "key_prefix")),
        ("config: niels_cache.toml, prefix: nlp", ("defs.yaml: [attributes]", "prefix")),
        ("tables: {dagster: 3}", ("dagster must be a table",)),
        ("tables: [}", ("defs.yaml: ",)),
        ("}\n---\ntype: other\nattributes: {", ("defs.yaml: ", "one document")),
    ],
)
def test_wrong_attributes_are_refused_in_one_line(
    project: Path, capsys: pytest.CaptureFixture[str], attributes: str, named: tuple[str, ...]
) -> None:
    path = add(project, "wrong", attributes)
    assert main(["status", "--config", str(path)]) == 2
    message = capsys.readouterr().err
    assert (missing(message, *named), message.count("\n")) == ([], 1)


def test_a_file_that_no_component_names_is_as_before(project: Path) -> None:
    (project / "niels_cache.toml").write_text(TABLE, encoding="utf-8")
    found = load_registry()
    assert (found.origin, found.dagster.key_prefix, found.dagster.location) == ("niels_cache.toml", None, "niels_cache_assets")
