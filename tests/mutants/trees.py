"""Copies of the working tree, and pytest in these copies. Each copy has an environment that prefers the copy to installed packages.

All Python programs that a test starts use this environment and import the copy, even in another folder and with an empty environment. An
environment that measures starts `measuring` in each of these programs.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import threading
import time
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TextIO

from tests.mutants import guarded, measuring

REPOSITORY = Path(__file__).parents[2]
PACKAGES = ("niels_cache_runtime", "niels_cache_assets")
_KEPT = {".venv", ".olmo-env", "__pycache__"}  # folders of a tree, beside the copied files
_UNSET = ("PYTHONPATH", "VIRTUAL_ENV", "DAGSTER_HOME", "NIELS_CACHE_PROFILE", "NIELS_CACHE_CONFIG", "NIELS_CACHE_ROOT")
_PATIENCE = 30.0  # seconds for a test, in addition to five times its earlier time; also for pytest to end after a failure


@dataclass(frozen=True, kw_only=True)
class Ended:
    """The end of pytest. code: its exit code, or None if this program ended pytest. test: the test that failed, hung, or ran last. began:
    the number of tests that began.
    """

    code: int | None
    failed: bool
    test: str | None
    began: int
    seconds: float

    @property
    def noticed(self) -> bool:
        """Whether a test failed or hung, or the import failed. False if the time was over."""
        return self.failed or self.code not in (0, None) or (self.code is None and self.began == 0)


def copy_sources(repository: Path, to: Path) -> None:
    """Copy all files that git does not ignore."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=True).stdout
    for path in filter(None, listed.split("\0")):
        if (repository / path).is_file():  # in the index, but deleted
            (to / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(repository / path, to / path)


class Tree:
    """A copy of the folder `origin` in `folder`. measured: the folder to which its processes write the lines that they ran."""

    def __init__(self, folder: Path, origin: Path, *, measured: Path | None = None) -> None:
        self._origin, self._folder, self.root = origin, folder, folder / "tree"
        shutil.copytree(origin, self.root)
        if (REPOSITORY / ".olmo-env").exists():
            (self.root / ".olmo-env").symlink_to((REPOSITORY / ".olmo-env").resolve())
        self._make_environment(measured)

    def _make_environment(self, measured: Path | None) -> None:
        environment = self.root / ".venv"
        venv.create(environment, symlinks=True, with_pip=False)
        for script in Path(sys.prefix, "bin").iterdir():
            copy = environment / "bin" / script.name
            if copy.exists() or not script.is_file():
                continue
            with script.open("rb") as file:
                beginning, rest = file.readline(), file.read()
            if re.match(rb"#!\S+/python[\d.]*\n", beginning):
                copy.write_bytes(b"#!%b\n%b" % (bytes(environment / "bin" / "python"), rest))
                shutil.copymode(script, copy)
            else:
                copy.symlink_to(script)
        (site,) = environment.glob("lib/python*/site-packages")
        lines = [str(self.root), f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})"]
        if measured is not None:
            shutil.copy2(measuring.__file__, site / "measuring.py")
            include = [str(self.root / package / "*") for package in PACKAGES]
            lines.append(f"import measuring; measuring.start({str(measured)!r}, include={include!r})")
        (site / "tree.pth").write_text("\n".join(lines) + "\n", encoding="utf-8")

    def break_line(self, path: str, source: str) -> None:
        """Write `source` in the place of a module, until `restore`."""
        (self.root / path).write_text(source, encoding="utf-8")
        self._forget_compiled(path)

    def restore(self) -> None:
        """Restore the tree after the changes of a broken line."""
        for folder, folders, files in os.walk(self.root):
            here = Path(folder).relative_to(self.root)
            folders[:] = [name for name in folders if name not in _KEPT]
            for name in [name for name in folders if not (self._origin / here / name).is_dir()]:
                shutil.rmtree(self.root / here / name)
                folders.remove(name)
            for name in files:
                if not (self._origin / here / name).is_file() and name not in _KEPT:
                    (self.root / here / name).unlink()
        for path in self._origin.rglob("*"):
            copy = self.root / path.relative_to(self._origin)
            if path.is_file() and not (copy.is_file() and _stamp(copy) == _stamp(path)):
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, copy)
                self._forget_compiled(str(copy.relative_to(self.root)))

    def _forget_compiled(self, path: str) -> None:
        """Remove compiled code of numba. The code of one module may be part of the code of others."""
        for compiled in (self.root / path).parent.glob("__pycache__/*.nb[ic]"):
            compiled.unlink()

    def chosen(
        self, tests: Sequence[str], *, patience: Mapping[str, float], limit: float, log: Path, stopped: threading.Event | None = None
    ) -> Ended:
        """Run these tests in this order until one fails or hangs, or `limit` seconds are over. patience: the seconds that each test
        takes.
        """
        chosen = self._folder / "chosen.json"
        now = chosen.with_suffix(".now")
        now.unlink(missing_ok=True)
        chosen.write_text(json.dumps(tests), encoding="utf-8")
        files = dict.fromkeys(test.partition("::")[0] for test in tests)
        began = since = time.monotonic()
        said = ""
        with log.open("a", encoding="utf-8") as output:
            process = self.start(["-x", "--chosen", str(chosen), *files], output)
            try:
                while process.poll() is None:
                    time.sleep(0.1)
                    told = now.read_text(encoding="utf-8") if now.exists() else ""
                    if told != said:
                        said, since = told, time.monotonic()
                    running = json.loads(said) if said else {}
                    waited = time.monotonic() - since
                    if running and waited > _PATIENCE + (0 if running["failed"] else 5 * patience.get(running["test"], 0)):
                        return Ended(code=None, failed=True, test=running["test"], began=running["began"], seconds=waited)
                    if time.monotonic() - began > limit or (stopped is not None and stopped.is_set()):
                        break
                code = process.poll()
            finally:
                process.terminate()
                process.wait()
        last = json.loads(now.read_text(encoding="utf-8")) if now.exists() else {"failed": False, "test": None, "began": 0}
        return Ended(code=code, **last, seconds=time.monotonic() - began)

    def start(self, arguments: Sequence[str], output: BinaryIO | TextIO) -> "subprocess.Popen[bytes]":
        """Start pytest with `arguments`. When the returned process ends, all processes that the tests started end too. SIGTERM ends it."""
        temporary = self._folder / "tmp"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        scripts = self.root / ".venv" / "bin"
        environment = {name: value for name, value in os.environ.items() if name not in _UNSET}
        environment |= {"TMPDIR": str(temporary), "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}
        command = [sys.executable, guarded.__file__, str(scripts / "python"), "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        command += ["-p", "tests.mutants.plugin", "-m", "not browser", *arguments]
        return subprocess.Popen(command, cwd=self.root, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)


def _stamp(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns
