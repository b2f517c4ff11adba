"""The schemas of the tables that say how builds run and where they go: [notify], [cluster] and [publish]. No key here changes a byte."""

from __future__ import annotations

import os
import re
from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import ConfigDict, Field, SecretStr, field_validator, model_validator

from niels_cache_assets.config.tables import Table
from niels_cache_runtime.format.layout import Family
from niels_cache_runtime.remote.store import check_address

HOST = "{host}"
TEXT = "{text}"
_INTERPRETERS = ("sh", "bash", "dash", "zsh", "ksh", "ash", "fish", "csh", "tcsh", "python", "python3", "perl", "ruby", "node")
_REMOTE = ("ssh", "rsh", "eval")  # all their words go to a shell
_SCRIPT_OPTION = re.compile(r"-[A-Za-z]*[ceE]|--(command|eval)")  # the next word is a script
Event = Literal["failure", "stall", "done"]
_EVENTS: tuple[Event, ...] = ("failure", "stall", "done")
_VARIABLE = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")
_HOST_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@%\[\]-]*")
_LEAST_RENEWALS = 3  # a lease ends after so many missed renewals at the earliest
_CORES_OF_A_PART = 8  # above this number, more threads in one process gain little (docs/cluster.md)


class NotifySettings(Table):
    """[notify]: the place of messages about builds that have failed, stand still or are done. A message is one line of text."""

    model_config = ConfigDict(hide_input_in_errors=True)
    webhook: SecretStr | None = Field(
        None,
        description='Address that gets a POST with the JSON `{"text": LINE}`, as Slack and Mattermost take it; '
        "`$NAME` stands for an environment variable that holds the address",
        examples=["https://hooks.example.org/services/NAME"],
        repr=False,
    )
    command: tuple[str, ...] = Field(
        (),
        strict=False,
        description="A program and its arguments, which gets the line on stdin; `{text}` in an argument stands for the line",
    )
    on: tuple[Event, ...] = Field(
        _EVENTS, strict=False, description="The events: a failure, a stall (no progress in `stall_minutes`), and a data set that is done"
    )
    stall_minutes: float = Field(30.0, gt=0, le=10_080, allow_inf_nan=False, strict=False, description="Minutes without progress")

    @field_validator("webhook")
    @classmethod
    def _is_an_address(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and not _VARIABLE.fullmatch(value.get_secret_value()):
            _require_address(value.get_secret_value())
        return value

    def warnings(self, where: str) -> list[str]:
        """Return a warning if a program runs the line: `{text}` is in a script or in the words for a remote shell. where: the file.

        The line holds names of files and texts of sources, which strangers may have written. The warning does not show the words, because
        they may be secrets.
        """
        names = [os.path.basename(word) for word in self.command]
        for place, word in enumerate(self.command):
            before = names[:place]
            runs = {*_REMOTE} & {*before} or ({*_INTERPRETERS} & {*before} and _SCRIPT_OPTION.fullmatch(self.command[place - 1]))
            if TEXT in word and runs:
                program = next(name for name in before if name in (*_REMOTE, *_INTERPRETERS))
                return [
                    f"{where}: [notify] command: {program} runs the words with {TEXT} as code, and the line may hold what strangers wrote; "
                    f"read the line from stdin there, and take {TEXT} out"
                ]
        return []

    def tells(self, event: Event) -> bool:
        """Return whether somebody is told about an event of this kind."""
        return event in self.on and (self.webhook is not None or bool(self.command))

    def address(self) -> str | None:
        """Return the address of the webhook, or None without one. Raises ValueError, whose text shows no address, if there is none in the
        environment variable.
        """
        said = None if self.webhook is None else self.webhook.get_secret_value()
        named = None if said is None else _VARIABLE.fullmatch(said)
        if named is None:
            return said
        if named[1] not in os.environ:
            raise ValueError(f"the environment variable {named[1]} is not set")
        _require_address(os.environ[named[1]])
        return os.environ[named[1]]


def _require_address(text: str) -> None:
    """Raise ValueError if the text is not the address of a web server. The error does not show the text, because it may be a secret."""
    try:
        parts = urlsplit(text)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_address = False
    if not is_address or not text.isprintable() or " " in text:
        raise ValueError("is not the address of a web server; write it as 'https://HOST/PATH', or as '$NAME'")
    if "@" in parts.netloc:
        raise ValueError("has a user or a password, which a webhook cannot take; use `command` with a program that can")


class ClusterSettings(Table):
    """[cluster]: where the parts of a data set are built, how many at a time, and how processes on several machines share them."""

    command: tuple[str, ...] = Field(
        (),
        strict=False,
        description='The words before the command of a part, such as ["srun", "-c16"]; empty: the part is built on this machine; '
        "`{host}` stands for one of `hosts`",
    )
    hosts: tuple[str, ...] = Field(
        (), strict=False, description="Names for `{host}`. Each builds one part at a time; a name that is listed twice builds two"
    )
    at_once: int | None = Field(
        None,
        ge=1,
        le=10_000,
        description=f"Parts that are built at a time: the limit of the pool `parts`; None: with `hosts`, one for each, otherwise one for "
        f"every {_CORES_OF_A_PART} cores of this machine",
    )
    program: tuple[str, ...] = Field(
        (),
        strict=False,
        description='The program `niels-cache` after `command`, such as ["niels-cache"] in a container; empty: the Python of this process, '
        "at the same path",
    )

    renew_seconds: float = Field(
        15.0,
        gt=0,
        le=3_600,
        allow_inf_nan=False,
        strict=False,
        description="The process that builds a part renews its lease after so many seconds",
    )
    lease_seconds: float = Field(
        120.0,
        gt=0,
        le=86_400,
        allow_inf_nan=False,
        strict=False,
        description="A process that waits for a part takes it over if it sees no renewal for so many seconds",
    )

    @field_validator("hosts")
    @classmethod
    def _are_names(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if not _HOST_NAME.fullmatch(name):
                raise ValueError(f"{name!r} is not the name of a machine; write letters, digits, _ - . : @")
        return value

    @model_validator(mode="after")
    def _hosts_fit_the_command(self) -> Self:
        if self.command and not self.command[0]:
            raise ValueError("command begins with an empty word; begin it with a program, or write command = []")
        takes = any(HOST in word for word in self.command)
        if takes and not self.hosts:
            raise ValueError(f'command has {HOST}, but hosts is empty; add hosts = ["NAME", ...]')
        if self.hosts and not takes:
            raise ValueError(f'hosts is set, but command has no {HOST}; write command = ["ssh", "{HOST}"], for example')
        return self

    @model_validator(mode="after")
    def _leases_are_renewed_in_time(self) -> Self:
        if self.lease_seconds < _LEAST_RENEWALS * self.renew_seconds:
            raise ValueError(f"lease_seconds is less than {_LEAST_RENEWALS} times renew_seconds, so a short pause would end a lease")
        return self

    def parts_at_once(self, cores: int) -> int:
        """Return how many parts are built at a time. cores: those of this machine."""
        return self.at_once or len(self.hosts) or max(1, cores // _CORES_OF_A_PART)


class PublishSettings(Table):
    """[publish]: where the assets `published/pretrain` and `published/sft` put caches, and the licences in data cards."""

    model_config = ConfigDict(hide_input_in_errors=True)
    address: str | None = Field(
        None,
        repr=False,  # not in messages, because it may hold a password by mistake
        description="An address such as `s3://bucket/caches`; each cache lies at ADDRESS/pretrain/NAME or ADDRESS/sft/NAME",
    )
    data_sets: tuple[str, ...] | None = Field(None, strict=False, description="The data sets to publish; None: all of them")
    licenses: dict[str, str] = Field(
        {}, description='The licence of a data set, for its data card on the hub, such as `{ wikitext = "cc-by-sa-3.0" }`'
    )

    @field_validator("address")
    @classmethod
    def _is_an_address(cls, value: str | None) -> str | None:
        return None if value is None else check_address(value)

    def address_of(self, family: Family, name: str) -> str:
        """Return the address of the cache of a data set."""
        return f"{self.address}/{family}/{name}"
