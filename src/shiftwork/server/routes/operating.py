"""The queue as a whole: how it stands, and what an operator does to it."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from shiftwork.core.errors import NotFound
from shiftwork.queue import check
from shiftwork.queue.control import Purge
from shiftwork.queue.observation.alerts import Alert
from shiftwork.queue.observation.failures import By
from shiftwork.queue.observation.status import Status
from shiftwork.queue.protection.capacity import Backpressure
from shiftwork.server.ask import Ask, outcomes, plain
from shiftwork.server.door import SOMETHING, Doors, PageSize, Query, ViewQuery
from shiftwork.wire.shapes import AlertList, FailureList, Listed, Outcomes, PauseBody, Purged, ResumeBody, Resumed

door = Doors("Queue")


class StatusQuery(ViewQuery):
    fresh: bool = False
    """Count anew, however many tasks there are."""


@door("GET /api/queue", "read", query=StatusQuery, answer=Status)
async def status(ask: Ask) -> Any:
    """How the queue stands: depth, agents, throughput, waits, recent failures, as of now."""
    found = await ask.queue.status(fresh=ask.query.fresh)
    return found if ask.view is None or not ask.view.queue else ask.view.queue_out(plain(found))


@door("GET /api/queue/backpressure", "read", answer=Backpressure)
async def backpressure(ask: Ask) -> Any:
    """How full the queue is, for producers: what waits, the limits, and how many more find room."""
    return await ask.queue.backpressure()


@door("POST /api/queue/pause", "operate", body=PauseBody, query=ViewQuery, answer=None, status=204)
async def pause(ask: Ask, body: PauseBody) -> None:
    """Hand out no more work, of one type or at all."""
    await ask.queue.pause(body.type, reason=body.reason)


@door("POST /api/queue/resume", "operate", body=ResumeBody, query=ViewQuery, answer=Resumed)
async def resume(ask: Ask, body: ResumeBody) -> Any:
    """Hand out work again; false when it was not paused."""
    return Resumed(await ask.queue.resume(body.type))


@door(
    "POST /api/queue/purge",
    "operate",
    body=Annotated[Purge, SOMETHING],
    query=ViewQuery,
    answer=Purged,
    viewed_body=True,
)
async def purge(ask: Ask, body: Any) -> Any:
    """Remove the tasks that match. At least one condition must be given."""
    wanted = body if ask.view is None else check.read(ask.view.purge_in(body), Purge)
    return Purged(await ask.queue.purge(wanted))


@door("POST /api/queue/rebalance", "operate", query=ViewQuery, answer=Outcomes)
async def rebalance(ask: Ask) -> Any:
    """Withdraw claims that loaded agents have not started, for idle ones to take."""
    return outcomes(await ask.queue.rebalance())


class AlertQuery(Query):
    """Which alerts."""

    after: Annotated[int, Meta(ge=0, le=2**62)] = 0
    open_only: bool = False
    kind: str | None = None
    limit: PageSize = 100


@door("GET /api/alerts", "read", query=AlertQuery, answer=AlertList)
async def list_alerts(ask: Ask) -> Any:
    """What somebody should look at, oldest first; go on after the last `seq`."""
    query = ask.query
    return AlertList(await ask.queue.alerts(query.after, open_only=query.open_only, kind=query.kind, limit=query.limit))


@door("POST /api/alerts/{seq}/acknowledge", "operate", answer=Alert, errors=(NotFound,))
async def acknowledge_alert(ask: Ask) -> Any:
    """Say that an alert was seen."""
    seq = ask.path["seq"]
    if not seq.isdecimal() or len(seq) > 18:
        raise NotFound(f"there is no alert {seq!r}", where="seq")
    return await ask.queue.acknowledge_alert(int(seq))


class FailureQuery(Query):
    """How failures are grouped, and since when."""

    by: By = "signature"
    since: float | None = None
    limit: PageSize = 50


@door("GET /api/failures", "read", query=FailureQuery, answer=FailureList)
async def failures(ask: Ask) -> Any:
    """Failed attempts grouped by what they have in common, the most frequent first."""
    return FailureList(await ask.queue.failures(ask.query.by, since=ask.query.since, limit=ask.query.limit))


@door("GET /api/duties", "read", answer=Listed)
async def duties(ask: Ask) -> Any:
    """When each duty last ran, how long it took and what it did."""
    return Listed(await ask.queue.duties())
