"""Checks of all data sets before a long build: the files exist and have the fields that the tables name.

The checks read the first rows of local files and the columns of each Parquet file. They send one request for each hub data set until the
hub turns out to be unreachable. An unreachable upstream is not reported as a problem, because the build waits for it.

This module tokenizes and writes nothing.
"""

from collections.abc import Iterable, Iterator
from functools import cache, partial
from typing import NamedTuple

from niels_cache_assets.base.defaults import CONFIG_NAME
from niels_cache_assets.chats.rendering import check_template
from niels_cache_assets.project.registry import Registry
from niels_cache_assets.sources.conversations import BrokenRowError
from niels_cache_assets.sources.errors import SourceUnavailableError
from niels_cache_assets.sources.hub.data import HubData
from niels_cache_assets.sources.net.retries import retry_at_most
from niels_cache_assets.sources.reading.references import named_data_sets
from niels_cache_assets.sources.types import PATH_KEYS, SENTINELS, SftSource, Source
from niels_cache_runtime.errors import NielsCacheError, escaped

NO_RETRY_SECONDS = 0.0  # retry a failed request for this many seconds; a build retries longer


class InputProblem(NamedTuple):
    """A problem of one data set.

    Attributes:
        table: The table of the data set, such as "pretrain.books".
        message: The problem, in one line.
        is_unreachable: Whether upstream cannot be reached now.
        is_row_problem: Whether one row is broken, which a key of the table can leave out.
    """

    table: str
    message: str
    is_unreachable: bool = False
    is_row_problem: bool = False

    def __str__(self) -> str:
        return f"[{self.table}] {self.message}"


class InputsError(NielsCacheError):
    """Data sets that cannot be built with their settings.

    Attributes:
        lines: One line for each problem, after a heading.
    """

    def __init__(self, lines: Iterable[str]) -> None:
        self.lines = list(map(escaped, lines))
        super().__init__()
        self.args = ("\n".join(self.lines),)


def input_problems(registry: Registry, names: Iterable[str] | None = None, *, offline: bool = False) -> Iterator[InputProblem]:
    """Yield the problems of data sets, in order. This sends no request to the hub.

    Args:
        registry: The configuration.
        names: The names of the data sets to check. None checks all data sets that can be built.
        offline: Whether to skip files on other machines.
    """
    problem_of = cache(partial(_template_problem, registry))
    for table, source in _tables(registry, names):
        if isinstance(source, SftSource) and (problem := problem_of(source.template)) is not None:
            yield InputProblem(table, problem)
            continue
        try:
            source.identity()  # reads the file of `exclude`, which is on this machine
            named_data_sets(getattr(source, "decontaminate_against", ()), registry.pretrain)
            if offline and is_remote(source):
                continue
            with retry_at_most(seconds=NO_RETRY_SECONDS):
                source.check_input(registry.pretrain)
        except NielsCacheError as error:
            yield InputProblem(table, str(error), isinstance(error, SourceUnavailableError), isinstance(error, BrokenRowError))
        except Exception:  # a bug of the source, not a fault of the data: the build reports it
            continue


def _template_problem(registry: Registry, template: str) -> str | None:
    if template == SENTINELS and (problem := registry.tokenizer.roles_problem) is not None:
        return f"cannot be built: {problem}"
    try:
        check_template(template, registry.tokenizer)
    except NielsCacheError as error:
        return str(error)
    return None


def hub_problems(registry: Registry, names: Iterable[str] | None = None) -> Iterator[InputProblem]:
    """Yield a problem for each hub data set that does not exist or refuses access.

    If a data set cannot be reached, its problem has `is_unreachable`, and the check ends.

    Args:
        registry: The configuration.
        names: The names of the data sets to check. None checks all data sets that can be built.
    """
    for table, source in _tables(registry, names):
        if not isinstance(source, HubData) or source.local_key:
            continue
        try:
            with retry_at_most(seconds=NO_RETRY_SECONDS):
                source.revision(registry.pretrain)
        except SourceUnavailableError as error:
            yield InputProblem(table, str(error), is_unreachable=True)
            return
        except NielsCacheError as error:
            yield InputProblem(table, str(error))


def _tables(registry: Registry, names: Iterable[str] | None) -> Iterator[tuple[str, Source]]:
    """Yield pairs such as ("pretrain.books", source) for the tables in `names`, or for all tables that can be built if `names` is None."""
    chosen = None if names is None else set(names)
    for name in registry.partition_keys():
        if chosen is None or name in chosen:
            yield f"{registry.family_of(name)}.{name}", registry.source(name)


def is_remote(source: Source) -> bool:
    """Return whether the source reads files on another machine."""
    return "://" in str([getattr(source, key, None) for key in PATH_KEYS])


def require_inputs(registry: Registry, names: Iterable[str]) -> None:
    """Check these data sets, and those that the tokenizer is trained on.

    Raises:
        InputsError: If there are problems. The error lists all of them.
        NielsCacheError: If there is no data set to train a tokenizer on.
    """
    buildable = registry.partition_keys()
    if not buildable and not registry.tokenizer.train_on:
        raise NielsCacheError(
            f"{registry.origin}: names no data set to train a tokenizer on; add one (niels-cache init --list shows the shipped ones), "
            f'or profile = "default" at the top of {CONFIG_NAME} for the data sets of that profile'
        )
    checked = {*names, *(buildable if registry.tokenizer.train_on is None else registry.tokenizer.train_on)}
    found = [*input_problems(registry, checked), *hub_problems(registry, checked)]
    problems = [problem for problem in found if not problem.is_unreachable]
    if problems:
        heading = (
            f"{registry.origin}: {len(problems)} {'data set' if len(problems) == 1 else 'data sets'} cannot be read, so nothing was built"
        )
        raise InputsError([f"error: {heading}; correct each, or set enabled = false in its table:", *map(str, problems)])
