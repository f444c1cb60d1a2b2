"""This queue as the orchestrator of foreign workers: polls both sides and repairs what it finds.

The store is the truth. A look that is cut short, by a crash or because Redis is away, leaves nothing that the next one
does not find: offers without an entry, entries without an offer, words that were read and not acknowledged.
"""

from __future__ import annotations

from typing import NamedTuple

from shiftwork.compat.bridges.redis import bus, dead_letters, publishing, reclaiming, redis_results
from shiftwork.compat.bridges.redis.bridge_context import PAGE, BridgeContext
from shiftwork.compat.bridges.redis.fields import GROUP
from shiftwork.compat.bridges.redis.reclaiming import Way
from shiftwork.compat.bridges.redis.stream_state import Findings, Rules, StreamState, assess
from shiftwork.compat.external.model import Offer, StreamDelivery
from shiftwork.compat.external.published import deliver, give_up, reclaim
from shiftwork.limits import gates

VISIBILITY_TIMEOUT_S = 300.0
"""Where the settings say nothing of silence."""

KEPT_SEC = 86_400.0
"""How long an entry that was heard is remembered, in case that Redis forgets that it was acknowledged."""


class Options(NamedTuple):
    ahead: int = 100
    """Entries that may stand in the stream unread. What is more waits here, where it keeps its order."""
    reclaim: Way | None = None
    """None: as the server can."""
    events: bool = False
    keep: int = 10_000
    """Results and events that stay in their streams to be looked at."""


class Orchestrator:
    """Keeps the streams and the queue the same."""

    def __init__(self, context: BridgeContext, options: Options = Options()) -> None:  # noqa: B008  # it cannot be changed
        self.context = context
        self._options = options
        self._way = options.reclaim

    async def run_once(self, *, thorough: bool = True, wait_ms: int | None = None) -> int:
        """One look; how much was done. A thorough one also finds what was lost, and what takes too long."""
        context = self.context
        if thorough:
            await self._prepare()
        words = await redis_results.read_words(context, again=True) if thorough else []
        words += await redis_results.read_words(context, wait_ms=wait_ms)
        if words or thorough:
            await publishing.write(context)  # what a bridge left half done may be answered already
        stream_state = await context.stream_state()
        found = await self._assess(stream_state)
        done = len(found.taken)
        if found.taken:
            await context.run(deliver, found.taken)
        if thorough and await self._recover():
            stream_state = await context.stream_state()
            done += await reclaiming.refuse_strays(context, stream_state)
        if words:
            done += await redis_results.handle_results(context, words, stream_state)
        if words or found.taken or thorough:
            found = await self._assess(stream_state)
        if found.recovered or found.unanswered:
            done += await self._hear_the_rest()
            found = await self._assess(stream_state)
        done += await self._resolve(found, thorough=thorough)
        if thorough:
            await redis_results.trim(context, self._options.keep)
        done += await publishing.offer(context, self._options.ahead)
        done += await dead_letters.write(context) + await dead_letters.remove(context)
        if self._options.events:
            done += await bus.publish_events(context, self._options.keep)
        return done

    async def withdraw(self) -> int:
        """Take back every entry that no one was given; how many."""
        found = await self._assess(await self.context.stream_state())
        return await publishing.take_away(self.context, [*found.waiting, *found.unwanted])

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
        """After the look, which knows whose they were."""
        self._way = self._way or await reclaiming.way_of(self.context)
        return await reclaiming.recover(self.context, self._way, await self.visibility_sec())

    async def _hear_the_rest(self) -> int:
        """What was said since the words of this look were read; how many had an effect.

        Anyone who is seen to have acknowledged has answered before that. So the answer is found now, and only what has
        none then may be ended by the same sight.
        """
        context, done = self.context, 0
        while True:
            new = await redis_results.read_words(context)
            words = await redis_results.read_words(context, again=True)  # these, and what another bridge has just read
            if words:
                await publishing.write(context)
                # Looked at after they were read: they may be about entries that no one had before.
                done += await redis_results.handle_results(context, words, await context.stream_state())
            if len(new) < PAGE and len(words) < PAGE:
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
        await publishing.take_away(context, found.unwanted)
        if thorough:
            await publishing.find_lost(context, found.waiting)
        ended = await context.rows("ended_published", bridge=context.bridge.name)
        offers = [(Offer(row["task_id"], row["number"]), row["message_id"]) for row in ended]
        await publishing.remove(context, offers)
        return len(found.recovered) + len(found.unanswered) + len(found.stale)

    async def _end_unanswered(self, unanswered: list[StreamDelivery]) -> None:
        """An acknowledgement without a result is a failure; an entry that Redis has lost costs nothing."""
        acknowledged: list[StreamDelivery] = []
        lost: list[StreamDelivery] = []
        for each in unanswered:
            known = await publishing.is_known(self.context, each.offer, each.message_id)
            (acknowledged if known else lost).append(each)
        if acknowledged:
            await self.context.run(give_up, acknowledged)
        if lost:
            await self.context.run(reclaim, lost)
