"""Gathers work of the batch lane, sends it to its provider, and applies the answers.

A batch is never sent twice: a separate transaction marks it `posting` before it is sent. If the process dies then, or
gets no answer, the batch stays `posting`; later it is searched for in the provider's list, and sent again only if it is
missing there.
"""

from __future__ import annotations

import functools
import logging
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from shiftwork.batches import batch_answers, batch_claims, policy
from shiftwork.batches.batch_claims import CALLER
from shiftwork.batches.model import AGENTS, AnswerLost, Provider, ProviderError, WorkRefused
from shiftwork.batches.policy import Request
from shiftwork.engine.engine import NOWHERE, Engine
from shiftwork.engine.read import read_body
from shiftwork.engine.unit_of_work import UnitOfWork, as_json
from shiftwork.maintenance.model import BATCH, Counts
from shiftwork.store import crash_points
from shiftwork.store.store import Row, Tx

if TYPE_CHECKING:
    from shiftwork.batches.adapters import Adapter

log = logging.getLogger("shiftwork.batches")
_AGENTS = [(agent,) for agent in sorted(AGENTS)]


async def elect(tx: Tx, engine: Engine) -> Counts:
    """Release tasks that no batch took or answered in time, and delete old batches."""
    await tx.run("prune_batches", before=tx.now - policy.KEEP_SEC)
    freed = 0
    for lane in await tx.all("batch_lanes", agents=_AGENTS):
        settings = (await engine.settings_cache.load(tx, lane["workspace"])).settings()
        before = tx.now - settings.batches.max_wait_sec
        if lane["oldest"] <= before and freed < BATCH:
            freed += await _leave(tx, engine, lane["lane"], before)
    for batch in await tx.all("overdue_batches", before=tx.now - policy.LATE_SEC):
        items = await tx.all("batch_items_held", batch=batch["id"])
        await _finish(tx, engine, batch, items, "its batch took too long")
        freed += len(items)
    return {"freed": freed} if freed else NOWHERE


async def _leave(tx: Tx, engine: Engine, lane: int, before: float) -> int:
    found = await tx.all("overdue_in_lane", lane=lane, before=before, count=BATCH)
    work = UnitOfWork(tx, engine, CALLER)
    rows = await work.lock(row["id"] for row in found)
    await batch_claims.leave_lane(work, rows, [as_json(await read_body(tx, row.id)) for row in rows])
    for row in rows:
        work.mark_ready(row, await work.settings_of(row))
        work.emit(row, "batch_missed")
    await work.save()
    return len(rows)


async def run(engine: Engine) -> Counts:
    """Run the batches of all providers whose keys this process has."""
    counts: Counter[str] = Counter()
    providers = policy.configured(os.environ)
    if not providers:
        return {}  # without loading aiohttp, which takes 10 MiB
    try:
        from shiftwork.batches import adapters  # noqa: PLC0415  # needs aiohttp, which a minimal install lacks
    except ImportError:
        return {}
    for provider in providers:
        api = adapters.adapter(os.environ, provider, allow_private=engine.private_sinks)
        try:
            counts += await _of_provider(engine, provider, api)
        finally:
            await api.close()
    return dict(counts)


async def _of_provider(engine: Engine, provider: Provider, api: Adapter) -> Counter[str]:
    counts = Counter(gathered=await _gather(engine, provider))
    steps: dict[str, Callable[[Engine, Adapter, Row], Awaitable[Any]]] = {
        "gathered": _post,
        "posting": _find,
        "posted": _read,
    }
    for status in ("posting", "gathered", "posted"):  # a batch that was found or is missing continues at once
        open_ = await engine.store.read(lambda tx: tx.all("open_batches", provider=provider))
        for batch in [row for row in open_ if row["status"] == status]:
            try:
                counts[status] += bool(await steps[status](engine, api, batch))
            except (ProviderError, LookupError, TypeError, ValueError) as error:
                what = str(error) if isinstance(error, ProviderError) else f"unexpected answer: {error!r}"
                log.warning("batch %s at %s is delayed: %s", batch["id"], provider, what)
                await engine.store.run(functools.partial(_note_error, batch=batch, error=what))
    return +counts


