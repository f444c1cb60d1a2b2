"""Validates outputs before they are accepted: immediately by the queue, or later by tests or a judge, with its task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from shiftwork.engine.checked_reports import CheckedResult
from shiftwork.engine.new_events import NewEvent
from shiftwork.engine.prepare import Prepared, prepare
from shiftwork.engine.unit_of_work import UnitOfWork, own_settings
from shiftwork.model import ids
from shiftwork.model.errors import InputError, ReportRequired, ShiftworkError
from shiftwork.model.task import Constraints, NewTask, NewVerdict, Output, Spec, Verdict
from shiftwork.settings.model import Settings
from shiftwork.settings.resolve import Resolver
from shiftwork.store.store import Row
from shiftwork.validation import policy as verdict
from shiftwork.validation import schema

QUEUE = "queue"
"""The author of the queue's own verdicts."""


class Awaited(NamedTuple):
    """An output whose verdict comes later, perhaps from a judge."""

    item: CheckedResult
    judge: Prepared | None = None


class Checked:
    """The results of one batch's validation."""

    def __init__(self) -> None:
        self.accepted: dict[str, Verdict | None] = {}
        self.rejected: list[tuple[CheckedResult, Verdict]] = []
        self.awaited: list[Awaited] = []
        self.refused: list[tuple[CheckedResult, ShiftworkError]] = []
        self.postponed: list[CheckedResult] = []
        self._steps = 0.0

    def has_room(self, output: Mapping[str, Any], item: CheckedResult) -> bool:
        """Whether this output is validated in this transaction: the first always, others while steps are left."""
        before = self._steps
        self._steps += verdict.steps_of(output, item.result.data, item.result.text)
        return before == 0 or self._steps <= schema.MAX_STEPS_TOGETHER

    def record(self, item: CheckedResult, found: Verdict | None) -> None:
        if found is None or found.passed:
            self.accepted[item.token.id] = found
        else:
            self.rejected.append((item, found))


async def needs_look(work: UnitOfWork) -> bool:
    """Whether a result without a decision report may have to be refused in this workspace."""
    workspace = work.caller.workspace
    if workspace is None:
        return True
    return (await work.engine.settings_cache.load(work.tx, workspace)).anywhere(_wants_report)


def _wants_report(settings: Settings) -> bool:
    return settings.require_decision_report


async def check(work: UnitOfWork, items: Mapping[str, CheckedResult], rows: Mapping[str, Row]) -> Checked:
    """Validate results of locked running tasks, each as its task requires."""
    checked = Checked()
    for stored in await work.tx.all("read_bodies", items=[(id_,) for id_ in sorted(items)]) if items else []:
        row, item = rows[stored["task_id"]], items[stored["task_id"]]
        body = msgspec.json.decode(stored["body"])
        resolver = await work.engine.settings_cache.load(work.tx, row["workspace"])
        settings = resolver.settings(row["type"], own_settings(body) if row["own_settings"] else None)
        output = _requirement(row, body, resolver)
        method, found = output.get("validation", "none"), item.result.verdict
        if settings.require_decision_report and not item.reported:
            await _miss_report(work, row, item, settings, checked)
        elif method == "llm-judge" and found is None:
            try:
                checked.awaited.append(Awaited(item, prepare_judge(row, body, item.stored, resolver, work.now)))
            except InputError as error:  # no judge can be asked, and a later attempt would not change that
                checked.record(item, Verdict(method, passed=False, by=QUEUE, at=work.now, reasons=[str(error)]))
        elif method == "test-pass" and found is None:
            checked.awaited.append(Awaited(item))
        elif found is not None and method != "test-pass":
            checked.refused.append((item, _no_verdict_wanted(method)))
        elif found is None and not checked.has_room(output, item):
            checked.postponed.append(item)
        else:
            checked.record(item, _validate(work, row, item, output))
    return checked


