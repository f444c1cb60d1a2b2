"""Subtasks: added to the running task's own DAG, with the parent going on or waiting for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from shiftwork.core import ids
from shiftwork.core.errors import NotFound
from shiftwork.core.states import State
from shiftwork.core.task import Submitted
from shiftwork.queue.claims import Token, lock_claims, refusal
from shiftwork.queue.engine import Caller, Engine
from shiftwork.queue.parents import Parent, resolve
from shiftwork.queue.prepare import Prepared
from shiftwork.queue.rows import TaskRow
from shiftwork.queue.submit import DagFields, Origin, inherit_fate, refuse_outer_cycle, submit
from shiftwork.queue.work import Work, as_json
from shiftwork.store.store import Tx


async def spawn(
    tx: Tx,
    engine: Engine,
    caller: Caller,
    token: Token,
    batch: Sequence[Prepared],
    lanes: Mapping[Any, int],
    *,
    wait: bool,
) -> list[Submitted]:
    """Add subtasks under a live claim. With `wait` the parent gives its slot back until they are done."""
    work = Work(tx, engine, caller)
    row = await _claimed(work, token, need_running=wait)
    dag = DagFields(join=row.dag_id)
    origin = Origin("spawned", row.id)
    signed = [_signed(prepared, f"agent:{row.agent_id}") for prepared in batch]
    made = await submit(tx, engine, caller, row.workspace, signed, lanes, dag, origin, work)
    children = [uuid for uuid in (ids.parse(task.id) for task in made) if uuid is not None]
    # A child that waits for its own parent would never run, whether or not the parent waits for it.
    await tx.take_turn(f"edges:{row.workspace}")
    found = await resolve(tx, row.workspace, {child: child for child in children})
    await refuse_outer_cycle(work, {row.root_id: [parent.root for parent in found.values()]})
    if wait:
        await _park(work, row, list(found.values()))
    await work.save()
    return made


def _signed(prepared: Prepared, author: str) -> Prepared:
    """Whoever spawns has created it, unless the caller names somebody else."""
    if prepared.new.created_by is not None:
        return prepared
    new = msgspec.structs.replace(prepared.new, created_by=author)
    body = as_json({**msgspec.json.decode(prepared.body), "created_by": author})
    return prepared._replace(new=new, body=body)


async def wait_for(tx: Tx, engine: Engine, caller: Caller, token: Token, references: Sequence[str]) -> str:
    """Give the slot back until these tasks are done."""
    work = Work(tx, engine, caller)
    row = await _claimed(work, token, need_running=True)
    found = await resolve(tx, row.workspace, {name: name for name in references})
    unknown = [name for name in references if name not in found]
    if unknown:
        raise NotFound(f"there is no task {unknown[0]!r}", where="tasks")
    await tx.take_turn(f"edges:{row.workspace}")
    await refuse_outer_cycle(work, {row.root_id: [parent.root for parent in found.values()]})
    await _park(work, row, list(found.values()))
    await work.save()
    return row.status


async def _claimed(work: Work, token: Token, *, need_running: bool) -> TaskRow:
    raw = await lock_claims(work.tx, work.caller, [token])
    allowed = frozenset({"running"} if need_running else {"claimed", "running"})
    if error := refusal(work.engine, work.caller, token, raw.get(token.id), allowed):
        raise error
    return (await work.lock([token.id]))[0]


def _status(work: Work, parent: Parent) -> str:
    """As this verb leaves it: what it has cancelled is not saved yet."""
    root = work.rows.get(parent.root)
    return root.status if root is not None and root.newest_id is None else parent.status


async def _park(work: Work, row: TaskRow, above: list[Parent]) -> None:
    """The parent depends on these from now on; it comes back when the last one completes, and pays no attempt."""
    states = {p.root: _status(work, p) for p in above}
    roots = sorted(states)
    await work.tx.insert("insert_edges", [(row.root_id, r, states[r] == State.COMPLETED, True) for r in roots])
    counts = await work.tx.all("count_open_edges", items=[(row.root_id,)])
    row.waiting = int(counts[0]["open"]) if counts else 0
    fence, actor = row.fence, work.caller.for_agent(row.agent_id)
    settings = (await work.settings([row]))[row.id]
    work.end_attempt(row, "waiting")
    path = work.move(row, "wait") if row.waiting else work.move(row, "wait", "unblock")
    if not row.waiting:
        work.arrive(row, settings)
    work.tell(row, "waited", path, fence=fence, data={"for": [ids.show_task(root) for root in roots]}, actor=actor)
    await inherit_fate(work, {row.root_id: [Parent(root, status) for root, status in states.items()]})
