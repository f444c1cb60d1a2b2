"""What an observer asks for: metrics, alerts, failure patterns, how a task moved, how queue, DAGs and bridges stand."""

from __future__ import annotations

from itertools import pairwise

import msgspec

from shiftwork.core import alerts as kinds
from shiftwork.core.errors import InputError, NotFound
from shiftwork.queue import check, dags, read
from shiftwork.queue.dags import DagPage
from shiftwork.queue.face.handle import Handle
from shiftwork.queue.observation import alerts, failures, metrics, status
from shiftwork.queue.observation.alerts import Alert
from shiftwork.queue.observation.failures import By, Pattern
from shiftwork.queue.observation.metrics import Metrics
from shiftwork.queue.observation.status import Status
from shiftwork.queue.protection import capacity
from shiftwork.queue.protection.capacity import Backpressure
from shiftwork.store.store import Row, Tx

_NO_END = 2**62


class Transition(msgspec.Struct, frozen=True):
    """One step of a task from a state to the next; steps taken at once share their `seq`."""

    seq: int
    at: float
    from_status: str
    to_status: str
    verb: str
    actor: str
    reason: str | None
    fence: int | None


class BridgeInfo(msgspec.Struct, frozen=True):
    """A bridge as its operator sees it."""

    name: str
    role: str
    seen_at: float
    """When it last looked."""
    unread: int
    """Entries on offer that nobody is known to have taken."""
    taken: int
    """Entries that workers have taken and not answered."""
    taken_in: int
    """Entries of a foreign orchestrator that are not answered yet."""
    events_after: int | None = None
    """The number of the last event told in its stream; None where it tells none."""


class Observing(Handle):
    """Verbs for whoever watches over the queue; they change nothing."""

    async def status(self, *, fresh: bool = False) -> Status:
        """How the queue stands now. More than 100,000 tasks are counted every 30 s at most, unless asked `fresh`."""
        async with self._shared.counting:  # those who come while somebody counts get what was counted
            known = None if fresh else self._shared.counted.get(self.workspace)
            found, counted = await self._read(lambda tx: status.read(tx, self._engine, self.workspace, known))
            self._shared.counted[self.workspace] = counted
        return found

    async def backpressure(self) -> Backpressure:
        """How full the queue is, and whether more may be submitted."""
        return await self._read(lambda tx: capacity.read(tx, self._engine, self.workspace))

    async def bridges(self) -> list[BridgeInfo]:
        """The bridges to streams that this workspace has, or had."""
        rows = await self._read(lambda tx: tx.all("list_bridges", workspace=self.workspace))
        return [BridgeInfo(**dict(row)) for row in rows]

    # -- metrics ---------------------------------------------------------------------------------------------------

    async def metrics(self) -> Metrics:
        """Every metric of this workspace now; of more than 100,000 tasks, not older than five seconds."""
        measured, counted = self._shared.measured, self._shared.counted
        async with measured.turn:
            if (known := measured.find(self.workspace, self._engine.store.now())) is not None:
                return known
            await self._shared.tally.write()
            before = counted.get(self.workspace)
            found, counted[self.workspace] = await self._read(
                lambda tx: metrics.read(tx, self._engine, self.workspace, before)
            )
            measured.keep(self.workspace, found, sum(counted[self.workspace].counts.values()))
        return found

    async def metric_snapshots(self, *, since: float | None = None, limit: int = 10) -> list[Metrics]:
        """What was measured every `maintenance.metrics_sec`, the newest first; histograms are not kept."""
        count = check.page(limit, metrics.KEPT_SNAPSHOTS)
        return await self._read(lambda tx: metrics.kept(tx, self.workspace, since or 0.0, count))

    # -- alerts ----------------------------------------------------------------------------------------------------

    async def alerts(
        self, after: int = 0, *, open_only: bool = False, kind: str | None = None, limit: int = 100
    ) -> list[Alert]:
        """Alerts behind a cursor, oldest first. Whoever goes on from the last one's `seq` sees every alert."""
        if kind is not None and kind not in kinds.KINDS:
            raise InputError(f"there is no kind {kind!r}", where="kind", mend=f"One of {', '.join(kinds.KINDS)}.")
        count = check.page(limit)
        found = await self._alerts(after, _NO_END, count, kind, open_only=open_only)
        if not found:
            return []
        # Numbers are taken before the commit: one below the last may still be under way.
        await self._engine.store.settle_events()
        return await self._alerts(after, found[-1].seq, count, kind, open_only=open_only)

    async def _alerts(self, after: int, last: int, count: int, kind: str | None, *, open_only: bool) -> list[Alert]:
        name = "open_alerts_after" if open_only else "alerts_after"
        page = {"after": after, "last": last, "count": count}
        rows = await self._read(lambda tx: tx.all(name, workspace=self.workspace, kind=kind, **page))
        return [alerts.alert(row) for row in rows]

    # -- what happened ---------------------------------------------------------------------------------------------

    async def failures(self, by: By = "signature", *, since: float | None = None, limit: int = 50) -> list[Pattern]:
        """Failed attempts grouped by type, agent, model, reason or signature, the most frequent first."""
        check.one_of(by, failures.WAYS, "by")
        count = check.page(limit)
        return await self._read(lambda tx: failures.patterns(tx, self.workspace, by, since or 0.0, count))

    async def transitions(self, task_id: str) -> list[Transition]:
        """Every step of a task from state to state, oldest first."""

        async def load(tx: Tx) -> list[Transition]:
            uuid = await read.find(tx, self.workspace, task_id)
            rows = await tx.all("moves_of_task", id=uuid)
            return [step for row in rows if row["workspace"] == self.workspace for step in _steps(row)]

        found = await self._read(load)
        if not found:
            raise NotFound(f"there is no task {task_id!r}", task_id=task_id)
        return found

    # -- DAGs ------------------------------------------------------------------------------------------------------

    async def dags(self, *, status: str | None = None, after: str | None = None, limit: int = 100) -> DagPage:
        """DAGs of more than one task, newest first, a page at a time."""
        if status is not None:
            check.one_of(status, dags.STATUSES, "status")
        count = check.page(limit)
        cursor = None if after is None else self._find_dag(after)
        return await self._read(lambda tx: dags.page(tx, self.workspace, status, cursor, count))


def _steps(row: Row) -> list[Transition]:
    return [
        Transition(
            seq=row["seq"],
            at=row["at"],
            from_status=before,
            to_status=after,
            verb=row["verb"],
            actor=row["actor"],
            reason=row["reason"],
            fence=row["fence"],
        )
        for before, after in pairwise(row["path"].split(">"))
    ]
