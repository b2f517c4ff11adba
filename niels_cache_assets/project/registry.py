"""The registry, which contains all data sets and settings as typed objects.

They come from the user's niels_cache.toml and, if the user chose one, from a profile (a configuration that ships with the package).

A project consists of the data sets that its file names. Settings come in layers, and a later layer overrides keys of an earlier layer: the
chosen profile, the user's file, `--set` and flags. Without a file, the default profile is used. A table that names a shipped data set and
has no `source` inherits the keys of the catalog. A table inherits nothing if it has a `source` and no profile has a table of this name.

The keys of Dagster's partitions are the names of the tables, in order. If a table is disabled, or lacks a required setting (roam without a
path), it stays in the registry but is not a partition. This module opens no source.
"""

import difflib
import os
import re
import shlex
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError

from niels_cache_assets.base.choices import raise_unknown_choice
from niels_cache_assets.base.defaults import CONFIG_NAME
from niels_cache_assets.base.toml import as_toml, typed_toml
from niels_cache_assets.cleaning.settings import CleaningSettings
from niels_cache_assets.dedup.settings import DedupSettings, LinesSettings, SpansSettings
from niels_cache_assets.disk.identity import without_keys
from niels_cache_assets.project.component import find_component
from niels_cache_assets.project.merging import EXCLUSIVE_KEYS, SOURCES, Tables, absolute_paths, add_catalog_keys, merge_tables, read_tables
from niels_cache_assets.project.problems import explain_problems, raise_not_configured
from niels_cache_assets.project.running import MIN_STORE_LEASE_SECONDS, ClusterSettings, NotifySettings, PublishSettings
from niels_cache_assets.project.shipped import PROFILES, catalog, profile_tables
from niels_cache_assets.project.tables import (
    BlendSettings,
    BuildSettings,
    ComponentSettings,
    DagsterSettings,
    FindSettings,
    NameSettings,
    ReportsSettings,
)
from niels_cache_assets.sources.interleave import Interleave
from niels_cache_assets.sources.reading.where import parse_condition
from niels_cache_assets.sources.types import REPEATS, PrepareStep, PretrainSource, SftSource, Source
from niels_cache_assets.tokenizer.settings import TokenizerSettings
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import FAMILIES, Family
from niels_cache_runtime.remote.store import check_address

CONFIG_VARIABLE = "NIELS_CACHE_CONFIG"
PROFILE_VARIABLE = "NIELS_CACHE_PROFILE"
ROOT_VARIABLE = "NIELS_CACHE_ROOT"
FALLBACK_PROFILE = PROFILES[0]

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*")
_LONGEST_NAME = 200  # file names contain this name, and can have at most 255 bytes
_ON_THE_COMMAND_LINE = "command line: "
_MAX_PROBLEMS = 3  # maximum number of a table's problems in one message

_SCHEMAS: Mapping[str, type[BaseModel]] = {  # of the tables that have no names below them
    "build": BuildSettings,
    "tokenizer": TokenizerSettings,
    "cleaning": CleaningSettings,
    "dedup": DedupSettings,
    "lines": LinesSettings,
    "spans": SpansSettings,
    "reports": ReportsSettings,
    "find": FindSettings,
    "dagster": DagsterSettings,
    "cluster": ClusterSettings,
    "notify": NotifySettings,
    "publish": PublishSettings,
}

Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True, kw_only=True)
class _Origin:
    """The origin of tables, for messages.

    Attributes:
        where: The file or profile.
        base_dir: Folder to which relative paths refer.
        options: Command-line options by the key that they set.
    """

    where: str
    base_dir: str = "."
    options: Mapping[str, str] = field(default_factory=dict)

    def of(self, label: str, key: str) -> str:
        """Return the file or option that a message about a key must name.

        If `key` is empty, the message is about several keys of the table.
        """
        keys = EXCLUSIVE_KEYS if key in EXCLUSIVE_KEYS else (key,)
        for name, option in self.options.items():
            if name in (label, *(f"{label}.{each}" for each in keys)) or (not key and name.startswith(f"{label}.")):
                return option
        return self.where


