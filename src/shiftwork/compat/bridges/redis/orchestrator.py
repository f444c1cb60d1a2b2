"""This queue as the orchestrator of foreign workers: polls both sides and repairs differences.

The store is the source of truth. A pass interrupted by a crash or an outage of Redis is repaired by the next one, which
finds offers without an entry, entries without an offer, and results that were read but not acknowledged.
"""

from __future__ import annotations

from typing import NamedTuple

from shiftwork.compat.bridges.redis import dead_letters, redis_events, redis_offers, redis_results
from shiftwork.compat.bridges.redis.bridge_context import PAGE, BridgeContext
from shiftwork.compat.bridges.redis.fields import GROUP
from shiftwork.compat.bridges.redis.redis_offers import ReclaimCommand
from shiftwork.compat.bridges.redis.stream_state import Findings, Rules, StreamState, assess
from shiftwork.compat.external.model import Offer, StreamDelivery
from shiftwork.compat.external.offered_work import deliver, give_up, reclaim
from shiftwork.limits import gates

VISIBILITY_TIMEOUT_S = 300.0
"""The default if the settings have no heartbeat timeout."""

KEPT_SEC = 86_400.0
"""How long a handled entry is remembered, in case Redis loses its acknowledgement."""


class Options(NamedTuple):
    ahead: int = 100
    """The most unread entries in the stream. Other tasks wait in the queue, in their order."""
    reclaim: ReclaimCommand | None = None
    """None: detect what the server supports."""
    events: bool = False
    keep: int = 10_000
    """How many results and events to keep in their streams."""


class Orchestrator:
    """Keeps the streams and the queue consistent."""

    def __init__(self, context: BridgeContext, options: Options = Options()) -> None:  # noqa: B008  # immutable
        self.context = context
        self._options = options
        self._reclaim_command = options.reclaim

    async def run_once(self, *, thorough: bool = True, wait_ms: int | None = None) -> int:
        """Run one pass; returns the number of changes. A thorough one also finds lost and overdue entries."""
        context = self.context
        if thorough:
            await self._prepare()
        entries = await redis_results.read_entries(context, again=True) if thorough else []
        entries += await redis_results.read_entries(context, wait_ms=wait_ms)
        if entries or thorough:
            await redis_offers.write(context)  # an offer that a bridge left unfinished may have a result already
        stream_state = await context.stream_state()
        found = await self._assess(stream_state)
        done = len(found.taken)
        if found.taken:
            await context.run(deliver, found.taken)
        if thorough and await self._recover():
            stream_state = await context.stream_state()
            done += await redis_offers.refuse_strays(context, stream_state)
        if entries:
            done += await redis_results.handle_results(context, entries, stream_state)
        if entries or found.taken or thorough:
            found = await self._assess(stream_state)
        if found.recovered or found.unanswered:
            done += await self._handle_late_results()
            found = await self._assess(stream_state)
        done += await self._resolve(found, thorough=thorough)
        if thorough:
            await redis_results.trim(context, self._options.keep)
        done += await redis_offers.offer(context, self._options.ahead)
        done += await dead_letters.write(context) + await dead_letters.remove(context)
        if self._options.events:
            done += await redis_events.publish_events(context, self._options.keep)
        return done

    async def withdraw(self) -> int:
        """Withdraw every undelivered entry; returns how many."""
        found = await self._assess(await self.context.stream_state())
        return await redis_offers.withdraw_unread(self.context, [*found.waiting, *found.unwanted])

    async def visibility_sec(self) -> float:
        engine = self.context.queue.engine
        settings = (await engine.settings_cache.get(engine.store, self.context.bridge.workspace)).settings()
        return settings.heartbeat_timeout_sec or VISIBILITY_TIMEOUT_S

    async def _prepare(self) -> None:
        context = self.context
        await context.make_groups()
        await context.touch_bridge()
        await dead_letters.find_lost(context)
        await context.execute("forget_heard", before=context.queue.now() - KEPT_SEC)

    async def _recover(self) -> int:
        """Reclaim idle entries; after the pass, which has recorded their consumers."""
        self._reclaim_command = self._reclaim_command or await redis_offers.supported_command(self.context)
        return await redis_offers.recover(self.context, self._reclaim_command, await self.visibility_sec())

    async def _handle_late_results(self) -> int:
        """Handle results that arrived since this pass began; returns how many had an effect.

        A worker answers before it acknowledges. So the results of all entries seen as acknowledged are found now, and
        only entries still without one can be ended.
        """
        context, done = self.context, 0
        while True:
            new = await redis_results.read_entries(context)
            entries = await redis_results.read_entries(context, again=True)  # also what another bridge just read
            if entries:
                await redis_offers.write(context)
                # Read the state after the results: they can be about entries that were delivered since.
                done += await redis_results.handle_results(context, entries, await context.stream_state())
            if len(new) < PAGE and len(entries) < PAGE:
                return done

    async def _assess(self, stream_state: StreamState) -> Findings:
        context = self.context
        rows = await context.rows("open_published", bridge=context.bridge.name)
        rules = Rules(GROUP, context.us, await self.visibility_sec(), await self._closed())
        return assess(rows, stream_state, rules, context.queue.now())

    async def _closed(self) -> frozenset[str]:
        """Types that are paused, or whose breaker is open; `*` stands for all."""
        now = self.context.queue.now()
        return frozenset(
            row["scope"]
            for row in await self.context.rows("read_gates")
            if row["kind"] in gates.OF_TYPES and gates.is_shut(row, now)
        )

    async def _resolve(self, found: Findings, *, thorough: bool) -> int:
        context = self.context
        if found.unseen:
            await context.execute("note_delivered", items=sorted(found.unseen), now=context.queue.now())
        if found.recovered:
            await context.run(reclaim, found.recovered)
        if found.unanswered:
            await self._end_unanswered(found.unanswered)
        if found.stale:
            await context.execute("end_published", items=sorted(found.stale))
        await redis_offers.withdraw_unread(context, found.unwanted)
        if thorough:
            await redis_offers.reoffer_lost(context, found.waiting)
        ended = await context.rows("ended_published", bridge=context.bridge.name)
        offers = [(Offer(row["task_id"], row["number"]), row["message_id"]) for row in ended]
        await redis_offers.remove(context, offers)
        return len(found.recovered) + len(found.unanswered) + len(found.stale)

    async def _end_unanswered(self, unanswered: list[StreamDelivery]) -> None:
        """Fail entries acknowledged without a result; release, without cost, those that Redis has lost."""
        acknowledged: list[StreamDelivery] = []
        lost: list[StreamDelivery] = []
        for each in unanswered:
            known = await redis_offers.is_known(self.context, each.offer, each.message_id)
            (acknowledged if known else lost).append(each)
        if acknowledged:
            await self.context.run(give_up, acknowledged)
        if lost:
            await self.context.run(reclaim, lost)
