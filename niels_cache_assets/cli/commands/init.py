"""The command `init`, which writes a first niels_cache.toml, or lists the data sets that ship with the package.

new_config.py makes the text of the file, and docs/configuration.md explains the keys.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from niels_cache_assets.cli.command import Command, catalog_names, option, switch, whole_number
from niels_cache_assets.cli.console import PROGRAM, display, excerpt, is_quiet, new_table, print_facts, stdout
from niels_cache_runtime.errors import NielsCacheError

if TYPE_CHECKING:
    from niels_cache_assets.cli.detection import SeenFiles
    from niels_cache_assets.project.registry import Registry
    from niels_cache_assets.sources.types import Source

_MAX_IGNORED = 0.5  # share of the bytes above which a warning follows
_EXAMPLES = 3  # of each data set
_EXCERPT = 400  # characters

COMMAND = Command(
    options=(
        option("data", "PATH", "your data: files, folders or globs", nargs="*"),
        option("--out", "FILE", "configuration file to write (default: niels_cache.toml)", default="niels_cache.toml"),
        switch("--force", "replace an existing file"),
        option(
            "--list",
            "NAME",
            "list the data sets that ship with niels-cache, or print the tables for NAME; write no file",
            nargs="*",
            dest="listed",
        ),
    ),
    groups={
        "what to build": [
            option("--from", "NAME", "data sets that ship with niels-cache", nargs="+", action="extend", default=[], dest="catalog"),
            option(
                "--profile",
                "PROFILE",
                "all data sets of a profile: default (fineweb_edu, wikitext, dolly15k, oasst1) or quickstart (Python's own documentation)",
            ),
            option(
                "--hub",
                "OWNER/NAME",
                "text from the Hugging Face hub: OWNER/NAME or OWNER/NAME:CONFIG",
                nargs="+",
                action="extend",
                default=[],
            ),
            option(
                "--text-field",
                "FIELD",
                "text field of .jsonl and .parquet files, which are then not conversations (default: text, else the only possible field)",
            ),
        ],
        "how": [
            option("--cache-dir", "DIR", "root folder of the caches (default: cache, next to the configuration file)"),
            option(
                "--tokenizer",
                "MODEL",
                "a model to use instead of training one: SentencePiece, tokenizer.json or its folder, ranks, or OWNER/NAME of the hub",
            ),
            option("--vocab-size", "N", "vocabulary size of the trained tokenizer", type=whole_number),
        ],
    },
    description="""\
Write a niels_cache.toml that lists the data sets to build, with a comment for every key. init inspects
your data to find the text field and the format of conversations (lists of messages, instruction and
answer, OpenAssistant trees). It lists all files that it finds, and why it ignores some of them. It also
shows what training would see of the first rows, with the targets of conversations in [[ ]]. On a terminal,
it asks before it writes, unless --quiet or --json is given. It writes no file if nothing can be used.

