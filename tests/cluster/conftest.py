"""One Postgres for each process of pytest, with a database for each walk."""

from collections.abc import Iterator

import pytest

from tests.helpers.servers import postgres

_PLACE = "postgres"  # the database that each Postgres has


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with postgres(tmp_path_factory.mktemp("postgres")) as address:
        yield address


@pytest.fixture
def database(server: str, request: pytest.FixtureRequest) -> str:
    """The address of a new database."""
    import psycopg2

    name = "".join(letter if letter.isalnum() else "_" for letter in request.node.name.lower())[:60]
    connection = psycopg2.connect(server.replace("+psycopg2", ""))
    connection.autocommit = True
    with connection.cursor() as cursor:
        cursor.execute(f'CREATE DATABASE "{name}"')
    connection.close()
    return f"{server.removesuffix(_PLACE)}{name}"
