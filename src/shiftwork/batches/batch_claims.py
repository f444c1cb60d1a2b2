"""Claims the tasks of a batch; their leases last as long as the batch can take."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import islice

import msgspec

from shiftwork.batches import policy
from shiftwork.engine.claim import claim
from shiftwork.engine.engine import Caller, Engine
from shiftwork.engine.pick import ClaimRequest
from shiftwork.engine.prepare import as_new, lane_of
from shiftwork.engine.rows import TaskRow
from shiftwork.engine.unit_of_work import UnitOfWork
from shiftwork.model.errors import AgentUnavailable
from shiftwork.model.outcome import Token
from shiftwork.store.store import Tx

CALLER = Caller("maintenance:batches")

_NONE = msgspec.json.encode([]).decode()


async def gather(tx: Tx, engine: Engine, workspace: str, provider: str) -> int:
    """Put ready tasks of one provider into batches, one batch per model; returns how many tasks."""
    agent = policy.agent_of(provider)
    await _register(tx, workspace, agent)
    try:
        request = ClaimRequest(workspace, agent, most=policy.MAX_REQUESTS, start=True)
        claimed = (await claim(tx, engine, CALLER, request)).assignments
    except AgentUnavailable:
        return 0  # a person has paused this agent
    if not claimed:
        return 0
    bodies = {
        row["task_id"]: row["body"] for row in await tx.all("read_bodies", items=[(c.claim.id,) for c in claimed])
    }
    by_model: defaultdict[str, list[Token]] = defaultdict(list)
    for assignment in claimed:
        by_model[assignment.payload["request"]["model"]].append(assignment.claim)
    work = UnitOfWork(tx, engine, CALLER)
    await work.lock(bodies)
    for model, tokens in sorted(by_model.items()):
        left = iter(tokens)
        for count in policy.split(len(bodies[token.id]) for token in tokens):
            await _make(work, workspace, (provider, model), list(islice(left, count)), bodies)
    await work.save()
    return len(claimed)


async def _register(tx: Tx, workspace: str, agent: str) -> None:
    """Register the batch agent with unlimited slots, since it only holds tasks."""
    if await tx.one("read_agent", workspace=workspace, id=agent) is None:
        await tx.run(
            "add_agent",
            workspace=workspace,
            id=agent,
            type="batch",
            types=None,
            capabilities=_NONE,
            models=_NONE,
            max_concurrent_tasks=None,
            budget=None,
            poll_interval_sec=60.0,
            claim_ttl_sec=None,
            isolation_group=None,
            now=tx.now,
        )


async def _make(
    work: UnitOfWork, workspace: str, of: tuple[str, str], tokens: Sequence[Token], bodies: Mapping[str, str]
) -> None:
    provider, model = of
    batch_id = work.engine.ids.make(work.now)
    settings = (await work.engine.settings_cache.load(work.tx, workspace)).settings()
    expires_at = work.now + settings.batches.max_wait_sec
    await work.tx.insert(
        "insert_batches",
        [(batch_id, workspace, provider, model, "gathered", len(tokens), work.now, expires_at)],
    )
    items = [(batch_id, place, token.id, token.fence, "open") for place, token in enumerate(tokens)]
    await work.tx.insert("insert_batch_items", items)
    rows = [work.rows[token.id] for token in tokens]
    await leave_lane(work, rows, [bodies[row.id] for row in rows])
    for row in rows:
        row.run_until = row.lease_until = row.lease_check_at = (
            expires_at + 2 * policy.LATE_SEC
        )  # ended before by `elect`
        data = {"batch": batch_id, "provider": provider, "model": model, "until": expires_at}
        work.emit(row, "batched", fence=row.fence, data=data, actor=work.caller.for_agent(row.agent_id))


async def leave_lane(work: UnitOfWork, rows: Sequence[TaskRow], bodies: Sequence[str]) -> None:
    """Take these tasks out of the batch lane: once freed, any agent can claim them. A task is batched at most once."""
    settings = await work.settings(rows)
    keys = {}
    for row, body in zip(rows, bodies, strict=True):
        new = msgspec.structs.replace(as_new(msgspec.json.decode(body)), urgency="normal")
        keys[row.id] = lane_of(new, row.workspace, settings[row.id], row.boost, row.attempts)
    lanes = await work.engine.lanes.intern_in(work.tx, set(keys.values()))
    for row in rows:
        row.lane = lanes[keys[row.id]]
        work.touch(row)