@dataclass(frozen=True, kw_only=True)
class Registry:
    """The whole configuration.

    Attributes:
        build: Settings in [build].
        tokenizer: Settings in [tokenizer].
        cleaning: Settings in [cleaning].
        dedup: Settings in [dedup].
        lines: Settings in [lines].
        spans: Settings in [spans].
        pretrain: Pretrain data sets by name.
        sft: SFT data sets by name.
        blend: Blends by name.
        reports: Settings in [reports].
        find: Settings in [find].
        dagster: Settings in [dagster].
        publish: Settings in [publish].
        cluster: Settings in [cluster].
        notify: Settings in [notify].
        origin: The file or profile that messages name.
        profile: The profile whose tables the file overrides, or None if there is no profile.
        is_fallback: Whether neither a file nor a profile was named, so that the default profile is used.
        overrides: The keys that command-line options have changed, by table. Another process that reads the file has other settings.
        advice: A line for each table that should be more explicit, or `without_file` if `is_fallback` is set.
    """

    build: BuildSettings
    tokenizer: TokenizerSettings
    cleaning: CleaningSettings
    dedup: DedupSettings
    pretrain: Mapping[str, PretrainSource]
    sft: Mapping[str, SftSource]
    blend: Mapping[str, BlendSettings]
    reports: ReportsSettings
    dagster: DagsterSettings
    publish: PublishSettings
    cluster: ClusterSettings
    notify: NotifySettings
    origin: str
    profile: str | None
    is_fallback: bool = False
    overrides: Tables = field(default_factory=dict)
    advice: tuple[str, ...] = ()
    lines: LinesSettings = field(default_factory=LinesSettings)
    spans: SpansSettings = field(default_factory=SpansSettings)
    find: FindSettings = field(default_factory=FindSettings)

    @property
    def settings_origin(self) -> str:
        """Origin and profile as text: `profile quickstart`, `niels_cache.toml` or `niels_cache.toml on profile default`."""
        below = f"profile {self.profile}"
        return self.origin if self.profile is None or self.origin == below else f"{self.origin} on {below}"

    @property
    def without_file(self) -> str:
        """Message if `is_fallback` is set: there is no configuration file, so the default profile is used."""
        names = ", ".join(self.partition_keys())
        above = _file_above()
        remedy = f"use the one above with --config {above}, or write one" if above else "write a file of your own"
        return f"there is no {CONFIG_NAME} in {Path.cwd()}, so the default profile is used ({names}); {remedy}: niels-cache init"

    @property
    def elsewhere(self) -> str:
        """Text to add to the message for an unknown name.

        If `is_fallback` is set, it says that the right file may be elsewhere. Otherwise it is empty.
        """
        if not self.is_fallback:
            return ""
        named = f"--config {_file_above() or 'FILE'}"
        return f"; there is no {CONFIG_NAME} here: work in the folder that has yours, or name it with {named}"

    @cached_property
    def sources(self) -> Mapping[str, PretrainSource | SftSource]:
        """The tables of all data sets by name, in order. The name of a data set is unique in both families."""
        return {**self.pretrain, **self.sft}

    def datasets(self, family: Family) -> Mapping[str, PretrainSource] | Mapping[str, SftSource]:
        return self.pretrain if family == "pretrain" else self.sft

    def partition_keys(self, *families: Family) -> list[str]:
        """Return the names of the data sets that can be built (enabled, with all required settings), in order."""
        chosen = {name: source for name, source in self.sources.items() if source.family in (families or FAMILIES)}
        return [name for name, source in chosen.items() if source.enabled and source.missing_setting() is None]

    def published(self, family: Family) -> list[str]:
        """Return the names of the data sets that [publish] publishes, in order; none without an address."""
        if self.publish.address is None:
            return []
        chosen = self.publish.data_sets
        return [name for name in self.partition_keys(family) if chosen is None or name in chosen]

    def switched_off(self) -> list[str]:
        """Return the names of the data sets with enabled = false, in order."""
        return [name for name, source in self.sources.items() if not source.enabled]

    def prepared(self, step: PrepareStep | None = None) -> list[str]:
        """Return the pretrain data sets that can be built and have a corpus, in order.

        Args:
            step: Step that must be in `prepare`; by default any.
        """
        return [
            name
            for name in self.partition_keys("pretrain")
            if (step in self.pretrain[name].prepare if step else self.pretrain[name].has_corpus)
        ]

    def in_parts(self) -> list[str]:
        """Return the pretrain data sets that can be built and have several parts, in order."""
        return [name for name in self.partition_keys("pretrain") if self.pretrain[name].is_in_parts]

    @property
    def has_parts(self) -> bool:
        """Whether the cache or the corpus of a data set is built in parts, so that several machines can build it."""
        return any(source.is_in_parts or source.corpus_parts > 1 for source in self.pretrain.values())

    def corpora_in_parts(self) -> list[str]:
        """Return the pretrain data sets that can be built and whose corpus has several parts, in order."""
        return [name for name in self.partition_keys("pretrain") if self.pretrain[name].corpus_parts > 1]

    @property
    def search_ranges(self) -> int:
        """Number of ranges of the search for duplicates, or 0 if the search is one step."""
        return self.dedup.ranges if self.dedup.ranges > 1 and self.prepared("dedup") else 0

    def blend_keys(self) -> list[str]:
        """Return the blends whose members can all be built, in order."""
        buildable = set(self.partition_keys("pretrain"))
        return [name for name, settings in self.blend.items() if buildable.issuperset(settings.weights)]

    def indexed(self) -> list[str]:
        """Return the names of the data sets whose caches can be built and get an index, in order."""
        return [name for name in self.partition_keys() if name in self.find.index]

    def cleaning_of(self, name: str) -> CleaningSettings:
        """Return the thresholds for a pretrain data set: those of [cleaning], changed by the key `cleaning` of the data set.

        If only a step drops other languages, its languages are the wanted ones.
        """
        source = self.pretrain[name]
        codes = () if "clean" in source.prepare else tuple(code for use in source.steps for code in use.languages)
        return self.cleaning.with_changes({**({"languages": codes} if codes else {}), **(source.cleaning or {})})

    def unconfigured(self) -> dict[str, str]:
        """Return the enabled data sets that cannot be built yet, and the setting that each data set lacks."""
        enabled = {name: source for name, source in self.sources.items() if source.enabled}
        return {name: missing for name, source in enabled.items() if (missing := source.missing_setting()) is not None}

    def family_of(self, name: str) -> Family:
        """Return the family of a configured data set, or raise an error as `source` does."""
        return self.source(name).family

    def refuse_data_set(self, where: str, problem: str, given: str, choices: Iterable[str] | None = None) -> NoReturn:
        """Raise an error for a name that is not configured.

        If the catalog has this data set, the message gives the table to add. Otherwise, the message gives the nearest choice.

        Args:
            where: What the message begins with: the place that the name comes from.
            problem: What is wrong with the name, such as "no data set".
            given: The name.
            choices: The names that are valid here; by default all configured names.

        Raises:
            NielsCacheError: Always.
        """
        choices = self.sources if choices is None else choices
        raise_not_configured(where, problem, given, choices, names=self.sources, origin=self.origin, elsewhere=self.elsewhere)

    def build_command(self, name: str, root: Path, *settings: str) -> str:
        """Return the command that builds one data set with this configuration, for a shell.

        Args:
            name: Name of the data set.
            root: The cache root.
            *settings: Further values of --set.
        """
        named = {f"{family}.{each}": table for family in (*FAMILIES, "blend") for each, table in self.overrides.get(family, {}).items()}
        tables = without_keys(self.overrides, *FAMILIES, "blend") | named
        given = [f"{label}.{key}={typed_toml(value)}" for label, table in tables.items() for key, value in table.items()]
        words = [
            *("niels-cache", "build-all", "--only", name),
            *(word for setting in (*given, *settings) for word in ("--set", setting)),
            *self.options(root),
        ]
        return shlex.join(words)

    def options(self, root: Path) -> list[str]:
        """Return the options with which a command uses this configuration and this cache root."""
        file = Path(self.origin)
        config = ["--config", str(file.absolute())] if file.is_file() else []
        return ["--cache-dir", str(root.absolute()), *config, *(("--profile", self.profile) if self.profile is not None else ())]

    def source(self, name: str) -> PretrainSource | SftSource:
        """Return the table of a configured data set.

        Raises:
            NielsCacheError: If the name is unknown. The message suggests the nearest valid name.
        """
        if name not in self.sources:
            self.refuse_data_set(self.origin, "no data set", name)
        return self.sources[name]


