"""The command `doctor`, which checks everything that a build needs from this machine. No check leaves a file behind.

The command opens each file that a data set names, and sends one request for each data set from the hub. For an instant, it also creates a
file and two folders in the cache directory.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from niels_cache_assets.base.wording import UNKNOWN, file_size, format_count, format_list
from niels_cache_assets.cli.command import DONE, FAILED, HOME_VARIABLE, Command, switch
from niels_cache_assets.cli.console import PROGRAM, display, new_table, print_facts, styled
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.commit import try_lock

if TYPE_CHECKING:
    from niels_cache_assets.artifacts.input_problems import InputProblem
    from niels_cache_assets.project.registry import Registry

_JSON_KEYS = ("what", "state", "found", "mend")  # of the fields of a finding
_STYLES = {"ok": "green", "note": "yellow", "problem": "bold red"}
MIN_PYTHON = (3, 11)
LOW_SPACE = 5_000_000_000  # bytes; the default profile needs 1 GB for its caches, and room for the files that the hub's library keeps
DAGSTER_CONFIG = "dagster.yaml"
_NETWORK = "check the network and its proxy (HTTPS_PROXY); to use a mirror, set HF_ENDPOINT"


COMMAND = Command(
    options=(
        switch("--offline", "do not use the network: skip the hub and remote files"),
        switch("--text", "list every location that contains document text; check nothing"),
    ),
    description="""\
Check everything that a build needs: the system, installed packages, the configuration, the input files,
the cache directory, DAGSTER_HOME, and each data set on the hub. doctor suggests a fix for every problem.
It builds nothing and leaves no files behind.

--text lists every location that contains document text, for example before a takedown: caches,
unfinished builds, original files, copies of hub files, published caches, and the output of `report
NAME`. It cannot know where you put exports, pulled caches and local copies. Dagster's home and logs
contain no document text.

