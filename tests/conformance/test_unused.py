"""Unused features cost no statement: shares, serial keys, affinity and preemption."""

from collections.abc import Sequence
from typing import Any, TypeVar

from shiftwork import Queue
from shiftwork.model.reports import Heartbeat
from shiftwork.store.store import Row, Rows, Tx, Verb

T = TypeVar("T")


class Heard:
    """A real transaction that records the names of its statements."""

    def __init__(self, tx: Tx, names: list[str]) -> None:
        self._tx = tx
        self._names = names
        self.now = tx.now

    async def all(self, name: str, /, **parameters: Any) -> Sequence[Row]:
        self._names.append(name)
        return await self._tx.all(name, **parameters)

    async def one(self, name: str, /, **parameters: Any) -> Row | None:
        self._names.append(name)
        return await self._tx.one(name, **parameters)

    async def alone(self, name: str, /, **parameters: Any) -> Sequence[Row] | None:
        self._names.append(name)
        return await self._tx.alone(name, **parameters)

    def stay_open(self) -> None:
        self._tx.stay_open()

    async def run(self, name: str, /, **parameters: Any) -> None:
        self._names.append(name)
        await self._tx.run(name, **parameters)

    async def insert(self, name: str, rows: Rows, /) -> None:
        self._names.append(name)
        await self._tx.insert(name, rows)

    async def advisory_lock(self, name: str, /) -> None:
        await self._tx.advisory_lock(name)

    def wake(self, lane: int, /) -> None:
        self._tx.wake(lane)

    def announce_end(self, *ended: str, to_others: bool = True) -> None:
        self._tx.announce_end(*ended, to_others=to_others)


async def statements_of_a_life(queue: Queue, monkeypatch: Any) -> list[str]:
    """Two tasks of two types, from submit to complete."""
    names: list[str] = []
    run = queue.engine.store.run

    async def listen(verb: Verb[T], /) -> T:
        return await run(lambda tx: verb(Heard(tx, names)))

    await queue.agents.register(id="worker", max_concurrent_tasks=10)
    await queue.submit_many([{"type": "code", "serial_key": "a", "created_by": "me"}, {"type": "docs"}])
    monkeypatch.setattr(queue.engine.store, "run", listen)
    await queue.submit_many([{"type": "code", "serial_key": "a", "created_by": "you"}, {"type": "docs"}])
    for _ in range(2):
        held = await queue.claim("worker", 2, start=True)
        await queue.batch.heartbeat([Heartbeat(each.token) for each in held])
        await queue.runtimes.heartbeat("worker", [each.token for each in held])
        for each in held:
            await queue.complete(each.token)
    return names


OURS = ("turns", "serial", "yield", "lighter", "asking", "places", "scan")


async def test_unused_features_run_no_statements(queue: Queue, monkeypatch: Any) -> None:
    asked = await statements_of_a_life(queue, monkeypatch)
    assert "lane_heads" in asked
    assert [name for name in asked if any(word in name for word in OURS)] == []


async def test_used_features_run_their_statements(queue: Queue, monkeypatch: Any) -> None:
    for key, value in (("fair_share.by", "created_by"), ("serialize_by", "key"), ("affinity_sec", 60)):
        await queue.settings.set(key, value)
    await queue.settings.set("deadline.preempt_running", value=True)
    asked = await statements_of_a_life(queue, monkeypatch)
    assert {"take_turns", "save_turns", "take_serials", "end_serials", "yields_of", "asking_agents"} <= set(asked)