def load_registry(
    *,
    profile: str | None = None,
    config: str | None = None,
    tables: Tables | None = None,
    overrides: Mapping[str, Any] | None = None,
    options: Mapping[str, str] | None = None,
) -> Registry:
    """Read the user's file and the profile, and apply overrides.

    The file is `config`, else NIELS_CACHE_CONFIG, else ./niels_cache.toml if it exists, else the only component (defs.yaml) of a
    project of `dg`. The attributes of a component override [dagster] of the file that it names. The quickstart profile reads a file only if
    `config` or NIELS_CACHE_CONFIG names it. The profile is `profile`, else NIELS_CACHE_PROFILE, else the top-level key `profile` of the
    file. If none of these is set, the profile is "default" without a file, and with a file there is no profile.

    Args:
        profile: Name of the profile.
        config: Path of the file.
        tables: The tables of this file, if the caller has read it; by default none.
        overrides: Nested tables that override both, with paths relative to the working directory; by default none.
        options: Command-line options by the key that they set (such as "build.seed"), which messages name instead of the file; by default
            none.

    Raises:
        NielsCacheError: If the configuration is wrong. The message names the file, the table, the key and the nearest valid choice.
    """
    chosen = profile or os.environ.get(PROFILE_VARIABLE)
    named = config or os.environ.get(CONFIG_VARIABLE)
    file = named or (CONFIG_NAME if chosen != "quickstart" and Path(CONFIG_NAME).exists() else None)
    remedy = f"correct {'--config' if config else CONFIG_VARIABLE}" if named else "make it readable, or name another file with --config"
    component = None if tables or (file is None and chosen == "quickstart") else find_component(file)
    if component is not None:
        settings = _validate(ComponentSettings, component.attributes, _Origin(where=str(component.path)), "attributes")
        file, tables = component_tables(settings, component.path, location=component.location)
    user = dict(tables or (read_tables(Path(file), remedy) if file else {}))
    named_profile = chosen or user.get("profile")
    profile_name = None if file and named_profile is None else str(named_profile or FALLBACK_PROFILE)
    user.pop("profile", None)
    if profile_name is not None and profile_name not in PROFILES:
        raise_unknown_choice("--profile" if profile else PROFILE_VARIABLE if chosen else str(file), "no profile", profile_name, PROFILES)
    base_dir = str(Path(file).parent) if file else "."
    origin = _Origin(where=file or f"profile {profile_name}", base_dir=base_dir, options=options or {})
    shipped = profile_tables(profile_name or FALLBACK_PROFILE)
    if profile_name is None:
        shipped = without_keys(shipped, *FAMILIES)  # keeps [build] with cache_dir
    advice: list[str] = []
    configured = merge_tables(shipped, add_catalog_keys(user, shipped, origin.where, advice), origin.where)
    resolved = absolute_paths(dict(overrides or {}))
    registry = _build_registry(
        merge_tables(configured, resolved, "command line"), origin, profile=profile_name, is_fallback=not file and named_profile is None
    )
    return replace(registry, overrides=resolved, advice=(registry.without_file,) if registry.is_fallback else tuple(advice))


