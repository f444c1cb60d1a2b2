"""Outputs that are checked before they are accepted: at once by the queue, or later by tests or a judge."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from shiftwork.core import ids
from shiftwork.core.errors import InputError, ReportRequired, ShiftworkError
from shiftwork.core.settings import Settings
from shiftwork.core.states import State
from shiftwork.core.task import NewVerdict, Verdict
from shiftwork.policy import lease, schema, verdict
from shiftwork.queue.fence import Outcome
from shiftwork.queue.outputs import judging
from shiftwork.queue.prepare import Prepared
from shiftwork.queue.work import Work, own_settings
from shiftwork.store.store import Row

if TYPE_CHECKING:
    from shiftwork.queue.finish import Completion

MOST_STEPS = 4 * schema.MOST_STEPS
"""Steps of validation in one transaction: a database that has one writer stands still meanwhile."""
QUEUE = "queue"
"""Whose word a verdict is that the queue itself has come to."""


class Awaited(NamedTuple):
    """An output whose verdict comes later, from a judge where there is one."""

    item: Completion
    judge: Prepared | None = None


class Checked:
    """What the checks of one batch came to."""

    def __init__(self) -> None:
        self.accepted: dict[str, Verdict | None] = {}
        self.rejected: list[tuple[Completion, Verdict]] = []
        self.awaited: list[Awaited] = []
        self.refused: list[tuple[Completion, ShiftworkError]] = []
        self.postponed: list[Completion] = []
        self._steps = 0.0

    def has_room(self, output: Mapping[str, Any], item: Completion) -> bool:
        """Whether this output is validated in this transaction, too: the first is, others while steps are left."""
        before = self._steps
        self._steps += verdict.steps_of(output, item.data, item.text)
        return before == 0 or self._steps <= MOST_STEPS

    def note(self, item: Completion, found: Verdict | None) -> None:
        if found is None or found.passed:
            self.accepted[item.token.id] = found
        else:
            self.rejected.append((item, found))


async def needs_look(work: Work) -> bool:
    """Whether a result without a decision report may have to be refused in this workspace."""
    workspace = work.caller.workspace
    if workspace is None:
        return True
    return (await work.engine.book.of(work.tx, workspace)).anywhere(_wants_report)


def _wants_report(settings: Settings) -> bool:
    return settings.require_decision_report


async def check(work: Work, items: Mapping[str, Completion], rows: Mapping[str, Row]) -> Checked:
    """Look at results of locked running tasks, each as its task asks."""
    checked = Checked()
    for stored in await work.tx.all("read_bodies", items=[(id_,) for id_ in sorted(items)]) if items else []:
        row, item = rows[stored["task_id"]], items[stored["task_id"]]
        body = msgspec.json.decode(stored["body"])
        resolver = await work.engine.book.of(work.tx, row["workspace"])
        settings = resolver.settings(row["type"], own_settings(body) if row["own_settings"] else None)
        if settings.require_decision_report and not item.reported:
            await _miss_report(work, row, item, settings, checked)
        elif (method := (body.get("output") or {}).get("validation", "none")) == "llm-judge" and item.verdict is None:
            try:
                checked.awaited.append(Awaited(item, judging.prepare_judge(row, body, item.result, resolver)))
            except InputError as error:  # nobody could judge it, and no later attempt would be judged otherwise
                checked.note(item, Verdict(method, passed=False, by=QUEUE, at=work.now, reasons=[str(error)]))
        elif method == "test-pass" and item.verdict is None:
            checked.awaited.append(Awaited(item))
        elif item.verdict is not None and method != "test-pass":
            checked.refused.append((item, _no_verdict_wanted(method)))
        elif item.verdict is None and not checked.has_room(body.get("output") or {}, item):
            checked.postponed.append(item)
        else:
            checked.note(item, _look(work, row, item, body.get("output") or {}))
    return checked


def _look(work: Work, row: Row, item: Completion, output: Mapping[str, Any]) -> Verdict | None:
    """The verdict on one output; None where nothing was asked."""
    method, asked = output.get("validation", "none"), output.get("validation_schema")
    if item.verdict is not None:
        return given(item.verdict, work.caller.for_agent(row["agent_id"]), work.now)
    if asked is None or method == "none":
        return None
    if method == "regex":
        wrong = verdict.against_pattern(asked, verdict.as_text(item.data, item.text))
    else:
        wrong = verdict.against_schema(asked, item.data)
    return Verdict(method, not wrong, QUEUE, work.now, wrong)


def given(told: NewVerdict, by: str, now: float) -> Verdict:
    """The verdict of whoever ran the tests, as it is kept."""
    return Verdict("test-pass", told.passed, by, now, verdict.reasons_of(told), told.evidence)


def _no_verdict_wanted(method: str) -> InputError:
    return InputError(
        f"the output is checked by {method}, not by whoever hands it in",
        where="verdict",
        mend="Leave the verdict out; only `test-pass` takes one. What was spent is booked.",
        booked=True,
    )


# -- decision reports --------------------------------------------------------------------------------------------


async def _miss_report(work: Work, row: Row, item: Completion, settings: Settings, checked: Checked) -> None:
    """A result without its decision report is an invalid output, or is not taken until it has one."""
    why = "there is no decision report"
    if settings.on_missing_report == "fail":
        checked.note(item, Verdict("decision-report", passed=False, by=QUEUE, at=work.now, reasons=[why]))
        return
    if await work.tx.one("mark_incomplete", id=row["id"], fence=row["fence"], now=work.now):
        actor = work.caller.for_agent(row["agent_id"])
        event = [work.now, row["workspace"], row["id"], row["dag_id"], "report_missing", None, actor]
        work.add_event([*event, work.request_of(row["id"], row["fence"]), row["fence"], None, None])
    task_id = ids.show_task(row["id"])
    checked.refused.append((item, ReportRequired(f"{why} for task {task_id}", where="decision_report", booked=True)))


# -- verdicts to come --------------------------------------------------------------------------------------------


async def hand_in(work: Work, awaited: Awaited) -> Outcome:
    """Keep an output until its verdict comes. Its author's slot is free; it need not beat any more."""
    item, judge = awaited
    row = (await work.lock([item.token.id]))[0]
    settings = await work.settings_of(row)
    limit = lease.at_hand_in(
        settings, timeout_sec=row.timeout_sec, run_until=row.run_until, judged=judge is not None, now=work.now
    )
    row.run_until = row.lease_check_at = limit
    row.lease_until = None
    work.ends.hand_in(row)
    path = work.move(row, "submit_output")
    judge_id = None if judge is None else await judging.ask(work, row, judge)
    await work.tx.insert("insert_outputs", [(row.id, row.fence, judge_id, item.result, work.now)])
    data = {"until": limit} if judge_id is None else {"until": limit, "judge": ids.show_task(judge_id)}
    work.tell(row, "handed_in", path, fence=row.fence, data=data, actor=work.caller.for_agent(row.agent_id))
    return Outcome(ids.show_task(row.id), State.VALIDATING.value, data=data)
