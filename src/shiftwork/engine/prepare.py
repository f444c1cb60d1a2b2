"""Prepares a submitted task for the store, before any transaction: validates it, encodes it, determines its lane."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, NamedTuple

import msgspec

from shiftwork.batches import policy as batches
from shiftwork.engine import dedupe_policy, rank, retry
from shiftwork.engine.lanes import LaneKey, lane_key
from shiftwork.engine.read import read_body
from shiftwork.engine.rows import TaskRow
from shiftwork.engine.unit_of_work import UnitOfWork, own_settings
from shiftwork.fairness import policy
from shiftwork.limits import capacity_policy
from shiftwork.model import check, ids
from shiftwork.model.errors import InputError, TooLarge, UnknownReference
from shiftwork.model.references import artifact_hash, output_of
from shiftwork.model.task import NewTask, micros
from shiftwork.model.times import MAX_DURATION, Duration, Time, epoch, seconds, shown
from shiftwork.settings.model import Settings
from shiftwork.settings.resolve import Resolver
from shiftwork.task_types import policy as type_policy
from shiftwork.validation import policy as verdict

SUMMARY_CHARS = 200
"""`trigger_summary` is for lists; longer text is cut."""


class Plan(NamedTuple):
    """What a task's type and its own settings determine: most tasks of a batch share one plan."""

    settings: Settings
    lane: LaneKey
    boost: float
    estimated_cost: int | None
    timeout_sec: float | None
    max_attempts: int
    validation: str | None
    at_most_once: bool
    has_own_settings: bool
    tallied: bool
    payload_schema: bytes | None
    """The type's declaration of the payload."""
    derives_key: bool
    """Whether a task without an idempotency key may get one, or must have one."""
    guarded: bool
    """Whether a person may have to approve it first."""


class Prepared(NamedTuple):
    """One task, ready to be inserted as soon as its dependencies are known."""

    new: NewTask
    plan: Plan
    body: str
    key: str | None
    name: str | None
    uuid: str | None
    request_id: str | None = None
    """The request of the submitting call, if calls are joined into one batch."""
    where: str = "task"
    """Its position in the request."""
    plain: bool = False
    """Whether it is independent of other tasks, times and people: it consists of a row, a body, tags and an event."""

    def place_of(self, field: str) -> str:
        """The path of one of its fields in the request; for a single task, the field's name."""
        return field if self.where == "task" else f"{self.where}.{field}"

    @property
    def settings(self) -> Settings:
        return self.plan.settings

    @property
    def lane(self) -> LaneKey:
        return self.plan.lane

    @property
    def estimated_cost(self) -> int | None:
        return self.plan.estimated_cost

    @property
    def timeout_sec(self) -> float | None:
        return self.plan.timeout_sec

    @property
    def has_own_settings(self) -> bool:
        return self.plan.has_own_settings


Plans = dict[tuple[str, policy.Share], Plan]
"""By type and fair share, for tasks that set nothing but their type; without a share, for any share."""

MAX_PLANS = 10_000


def prepare(
    new: NewTask,
    workspace: str,
    resolver: Resolver,
    now: float,
    where: str = "task",
    plans: Plans | None = None,
    *,
    check_payload: bool = True,
) -> Prepared:
    """Prepare a task; refuses invalid fields, and a payload that does not fit its type.

    Turn `check_payload` off for a sample, or a payload that was accepted before.
    """
    if _says_when(new):
        new = _timed(new, now, where)
    shared = plans is not None and _follows_from_type(new)
    plan = _known(plans, new) if plans and shared else None
    if plan is None:
        plan = _plan(new, workspace, resolver, where)
        if plans is not None and shared:
            if len(plans) >= MAX_PLANS:
                plans.clear()
            plans[new.type, plan.lane.share] = plans[new.type, None] = plan
    if new.dependencies or new.id is not None:
        _check_references(new, plan.settings, where)
    bounds = plan.settings.bounds
    body = check.to_json(_body(new), bounds.body_bytes, bounds, where)
    if plan.payload_schema is not None and check_payload:
        type_policy.check_payload(new.type, new.payload, plan.payload_schema, f"{where}.payload")
    key = _key(new, plan) if plan.derives_key or new.idempotency_key is not None else None
    uuid = ids.parse(new.id) if new.id else None
    name = new.id if new.id and uuid is None else None
    return Prepared(new, plan, body, key, name, uuid, None, where, key is None and _is_plain(new, plan))


def _key(new: NewTask, plan: Plan) -> str | None:
    return dedupe_policy.task_key(
        plan.settings.idempotency,
        given=new.idempotency_key,
        type=new.type,
        payload=new.payload,
        named=new.id is not None or new.run_at is not None,
        dependencies=new.dependencies,
    )


def _is_plain(new: NewTask, plan: Plan) -> bool:
    return (
        new.id is None
        and new.key is None
        and new.run_at is None
        and new.tree_budget_usd is None
        and not (new.dependencies or plan.guarded)
        and (new.spec is None or not new.spec.context_refs)
    )


