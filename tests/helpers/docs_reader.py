"""A reader of the documentation, which runs its commands, its Python and its configurations.

Blocks without a language, or of `sh`, are commands, one in each line. Blocks of `python` are executed, in one scope for a page. A block of
`toml` is a niels_cache.toml, and a block of `yaml` is the run configuration of a pretrain data set. A block of `python` that begins with
the name of a file is also written to this file. Blocks of `text`, and of the languages in `SHOWN`, are only shown. Our commands and Python
scripts run in this process, as a terminal would run them. Other commands are on the page's list of commands that are not run, with the
reason. If such a command has a parser, the parser must accept it.
"""

import importlib
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dagster as dg
import yaml

from niels_cache_assets.cli import main
from niels_cache_assets.cli.parser import build_parsers, parse_arguments
from niels_cache_assets.defs.assembly import build_defs
from niels_cache_assets.project.registry import load_registry

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = (
    *(REPOSITORY / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted(path for path in (REPOSITORY / "docs").rglob("*.md") if path.parent.name != "log"),  # a log is not kept up to date
)
COMMANDS = ("", "sh", "bash")
SHOWN = {"text": "output, formats and diagrams", "nginx": "another program's configuration"}

_FENCE = re.compile(r"^( *)```([\w-]*)[^\n`]*\n(.*?)^\1```[ ]*$", re.MULTILINE | re.DOTALL)
_MODULE = re.compile(r"# (\w+\.py)\n")
_VARIABLE = re.compile(r"(\w+)=(.*)", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Block:
    page: str
    line: int
    language: str
    text: str

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"


def page_name(path: Path) -> str:
    return path.relative_to(REPOSITORY).as_posix()


def blocks_of(path: Path) -> list[Block]:
    """Return the fenced blocks of a page, without their indentation."""
    text = path.read_text(encoding="utf-8")
    found = []
    for match in _FENCE.finditer(text):
        indent, language, body = match[1], match[2], match[3]
        line = text.count("\n", 0, match.start()) + 2
        found.append(Block(page=page_name(path), line=line, language=language, text=re.sub(f"^{indent}", "", body, flags=re.MULTILINE)))
    if text.count("```") != 2 * len(found):
        raise ValueError(f"{page_name(path)}: a fence that is not closed, or one inside a line")
    return found


def commands_of(text: str) -> Iterator[tuple[int, list[str]]]:
    """Offset of the line and words of each command; comments are left out, `&&` and `\\` at a line's end are understood."""
    number, lines = 0, text.split("\n")
    while number < len(lines):
        first, line = number, lines[number]
        while line.endswith("\\"):
            number += 1
            line = f"{line[:-1]} {lines[number].strip()}"
        number += 1
        words: list[str] = []
        for word in shlex.split(line, comments=True):
            if word == "&&":
                yield first, words
                words = []
            else:
                words.append(word)
        if words:
            yield first, words


def inline_commands(path: Path) -> list[str]:
    """Return our commands in running text."""
    prose = _FENCE.sub("", path.read_text(encoding="utf-8"))
    return re.findall(r"`(?:\.venv/bin/)?niels-cache ([^`]+)`", prose)


def parses(words: list[str]) -> None:
    """Raise the error of the command line for wrong use. The name of a command alone is allowed."""
    if "--help" in words:  # ends the process
        words = [word for word in words if word != "--help"]
    if len(words) == 1:
        assert words[0] in build_parsers()[1], words[0]
        return
    assert parse_arguments(words) is not None


def makes(words: list[str]) -> None:
    """Raise an error for a target that the Makefile does not have."""
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8").replace("$(STAMP)", ".venv/.installed")
    targets = [word for word in words if "=" not in word]
    assert targets
    for target in targets:
        assert re.search(rf"^{re.escape(target)}:", makefile, re.MULTILINE), f"no target {target}"


def materializes(words: list[str]) -> None:
    """Raise an error for options that Dagster's command does not take."""
    from dagster._cli.asset import asset_materialize_command

    assert words[:2] == ["asset", "materialize"], words
    asset_materialize_command.make_context("materialize", words[2:])


PARSERS: dict[str, Callable[[list[str]], None]] = {"niels-cache": parses, "make": makes, "dagster": materializes}


@dataclass(kw_only=True)
class Reader:
    """A reader that works in `folder`. `names` (such as NAME: wikipedia) replace the words of a page that stand for something.

    setenv(name, value): called for the variables that a page exports. not_run: the reason for each beginning of a command or snippet that
    is not run. `used`: the beginnings that occurred. may_find: commands that may return 1, because the test data differ from the
    configuration.
    """

    folder: Path
    setenv: Callable[[str, str], None]
    not_run: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    may_find: frozenset[str] = frozenset({"status"})
    used: set[str] = field(default_factory=set)
    scope: dict[str, Any] = field(default_factory=dict)

    def read(self, block: Block) -> None:
        """Run the block. An error is raised again, with the place of the block."""
        try:
            if block.language in COMMANDS:
                for _, words in commands_of(block.text):
                    self.command([self.names.get(word, word) for word in words])
            elif block.language == "python":
                self.python(block)
            elif block.language == "toml":
                self.configure(block)
            elif block.language == "yaml":
                if self._reason(block.text) is None:
                    job = build_defs(registry=load_registry(profile="default")).resolve_job_def("build_pretrain")
                    dg.validate_run_config(job, yaml.safe_load(block.text))
            elif block.language not in SHOWN:
                raise ValueError(f"```{block.language}: a language that nobody runs; see {Path(__file__).name}")
        except Exception as error:
            error.add_note(f"at {block.where}")
            raise

    def python(self, block: Block) -> None:
        reason = self._reason(block.text)
        code = compile("\n" * (block.line - 1) + block.text, str(REPOSITORY / block.page), "exec")
        if module := _MODULE.match(block.text):
            (self.folder / module[1]).write_text(block.text, encoding="utf-8")
        if reason is None:
            exec(code, self.scope)

    def configure(self, block: Block) -> None:
        config = self.folder / ".of_the_page.toml"  # paths are relative to it
        config.write_text(block.text, encoding="utf-8")
        load_registry(profile="default", config=str(config))
        config.unlink()

    def command(self, words: list[str]) -> None:
        words = words[1:] if words[0] == "export" else words
        while words and (given := _VARIABLE.fullmatch(words[0])):
            self.setenv(given[1], os.path.expandvars(given[2].replace("$PWD", str(self.folder))))
            words = words[1:]
        if not words:
            return
        program, rest = Path(words[0]).name or words[0], words[1:]
        if self._reason(" ".join([program, *rest])) is not None:
            if program in PARSERS:
                PARSERS[program](rest)
        elif program == "make":
            raise ValueError("a target of make that is neither run nor on the list")
        elif program == "niels-cache":
            code = main([name for word in rest for name in self._expanded(word)])
            assert code == 0 or (code == 1 and rest[0] in self.may_find), f"niels-cache {' '.join(rest)}: exit code {code}"
        elif program.startswith("python"):
            self._script(rest)
        elif program == "sha256sum":
            subprocess.run([program, *rest], cwd=self.folder, check=True, stdout=subprocess.DEVNULL)
        elif program == "cd":
            self.folder = Path(os.path.normpath(self.folder / rest[0]))  # as in a shell, the parent of a link is the folder with the link
            os.chdir(self.folder)
        elif program == "mkdir":
            Path(os.path.normpath(self.folder / rest[0])).mkdir()
        else:
            raise ValueError(f"{' '.join(words)}: a command that nobody runs; see {Path(__file__).name}")

    def _script(self, words: list[str]) -> None:
        before = sys.argv
        sys.argv = words[1:] if words[0] == "-m" else words
        try:
            if words[0] == "-m":
                module = importlib.import_module(words[1])
                if hasattr(module, "__path__"):
                    module = importlib.import_module(f"{words[1]}.__main__")
                code = module.main(words[2:])
            else:
                code = runpy.run_path(words[0])["main"](words[1:])
        finally:
            sys.argv = before
        assert not code, f"python {' '.join(words)}: {code}"

    def _expanded(self, word: str) -> list[str]:
        """Return the files of a pattern, as a shell expands it."""
        if not re.search(r"[*?]", word) or "=" in word:
            return [word]
        return sorted(str(path.relative_to(self.folder)) for path in self.folder.glob(word)) or [word]

    def _reason(self, given: str) -> str | None:
        for beginning, reason in self.not_run.items():
            if given.startswith(beginning):
                self.used.add(beginning)
                return reason
        return None
