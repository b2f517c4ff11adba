"""Sessions at a terminal as text files, with the typed commands, their output, and their exit codes. Write a file again to see the changes.

    # A comment, up to the next blank line, is kept.
    $ niels-cache status lettres
    ! niels-cache: error: ...        a line on stderr
    = 2                              the exit code
    $ niels-cache list
    | data set  ...                  a line on stdout
    = 0

`niels-cache` runs in this process, each time with the first environment. If a filter follows (`|`), the output goes through this filter.
`cd` is understood. bash runs all other lines. Text that varies from run to run and from machine to machine is shown as `#`, in its length,
so that tables stay tables.
"""

import io
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace

from niels_cache_assets.cli import main

PROGRAM = "niels-cache"
TYPED = "$ "
COMMENT = "# "


def _as_long(match: re.Match[str]) -> str:
    return re.sub(r"\w", "#", match[0])


# Text that varies, and the text that is shown instead.
_VARIES = (
    (re.compile(r"\b(?=[0-9]*[a-f])[0-9a-f]{12,}\b"), _as_long),  # hashes
    (re.compile(r"(?<=/session-)\w{8}\b"), _as_long),  # the folder that a session works in
    (re.compile(r"\b(in|after) [0-9]+\.[0-9] s\b"), r"\1 #.# s"),
    (re.compile(r"(?<=  ) *[0-9]+\.[0-9]$"), lambda match: "#.#".rjust(len(match[0]))),  # seconds, the last column of a table
    (re.compile(r"(?<=  )(at least )?[0-9]+:[0-9]{2}$"), r"\1#:##"),  # a time, the last column of a table
    (re.compile(r"(port |--port |127\.0\.0\.1:)[0-9]{5}\b"), r"\1#####"),
    (re.compile(r"\bLinux \w+, Python [0-9.]+, [0-9]+ cores?"), "Linux ######, Python #.#.#, # cores"),
    (re.compile(r"\b[0-9]+ as required; dagster [0-9.]+"), "## as required; dagster #.#.#"),
    (re.compile(r"\b(sentencepiece_version +)[0-9.]+"), r"\1#.#.#"),
)


@dataclass(frozen=True)
class Printed:
    stdout: str
    stderr: str
    code: int

    def lines(self) -> Iterator[str]:
        """Return the lines as they are in a file. Blanks at the end of a line are left out."""
        for sign, text in (("|", self.stdout), ("!", self.stderr)):
            for line in text.splitlines():
                yield f"{sign} {varying_hidden(line.rstrip())}".rstrip()
        yield f"= {self.code}"


def varying_hidden(line: str) -> str:
    for pattern, shown in _VARIES:
        line = pattern.sub(shown, line)
    return line


def written_again(session: str) -> str:
    """Return the session with the present output of its commands, in this folder. Comments and blank lines stay."""
    lines: list[str] = []
    for line in session.splitlines():
        if line.startswith(TYPED):
            lines += [line, *_typed(line.removeprefix(TYPED))]
        elif not line or line.startswith(COMMENT):
            lines.append(line)
    return "".join(f"{line}\n" for line in lines)


def commands_of(session: str) -> list[str]:
    """Return the name of the command for each line that calls our program."""
    typed = [shlex.split(line.removeprefix(TYPED)) for line in session.splitlines() if line.startswith(TYPED)]
    return [words[1] for words in typed if words[0] == PROGRAM]


def codes_of(session: str) -> list[int]:
    return [int(line.removeprefix("= ")) for line in session.splitlines() if line.startswith("= ")]


def _typed(line: str) -> list[str]:
    program, *rest = shlex.split(line)
    if program == PROGRAM:
        ours, _, through = line.partition(" | ")
        printed = run([os.path.expandvars(word) for word in shlex.split(ours)[1:]])
        return [*(replace(printed, stdout=_bash(through, printed.stdout)) if through else printed).lines()]
    if program == "cd":
        os.chdir(rest[0])
        return []
    return [f"| {varying_hidden(shown)}".rstrip() for shown in _bash(line).splitlines()]


def _bash(line: str, given: str = "") -> str:
    done = subprocess.run(["bash", "-c", line], input=given, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, ""), line
    return done.stdout


def run(arguments: list[str]) -> Printed:
    """Return the output of `niels-cache` with these arguments, without a terminal."""
    stdout, stderr = io.StringIO(), io.StringIO()
    with redirect_stdout(stdout), redirect_stderr(stderr), _environment_kept():
        try:
            code = main(arguments)
        except SystemExit as left:  # of --help and --version
            code = int(left.code or 0)
    return Printed(stdout.getvalue(), stderr.getvalue(), code)


@contextmanager
def _environment_kept() -> Iterator[None]:
    before = dict(os.environ)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