def _requirement(row: Row, body: Mapping[str, Any], resolver: Resolver) -> Mapping[str, Any]:
    """How the output is validated: as its task says, otherwise its type."""
    own: Mapping[str, Any] = body.get("output") or {}
    declared = resolver.declared(row["type"])
    if own.get("validation", "none") != "none" or row["validation"] != "json-schema" or declared is None:
        return own
    return {"validation": "json-schema", "validation_schema": declared.result_schema}


def _validate(work: UnitOfWork, row: Row, item: CheckedResult, output: Mapping[str, Any]) -> Verdict | None:
    """The verdict on one output; None if no validation is required."""
    method, asked = output.get("validation", "none"), output.get("validation_schema")
    if item.result.verdict is not None:
        return as_verdict(item.result.verdict, work.caller.for_agent(row["agent_id"]), work.now)
    if asked is None or method == "none":
        return None
    if method == "regex":
        wrong = verdict.against_pattern(asked, verdict.as_text(item.result.data, item.result.text))
    else:
        wrong = verdict.against_schema(asked, item.result.data)
    return Verdict(method, not wrong, QUEUE, work.now, wrong)


def as_verdict(new_verdict: NewVerdict, by: str, now: float) -> Verdict:
    """The verdict of external tests in its stored form."""
    return Verdict("test-pass", new_verdict.passed, by, now, verdict.reasons_of(new_verdict), new_verdict.evidence)


def _no_verdict_wanted(method: str) -> InputError:
    return InputError(
        f"the output is checked by {method}, not by its agent",
        where="verdict",
        hint="Leave the verdict out; only `test-pass` takes one. The usage was booked.",
        booked=True,
    )


async def _miss_report(work: UnitOfWork, row: Row, item: CheckedResult, settings: Settings, checked: Checked) -> None:
    """A result without its decision report fails the attempt, or is refused until it has one."""
    why = "there is no decision report"
    if settings.on_missing_report == "fail":
        checked.record(item, Verdict("decision-report", passed=False, by=QUEUE, at=work.now, reasons=[why]))
        return
    if await work.tx.one("mark_incomplete", id=row["id"], fence=row["fence"], now=work.now):
        actor = work.caller.for_agent(row["agent_id"])
        request_id = work.request_of(row["id"], row["fence"])
        event = NewEvent(work.now, row["workspace"], "report_missing", actor, row["id"], row["dag_id"])
        event.request_id, event.fence = request_id, row["fence"]
        work.add_event(event)
    task_id = ids.show_task(row["id"])
    checked.refused.append((item, ReportRequired(f"{why} for task {task_id}", where="decision_report", booked=True)))


_PROMPT = (
    "Judge the output in the payload by the criteria there. Submit "
    '{"verdict": "accept"} or {"verdict": "reject", "reasons": ["what is missing or wrong"]}.'
)


def prepare_judge(row: Row, body: Mapping[str, Any], result: str, resolver: Resolver, now: float) -> Prepared:
    """The judging task for a result; an error if it is not possible, as for an output that is too large."""
    spec, output = body.get("spec") or {}, body.get("output") or {}
    task_id = ids.show_task(row["id"])
    new = NewTask(
        type=verdict.JUDGE,
        idempotency_key=f"{verdict.JUDGE}:{ids.token(task_id, row['fence'])}",
        title=f"Judge the output of {task_id}",
        payload={
            "task_id": task_id,
            "type": row["type"],
            "title": body.get("title"),
            "prompt": spec.get("prompt"),
            "payload": body.get("payload", {}),
            "criteria": output.get("validation_schema"),
            "output": msgspec.json.decode(result),
            "author": row["agent_id"],
        },
        spec=Spec(prompt=_PROMPT, constraints=Constraints(required_capabilities=[verdict.JUDGE])),
        output=Output(type="json", validation="json-schema", validation_schema=verdict.JUDGE_SCHEMA),
        priority=body.get("priority", 50),
        deadline=body.get("deadline"),
        created_by=f"agent:{row['agent_id']}",
    )
    return prepare(new, row["workspace"], resolver, now, "judge")
