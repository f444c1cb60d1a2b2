"""Work offered in a foreign stream: held for it, assigned to the worker that takes it there, and withdrawn.

An offer is a row of `published`. Its task stays ready, under the hold `published`, until its entry is delivered; then
the consumer holds the task like any agent, but the bridge, not the lease, decides when it has been silent for too long.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress

from shiftwork.accounts.choice import AccountUse
from shiftwork.budgets.allocator import BudgetAllocator, open_allocator
from shiftwork.compat.external.model import Bridge, Offer, StreamDelivery
from shiftwork.engine import finish
from shiftwork.engine.claim import assign, eligible, find_claimer, lock_claimer
from shiftwork.engine.decide import Decision, after_failure, after_loss, after_takeover
from shiftwork.engine.engine import Caller, Engine
from shiftwork.engine.lanes import ClaimFilter
from shiftwork.engine.new_events import NewEvent
from shiftwork.engine.pick import ClaimRequest, Picker
from shiftwork.engine.rows import TaskRow
from shiftwork.engine.unit_of_work import UnitOfWork, as_json
from shiftwork.limits.admission import Admitted
from shiftwork.model import reasons
from shiftwork.model.errors import AgentUnavailable
from shiftwork.model.outcome import Token
from shiftwork.model.states import State
from shiftwork.model.task import PUBLISHED
from shiftwork.providers.provider_limits import ClassifiedFailure
from shiftwork.store.store import Row, Tx


async def publish(tx: Tx, engine: Engine, caller: Caller, bridge: Bridge, ahead: int) -> int:
    """Offer the best work until `ahead` entries are unread; returns how many were offered."""
    unread = await tx.one("count_unread", workspace=bridge.workspace, bridge=bridge.name)
    most = ahead - (int(unread["unread"]) if unread else 0)
    rows: Sequence[Row] = ()
    with suppress(AgentUnavailable):  # the group is draining, or offline
        rows = await _best(tx, engine, bridge, most) if most > 0 else ()
    if not rows:
        return 0
    await tx.run("hold_published", items=[(row["id"],) for row in rows], now=tx.now)
    made = [(row["id"], row["version"] + 1, bridge.workspace, bridge.name, row["fence"] + 1, tx.now) for row in rows]
    await tx.insert("insert_published", made)
    await _emit(UnitOfWork(tx, engine, caller), rows, "published", bridge)
    return len(rows)


async def _best(tx: Tx, engine: Engine, bridge: Bridge, most: int) -> Sequence[Row]:
    """What a claim by the whole group would get, except tasks with a serial key.

    A consumer starts an entry without asking the queue, so two entries with the same key could run at once.
    """
    request = ClaimRequest(
        bridge.workspace, bridge.group, most=most, types=bridge.types, capabilities=bridge.capabilities
    )
    await _add_consumer(tx, bridge, bridge.group)
    claimer = await lock_claimer(tx, engine, request)
    types = None if bridge.types is None else frozenset(bridge.types)
    claim_filter = ClaimFilter(bridge.group, types, frozenset(bridge.capabilities), frozenset())
    allocator = await open_allocator(tx, engine, bridge.workspace, claimer.agent)
    if allocator.day_is_spent:
        return ()
    found = await eligible(tx, engine, request, claimer, claim_filter)
    lanes = [lane for lane in found.lanes if lane.key.serial is None]
    use = AccountUse(claimer.agent)
    return await Picker(tx, engine, request, use, claim_filter, found.gates, allocator).pick(lanes, most)


async def _emit(work: UnitOfWork, rows: Iterable[Row], verb: str, bridge: Bridge) -> None:
    actor, request_id, data = work.caller.actor, work.caller.request_id, {"bridge": bridge.name}
    for row in rows:
        work.add_event(
            NewEvent(
                work.now,
                row["workspace"],
                verb,
                actor,
                row["id"],
                row["dag_id"],
                request_id=request_id,
                data=data,
            )
        )
    await work.save_events()


async def withdraw(tx: Tx, engine: Engine, caller: Caller, bridge: Bridge, offers: Collection[Offer]) -> None:
    """Withdraw offers that were removed from the stream undelivered: tasks still ready can be claimed again."""
    rows = await tx.all("lock_tasks", items=sorted({(offer.task_id,) for offer in offers}))
    held = [row for row in rows if row["status"] == State.READY and row["hold"] == PUBLISHED]
    await tx.run("forget_published", items=sorted(offers))
    if held:
        await tx.run("lift_published", items=[(row["id"],) for row in held], now=tx.now)
        for lane in {row["lane"] for row in held}:
            tx.wake(lane)
        await _emit(UnitOfWork(tx, engine, caller), held, "withdrawn", bridge)


async def deliver(tx: Tx, engine: Engine, caller: Caller, bridge: Bridge, given: Sequence[StreamDelivery]) -> None:
    """Record deliveries of entries, from the stream or from their earlier consumers."""
    open_ = await lock_offers(tx, bridge, (delivery.offer for delivery in given))
    new = [each for each in given if each.offer in open_ and open_[each.offer]["consumer"] != each.consumer]
    moved = [each for each in new if open_[each.offer]["consumer"] is not None]
    if moved:
        await take_over(tx, engine, caller, moved)
    by_consumer: dict[str, list[StreamDelivery]] = defaultdict(list)
    for each in new:
        by_consumer[each.consumer].append(each)
    for consumer, theirs in sorted(by_consumer.items()):
        await give(tx, engine, caller, bridge, consumer, theirs)


async def lock_offers(tx: Tx, bridge: Bridge, offers: Iterable[Offer]) -> dict[Offer, Row]:
    """The open offers among these; their tasks are locked first."""
    items = sorted({(offer.task_id,) for offer in offers})
    if not items:
        return {}
    await tx.all("lock_tasks", items=items)
    rows = await tx.all("lock_published", items=items, workspace=bridge.workspace, bridge=bridge.name)
    return {Offer(row["task_id"], row["number"]): row for row in rows}


async def take_over(tx: Tx, engine: Engine, caller: Caller, moved: Sequence[StreamDelivery]) -> None:
    """Move entries that one worker claimed from another: the other loses its claim, as if it had died."""
    work = UnitOfWork(tx, engine, caller)
    rows = await work.lock(each.offer.task_id for each in moved)
    takers = {each.offer.task_id: each.consumer for each in moved}
    for row in rows:
        if row.held and row.id in takers:
            settings, facts = await work.settings_of(row), await finish.facts_of(work, row)
            decision = after_takeover(facts, settings, engine.random.random())
            note = f"{takers[row.id]} took it over in the stream"
            await finish.end_failed(work, row, decision, note=note, lost=True)
    await work.save()


async def give(
    tx: Tx, engine: Engine, caller: Caller, bridge: Bridge, consumer: str, theirs: Sequence[StreamDelivery]
) -> dict[str, Token]:
    """Assign the free tasks of these entries to their consumer; returns the claims by task.

    The work has already begun, so pauses, breakers, limits and budgets are not checked: they were for the offer.
    """
    by_task = {each.offer.task_id: each for each in theirs}
    rows = await tx.all("lock_tasks", items=[(id_,) for id_ in sorted(by_task)])
    free = [row for row in rows if row["status"] == State.READY and row["hold"] in {None, PUBLISHED}]
    if not free:
        return {}
    await tx.run("lift_published", items=[(row["id"],) for row in free], now=tx.now)
    places = [(place, row["id"], row["lane"]) for place, row in enumerate(free)]
    found = await tx.all("take_chosen", items=places, count=len(places), now=tx.now)
    messages = tuple((id_, each.message_id) for id_, each in by_task.items())
    request = ClaimRequest(bridge.workspace, consumer, most=len(found), start=True, messages=messages)
    agent = await _consumer(tx, bridge, consumer)
    allocator = BudgetAllocator(await engine.settings_cache.load(tx, bridge.workspace))
    # The protocol reports no costs, so no budget is set aside.
    unpaid: list[Row] = [{**row, "budget_id": None} for row in found]
    made = await assign(UnitOfWork(tx, engine, caller), request, agent, allocator, Admitted(unpaid, {}))
    await tx.run("rest_leases", items=[(each.claim.id,) for each in made])
    taken = [(*by_task[each.claim.id].offer, each.fence) for each in made]
    await tx.run("take_published", items=taken, consumer=consumer, now=tx.now)
    return {each.claim.id: each.claim for each in made}


async def _consumer(tx: Tx, bridge: Bridge, consumer: str) -> Row:
    found = await find_claimer(tx, bridge.workspace, consumer)
    if not found:
        await _add_consumer(tx, bridge, consumer)
        found = await find_claimer(tx, bridge.workspace, consumer)
    return found[0]


async def _add_consumer(tx: Tx, bridge: Bridge, consumer: str) -> None:
    """Register a consumer with unlimited slots: a stream delivers as much as is read."""
    await tx.run(
        "add_agent",
        workspace=bridge.workspace,
        id=consumer,
        type=None,
        types=None if bridge.types is None else as_json(bridge.types),
        capabilities=as_json(bridge.capabilities),
        models="[]",
        max_concurrent_tasks=None,
        budget=None,
        poll_interval_sec=0.0,
        claim_ttl_sec=None,
        isolation_group=None,
        now=tx.now,
    )


async def reclaim(tx: Tx, engine: Engine, caller: Caller, bridge: Bridge, silent: Sequence[StreamDelivery]) -> int:
    """Reclaim entries whose consumers were silent for too long; returns how many."""
    return await _end(tx, engine, caller, bridge, silent, reasons.HEARTBEAT_TIMEOUT)


async def give_up(tx: Tx, engine: Engine, caller: Caller, bridge: Bridge, silent: Sequence[StreamDelivery]) -> int:
    """Fail entries that were acknowledged without a result: their workers died or are faulty."""
    return await _end(tx, engine, caller, bridge, silent, reasons.CRASH)


async def _end(
    tx: Tx, engine: Engine, caller: Caller, bridge: Bridge, silent: Sequence[StreamDelivery], reason: str
) -> int:
    open_ = await lock_offers(tx, bridge, (each.offer for each in silent))
    unseen = [each for each in silent if each.offer in open_ and open_[each.offer]["consumer"] is None]
    if unseen:
        # Delivered and gone before any pass saw the consumer: the group counts as the agent.
        await give(tx, engine, caller, bridge, bridge.group, unseen)
        open_ = await lock_offers(tx, bridge, (each.offer for each in silent))
    work = UnitOfWork(tx, engine, caller)
    rows = {row.id: row for row in await work.lock(sorted(each.offer.task_id for each in silent))}
    ended = 0
    for each in silent:
        offer, row = open_.get(each.offer), rows.get(each.offer.task_id)
        if offer is None or row is None or not row.held or row.fence != offer["fence"]:
            continue
        ended += 1
        note = f"{reason}: consumer {row.agent_id}, entry {offer['message_id']}"
        await finish.end_failed(work, row, await _decide(work, row, reason), error=_ERRORS.get(reason), note=note)
    await work.save()
    if open_:
        await tx.run("end_published", items=sorted(open_))
    return ended


_ERRORS = {reasons.CRASH: "acknowledged without a result"}


async def _decide(work: UnitOfWork, row: TaskRow, reason: str) -> Decision:
    settings, facts = await work.settings_of(row), await finish.facts_of(work, row)
    roll = work.engine.random.random()
    if reason == reasons.CRASH:
        return after_failure(facts, settings, ClassifiedFailure(reason), roll)
    return after_loss(facts, settings, reason, roll)