async def _gather(engine: Engine, provider: str) -> int:
    total = 0
    lanes = await engine.store.read(lambda tx: tx.all("batch_lanes", agents=[(policy.agent_of(provider),)]))
    now = engine.store.now()
    for workspace in sorted({lane["workspace"] for lane in lanes}):
        oldest = min(lane["oldest"] for lane in lanes if lane["workspace"] == workspace)
        waited = (await engine.settings_cache.get(engine.store, workspace)).settings().batches.gather_sec
        if oldest > now - waited:
            continue
        while count := await engine.store.run(
            functools.partial(batch_claims.gather, engine=engine, workspace=workspace, provider=provider)
        ):
            total += count
            if count < policy.MAX_REQUESTS:
                break
    return total


async def _post(engine: Engine, api: Adapter, batch: Row) -> bool:
    began = time.monotonic()
    requests = await engine.store.run(functools.partial(_begin_post, engine=engine, batch_id=batch["id"]))
    if not requests:
        return False
    crash_points.reach("before posting a batch")
    if time.monotonic() - began > policy.GRACE_SEC / 2:
        return False  # this process was stalled; another may be searching for the batch
    try:
        external_id = await api.create(batch["id"], requests)
    except AnswerLost:
        raise  # it stays `posting` until it is found or known to be missing
    except WorkRefused as error:
        await engine.store.run(functools.partial(_end, engine=engine, batch_id=batch["id"], reason=str(error)))
        return True
    except ProviderError as error:
        changes = {"status": "gathered", "posting_at": None, "error": str(error)}
        await engine.store.run(functools.partial(_change, batch_id=batch["id"], expected="posting", changes=changes))
        log.warning("batch %s is delayed: %s", batch["id"], error)
        return False
    crash_points.reach("after posting a batch")
    return await engine.store.run(
        functools.partial(_posted, engine=engine, batch_id=batch["id"], external_id=external_id)
    )


async def _begin_post(tx: Tx, engine: Engine, batch_id: str) -> list[Request]:
    """Mark a batch as `posting`; returns its requests. Empty if another process was faster or no task is left."""
    batch = await tx.one("lock_batch", id=batch_id)
    if batch is None or batch["status"] != "gathered":
        return []
    items = await tx.all("batch_items_held", batch=batch_id)
    held = [item for item in items if item["held"]]
    if not held or tx.now >= batch["expires_at"]:
        await _finish(tx, engine, batch, items, "it was not sent in time")
        return []
    gone = [(item["place"], "late") for item in items if not item["held"]]
    if gone:
        await tx.run("end_batch_items", batch=batch_id, items=gone)
    await _save(tx, batch, status="posting", posting_at=tx.now, requests=len(held))
    return [
        Request(policy.custom_id(batch_id, item["place"]), msgspec.json.decode(item["body"])["payload"]["request"])
        for item in held
    ]


async def _posted(tx: Tx, engine: Engine, batch_id: str, external_id: str) -> bool:
    changes = {"status": "posted", "external_id": external_id, "posted_at": tx.now, "error": None}
    batch = await _change(tx, batch_id, "posting", changes)
    if batch is not None:
        work = UnitOfWork(tx, engine, CALLER)
        data = {"batch": batch_id, "provider": batch["provider"], "model": batch["model"]}
        work.emit_for(
            batch["workspace"], "batch_posted", data={**data, "requests": batch["requests"], "external_id": external_id}
        )
        await work.save_events()
    return batch is not None


async def _find(engine: Engine, api: Adapter, batch: Row) -> bool:
    """Find a batch in the provider's list whose sending got no answer."""
    since, now = batch["posting_at"], engine.store.now()
    if now < since + policy.GRACE_SEC:
        return False
    external_id, unclear = await _search(engine, api, batch)
    if external_id is not None:
        return await engine.store.run(
            functools.partial(_posted, engine=engine, batch_id=batch["id"], external_id=external_id)
        )
    if unclear:
        return False
    changes = {"status": "gathered", "posting_at": None}
    await engine.store.run(functools.partial(_change, batch_id=batch["id"], expected="posting", changes=changes))
    return True