def component_tables(settings: ComponentSettings, path: Path, **names: str) -> tuple[str, Tables]:
    """Return the file and the tables of a component.

    Args:
        settings: Its attributes.
        path: Its defs.yaml.
        **names: Further keys of [dagster].

    Raises:
        NielsCacheError: If not exactly one of `config` and `tables` is given, or if the file cannot be read.
    """
    if (settings.config is None) is not bool(settings.tables):
        raise NielsCacheError(f"{path}: [attributes] give either config, the path of a {CONFIG_NAME}, or tables")
    file = path.parent / (settings.config or path.name)
    tables = settings.tables or read_tables(file, "correct config")
    given = settings.model_dump(include={*NameSettings.model_fields}, exclude_unset=True)
    own = tables.get("dagster", {})
    return str(file), {**tables, "dagster": {**names, **own, **given} if isinstance(own, dict) else own}


def apply_run_settings(table: Model, settings: Mapping[str, Any]) -> Model:
    """Return a copy of a table with the given keys replaced, and validate it again. The value None keeps the registry's value."""
    given = {key: value for key, value in settings.items() if value is not None}
    if not given:
        return table
    return _validate(type(table), table.model_dump(exclude_unset=True) | given, _Origin(where="run configuration"), "run")


def cache_root(registry: Registry, flag: str | None = None) -> Path:
    """Return the root folder of the caches: `--cache-dir`, else NIELS_CACHE_ROOT (quickstart: a folder in it), else [build] cache_dir."""
    variable = os.environ.get(ROOT_VARIABLE)
    if variable and registry.profile == "quickstart":
        variable = os.path.join(variable, "quickstart")  # quickstart must never share a tokenizer with the real caches
    return Path(flag or variable or registry.build.cache_dir).expanduser()


