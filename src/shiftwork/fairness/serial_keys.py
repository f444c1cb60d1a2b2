"""Serial execution in the store: one task of a key runs, and the others are held back until it ends.

The row of a key names the claim that has it. A claim that finds the key taken holds tasks back under the row's lock;
the end of a claim frees the key before it looks for held tasks. So no task is held back without being freed again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from shiftwork.engine.engine import Engine, log
from shiftwork.engine.lanes import Lane
from shiftwork.engine.rows import TaskRow
from shiftwork.engine.unit_of_work import AttemptEnd, Participant, UnitOfWork
from shiftwork.fairness import policy
from shiftwork.model.states import State
from shiftwork.store.store import Row, Tx

HOLD = "serial"
"""The value of a task's `hold` while another task of its key runs."""

BATCH = 100
"""How many tasks behind a held one are checked in the same step, because they may have the same key."""

Name = tuple[str, str]
"""A workspace and a key."""


class Serials(Participant):
    """Passes on the keys of claims that one unit of work ends, and keeps the positions of held tasks up to date."""

    def __init__(self, work: UnitOfWork) -> None:
        super().__init__(work)
        self._ended: list[tuple[str, int]] = []

    def attempt_ended(self, end: AttemptEnd) -> None:
        self.asks = True
        self._ended.append((end.row.id, end.row.fence))

    def attempts_accepted(self, rows: Sequence[Row]) -> None:
        if rows[0]["serialized"]:
            self.asks = True
            self._ended += [(row["id"], row["fence"]) for row in rows]

    async def before_rows(self) -> None:
        work = self.work
        held = [id_ for id_, hold in work.hold_before.items() if hold == HOLD and id_ in work.changed]
        if held:
            await refresh_holds(work, [work.rows[id_] for id_ in held])

    async def save(self) -> None:
        if self._ended and self.work.found["serialized"]:
            await release(self.work, self._ended)


async def admit(work: UnitOfWork, lanes: Iterable[Lane], rows: list[Row]) -> list[Row]:
    """Return the picked tasks that may run now; hold back the others."""
    kinds = {lane.id: lane.key.serial for lane in lanes if lane.key.serial is not None}
    names = {row["id"]: _name(row, kinds[row["lane"]]) for row in rows if row["lane"] in kinds} if kinds else {}
    if not names:
        return rows
    taken, closed = await _take(work.tx, [row for row in rows if row["id"] in names], names)
    late = [row for row in rows if row["id"] in names and row["id"] not in taken and names[row["id"]] in closed]
    await _hold_back(work.tx, late, names)
    for lane in sorted({row["lane"] for row in late}):
        await _hold_behind(work.tx, lane, kinds[lane], closed, taken)
    return [row for row in rows if row["id"] not in names or row["id"] in taken]


async def undo(work: UnitOfWork, rows: Collection[Row]) -> None:
    """Free the keys of tasks that were not claimed for another reason, with the tasks held back for them."""
    await release(work, [(row["id"], row["fence"] + 1) for row in rows])


async def _take(tx: Tx, rows: Sequence[Row], names: Mapping[str, Name]) -> tuple[set[str], set[Name]]:
    """The tasks that now have their keys, and the taken keys. A key freed meanwhile is in neither."""
    first: dict[Name, Row] = {}
    for row in rows:
        first.setdefault(names[row["id"]], row)
    items = sorted((*name, row["id"], row["fence"] + 1) for name, row in first.items())
    ours = {(row["workspace"], row["key"]) for row in await tx.all("take_serials", items=items)}
    others = sorted(first.keys() - ours)
    locked = await tx.all("lock_serials", items=others) if others else []
    return {first[name]["id"] for name in ours}, ours | {(row["workspace"], row["key"]) for row in locked}


