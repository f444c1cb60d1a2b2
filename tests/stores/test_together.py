"""Writes of a verb go to PostgreSQL in one statement, with the same result as one by one."""

from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from shiftwork.model.errors import InputError
from shiftwork.store import statements
from shiftwork.store.postgres_sessions import Session
from shiftwork.store.postgres_tx import PostgresTx, _reach, _together
from tests.services.postgres import Databases

NOW = 1_000.0
ONE, TWO = "00000000-0000-7000-8000-000000000001", "00000000-0000-7000-8000-000000000002"


class Counted:
    """A connection that counts what is sent over it."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.sent: list[str] = []

    async def execute(self, text: str, *values: Any, **options: Any) -> Any:
        self.sent.append(text)
        return await self._connection.execute(text, *values, **options)

    async def fetchrow(self, text: str, *values: Any) -> Any:
        self.sent.append(text)
        return await self._connection.fetchrow(text, *values)

    def begin_with_next(self, begin: str) -> None:
        self._connection.begin_with_next(begin)


@pytest.fixture
async def connection(postgres: Databases, migrated_template: str) -> AsyncIterator[Counted]:
    name = postgres.create_database(migrated_template)
    real = await asyncpg.connect(postgres.dsn(name), connection_class=Session)
    yield Counted(real)
    await real.close()
    postgres.drop_database(name)


def alert(message: str) -> tuple[Any, ...]:
    return (NOW, "default", "queue_depth", "warning", message, None, "{}")


async def test_writes_to_different_tables_are_one_round_trip(connection: Counted) -> None:
    tx = PostgresTx(connection, NOW, "begin")
    await tx.run("add_workspace", name="a", profile="standard", now=NOW)
    await tx.insert("insert_alerts", [alert("first")])
    await tx.run("close_gate", workspace="a", scope="*", kind="pause", reason=None, now=NOW, actor="me")
    assert connection.sent == []
    found = await tx.one("read_workspace", name="a")
    assert found is not None
    assert found["name"] == "a"
    assert len(connection.sent) == 2
    assert await tx.one("read_gates", workspace="a") is not None
    assert len(connection.sent) == 3


async def test_write_sees_earlier_writes(connection: Counted) -> None:
    tx = PostgresTx(connection, NOW, "begin")
    await tx.run("add_workspace", name="a", profile="standard", now=NOW)
    await tx.run("set_profile", name="a", profile="loki")
    found = await tx.one("read_workspace", name="a")
    assert found is not None
    assert found["profile"] == "loki"


async def test_joined_statements_run_in_order(connection: Counted) -> None:
    await connection.execute("create temp sequence turn")
    tables = {"add_workspace": "workspaces", "close_gate": "gates", "insert_alerts": "alerts"}
    for table in tables.values():
        await connection.execute(f"alter table {table} add column turn bigint default nextval('turn')")
    tx = PostgresTx(connection, NOW, "begin")
    await tx.run("add_workspace", name="a", profile="standard", now=NOW)
    await tx.run("close_gate", workspace="a", scope="*", kind="pause", reason=None, now=NOW, actor="me")
    await tx.insert("insert_alerts", [alert("first")])
    await tx.flush()
    round_robin = [
        (await connection.fetchrow(f"select max(turn) as turn from {table}"))["turn"] for table in tables.values()
    ]
    assert round_robin == sorted(round_robin)


def test_parameters_of_joined_statements_are_kept_apart() -> None:
    bodies, tags = (statements.load("postgres")[name] for name in ("insert_bodies", "insert_tags"))
    assert _together(bodies.text) == bodies.text
    both = _together(bodies.text, tags.single)
    assert both.endswith(bodies.text)
    assert "values ($3::text, $4::text, $5::uuid)" in both
    assert tags.text.endswith("on conflict do nothing")


def test_only_writing_statements_are_deferred() -> None:
    """A part that only reads or locks would not be executed at all."""
    waiting = [name for name in statements.load("postgres") if _reach(name).can_wait]
    assert "save_tasks" in waiting
    for name in waiting:
        assert _reach(name).writes, name
    for name, statement in statements.load("postgres").items():
        if statement.text.startswith(("select", "with")):
            assert name not in waiting


@pytest.mark.parametrize("id_", ["", "}", "'", f"{ONE},{TWO}", f'{ONE}"', ONE[:-1]])
async def test_invalid_id_in_a_batch_is_refused(connection: Counted, id_: str) -> None:
    """They go as one text: what is not an id is refused, and none is read as two."""
    tx = PostgresTx(connection, NOW, "begin")
    with pytest.raises(InputError):
        await tx.one("read_tasks", items=[(id_,)])