--list shows the data sets that ship with niels-cache, with their download size, licence and origin. A
data set is built only if niels_cache.toml lists it or sets profile = "default".""",
    usage="[PATH ...] ",
    examples="""\
  niels-cache init data/ chats.jsonl                     your data
  niels-cache init --list                                data sets that ship with niels-cache
  niels-cache init --list wikitext                       the table of wikitext
  niels-cache init --hub allenai/c4:en --vocab-size 32_000 --cache-dir /data/cache""",
    offers={"catalog": catalog_names, "listed": catalog_names},
    has_caches=False,
)


def run(arguments: argparse.Namespace) -> None:
    """Write the file, or list the catalog."""
    from niels_cache_assets.artifacts.first_rows import try_first_rows
    from niels_cache_assets.base.defaults import CONFIG_NAME
    from niels_cache_assets.base.wording import file_size, format_count, format_share
    from niels_cache_assets.cli.new_config import fit_vocabulary, render
    from niels_cache_assets.disk.journal import write_atomically

    if arguments.listed is not None:
        _list(arguments)
        return
    target = Path(arguments.out)
    if target.exists() and not arguments.force:
        add = f"append a table of the catalog: {PROGRAM} init --list {' '.join(arguments.catalog) or 'NAME'} >> {target}"
        raise NielsCacheError(f"{target}: already exists; edit it, {add}, replace it with --force, or write another file with --out")
    if not (arguments.profile or arguments.catalog or arguments.data or arguments.hub):
        raise NielsCacheError(
            f"init: no data set is named; give files or folders ({PROGRAM} init data/), --from NAME ({PROGRAM} init --list shows them), "
            "--hub OWNER/NAME, or --profile default"
        )
    seen: list[SeenFiles] = []
    text = render(arguments, seen)
    registry, warnings = _load(target, text)
    try:
        text = fit_vocabulary(text, registry, arguments)
    except NielsCacheError as error:
        warnings.append(str(error).replace(registry.origin, str(target)))
    built = registry.partition_keys()
    first_rows = {name: try_first_rows(registry, name) for name in built}
    warnings += [note for _, notes in first_rows.values() for note in notes]
    total, ignored = sum(each.bytes for each in seen), sum(each.bytes for each in seen if isinstance(each.outcome, str))
    if ignored > _MAX_IGNORED * total:
        warnings.append(f"{format_share(ignored, total)} of the bytes are ignored, for the reasons above")
    is_shown = not (arguments.json or is_quiet())
    if is_shown:
        for each in seen:
            use = f"IGNORED: {each.outcome}" if isinstance(each.outcome, str) else each.outcome.source
            display(f"{each.ending:8} {format_count(each.files, 'file'):>10} {file_size(each.bytes):>10}  {use}")
        if seen:
            display(f"{format_share(total - ignored, total)} of the bytes are used")
        for name, (texts, _) in first_rows.items():
            for example in texts[:_EXAMPLES]:
                display(f"--- {name}: {excerpt(example, _EXCERPT)}")
        if sys.stdin and sys.stdin.isatty() and stdout().isatty():
            _print_warnings(warnings)
            warnings.clear()
            if not _agrees_to(f"Write {target}?"):
                display(f"{target} not written")
                return
    with _explain_unwritable(target):
        write_atomically(target, text.encode())
    facts = {"file": target, "profile": registry.profile, "data_sets": built, "cache_dir": registry.build.cache_dir, "seen": seen}
    print_facts(arguments, facts)
    if is_shown:
        option = "" if target.name == CONFIG_NAME and target.absolute().parent == Path.cwd() else f" --config {target}"
        display(f"{target} written. It builds", style="bold")
        for name in built:
            display(f"  [{registry.family_of(name)}.{name}] {_describe_source(registry.source(name))}")
        display("Next steps", style="bold")
        if arguments.profile == "quickstart":
            option = f" --config {target}"  # with this profile, a file is read only if --config names it
        display(f"  {PROGRAM} doctor{option}  # checks everything that a build needs")
        display(f"  {PROGRAM} build-all{option}")
    _print_warnings(warnings)


def _print_warnings(warnings: list[str]) -> None:
    for line in warnings:
        print(f"WARNING: {line}", file=sys.stderr)


def _agrees_to(question: str) -> bool:
    with suppress(EOFError), redirect_stdout(stdout()):
        return input(f"{question} [Y/n] ").strip().lower() in ("", "y", "yes")
    return False


def _list(arguments: argparse.Namespace) -> None:
    from niels_cache_assets.cli.new_config import catalog_table
    from niels_cache_assets.project.shipped import catalog

    tables = {name: catalog_table(name) for name in arguments.listed or catalog()}
    if print_facts(arguments, {"data_sets": [{**_entry(name), "table": table} for name, table in tables.items()]}):
        return
    if arguments.listed:
        print("\n" + "\n\n".join(tables.values()), file=stdout())  # the user may append the output to a file that lacks a final newline
        return
    columns = ("description", "download", "licence", "from")
    table = new_table("data set", "family", *columns, shrinking=columns)
    for name in tables:
        table.add_row(*_entry(name).values())
    display(table)
    if not is_quiet():
        advice = (
            f"{PROGRAM} init --from NAME ... writes a niels_cache.toml with them; {PROGRAM} init --list NAME prints a table for your file"
        )
        display(f"\n{advice}")


def _entry(name: str) -> dict[str, Any]:
    from niels_cache_assets.project.merging import SOURCES
    from niels_cache_assets.project.shipped import ABOUT, catalog

    family, table = catalog()[name]
    about = ABOUT[name]
    fields = SOURCES[family][table["source"]].model_fields
    origin = fields["dataset"].default if "dataset" in fields else "this machine"
    config = fields["config"].default if "config" in fields else None
    return {
        "name": name,
        "family": family,
        "what": about.what,
        "download": about.size,
        "licence": about.licence,
        "from": f"{origin} ({config})" if config else origin,
    }


def _describe_source(source: Source) -> str:
    """Return a line about the data that was found, such as `parquet: data/**/*.parquet, text in 'body'`."""
    from niels_cache_assets.cli.new_config import describe_fields

    where = getattr(source, "files", None) or getattr(source, "path", None) or getattr(source, "dataset", None)
    if where is None:
        return source.source
    paths = [os.path.relpath(path) if os.path.isabs(path) else path for path in (where if isinstance(where, list) else [where])]
    form = describe_fields(source.model_dump(exclude_unset=True))
    return f"{source.source}: {', '.join([*paths, form] if form else paths)}"


def _load(target: Path, text: str) -> tuple[Registry, list[str]]:
    """Load the text as the configuration in `target`, and return its registry and warnings.

    The text is loaded from a temporary file in the folder of `target`, because paths in the text are relative to this folder.
    """
    from niels_cache_assets.artifacts.input_problems import InputsError
    from niels_cache_assets.project.registry import load_registry

    with (
        _explain_unwritable(target),
        tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=target.absolute().parent, prefix=".init_", suffix=".toml") as file,
    ):
        file.write(text)
        file.flush()
        try:
            registry = load_registry(config=file.name)
            return registry, _require_inputs(registry)
        except InputsError:
            raise
        except NielsCacheError as error:
            raise NielsCacheError(str(error).replace(file.name, str(target))) from error


@contextmanager
def _explain_unwritable(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise NielsCacheError(f"{target}: cannot be written: {error.strerror}; choose another place with --out") from error


def _require_inputs(registry: Registry) -> list[str]:
    """Return a line for each data set with a broken row, which the user corrects or leaves out, or of which nothing could be checked.

    Raises:
        InputsError: If there is any other problem that `doctor` would report.
    """
    from niels_cache_assets.artifacts.input_problems import InputsError, hub_problems, input_problems
    from niels_cache_assets.project.shipped import catalog
    from niels_cache_assets.tokenizer.kinds import open_configured_model

    if registry.tokenizer.model is not None:
        open_configured_model(registry.tokenizer)
    found = [*input_problems(registry), *hub_problems(registry, set(registry.partition_keys()) - catalog().keys())]
    problems = [problem for problem in found if not problem.is_unreachable and not problem.is_row_problem]
    if problems:
        raise InputsError(["error: init: this configuration cannot be built, so no file was written:", *map(str, problems)])
    return [f"{problem}{'; nothing was checked' if problem.is_unreachable else ''}" for problem in found]