async def _hold_behind(tx: Tx, lane: int, kind: policy.SerialKind | None, closed: set[Name], taken: set[str]) -> None:
    """Hold back the next tasks of the same keys, too; otherwise one claim after another would find them."""
    assert kind is not None
    rows = await tx.all("serial_heads", lane=lane, count=BATCH)
    names = {row["id"]: (row["workspace"], policy.serial_key_of(kind, row["type"], row["serial_key"])) for row in rows}
    await _hold_back(tx, [row for row in rows if names[row["id"]] in closed and row["id"] not in taken], names)


async def _hold_back(tx: Tx, rows: Sequence[Row], names: Mapping[str, Name]) -> None:
    if rows:
        await tx.run("hold_serials", items=sorted((row["id"],) for row in rows), now=tx.now)
        held = [(row["id"], *names[row["id"]], row["lane"], row["rank"], row["ordered_at"]) for row in rows]
        await tx.insert("insert_serial_holds", sorted(held))


def _name(row: Row, kind: policy.SerialKind | None) -> Name:
    assert kind is not None
    named = msgspec.json.decode(row["body"]).get("serial_key") if kind == "key" else None
    return row["workspace"], policy.serial_key_of(kind, row["type"], named)


async def release(work: UnitOfWork, claims: Iterable[tuple[str, int]]) -> None:
    """Pass on the keys of ended claims."""
    await _pass_on(work.tx, sorted(set(claims)))


async def _pass_on(tx: Tx, claims: Sequence[tuple[str, int]]) -> None:
    freed = await tx.all("end_serials", items=claims, now=tx.now)
    await _free_best(tx, {(row["workspace"], row["key"]) for row in freed})


async def _free_best(tx: Tx, names: set[Name]) -> None:
    """Free the best task of each lane that waits for these keys; the next claim picks the best of them."""
    if not names:
        return
    best = await tx.all("serial_heirs", items=sorted(names))
    if unwanted := names - {(row["workspace"], row["key"]) for row in best}:
        await tx.run("drop_serials", items=sorted(unwanted))
    rows = await tx.all("lock_serial_held", items=sorted((row["task_id"],) for row in best)) if best else []
    if rows:
        items = [(row["id"],) for row in rows]
        await tx.run("free_held", items=items, now=tx.now)
        await tx.run("delete_serial_holds", items=items)
    for row in rows:
        tx.wake(row["lane"])


async def refresh_holds(work: UnitOfWork, rows: Iterable[TaskRow]) -> None:
    """Update held tasks that have changed: those still waiting get their new position, the others are freed."""
    left, moved = [], list[tuple[Any, ...]]()
    for row in rows:
        if row.status == State.READY and row.hold == HOLD:
            moved.append((row.id, row.lane, row.rank, row.ordered_at))
        else:
            row.hold = None if row.hold == HOLD else row.hold
            left.append((row.id,))
    if moved:
        await work.tx.run("move_serial_holds", items=sorted(moved))
    if left:
        await work.tx.run("delete_serial_holds", items=sorted(left))


async def running(tx: Tx, task_id: str) -> str | None:
    """The running task that this one waits for."""
    row = await tx.one("serial_runner", id=task_id)
    return None if row is None else str(row["task_id"])


async def repair(tx: Tx) -> int:
    """Find keys without a live claim, of which there should be none, and free the tasks that wait for them."""
    stray = await tx.all("stray_serials", count=BATCH)
    if stray:
        log.error("repaired %d serial keys without a live claim", len(stray))
        await _pass_on(tx, sorted((row["task_id"], row["fence"]) for row in stray))
    return len(stray)


IDLE_SEC = 5.0
"""How long a freed task has to be claimed before another is freed; it may have been cancelled."""


async def maintain(tx: Tx, _: Engine) -> dict[str, int]:
    """Free more of the tasks that wait for keys that no claim has taken."""
    idle = await tx.all("idle_serials", before=tx.now - IDLE_SEC, count=BATCH)
    names = {(row["workspace"], row["key"]) for row in idle}
    if names:
        await tx.run("rest_serials", items=sorted(names), now=tx.now)
        await _free_best(tx, names)
    return {"keys": len(names)} if names else {}
