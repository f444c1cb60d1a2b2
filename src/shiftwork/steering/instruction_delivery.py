"""Delivers open instructions to the holders of their tasks in the answer to a heartbeat."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from shiftwork.engine.engine import Caller, Engine
from shiftwork.engine.new_events import NewEvent
from shiftwork.engine.unit_of_work import UnitOfWork
from shiftwork.model.reports import MAX_AT_ONCE, Instruction
from shiftwork.model.states import FINAL
from shiftwork.store.store import Row, Tx

Claimed = Row
"""A task under its live claim: id, workspace, dag_id, root_id, fence and agent_id."""


def instruction(row: Row, status_of_task: str = "") -> Instruction:
    status: Any = "delivered" if row["delivered_at"] is not None else "waiting"
    if row["acknowledged_at"] is not None:
        status = "acknowledged"
    elif status_of_task in FINAL:
        status = "unread"
    return Instruction(
        row["seq"],
        row["text"],
        row["sent_at"],
        row["sent_by"],
        status,
        row["delivered_at"],
        row["fence"],
        row["acknowledged_at"],
    )


async def with_heartbeat(
    tx: Tx, engine: Engine, caller: Caller, claims: Iterable[Claimed]
) -> dict[str, list[Instruction]]:
    """Return the open instructions of these tasks, by task id, and record their delivery.

    Call it only if `touch_runtime` returned that the workspace has open instructions.
    """
    held = {row["root_id"]: row for row in claims}
    found = await tx.all("open_instructions", items=[(root,) for root in sorted(held)]) if held else []
    by_root: defaultdict[str, list[Row]] = defaultdict(list)
    for row in found:
        if len(by_root[row["root_id"]]) < MAX_AT_ONCE:
            by_root[row["root_id"]].append(row)
    work = UnitOfWork(tx, engine, caller)
    handed = {held[root]["id"]: await note_delivery(work, held[root], rows) for root, rows in by_root.items()}
    await work.save_events()
    return handed


async def note_delivery(work: UnitOfWork, claim: Claimed, rows: Sequence[Row]) -> list[Instruction]:
    """Record which of these the attempt gets for the first time; a repeat after a lost answer is not recorded."""
    fence = claim["fence"]
    new = [row for row in rows if row["fence"] != fence]
    if new:
        items = [(row["root_id"], row["seq"], fence) for row in new]
        await work.tx.run("deliver_instructions", items=items, now=work.now)
        add_event(work, claim, "instruction_delivered", [row["seq"] for row in new])
    noted: dict[str, Any] = {"delivered_at": work.now, "fence": fence}
    return [instruction({**row, **(noted if row["fence"] != fence else {})}) for row in rows]


def add_event(work: UnitOfWork, claim: Claimed, verb: str, seqs: Sequence[int]) -> None:
    """Add an event without the texts, so that a purge can remove them."""
    actor = work.caller.actor if work.caller.actor != "system" else f"agent:{claim['agent_id']}"
    work.add_event(
        NewEvent(
            work.now,
            claim["workspace"],
            verb,
            actor,
            claim["id"],
            claim["dag_id"],
            request_id=work.request_of(claim["id"], claim["fence"]),
            fence=claim["fence"],
            data={"seqs": list(seqs)},
        )
    )
