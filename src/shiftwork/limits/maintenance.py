"""Opens gates whose time is over, and wakes the claims that wait for them."""

from __future__ import annotations

from collections import defaultdict

from shiftwork.engine.engine import Engine
from shiftwork.limits import gates
from shiftwork.model.keys import Key
from shiftwork.store.store import Tx

BATCH = 500


async def open_gates(tx: Tx, engine: Engine) -> dict[str, int]:  # noqa: ARG001  # every maintenance job gets both
    """Open expired cooldowns and windows. A breaker stays open until a test task succeeds."""
    due = await tx.all("due_gates", now=tx.now, count=BATCH)
    if not due:
        return {}
    names = [(row["workspace"], row["scope"], row["kind"], row["agent_id"]) for row in due]
    await tx.run("mark_gates_announced", items=[name for name in names if name[2] == "breaker"])
    await tx.run("drop_gates", items=[name for name in names if name[2] != "breaker"])
    opened: dict[str, list[Key]] = defaultdict(list)
    for row in due:
        if row["kind"] != "slowdown":
            opened[row["workspace"]].append(gates.key_of(row["kind"], row["scope"]))
    for workspace, found in sorted(opened.items()):
        await gates.wake(tx, workspace, found)
    return {"opened": len(due)}
