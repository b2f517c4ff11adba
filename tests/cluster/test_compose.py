"""deploy/compose without Docker: the commands of its services run on this machine, with its files, and with other addresses and folders."""

import os
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from niels_cache_assets.defs.home.instance import ensure_instance
from tests.helpers.cluster_walk import ROOT, Output, Walk, running, stop, wait_until
from tests.helpers.names import NAMES
from tests.helpers.parts_project import NAME, parts_of
from tests.helpers.servers import free_port, wait_for_port
from tests.helpers.ui.running import ask

pytestmark = pytest.mark.cluster

COMPOSE = ROOT / "deploy/compose"
COUNT = 3
START_SENSOR = "mutation ($sensor: SensorSelector!) { startSensor(sensorSelector: $sensor) { __typename } }"
SENSOR = {"repositoryName": "__repository__", "repositoryLocationName": "niels_cache_assets", "sensorName": "finished_parts_sensor"}


def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((COMPOSE / name).read_text(encoding="utf-8"))
    return found


class Services:
    """The services of compose.yaml on this machine: each address and folder of a container becomes one of this machine."""

    def __init__(self, walk: Walk, database: str) -> None:
        self._walk, self._services = walk, read("compose.yaml")["services"]
        code, self.web = free_port(), free_port()
        workspace = walk.folder / "workspace.yaml"
        self._here = {"0.0.0.0": "127.0.0.1", "4000": str(code), "3000": str(self.web), "/project/workspace.yaml": str(workspace)}
        places = read("workspace.yaml")
        places["load_from"][0]["grpc_server"] |= {"host": "127.0.0.1", "port": code}
        workspace.write_text(yaml.safe_dump(places), encoding="utf-8")
        home, address = read("dagster.yaml"), urlsplit(database)
        home["storage"]["postgres"]["postgres_db"] |= {
            "hostname": address.hostname,
            "port": address.port,
            "db_name": address.path.removeprefix("/"),
        }
        (walk.home / "dagster.yaml").write_text(yaml.safe_dump(home), encoding="utf-8")
        walk.env |= {
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), walk.env["PATH"]]),
            "NIELS_CACHE_NAME": NAME,
            "NIELS_CACHE_PARTS": str(COUNT),
        }

    def start(self, name: str) -> Output:
        """Start the command of a service."""
        words = [word.replace("$$", "$") for word in self._services[name]["command"]]
        return self._walk.start_program([self._here.get(word, word) for word in words])

    def run(self, command: str) -> None:
        """Run a command in place of that of the workers, as `docker compose run --rm worker` does."""
        output = self._walk.start_program(command.split())
        with running(output):
            output.wait()


def test_the_services_of_compose_build_a_data_set(tmp_path: Path, tiny_model: Path, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTGRES_PASSWORD", "unused")  # the database trusts everybody
    walk = Walk(tmp_path, tiny_model, database, parts=COUNT, copies=1)
    services = Services(walk, database)
    with ensure_instance(walk.home):
        pass  # makes the tables: two services that make them at the same time may fail, and only Docker starts them again
    servers = []
    try:
        servers.append(code := services.start("code"))
        code.find("Started Dagster code server")
        servers += [services.start("webserver"), services.start("daemon")]
        services.run(f"niels-cache part {NAME} 0")
        workers = [services.start("worker"), services.start("worker")]
        with running(*workers):
            for worker in workers:
                worker.wait()
        services.run(f"niels-cache part {NAME} --seal")
        wait_for_port(services.web, servers[1].process)
        started = ask(f"http://127.0.0.1:{services.web}", START_SENSOR, {"sensor": SENSOR})
        assert started["startSensor"]["__typename"] == "Sensor"
        with ensure_instance(walk.home) as instance:
            wait_until(lambda: len(instance.get_materialized_partitions(NAMES.parts)) == len(parts_of(walk.graph)) == COUNT, pause=0.5)
    finally:
        stop(*servers)
    walk.check()
