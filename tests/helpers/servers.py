"""Real servers on 127.0.0.1 for the walks: Postgres, redis and sshd. A walk is skipped, with a reason, if a program is missing."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

_PATIENCE_SECONDS = 60.0
_SYSTEM = ["/usr/sbin", "/usr/bin", *map(str, sorted(Path("/usr/lib/postgresql").glob("*/bin")))]


def program(name: str, package: str) -> str:
    """Return the path of a program, or skip the test."""
    found = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *_SYSTEM]))
    if found is None:
        pytest.skip(f"there is no {name}: install Debian's {package}")
    return found


def free_port() -> int:
    """Return a free port that the system does not give to clients, so no client takes it before the server starts."""
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    tried = [1024 + secrets.randbelow(lowest - 1024) for _ in range(100)] if lowest > 1024 else []
    for port in (*tried, 0):
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return int(listener.getsockname()[1])
    raise AssertionError("there is no free port")


def wait_for_port(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None, f"{process.args!r} ended with {process.returncode}"
        with socket.socket() as client, suppress(OSError):
            client.connect(("127.0.0.1", port))
            return
        time.sleep(0.05)
    raise AssertionError(f"{process.args!r} does not listen")


@contextmanager
def ended(process: subprocess.Popen[bytes], number: int = signal.SIGTERM) -> Iterator[subprocess.Popen[bytes]]:
    """End a server after the block."""
    try:
        yield process
    finally:
        process.send_signal(number)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Postgres:
    """A server of Postgres. address: of its database for Dagster. It can be stopped, and started again with its data."""

    def __init__(self, start: list[str], port: int, log: Path, settings: dict[str, object]) -> None:
        self._start, self._port, self._log, self._settings = start, port, log, settings
        self.address = f"postgresql+psycopg2://dagster@127.0.0.1:{port}/postgres"

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the server in the block. At the end it breaks all connections."""
        with open(self._log, "ab") as log:
            process = subprocess.Popen(self._start, stdout=log, stderr=log, **self._settings)  # type: ignore[call-overload]
            with ended(process, signal.SIGINT):
                wait_for_port(self._port, process)
                _wait_until_ready(self._port)
                yield


@contextmanager
def made_postgres(folder: Path) -> Iterator[Postgres]:
    """Make the data of a Postgres, and yield the server, which does not run yet. Postgres refuses root, so root becomes `postgres`."""
    initdb, server = program("initdb", "postgresql"), program("postgres", "postgresql")
    pytest.importorskip("psycopg2")
    as_user = {"user": "postgres", "group": "postgres", "extra_groups": []} if os.geteuid() == 0 else {}
    with tempfile.TemporaryDirectory(prefix="postgres-") as data:
        if as_user:
            shutil.chown(data, "postgres", "postgres")
        make = [initdb, "-D", f"{data}/db", "-U", "dagster", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale", "C"]
        log = folder / "postgres.log"
        with open(log, "wb") as output:
            subprocess.run(make, check=True, cwd=data, stdout=output, stderr=output, **as_user)  # type: ignore[call-overload]
        port = free_port()
        options = {"port": port, "listen_addresses": "127.0.0.1", "unix_socket_directories": data, "fsync": "off", "max_connections": 200}
        start = [server, "-D", f"{data}/db", *(f"--{name}={value}" for name, value in options.items())]
        yield Postgres(start, port, log, {"cwd": data, **as_user})


@contextmanager
def postgres(folder: Path) -> Iterator[str]:
    """Run Postgres, and yield the address of its database for Dagster."""
    with made_postgres(folder) as server, server.running():
        yield server.address


def _wait_until_ready(port: int) -> None:
    import psycopg2

    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            psycopg2.connect(host="127.0.0.1", port=port, user="dagster", dbname="postgres").close()
        except psycopg2.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return


@contextmanager
def redis(folder: Path) -> Iterator[str]:
    """Run redis, and yield its address."""
    port = free_port()
    start = [program("redis-server", "redis-server"), "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
    with open(folder / "redis.log", "wb") as log, ended(subprocess.Popen(start, stdout=log, stderr=log)) as process:
        wait_for_port(port, process)
        yield f"redis://127.0.0.1:{port}/0"


@contextmanager
def sshd(folder: Path) -> Iterator[list[str]]:
    """Run sshd for this user alone, and yield the words of an ssh that logs in without a question, without the name of the host."""
    server, keygen, client = program("sshd", "openssh-server"), program("ssh-keygen", "openssh-client"), program("ssh", "openssh-client")
    for name in ("host_key", "key"):
        subprocess.run([keygen, "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    (folder / "authorized").write_bytes((folder / "key.pub").read_bytes())
    port = free_port()
    settings = {
        "Port": port,
        "ListenAddress": "127.0.0.1",
        "HostKey": folder / "host_key",
        "AuthorizedKeysFile": folder / "authorized",
        "PidFile": "none",
        "StrictModes": "no",
        "UsePAM": "no",
        "PasswordAuthentication": "no",
        "KbdInteractiveAuthentication": "no",
        "PermitRootLogin": "yes",
    }
    (folder / "sshd_config").write_text("".join(f"{key} {value}\n" for key, value in settings.items()))
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # where root's sshd keeps its unprivileged processes
    with open(folder / "sshd.log", "wb") as log:
        start = [server, "-D", "-e", "-f", str(folder / "sshd_config")]
        with ended(subprocess.Popen(start, stdout=log, stderr=log)) as process:
            wait_for_port(port, process)
            options = {"BatchMode": "yes", "StrictHostKeyChecking": "no", "UserKnownHostsFile": "/dev/null", "LogLevel": "ERROR"}
            yield [client, "-p", str(port), "-i", str(folder / "key"), *(f"-o{key}={value}" for key, value in options.items())]


def processes_of(folder: Path) -> dict[int, str]:
    """Return the command lines of all processes that name a folder, except this one."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if str(folder) in words and int(path.parent.name) != os.getpid():
                found[int(path.parent.name)] = words
    return found


def python(*words: str) -> list[str]:
    return [sys.executable, *words]
