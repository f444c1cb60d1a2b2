"""Withdraws a task's open questions and waits when it ends."""

from __future__ import annotations

from shiftwork.engine.unit_of_work import Participant
from shiftwork.model.states import FINAL, State
from shiftwork.model.task import SCHEDULED
from shiftwork.waits.model import WAITS


class Withdrawals(Participant):
    """Open approvals and waits of the tasks that one unit of work ends."""

    async def after_rows(self) -> None:
        work = self.work
        ended = [work.rows[id_] for id_ in sorted(work.changed) if work.rows[id_].status in FINAL]
        guarded = [row.id for row in ended if work.status_before[row.id] == State.WAITING_APPROVAL]
        parked = [row.root_id for row in ended if work.hold_before.get(row.id) in WAITS | {SCHEDULED}]
        if guarded:
            items = [(id_, "withdrawn", None) for id_ in guarded]
            await work.tx.run("decide_approvals", items=items, now=work.now, actor=work.caller.actor)
        if parked:
            await work.tx.run("drop_open_waits", items=[(root,) for root in parked])
