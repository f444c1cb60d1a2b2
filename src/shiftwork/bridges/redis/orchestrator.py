"""This queue as the orchestrator of foreign workers: look after look at both sides, each mending what it finds.

The store is the truth. A look that is cut short, by a crash or because Redis is away, leaves nothing that the next one
does not find: offers without an entry, entries without an offer, words that were read and not acknowledged.
"""

from __future__ import annotations

from typing import NamedTuple

from shiftwork.bridges.redis import bus, letters, publishing, reclaiming, results
from shiftwork.bridges.redis.desk import PAGE, Desk
from shiftwork.bridges.redis.fields import GROUP
from shiftwork.bridges.redis.reclaiming import Way
from shiftwork.bridges.redis.sight import Findings, Rules, Sight, judge
from shiftwork.queue.bridged.published import Delivery, Offer, deliver, give_up, reclaim
from shiftwork.queue.protection import gates

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

    def __init__(self, desk: Desk, options: Options = Options()) -> None:  # noqa: B008  # it cannot be changed
        self.desk = desk
        self._options = options
        self._way = options.reclaim

    async def run_once(self, *, thorough: bool = True, wait_ms: int | None = None) -> int:
        """One look; how much was done. A thorough one also finds what was lost, and what takes too long."""
        desk = self.desk
        if thorough:
            await self._prepare()
        words = await results.read_words(desk, again=True) if thorough else []
        words += await results.read_words(desk, wait_ms=wait_ms)
        if words or thorough:
            await publishing.write(desk)  # what a bridge left half done may be answered already
        sight = await desk.sight()
        found = await self._judge(sight)
        done = len(found.taken)
        if found.taken:
            await desk.run(deliver, found.taken)
        if thorough and await self._recover():
            sight = await desk.sight()
            done += await reclaiming.refuse_strays(desk, sight)
        if words:
            done += await results.hear(desk, words, sight)
        if words or found.taken or thorough:
            found = await self._judge(sight)
        if found.recovered or found.unanswered:
            done += await self._hear_the_rest()
            found = await self._judge(sight)
        done += await self._settle(found, thorough=thorough)
        if thorough:
            await results.trim(desk, self._options.keep)
        done += await publishing.offer(desk, self._options.ahead)
        done += await letters.write(desk) + await letters.remove(desk)
        if self._options.events:
            done += await bus.tell(desk, self._options.keep)
        return done

    async def withdraw(self) -> int:
        """Take back every entry that nobody was given; how many."""
        found = await self._judge(await self.desk.sight())
        return await publishing.take_away(self.desk, [*found.waiting, *found.unwanted])

    async def visibility_sec(self) -> float:
        engine = self.desk.queue.engine
        settings = (await engine.book.get(engine.store, self.desk.bridge.workspace)).settings()
        return settings.heartbeat_timeout_sec or VISIBILITY_TIMEOUT_S

    async def _prepare(self) -> None:
        desk = self.desk
        await desk.make_groups()
        await desk.see()
        await letters.find_lost(desk)
        await desk.note("forget_heard", before=desk.queue.now() - KEPT_SEC)

    async def _recover(self) -> int:
        """After the look, which knows whose they were."""
        self._way = self._way or await reclaiming.way_of(self.desk)
        return await reclaiming.recover(self.desk, self._way, await self.visibility_sec())

    async def _hear_the_rest(self) -> int:
        """What was said since the words of this look were read; how many had an effect.

        Whoever is seen to have acknowledged has answered before that. So the answer is found now, and only what has
        none then may be ended by the same sight.
        """
        desk, done = self.desk, 0
        while True:
            new = await results.read_words(desk)
            words = await results.read_words(desk, again=True)  # these, and what another bridge has just read
            if words:
                await publishing.write(desk)
                # Looked at after they were read: they may be about entries that nobody had before.
                done += await results.hear(desk, words, await desk.sight())
            if len(new) < PAGE and len(words) < PAGE:
                return done

    async def _judge(self, sight: Sight) -> Findings:
        desk = self.desk
        rows = await desk.rows("open_published", bridge=desk.bridge.name)
        rules = Rules(GROUP, desk.us, await self.visibility_sec(), await self._closed())
        return judge(rows, sight, rules, desk.queue.now())

    async def _closed(self) -> frozenset[str]:
        """Types that are paused, or whose breaker is open; `*` stands for all."""
        now = self.desk.queue.now()
        return frozenset(
            row["scope"]
            for row in await self.desk.rows("read_gates")
            if row["kind"] in gates.OF_TYPES and gates.is_shut(row, now)
        )

    async def _settle(self, found: Findings, *, thorough: bool) -> int:
        desk = self.desk
        if found.unseen:
            await desk.note("note_delivered", items=sorted(found.unseen), now=desk.queue.now())
        if found.recovered:
            await desk.run(reclaim, found.recovered)
        if found.unanswered:
            await self._end_unanswered(found.unanswered)
        if found.stale:
            await desk.note("end_published", items=sorted(found.stale))
        await publishing.take_away(desk, found.unwanted)
        if thorough:
            await publishing.find_lost(desk, found.waiting)
        ended = await desk.rows("ended_published", bridge=desk.bridge.name)
        offers = [(Offer(row["task_id"], row["number"]), row["message_id"]) for row in ended]
        await publishing.remove(desk, offers)
        return len(found.recovered) + len(found.unanswered) + len(found.stale)

    async def _end_unanswered(self, unanswered: list[Delivery]) -> None:
        """An acknowledgement without a result is a failure; an entry that Redis has lost costs nothing."""
        acknowledged: list[Delivery] = []
        lost: list[Delivery] = []
        for each in unanswered:
            known = await publishing.is_known(self.desk, each.offer, each.message_id)
            (acknowledged if known else lost).append(each)
        if acknowledged:
            await self.desk.run(give_up, acknowledged)
        if lost:
            await self.desk.run(reclaim, lost)
