"""Schemas of the tables that say how builds run and where they go: [notify], [cluster] and [publish]. No key here changes a byte."""

import re
import shlex
from typing import Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from niels_cache_assets.base.schema import Table, Words
from niels_cache_runtime.remote.store import check_address

HOST = "{host}"
_HOST_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@%\[\]-]*")
_MIN_RENEWALS = 3  # a lease ends after this many missed renewals at the earliest
_CORES_OF_A_PART = 8  # above this number, more threads in one process gain little (docs/cluster.md)
MIN_STORE_LEASE_SECONDS = 30.0  # with [build] store, because the clock of a store counts whole seconds


class NotifySettings(Table):
    """[notify]: a command that receives a message when a build fails, makes no progress for 30 minutes, or completes a data set."""

    model_config = ConfigDict(hide_input_in_errors=True)  # arguments may be secrets
    command: Words = Field((), repr=False)  # not in messages, because it may contain a password by mistake
    """A program and its arguments, as a list or a shell-quoted line. It receives a JSON object with `event`, `host`, `name` and `text` on
    stdin"""

    @field_validator("command", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return shlex.split(value) if isinstance(value, str) else value


class ClusterSettings(Table):
    """[cluster]: where parts of a data set are built, how many at a time, and how processes on several machines share them."""

    command: Words = ()
    """Prefix for the command that builds a part, such as ["srun", "-c16"]; `{host}` is replaced by one of `hosts`. By default, parts are
    built on this machine"""
    hosts: Words = ()
    """Values for `{host}`. Each host builds one part at a time, or two if it is listed twice"""
    at_once: int | None = Field(
        None,
        ge=1,
        le=10_000,
        description=f"Parts built at a time; by default one per host, or one per {_CORES_OF_A_PART} cores of this machine",
    )
    program: Words = ()
    """The program that `command` runs, such as ["niels-cache"] in a container; by default this process's Python interpreter"""

    renew_seconds: float = Field(15.0, gt=0, le=3_600, allow_inf_nan=False, strict=False)
    """How often the process that builds a part renews its lease, in seconds"""
    lease_seconds: float = Field(120.0, gt=0, le=86_400, allow_inf_nan=False, strict=False)
    """How long a lease may go without renewal, in seconds, before a waiting process takes over the part"""

    @field_validator("hosts")
    @classmethod
    def _check_hosts(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if not _HOST_NAME.fullmatch(name):
                raise ValueError(f"{name!r} is not the name of a machine; write letters, digits, _ - . : @")
        return value

    @model_validator(mode="after")
    def _check_command(self) -> Self:
        if self.command and not self.command[0]:
            raise ValueError("command begins with an empty word; begin it with a program, or write command = []")
        takes_host = any(HOST in word for word in self.command)
        if takes_host and not self.hosts:
            raise ValueError(f'command has {HOST}, but hosts is empty; add hosts = ["NAME", ...]')
        if self.hosts and not takes_host:
            raise ValueError(f'hosts is set, but command has no {HOST}; write command = ["ssh", "{HOST}"], for example')
        return self

    @model_validator(mode="after")
    def _check_lease(self) -> Self:
        if self.lease_seconds < _MIN_RENEWALS * self.renew_seconds:
            raise ValueError(f"lease_seconds is less than {_MIN_RENEWALS} times renew_seconds, so a short pause would end a lease")
        return self

    def parts_at_once(self, cores: int) -> int:
        """Return how many parts are built at a time on a machine with this many cores."""
        return self.at_once or len(self.hosts) or max(1, cores // _CORES_OF_A_PART)


class PublishSettings(Table):
    """[publish]: where the assets `published/pretrain` and `published/sft` upload caches, and which licences data cards name."""

    model_config = ConfigDict(hide_input_in_errors=True)
    address: str | None = Field(None, repr=False)
    """Target address, such as `s3://bucket/caches`; caches are uploaded to ADDRESS/pretrain/NAME and ADDRESS/sft/NAME"""
    data_sets: Words | None = None
    """The data sets to publish; by default all"""
    licenses: dict[str, str] = Field({})
    """Licences for data cards on the hub, such as `{ wikitext = "cc-by-sa-3.0" }`"""

    @field_validator("address")
    @classmethod
    def _check_address(cls, value: str | None) -> str | None:
        return None if value is None else check_address(value)
