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
import time
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests import size
from tests.mutants import guarded, measuring

REPOSITORY = Path(__file__).parents[2]
PACKAGES = (*size.PACKAGES, *size.BESIDE)
_KEPT = (".venv", ".olmo-env", "__pycache__")  # of a tree, beside the copied files
_UNSET = ("PYTHONPATH", "VIRTUAL_ENV", "DAGSTER_HOME", "NIELS_CACHE_PROFILE", "NIELS_CACHE_CONFIG", "NIELS_CACHE_ROOT")
_PATIENCE = 30.0  # seconds for a test, in addition to five times its earlier time; also for pytest to end after the last test
_NO_TESTS = 5  # exit code of pytest


@dataclass(frozen=True, kw_only=True)
class Ended:
    """The end of pytest. code: its exit code, or None if the time was over. test: the test that began last. began: the number of tests
    that began.
    """

    code: int | None
    test: str | None
    began: int
    seconds: float

    @property
    def noticed(self) -> bool:
        """Whether a test failed or hung, or the import failed or hung. False if the time was over."""
        return self.code not in (0, None, _NO_TESTS) or (self.code is None and self.began == 0)


def copy_sources(to: Path) -> None:
    """Copy all files that git does not ignore."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    for path in filter(None, listed.split("\0")):
        if (REPOSITORY / path).is_file():  # in the index, but deleted
            (to / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPOSITORY / path, to / path)


class Tree:
    """A copy of the folder `origin` in `folder`. measured: the folder to which its processes write the lines that they ran."""

    def __init__(self, folder: Path, origin: Path, *, measured: Path | None = None) -> None:
        self._folder, self.root = folder, folder / "tree"
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False
        shutil.copytree(origin, self.root)
        self._git("init", "--quiet")
        self._git("add", "--all", "--force", ".")
        if (REPOSITORY / ".olmo-env").exists():
            (self.root / ".olmo-env").symlink_to((REPOSITORY / ".olmo-env").resolve())
        self._make_environment(measured)

    def _git(self, *arguments: str) -> None:
        """Run git with a repository beside the tree, because tests must not find one."""
        subprocess.run(["git", f"--git-dir={self._folder / 'git'}", f"--work-tree={self.root}", *arguments], cwd=self.root, check=True)

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

    def restore(self, path: str) -> None:
        """Restore the tree after the changes of a broken line in a module, and of the tests."""
        self._git("checkout-index", "--all", "--force")
        self._git("clean", "-ffdxq", *(f"--exclude={name}" for name in _KEPT))
        self._forget_compiled(path)

    def _forget_compiled(self, path: str) -> None:
        """Remove compiled code of numba. The code of one module may be part of the code of others."""
        for compiled in (self.root / path).parent.glob("__pycache__/*.nb[ic]"):
            compiled.unlink()

    def chosen(self, patience: Mapping[str, float], *, limit: float, log: Path) -> Ended:
        """Run tests in this order until one fails or hangs, or `limit` seconds are over. patience: the seconds that each test takes."""
        chosen = self._folder / "chosen.json"
        now = chosen.with_suffix(".now")
        now.write_text(json.dumps({"test": None, "began": 0}), encoding="utf-8")
        limits = {test: _PATIENCE + 5 * seconds for test, seconds in patience.items()}
        chosen.write_text(json.dumps({"log": str(log), "seconds": limits}), encoding="utf-8")
        files = dict.fromkeys(test.partition("::")[0] for test in patience)
        begin = time.monotonic()
        code = self.run(["-x", "-o", "faulthandler_timeout=0", "--chosen", str(chosen), *files], limit=limit, log=log)
        return Ended(code=code, **json.loads(now.read_text(encoding="utf-8")), seconds=time.monotonic() - begin)

    def run(self, arguments: Sequence[str], *, log: Path, limit: float | None = None) -> int | None:
        """Run pytest, and end all processes that the tests started. Return its exit code, or None after `limit` seconds."""
        temporary = self._folder / "tmp"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        scripts = self.root / ".venv" / "bin"
        environment = {name: value for name, value in os.environ.items() if name not in _UNSET}
        environment |= {"TMPDIR": str(temporary), "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}
        command = [sys.executable, guarded.__file__, str(scripts / "python"), "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        command += ["-p", "tests.mutants.plugin", "-m", "not browser", *arguments]
        with log.open("a", encoding="utf-8") as output:
            self._process = subprocess.Popen(
                command, cwd=self.root, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
            try:
                code = self._process.wait(limit)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                self._process.terminate()
                self._process.wait()
        if self._stopped:
            raise InterruptedError(f"stopped: {self.root}")
        return code

    def stop(self) -> None:
        """End pytest from another thread, and all later runs."""
        self._stopped = True
        if self._process is not None:
            self._process.terminate()
