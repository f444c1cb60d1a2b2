"""Writes of a verb go to PostgreSQL in one statement, with the same result as one by one."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from shiftwork import Queue
from shiftwork.model.errors import InputError
from shiftwork.store import postgres_tx, statements
from shiftwork.store.postgres_driver_internals import can_begin_with_next, reach_of, together
from shiftwork.store.postgres_sessions import Session
from shiftwork.store.postgres_tx import PostgresTx
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
    assert connection.sent == []
    found = await tx.one("read_workspace", name="a")
    assert found is not None
    assert found["name"] == "a"
    assert len(connection.sent) == 2


async def test_write_sees_earlier_writes(connection: Counted) -> None:
    tx = PostgresTx(connection, NOW, "begin")
    await tx.run("add_workspace", name="a", profile="standard", now=NOW)
    await tx.run("set_profile", name="a", profile="loki")
    found = await tx.one("read_workspace", name="a")
    assert found is not None
    assert found["profile"] == "loki"


async def test_two_statements_that_may_wait_for_a_lock_are_not_joined(connection: Counted) -> None:
    """The server runs the parts of a statement in an order that it does not promise."""
    tx = PostgresTx(connection, NOW, "begin")
    await tx.run("add_workspace", name="a", profile="standard", now=NOW)
    await tx.insert("insert_alerts", [alert("first")])
    await tx.run("close_gate", workspace="a", scope="*", kind="pause", reason=None, now=NOW, actor="me")
    await tx.flush()
    writes = [text for text in connection.sent if "insert into" in text]
    assert ["workspaces" in text for text in writes] == [True, False]
    assert ["alerts" in text for text in writes] == [True, False]
    assert ["gates" in text for text in writes] == [False, True]


OWN_ROWS = {
    **dict.fromkeys(("start_tasks", "beat_tasks", "claim_tasks", "claim_tasks_of_many", "save_tasks"), "tasks"),
    **dict.fromkeys(("note_claim", "note_claims", "settle_agents"), "agents"),
    "save_dags": "dags",
    "save_breakers": "breakers",
}
"""The statements that say so, and the table of their rows."""


def test_statements_on_own_rows_are_checked() -> None:
    assert {name for name, each in statements.load("postgres").items() if each.own_rows} == OWN_ROWS.keys()


async def test_statements_on_own_rows_change_only_rows_that_are_locked(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that its transaction has locked or made has its number in `xmax` or `xmin`."""
    real, seen = PostgresTx.run, set[str]()

    async def run(self: PostgresTx, name: str, /, **parameters: Any) -> None:
        table = OWN_ROWS.get(name)
        if table is not None:
            seen.add(name)
            await self.flush_pending(asking=True)
            keys = _keys(name, parameters)
            key = {"agents": "workspace || ' ' || id", "breakers": "workspace || ' ' || type"}.get(table, "id::text")
            text = f"""select count(*) from {table} where {key} = any($1::text[])
              and pg_current_xact_id()::xid::text in (xmax::text, xmin::text)"""
            assert await self._connection.fetchval(text, keys) == len(keys), name
        await real(self, name, **parameters)

    monkeypatch.setattr(PostgresTx, "run", run)
    async with Queue.open(postgres_url) as queue:
        await queue.agents.register(id="ada", max_concurrent_tasks=5, budget_remaining_usd=5.0)
        first = await queue.submit(type="code", estimated_cost_usd=1, timeout_sec=60)  # started the long way
        await queue.submit(type="code", dependencies=[first.id], estimated_cost_usd=1)
        for _ in range(2):
            (held,) = await queue.claim("ada")
            await queue.start(held.token)
            await queue.heartbeat(held.token, usage={"cost_usd": 0.1})
            await queue.complete(held.token, decision_report=None)
        await queue.submit_many([{"type": "code"}] * 8)
        claims = await asyncio.gather(*(queue.claim(f"agent-{n}", start=True) for n in range(4)))
        for (held,) in claims[:2]:
            await queue.fail(held.token, "crash")
        for (held,) in claims[2:]:
            await queue.release(held.token)
    assert seen == OWN_ROWS.keys()


def _keys(name: str, parameters: dict[str, Any]) -> list[str]:
    if name == "note_claim":
        return [f"{parameters['workspace']} {parameters['id']}"]
    if name == "note_claims":
        return [f"{parameters['workspace']} {item[0]}" for item in parameters["items"]]
    two = name in {"settle_agents", "save_breakers"}
    return [f"{item[0]} {item[1]}" if two else item[0] for item in parameters["items"]]


def test_parameters_of_joined_statements_are_kept_apart() -> None:
    bodies, tags = (statements.load("postgres")[name] for name in ("insert_bodies", "insert_tags"))
    assert together(bodies.text) == bodies.text
    both = together(bodies.text, tags.single)
    assert both.endswith(bodies.text)
    assert "values ($3::text, $4::text, $5::uuid)" in both
    assert tags.text.endswith("on conflict do nothing")


def test_only_writing_statements_are_deferred() -> None:
    """A part that only reads or locks would not be executed at all."""
    waiting = [name for name in statements.load("postgres") if reach_of(name).can_wait]
    assert "save_tasks" in waiting
    for name in waiting:
        assert reach_of(name).writes, name
    for name, statement in statements.load("postgres").items():
        if statement.text.startswith(("select", "with")):
            assert name not in waiting


@pytest.mark.parametrize("id_", ["", "}", "'", f"{ONE},{TWO}", f'{ONE}"', ONE[:-1]])
async def test_invalid_id_in_a_batch_is_refused(connection: Counted, id_: str) -> None:
    """They go as one text: what is not an id is refused, and none is read as two."""
    tx = PostgresTx(connection, NOW, "begin")
    with pytest.raises(InputError):
        await tx.one("read_tasks", items=[(id_,)])


async def test_untested_driver_begins_transactions_in_the_ordinary_way(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert can_begin_with_next(), "try the new version of asyncpg with tests/stores/test_beginning.py and add it"
    monkeypatch.setattr(postgres_tx, "can_begin_with_next", lambda: False)
    monkeypatch.setattr(Session, "begin_with_next", None)
    async with Queue.open(postgres_url) as queue:
        await queue.submit(type="code")
        (held,) = await queue.claim("ada", start=True)
        await queue.complete(held.token)
        assert (await queue.status()).counts == {"completed": 1}