exit codes: 0 no problem (notes are allowed), 1 at least one problem.""",
    examples="""\
  niels-cache doctor
  niels-cache doctor --offline""",
)


def run(arguments: argparse.Namespace) -> int:
    """Print the findings, and return 1 if at least one finding is a problem."""
    if arguments.text:
        return _print_text_locations(arguments)
    findings = list(_find_all(arguments))
    problems = sum(finding.state == "problem" for finding in findings)
    code = FAILED if problems else DONE
    if print_facts(arguments, {"findings": [dict(zip(_JSON_KEYS, finding, strict=True)) for finding in findings]}):
        return code
    table = new_table("", "what", "found", shrinking=["found"])
    table.columns[2].overflow = "fold"
    for finding in findings:
        table.add_row(styled((finding.state, _STYLES[finding.state])), finding.what, finding.found)
    display(table)
    fixes = [finding for finding in findings if finding.fix]
    if fixes:
        display()
    for finding in fixes:
        display(styled((f"{finding.what}: ", _STYLES[finding.state]), finding.fix))
    display(f"\n{format_count(problems, 'problem') if problems else 'no problems'}", style=_STYLES["problem" if problems else "ok"])
    return code


def _print_text_locations(arguments: argparse.Namespace) -> int:
    from niels_cache_assets.cli.context import open_registry
    from niels_cache_assets.inspection.text_locations import text_locations

    locations = [*text_locations(*open_registry(arguments))]
    if print_facts(arguments, {"text": locations}):
        return DONE
    table = new_table("where", "what", "size", right=["size"], shrinking=["what"])
    table.columns[0].overflow = "fold"
    for location in locations:
        table.add_row(location.where, location.what, UNKNOWN if location.bytes is None else file_size(location.bytes))
    display(table)
    return DONE


class DoctorFinding(NamedTuple):
    """The result of one check. `fix` says what to do."""

    what: str
    state: Literal["ok", "note", "problem"]
    found: str
    fix: str = ""


def _find_all(arguments: argparse.Namespace) -> Iterator[DoctorFinding]:
    """Yield all findings, the most important first. If the configuration cannot be read, checks that depend on it are skipped."""
    from niels_cache_assets.project.registry import cache_root, load_registry

    yield _system()
    yield _versions()
    try:
        registry = load_registry(profile=arguments.profile, config=arguments.config)
    except NielsCacheError as error:
        yield DoctorFinding("configuration", "problem", str(error), f"correct it, or write a new one with {PROGRAM} init")
        yield _dagster_home()
        return
    root = cache_root(registry, arguments.cache_dir)
    if not registry.is_fallback:
        yield _configuration(registry)
    for line in registry.advice:
        where, _, fix = line.rpartition("; ")
        yield DoctorFinding("configuration", "note", where, fix)
    if not registry.is_fallback:
        yield from _inputs(registry, offline=arguments.offline)
    yield from _cache_directory(root)
    yield _dagster_home()
    if not arguments.offline and not registry.is_fallback:
        yield from _hub(registry)


def _system() -> DoctorFinding:
    found = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}, {format_count(os.cpu_count() or 1, 'core')}"
    if sys.version_info < MIN_PYTHON:
        fix = f"create a new environment with Python {'.'.join(map(str, MIN_PYTHON))} or newer"
        return DoctorFinding("system", "problem", found, fix)
    if sys.platform != "linux":
        fix = "niels-cache is tested on Linux; elsewhere a cache is missing for an instant when its rebuild takes its place"
        return DoctorFinding("system", "note", found, fix)
    return DoctorFinding("system", "ok", found)


def _versions() -> DoctorFinding:
    from packaging.requirements import Requirement

    try:
        requirements = [Requirement(line) for line in metadata.requires(PROGRAM) or ()]
    except metadata.PackageNotFoundError:
        fix = "run pip install -e . in the clone, so that the requirements can be checked"
        return DoctorFinding("packages", "note", "niels-cache is not installed: run from its sources", fix)
    wrong, satisfied = [], 0
    for requirement in requirements:
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            installed = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            wrong.append((requirement, "missing"))
            continue
        if requirement.specifier.contains(installed, prereleases=True):
            satisfied += 1
        else:
            wrong.append((requirement, installed))
    if wrong:
        found = ", ".join(f"{requirement} ({installed})" for requirement, installed in wrong)
        fix = f"{sys.executable} -m pip install {' '.join(repr(str(requirement)) for requirement, _ in wrong)}"
        return DoctorFinding("packages", "problem", found, fix)
    return DoctorFinding("packages", "ok", f"{satisfied} as required; dagster {metadata.version('dagster')}")


def _configuration(registry: Registry) -> DoctorFinding:
    names = registry.partition_keys()
    found = f"{registry.settings_origin}: {format_count(len(names), 'data set')} to build"
    if not names:
        fix = (
            f"add a data set to {registry.origin}: {PROGRAM} init --list shows those that ship with it, {PROGRAM} init inspects your files"
        )
        return DoctorFinding("configuration", "problem", found, fix)
    waiting = [f"{name} needs {reason}" for name, reason in registry.unconfigured().items()]
    return DoctorFinding("configuration", "ok", "; ".join([found, *waiting]))


def _inputs(registry: Registry, *, offline: bool) -> Iterator[DoctorFinding]:
    """Check that the files that data sets name exist and match their settings, and that their steps can be loaded.

    Remote files are checked unless `offline`, with ten seconds for each.
    """
    from niels_cache_assets.artifacts.first_rows import try_first_rows
    from niels_cache_assets.artifacts.input_problems import input_problems, is_remote
    from niels_cache_assets.steps.identity import steps_identity
    from niels_cache_assets.tokenizer.kinds import open_configured_model

    findings = []
    if registry.tokenizer.model is not None:
        try:
            open_configured_model(registry.tokenizer)
        except NielsCacheError as error:
            findings.append(DoctorFinding("data", "problem", f"[tokenizer] {error}", "correct [tokenizer] model"))
    for name in registry.partition_keys("pretrain"):
        try:
            steps_identity(registry.pretrain[name], f"[pretrain.{name}] steps")
        except NielsCacheError as error:
            findings.append(DoctorFinding("data", "problem", str(error), f"correct steps in {registry.origin}"))
    problems = [*input_problems(registry, offline=offline)]
    findings += [_input_finding("data", problem) for problem in problems]
    for name in registry.partition_keys("sft"):
        if all(problem.table != f"sft.{name}" for problem in problems):
            texts, notes = try_first_rows(registry, name)
            findings += [DoctorFinding("data", "note" if texts else "problem", *note.split("; ", 1)) for note in notes]
    yield from findings
    if not findings:
        sources = map(registry.source, registry.partition_keys())
        found = sum(len(source.input_files()) for source in sources if not is_remote(source))
        if found:
            yield DoctorFinding("data", "ok", f"{format_count(found, 'input file')}")


def _cache_directory(root: Path) -> Iterator[DoctorFinding]:
    """Check that the cache directory is writable.

    If the directory does not exist, the folder in which a build would create it is checked.
    """
    from niels_cache_runtime.format.commit import can_exchange

    root = root.absolute()
    folder = _nearest_folder(root)
    file = next((path for path in (root, *root.parents) if path.exists()), folder)
    if not file.is_dir():
        fix = "move it away, or choose another place with --cache-dir or [build] cache_dir"
        yield DoctorFinding("cache directory", "problem", f"{file} is a file", fix)
        return
    try:
        with tempfile.TemporaryDirectory(prefix=".niels_cache_doctor_", dir=folder) as probe:
            locks, exchanges = _has_locks(Path(probe)), can_exchange(Path(probe))
    except OSError as error:
        fix = f"change its permissions, or choose another place with --cache-dir or [build] cache_dir ({error.strerror})"
        yield DoctorFinding("cache directory", "problem", f"{root}: {folder} cannot be written", fix)
        return
    yield DoctorFinding("cache directory", "ok", f"{root}" if folder == root else f"{root}, which a build will create")
    if not locks:
        fix = "use a local disk for the cache directory, or mount this one with locks: without them, two builds may write at once"
        yield DoctorFinding("locks", "problem", "its file system has no file locks", fix)
    if not exchanges:
        fix = "no action is needed; but a cache is missing for an instant when its rebuild takes its place"
        yield DoctorFinding("exchange", "note", "its file system cannot exchange two directories in one step", fix)
    free = shutil.disk_usage(folder).free
    is_low = free < LOW_SPACE
    fix = "free some space, or choose another disk with --cache-dir; `hf cache ls` lists the files that the hub keeps" if is_low else ""
    yield DoctorFinding("disk", "note" if is_low else "ok", f"{file_size(free)} free", fix)


def _has_locks(folder: Path) -> bool:
    with open(folder / "lock", "w", encoding="ascii") as file:
        try:
            return try_lock(file.fileno(), folder / "target", fcntl.LOCK_EX)
        except NielsCacheError:
            return False


def _dagster_home() -> DoctorFinding:
    given = os.environ.get(HOME_VARIABLE)
    home = Path(given or ".dagster").expanduser()
    found = f"{home.absolute()}" if given else f"{home.absolute()} ({HOME_VARIABLE} is not set)"
    folder = _nearest_folder(home)
    if (home.exists() and not home.is_dir()) or not os.access(folder, os.W_OK | os.X_OK):
        fix = f"this folder is not writable; choose another: export {HOME_VARIABLE}=$HOME/.dagster"
        return DoctorFinding(HOME_VARIABLE, "problem", found, fix)
    if given and not Path(given).is_absolute():
        fix = f"make the path absolute, because other programs of Dagster refuse a relative one: export {HOME_VARIABLE}={home.absolute()}"
        return DoctorFinding(HOME_VARIABLE, "problem", given, fix)
    if (home / DAGSTER_CONFIG).exists() and not os.access(home / DAGSTER_CONFIG, os.R_OK):
        return DoctorFinding(HOME_VARIABLE, "problem", f"{home / DAGSTER_CONFIG} cannot be read", "change its permissions")
    if not given:
        fix = f"each working folder has a separate history; to share one: export {HOME_VARIABLE}=$HOME/.dagster"
        return DoctorFinding(HOME_VARIABLE, "note", found, fix)
    return DoctorFinding(HOME_VARIABLE, "ok", found)


def _hub(registry: Registry) -> Iterator[DoctorFinding]:
    """Check that each data set of the hub can be read with the current access token, and stop at the first failed connection."""
    from niels_cache_assets.artifacts.input_problems import hub_problems
    from niels_cache_assets.sources.hub.data import HubData

    problems = [_input_finding("hub", problem) for problem in hub_problems(registry)]
    yield from problems
    sources = {**registry.pretrain, **registry.sft}.values()
    datasets = {source.dataset for source in sources if isinstance(source, HubData) and source.enabled and not source.local_key}
    if not datasets:
        yield DoctorFinding("hub", "ok", "no configured data set comes from the hub")
    elif not problems:
        from huggingface_hub import get_token

        yield DoctorFinding("hub", "ok", f"{format_list(sorted(datasets))} can be read, {'with' if get_token() else 'without'} a token")


def _input_finding(what: str, problem: InputProblem) -> DoctorFinding:
    found, _, fix = (str(problem), "", _NETWORK) if problem.is_unreachable else str(problem).rpartition("; ")
    return DoctorFinding(what, "problem", found or fix, fix)


def _nearest_folder(path: Path) -> Path:
    path = path.absolute()
    return next(folder for folder in (path, *path.parents) if folder.is_dir())