def _says_when(new: NewTask) -> bool:
    return not (
        new.deadline is None
        and new.run_at is None
        and new.delay is None
        and new.expires_at is None
        and new.expires_in is None
        and not isinstance(new.timeout_sec, timedelta)
    )


def _timed(new: NewTask, now: float, where: str) -> NewTask:
    """Convert its times to absolute numbers."""
    run_at = _moment(new, "run_at", "delay", now, where)
    expires_at = _moment(new, "expires_at", "expires_in", now, where)
    if expires_at is not None and expires_at <= now:
        what = f"the task has expired already: {shown(expires_at)} is not in the future"
        raise InputError(what, where=_place(where, "expires_at"), hint="Choose a later time.")
    if run_at is not None and expires_at is not None and expires_at <= run_at:
        what = f"the task would expire at {shown(expires_at)}, and may not start before {shown(run_at)}"
        raise InputError(what, where=_place(where, "expires_at"), hint="Choose an expiry after `run_at`.")
    deadline = epoch(new.deadline, _place(where, "deadline"))
    timeout_sec = seconds(new.timeout_sec)
    if timeout_sec is not None and timeout_sec <= 0:
        raise InputError(f"expected more than 0 seconds, got {timeout_sec:g}", where=_place(where, "timeout_sec"))
    return msgspec.structs.replace(
        new,
        run_at=run_at,
        delay=None,
        expires_at=expires_at,
        expires_in=None,
        deadline=deadline,
        timeout_sec=timeout_sec,
    )


def _moment(new: NewTask, fixed: str, counted: str, now: float, where: str) -> float | None:
    """A time given as such, or relative to now."""
    at: Time | None = getattr(new, fixed)
    later: Duration | None = getattr(new, counted)
    if at is not None and later is not None:
        what = f"`{fixed}` and `{counted}` exclude each other"
        raise InputError(what, where=_place(where, counted), hint="Give one of them.")
    if later is None:
        return epoch(at, _place(where, fixed))
    wait = seconds(later)
    if not 0 <= wait <= MAX_DURATION:
        raise InputError(f"expected 0 to {MAX_DURATION:g} seconds, got {wait:g}", where=_place(where, counted))
    return now + wait


def _place(where: str, field: str) -> str:
    return f"{where}.{field}"


def _known(plans: Plans, new: NewTask) -> Plan | None:
    """The plan for tasks like this one."""
    plan = plans.get((new.type, None))
    if plan is None or not policy.is_fair_share_on(plan.settings.fair_share):
        return plan
    return plans.get((new.type, _share(new, plan.settings)))


def _share(new: NewTask, settings: Settings) -> policy.Share:
    return policy.share_of(settings.fair_share, new.created_by, new.issue_id, new.tags)


def traced(new: NewTask, traceparent: str | None) -> NewTask:
    """Add the submitter's trace, unless the task names one itself."""
    if traceparent is None or new.traceparent is not None:
        return new
    return msgspec.structs.replace(new, traceparent=traceparent)


def _follows_from_type(new: NewTask) -> bool:
    """Whether its plan follows from its type and its fair share alone."""
    return (
        new.spec is None
        and new.output is None
        and new.target_agent_id is None
        and new.max_attempts is None
        and new.timeout_sec is None
        and new.estimated_cost_usd is None
        and new.priority_boost_per_minute is None
        and new.serial_key is None
        and new.urgency == "normal"
        and not (new.settings or new.retry or new.delivery)
    )


def _plan(new: NewTask, workspace: str, resolver: Resolver, where: str) -> Plan:
    own = own_settings(msgspec.structs.asdict(new)) if new.settings or new.retry or new.delivery else {}
    settings = resolver.settings(new.type, own or None)
    _check(new, settings, where)
    boost = _boost(new, settings)
    duration = new.spec.constraints.max_duration_sec if new.spec else None
    declared = resolver.declared(new.type)
    return Plan(
        settings=settings,
        lane=lane_of(new, workspace, settings, boost, failures=0),
        boost=boost,
        estimated_cost=estimated_cost(new),
        timeout_sec=seconds(new.timeout_sec) or duration or settings.timeout_sec,
        max_attempts=new.max_attempts or settings.max_attempts,
        validation=_validation(new, own, resolver),
        at_most_once=settings.delivery == "at_most_once",
        has_own_settings=bool(own),
        tallied=capacity_policy.is_counted(settings),
        payload_schema=None if declared is None else declared.payload_schema,
        derives_key=settings.idempotency.source not in {"none", "caller"},
        guarded=bool(settings.guards),
    )


def _validation(new: NewTask, own: dict[str, Any], resolver: Resolver) -> str | None:
    """How its output is validated; None if it needs no validation, except reports if its workspace wants them."""
    method = new.output.validation if new.output else "none"
    declared = resolver.declared(new.type)
    if method == "none" and declared is not None and declared.result_schema is not None:
        return "json-schema"
    return None if method == "none" and not own.get("require_decision_report") else method