async def _search(engine: Engine, api: Adapter, batch: Row) -> tuple[str | None, bool]:
    """Its id at the provider, or None and whether it may be a batch that has not ended and cannot be read yet."""
    since = batch["posting_at"]
    recent = await api.recent(since - policy.SKEW_SEC)
    for each in recent:
        if each.label == batch["id"]:
            return each.external_id, False
    rows = await engine.store.read(
        lambda tx: tx.all("known_batches", provider=batch["provider"], since=since - 2 * policy.LATE_SEC)
    )
    unlabelled = [each for each in recent if each.label is None and batch["provider"] == "anthropic"]
    found = policy.candidates(unlabelled, batch["requests"], since, [row["external_id"] for row in rows])
    for each in found:
        if each.ended and await api.answers(each.external_id, batch["id"]):
            return each.external_id, False
    return None, any(not each.ended for each in found)


async def _read(engine: Engine, api: Adapter, batch: Row) -> bool:
    """Apply the answers of an ended batch; cancel one whose time is over."""
    items = await engine.store.read(lambda tx: tx.all("batch_items_held", batch=batch["id"]))
    if not await api.is_ended(batch["external_id"]):
        over = engine.store.now() >= batch["expires_at"] or not any(item["held"] for item in items)
        if over and batch["cancel_asked_at"] is None:
            await api.cancel(batch["external_id"])
            crash_points.reach("after cancelling a batch")
            changes = {"cancel_asked_at": engine.store.now()}
            await engine.store.run(functools.partial(_change, batch_id=batch["id"], expected="posted", changes=changes))
        return False
    answers = await api.answers(batch["external_id"], batch["id"])
    crash_points.reach("after reading a batch")
    ready = batch_answers.prepare(items, answers)
    for start in range(0, len(ready), batch_answers.CHUNK):
        part = ready[start : start + batch_answers.CHUNK]
        await engine.store.run(
            functools.partial(batch_answers.hand_back, engine=engine, batch_id=batch["id"], items=part)
        )
    answered = {item.place for item in ready}
    ended = functools.partial(_end_answered, engine=engine, batch_id=batch["id"], answered=answered)
    return await engine.store.run(ended)


async def _end_answered(tx: Tx, engine: Engine, batch_id: str, answered: set[int]) -> bool:
    """End a batch once every answer is applied; any agent can claim tasks without one."""
    batch = await tx.one("lock_batch", id=batch_id)
    items = await tx.all("batch_items_held", batch=batch_id)
    if batch is None or batch["status"] == "ended" or any(item["place"] in answered for item in items):
        return False  # some outputs took too long to check: they are applied next time
    await _finish(tx, engine, batch, items, "its batch ended without an answer")
    return True


async def _end(tx: Tx, engine: Engine, batch_id: str, reason: str) -> None:
    """End a batch that the provider refused: any agent can claim its tasks."""
    batch = await tx.one("lock_batch", id=batch_id)
    if batch is not None and batch["status"] != "ended":
        items = await tx.all("batch_items_held", batch=batch_id)
        await _finish(tx, engine, {**batch, "error": reason}, items, "its batch was refused")


async def _finish(tx: Tx, engine: Engine, batch: Row, items: Sequence[Row], reason: str) -> None:
    work = UnitOfWork(tx, engine, CALLER)
    await batch_answers.release_rest(work, batch["id"], items, reason)
    data = {"batch": batch["id"], "provider": batch["provider"], "model": batch["model"], "released": len(items)}
    work.emit_for(batch["workspace"], "batch_ended", data=data)
    await work.save()
    await _save(tx, batch, status="ended", ended_at=tx.now)


async def _note_error(tx: Tx, batch: Row, error: str) -> None:
    now = await tx.one("lock_batch", id=batch["id"])
    if now is not None and now["status"] != "ended":
        await _save(tx, now, error=error)


async def _change(tx: Tx, batch_id: str, expected: str, changes: dict[str, Any]) -> Row | None:
    """Change a batch and return it; None if it is no longer in the expected state."""
    batch = await tx.one("lock_batch", id=batch_id)
    if batch is None or batch["status"] != expected:
        return None
    await _save(tx, batch, **changes)
    return {**batch, **changes}


async def _save(tx: Tx, batch: Row, **changes: Any) -> None:
    names = (
        "id",
        "status",
        "requests",
        "posting_at",
        "posted_at",
        "cancel_asked_at",
        "ended_at",
        "external_id",
        "error",
    )
    await tx.run("save_batch", **{name: {**batch, **changes}[name] for name in names})