def is_valid_name(name: str) -> bool:
    """Return whether a data set may have this name, which becomes the name of a folder and part of asset keys and addresses."""
    return _NAME.fullmatch(name) is not None and ".." not in name and len(name) <= _LONGEST_NAME


def _file_above() -> str | None:
    """Return the nearest configuration file in a parent of the working directory, quoted for a shell."""
    found = (folder / CONFIG_NAME for folder in Path.cwd().parents if (folder / CONFIG_NAME).is_file())
    return next((shlex.quote(str(path)) for path in found), None)


def _build_registry(tables: Tables, origin: _Origin, *, profile: str | None, is_fallback: bool) -> Registry:
    where = origin.where
    typed: dict[str, dict[str, Any]] = {"pretrain": {}, "sft": {}}
    for family in FAMILIES:
        for name, table in tables.get(family, {}).items():
            label = f"{family}.{name}"
            if not is_valid_name(name):
                raise NielsCacheError(
                    f"{where}: [{label:.80}] is not a valid name; use letters, digits, _ - . with no leading dot and no two dots in a row"
                )
            if name == "tokenizer":
                raise NielsCacheError(f"{where}: [{label}] is not a valid name: it is reserved for the tokenizer; choose another")
            if not isinstance(table, dict):
                raise NielsCacheError(
                    f"{where}: [{family}] {name} = {as_toml(table)}: is not a data set; write a table with its own name: [{family}.NAME]"
                )
            if not isinstance(table.get("source"), str):
                near = difflib.get_close_matches("source", table, n=1)
                add = f"rename {near[0]!r} to 'source'" if near else f"add source = {' | '.join(map(repr, SOURCES[family]))}"
                raise NielsCacheError(f"{where}: [{label}] has no source; {add}{_catalog_hint(name)}")
            typed[family][name] = _validate(_kind(family, table["source"], origin, label), table, origin, label)
    if getattr(typed["pretrain"].get("duplicates"), "has_corpus", False):  # its corpus would take the key of the drop lists
        raise NielsCacheError(f"{where}: [pretrain.duplicates] is not a valid name: it is reserved for lists of duplicates; choose another")
    twice = set(typed["pretrain"]) & set(typed["sft"])
    if twice:
        raise NielsCacheError(f"{where}: {', '.join(sorted(twice))} is both a pretrain and an sft data set; rename one")
    sections: dict[str, Any] = {name: _validate(model, tables.get(name, {}), origin, name) for name, model in _SCHEMAS.items()}
    registry = Registry(
        **sections | typed,
        blend=_blends(tables.get("blend", {}), typed["pretrain"], origin),
        origin=where,
        profile=profile,
        is_fallback=is_fallback,
    )
    for section, key, names in (
        ("tokenizer", "train_on", registry.tokenizer.train_on or ()),
        ("publish", "data_sets", (*(registry.publish.data_sets or ()), *registry.publish.licenses)),
        ("dedup", "priority", registry.dedup.priority),
        ("find", "index", registry.find.index),
    ):
        known = registry.pretrain if section == "dedup" else registry.sources
        for name in names:
            if name not in known:
                registry.refuse_data_set(origin.of(section, key), f"[{section}] {key} names an unknown data set", name, known)
    for name, source in registry.pretrain.items():
        changes = source.cleaning or {}
        _validate(CleaningSettings, registry.cleaning.model_dump() | changes, origin, f"pretrain.{name}.cleaning")
        _refuse_dedup_twice(registry, name)
        for condition in [each.where for each in source.steps if each.where is not None]:
            try:
                parse_condition(condition)
            except ValueError as error:
                raise NielsCacheError(f"{origin.of(f'pretrain.{name}', 'steps')}: [pretrain.{name}] steps: {error}") from error
        for member in getattr(source, "members", {}) if source.enabled else ():
            if member not in registry.pretrain and member in catalog():
                registry.refuse_data_set(where, f"[pretrain.{name}] members names an unknown data set", member, registry.pretrain)
    if registry.build.store is not None:
        _refuse_in_store(registry, origin)
    return registry