def estimated_cost(new: NewTask) -> int | None:
    """What the task may cost at most: both the estimate and the ceiling must be affordable."""
    ceiling = new.spec.constraints.max_cost_usd if new.spec else None
    amounts = [amount for amount in (new.estimated_cost_usd, ceiling) if amount is not None]
    return max(micros(amount) for amount in amounts) if amounts else None


def lane_of(new: NewTask, workspace: str, settings: Settings, boost: float, failures: int) -> LaneKey:
    in_batch = new.urgency == "batch" and not failures
    constraints = new.spec.constraints if new.spec and not in_batch else None
    capabilities = constraints.required_capabilities if constraints else ()
    models = retry.models(constraints.model_preferences, constraints.fallback_models, failures) if constraints else ()
    fallback = retry.fallback(constraints.fallback_models, failures) if constraints and models else ()
    rate = rank.lane_rate(settings, boost)
    return lane_key(
        workspace,
        new.type,
        capabilities,
        models,
        rate,
        batches.agent_of(new.payload["provider"]) if in_batch else new.target_agent_id,
        fallback,
        share=_share(new, settings),
        serial=policy.serial_kind(settings.serialize_by, new.serial_key),
    )


def _body(new: NewTask) -> NewTask:
    """The row of `bodies`: all fields except batch-local names."""
    summary = new.trigger_summary
    if summary and len(summary) > SUMMARY_CHARS:
        new = msgspec.structs.replace(new, trigger_summary=summary[: SUMMARY_CHARS - 1] + "…")
    if new.key is not None or new.id is not None:
        new = msgspec.structs.replace(new, key=None, id=None)
    return new


def _check(new: NewTask, settings: Settings, where: str) -> None:
    if settings.allowed_types is not None and new.type not in settings.allowed_types:
        allowed = ", ".join(settings.allowed_types)
        raise InputError(f"type {new.type!r} is not one of this workspace's: {allowed}", where=f"{where}.type")
    check.text(new.type, where)
    check.text(new.target_agent_id, where)
    if new.urgency == "batch":
        batches.check(new, where)
    if new.output is not None:
        verdict.check_output(new.output)
    if new.spec is not None and new.spec.context_refs:
        _check_context(new.spec.context_refs, settings, f"{where}.spec.context_refs")


def _check_context(refs: list[str], settings: Settings, where: str) -> None:
    """Check the form of references; whether their targets exist is checked when the task is written."""
    if len(refs) > settings.bounds.dependencies:
        raise TooLarge(f"{len(refs)} references, at most {settings.bounds.dependencies}", where=where)
    for place, ref in enumerate(refs):
        check.text(ref, where)
        if artifact_hash(ref) is None and output_of(ref) is None:
            hint = "Write artifact:sha256-…, the id of an artifact, or task:ID:output; nothing was changed."
            raise UnknownReference(f"{ref!r} is not a reference", where=f"{where}[{place}]", hint=hint)


def _check_references(new: NewTask, settings: Settings, where: str) -> None:
    """Check texts stored outside the body; those inside are checked with it."""
    if len(new.dependencies) > settings.bounds.dependencies:
        raise TooLarge(
            f"{len(new.dependencies)} dependencies, at most {settings.bounds.dependencies}",
            where=f"{where}.dependencies",
        )
    for reference in (new.id, *new.dependencies):
        check.text(reference, where)


def _boost(new: NewTask, settings: Settings) -> float:
    own = new.priority_boost_per_minute
    return rank.ageing_rate(settings.priority_boost_per_minute if own is None else own)


async def yield_to_loop(new: NewTask, resolver: Resolver) -> None:
    """Yield to other coroutines after a slow schema check; a batch may contain hundreds of schemas."""
    if has_schema(new, resolver):
        await asyncio.sleep(0)


def has_schema(new: NewTask, resolver: Resolver) -> bool:
    own = new.output is not None and new.output.validation_schema is not None
    return own or resolver.declared(new.type) is not None


def as_new(body: dict[str, Any]) -> NewTask:
    return msgspec.convert(body, NewTask)


def without_times(body: dict[str, Any]) -> dict[str, Any]:
    """Clear the times of a task that a person brought back: it runs at once and no longer expires."""
    return {name: value for name, value in body.items() if name not in {"run_at", "expires_at"}}


async def relane(work: UnitOfWork, row: TaskRow) -> None:
    """Move the row to the lane of its current requirements."""
    row.lane = await lane_now(work, row)


async def lane_now(work: UnitOfWork, row: TaskRow) -> int:
    """The lane of the task's current requirements, which depend on its attempts."""
    settings = await work.settings_of(row)
    new = as_new(await read_body(work.tx, row.id))
    key = lane_of(new, row.workspace, settings, row.boost, row.attempts)
    return (await work.engine.lanes.intern_in(work.tx, [key]))[key]
