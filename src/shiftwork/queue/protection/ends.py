"""What the ends of claims mean beyond their tasks: breakers count them, limits get back what they held."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from shiftwork.core.states import SETTLED
from shiftwork.policy.breaker import End
from shiftwork.queue.fairness import serials
from shiftwork.queue.protection import breakers, cooldowns, limits
from shiftwork.queue.protection.cooldowns import Report
from shiftwork.queue.protection.limits import Ending

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shiftwork.core.keys import Key
    from shiftwork.policy.decide import ProviderWait
    from shiftwork.queue.rows import TaskRow
    from shiftwork.queue.work import Work
    from shiftwork.store.store import Row


class _Ended(NamedTuple):
    workspace: str
    type: str
    outcome: str
    reason: str | None
    ending: Ending


class Ends:
    """Collects the ends of one unit of work, and acts on them when it is saved."""

    def __init__(self) -> None:
        self._ended: list[_Ended] = []
        self._handed_in: list[Ending] = []
        self._reports: list[Report] = []
        self._serial: list[tuple[str, int]] = []

    def add(self, row: TaskRow, outcome: str, reason: str | None, *, lost: bool) -> None:
        """A claim that is about to be let go."""
        self._ended.append(_Ended(row.workspace, row.type, outcome, reason, _ending(row, lost=lost)))
        self._serial.append((row.id, row.fence))

    def hand_in(self, row: TaskRow) -> None:
        """A claim whose verdict is still to come: its agent uses nothing for it any more."""
        self._handed_in.append(_ending(row, lost=False))

    def accept(self, rows: Sequence[Row]) -> None:
        """Claims that ended with an accepted result, where a breaker or a limit may want to know."""
        for row in rows:
            ending = Ending(row["id"], row["fence"], row["tokens_in"] + row["tokens_out"], began=True, lost=False)
            self._ended.append(_Ended(row["workspace"], row["type"], "completed", None, ending))

    def end_serials(self, rows: Sequence[Row]) -> None:
        """The same, where one of them may have a serial key."""
        self._serial += [(row["id"], row["fence"]) for row in rows]

    def report(self, row: TaskRow, named: Key, met: ProviderWait) -> None:
        """The agent that holds this task met a provider's limit."""
        assert row.agent_id is not None
        report = Report(row.workspace, row.type, row.id, row.fence, row.agent_id, named, met)
        self._reports.append(report)

    def __bool__(self) -> bool:
        return bool(self._ended or self._handed_in or self._reports or self._serial)

    async def save(self, work: Work, around: Row) -> None:
        """`around` says what there is at all that an end could touch."""
        if around["serialized"] and self._serial:
            await serials.give_back(work, self._serial)
        failed = any(ended.outcome == "failed" for ended in self._ended)
        if failed or (around["tripped"] and self._ended):
            await breakers.judge(work, [((e.workspace, e.type), _end(work, e)) for e in self._ended])
        for report in self._reports:
            await cooldowns.begin(work, report)
        endings = [*self._handed_in, *(ended.ending for ended in self._ended)]
        if around["limited"] and endings:
            await limits.give_back(work, endings)


def _ending(row: TaskRow, *, lost: bool) -> Ending:
    return Ending(row.id, row.fence, row.tokens_in + row.tokens_out, row.started_at is not None, lost)


def _end(work: Work, ended: _Ended) -> End:
    row = work.rows.get(ended.ending.id)
    final = row is not None and row.status in SETTLED and work.is_newest(row)
    return End((ended.ending.id, ended.ending.fence), ended.outcome, ended.reason, final)