def _kind(family: Family, name: str, origin: _Origin, label: str) -> type[Source]:
    """Return the schema of the tables with this `source`, which may be the user's own."""
    kinds, where = SOURCES[family], origin.of(label, "source")
    if name not in kinds:
        from niels_cache_assets.sources import own

        if own.is_own(name) and family == "sft":
            raise NielsCacheError(
                f"{where}: [{label}] source: {name!r} is your own code, which only pretrain data sets can have; "
                'write the conversations to JSON Lines, and set source = "chat_jsonl"'
            )
        if own.is_own(name):
            return own.own_kind(name, folder=os.path.abspath(origin.base_dir), where=f"{where}: [{label}] source")
        raise_unknown_choice(where, f"[{label}] has an unknown source", name, kinds)
    return kinds[name]


def _refuse_in_store(registry: Registry, origin: _Origin) -> None:
    """Check that a store can hold the data sets: what reads the files of other data sets or of earlier builds needs a shared folder.

    Raises:
        NielsCacheError: If a data set needs a shared folder, or if a lease is too short for the whole seconds of a store's clock.
    """
    try:
        check_address(f"{registry.build.store}/pretrain")
    except NielsCacheError as error:
        raise NielsCacheError(f"{origin.of('build', 'store')}: [build] store: {error}") from error
    if registry.cluster.lease_seconds < MIN_STORE_LEASE_SECONDS:
        raise NielsCacheError(
            f"{origin.of('cluster', 'lease_seconds')}: [cluster] lease_seconds is {registry.cluster.lease_seconds:g}; "
            f"with [build] store, give at least {MIN_STORE_LEASE_SECONDS:g}, because a store counts whole seconds"
        )
    in_folders = (
        ("publish", "address", registry.publish.address),
        ("blend", "weights", registry.blend),
        ("find", "index", registry.find.index),
        ("build", "verify_parts", registry.build.verify_parts == "sha256"),
    )
    for table, key, is_set in in_folders:
        if is_set:
            raise NielsCacheError(f"{origin.of(table, key)}: [{table}] {key} needs caches in folders; leave out this key, or [build] store")
    for name, source in registry.pretrain.items():
        keys = {
            "prepare": source.prepare,
            "steps": source.steps,
            "members": getattr(source, "members", None),
            "exclude": source.exclude,
            "decontaminate_against": source.decontaminate_against,
        }
        for key, value in keys.items():
            if value and source.enabled:
                raise NielsCacheError(
                    f"{origin.of(f'pretrain.{name}', key)}: [pretrain.{name}] {key} needs a folder that all machines share; "
                    "leave it out, or leave out store in [build]"
                )


