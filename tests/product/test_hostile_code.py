"""Things that the packages never do with a file or a name from elsewhere. The tests read the syntax of the packages, so no such code can
enter.
"""

import ast
from functools import cache
from pathlib import Path

import niels_cache_runtime
from tests import size

ROOT = Path(niels_cache_runtime.__file__).parent.parent
PACKAGES = (*size.PACKAGES, *size.BESIDE)
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
RUN_CODE = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "jsonpickle"}
EVALUATE = {"eval", "exec", "compile", "__import__"}
NUMPY_READERS_OF_HEADERS = {"load", "open_memmap", "read_array", "read_array_header_1_0", "read_array_header_2_0", "loadtxt", "genfromtxt"}


@cache
def nodes() -> list[tuple[str, ast.AST]]:
    assert len(MODULES) > 100
    trees = ((path.relative_to(ROOT).as_posix(), ast.parse(path.read_text(encoding="utf-8"))) for path in MODULES)
    return [(module, node) for module, tree in trees for node in ast.walk(tree)]


@cache
def calls() -> list[tuple[str, str, ast.Call]]:
    """Module, dotted name and node of every call whose name is written out."""
    return [(module, ast.unparse(node.func), node) for module, node in nodes() if isinstance(node, ast.Call)]


def keywords(call: ast.Call) -> dict[str | None, str]:
    return {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}


def test_nothing_is_imported_that_runs_the_code_of_a_file() -> None:
    found = []
    for module, node in nodes():
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        found += [(module, name) for name in names if name.split(".")[0] in RUN_CODE]
    # What a process and the workers that it has started send each other; multiprocessing pickles it, too.
    assert found == [("niels_cache_assets/base/parallel.py", "pickle")]


def test_arrays_are_read_by_our_own_reader_or_without_pickles() -> None:
    readers = [
        (module, name, call) for module, name, call in calls() if name.startswith("np.") and name.split(".")[-1] in NUMPY_READERS_OF_HEADERS
    ]
    allowed = [
        (module, name)
        for module, name, call in readers
        if keywords(call).get("allow_pickle") == "False" or keywords(call).get("mode") == "'w+'"
    ]
    assert allowed == [(module, name) for module, name, _ in readers]
    assert not any(keywords(call).get("allow_pickle") == "True" for _, _, call in calls())


def test_checkpoints_are_read_without_running_their_code() -> None:
    loads = [(module, keywords(call)) for module, name, call in calls() if name == "torch.load"]
    assert loads
    assert all(given.get("weights_only") == "True" for _, given in loads)


def test_no_code_of_a_data_set_is_trusted() -> None:
    for module, node in nodes():
        if isinstance(node, ast.keyword):
            assert node.arg != "trust_remote_code" or ast.unparse(node.value) == "False", module
        if isinstance(node, ast.Constant):
            assert node.value != "trust_remote_code", module


def test_nothing_is_evaluated_given_to_a_shell_or_unpacked() -> None:
    unsafe_yaml = {f"yaml.{name}" for name in ("load", "load_all", "full_load", "unsafe_load", "full_load_all", "unsafe_load_all")}
    unpacking = ("literal_eval", "os.system", "os.popen", "extractall", "unpack_archive", "mktemp")
    found = [(module, name) for module, name, _ in calls() if name in EVALUATE | unsafe_yaml or name.endswith(unpacking)]
    found += [
        (module, name)
        for module, name, call in calls()
        if keywords(call).get("shell", "False") != "False" and "shellcode" not in ast.unparse(call.func)  # text for a shell
    ]
    assert found == []