def _catalog_hint(name: str) -> str:
    """Return a hint if the name of a table without `source` is similar to a name in the catalog."""
    near = difflib.get_close_matches(name, catalog(), n=1)
    return f"; the nearest table of the catalog is [{catalog()[near[0]][0]}.{near[0]}]" if near else ""


def _refuse_dedup_twice(registry: Registry, name: str) -> None:
    """Check that an interleave and its member are not compared with each other.

    Both have the same documents, and each would lose what the other one keeps.

    Raises:
        NielsCacheError: If both do.
    """
    source = registry.pretrain[name]
    if not isinstance(source, Interleave):
        return
    for member in source.members:
        if member not in registry.pretrain:
            continue
        own, other = ({*each.prepare} - {"clean"} for each in (source, registry.pretrain[member]))
        if twice := own & other or ({*REPEATS} & other and own & {"dedup", *REPEATS}):
            raise NielsCacheError(
                f"{registry.origin}: [pretrain.{name}]: {name} and its member {member} both use {min(twice)}; remove it from prepare of one"
            )


def _blends(tables: Tables, members: Collection[str], origin: _Origin) -> dict[str, BlendSettings]:
    blends = {}
    for name, table in tables.items():
        if not is_valid_name(name) or not isinstance(table, dict):
            raise NielsCacheError(f"{origin.where}: [blend.{ascii(name)[1:-1]:.80}] must be a table with a name of letters, digits, _ - .")
        blends[name] = _validate(BlendSettings, table, origin, f"blend.{name}")
        for member in blends[name].weights:
            if member not in members:
                problem = f"[blend.{name}] has a weight for an unknown pretrain data set"
                raise_not_configured(origin.where, problem, member, members, names=members, origin=origin.where, families=("pretrain",))
    return blends


def _validate(model: type[Model], table: Mapping[str, Any], origin: _Origin, label: str) -> Model:
    try:
        return model.model_validate(table, context={"base_dir": origin.base_dir})
    except ValidationError as error:
        raise NielsCacheError(_explain(error, model, table, origin, label)) from error


def _explain(error: ValidationError, model: type[BaseModel], table: Mapping[str, Any], origin: _Origin, label: str) -> str:
    """Return one line with the file, the table, the keys, the problems, and the text to type."""
    first = error.errors()[0]["loc"]
    where = origin.of(label, str(first[0]) if first else "")
    option = where.removeprefix(_ON_THE_COMMAND_LINE) if where.startswith(_ON_THE_COMMAND_LINE) else None

    def spell(key: str, value: str) -> str:
        if option is None:
            return f"{key} = {value}"
        if option.endswith("--set"):  # the --set of the command `clean` takes keys of one table
            return f"--set {shlex.quote(f'{key}={value}' if option != '--set' else f'{label}.{key}={value}')}"
        return f"{option} {value}"

    problems = explain_problems(error, model, table, spell=spell)
    shown = problems[:_MAX_PROBLEMS]
    more = f" (and {len(problems) - len(shown)} more)" if len(problems) > len(shown) else ""
    return f"{where}: [{label}]{';'.join(shown)}{more}"
