"""Turns a submitted task into what the store keeps, before any transaction: checked, encoded, its lane named."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from shiftwork.core import ids
from shiftwork.core.errors import InputError, TooLarge
from shiftwork.core.resolve import Resolver
from shiftwork.core.settings import BOOST_CLASSES, Settings
from shiftwork.core.task import NewTask, micros
from shiftwork.policy import dedupe, rank, retry, verdict
from shiftwork.queue import check
from shiftwork.queue.lanes import LaneKey, lane_key
from shiftwork.queue.work import own_settings

SUMMARY_CHARS = 200
"""`trigger_summary` is for lists; what is longer is cut."""

_IN_ROW = frozenset({"key", "id", "dependencies"})


class Prepared(NamedTuple):
    """One task, ready to be inserted as soon as its dependencies are known."""

    new: NewTask
    settings: Settings
    lane: LaneKey
    body: str
    key: str | None
    name: str | None
    uuid: str | None
    has_own_settings: bool
    boost: float
    cost_limit: int | None
    timeout_sec: float | None


def prepare(new: NewTask, workspace: str, resolver: Resolver, where: str = "task") -> Prepared:
    own = own_settings(msgspec.structs.asdict(new)) if new.settings or new.retry or new.delivery else {}
    settings = resolver.settings(new.type, own or None)
    _check(new, settings, where)
    body = check.to_json(_body(new, where), settings.limits.body_bytes, settings.limits, where)
    boost = _boost(new, settings, where)
    uuid = ids.parse(new.id) if new.id else None
    constraints = new.spec.constraints if new.spec else None
    return Prepared(
        new=new,
        settings=settings,
        lane=lane_of(new, workspace, settings, boost, failures=0),
        body=body,
        key=dedupe.task_key(settings.idempotency, given=new.idempotency_key, type=new.type, payload=new.payload),
        name=new.id if new.id and uuid is None else None,
        uuid=uuid,
        has_own_settings=bool(own),
        boost=boost,
        cost_limit=cost_limit(new),
        timeout_sec=new.timeout_sec or (constraints.max_duration_sec if constraints else None) or settings.timeout_sec,
    )


def cost_limit(new: NewTask) -> int | None:
    """What the task may cost at most: both the estimate and the ceiling must be affordable."""
    ceiling = new.spec.constraints.max_cost_usd if new.spec else None
    amounts = [amount for amount in (new.estimated_cost_usd, ceiling) if amount is not None]
    return max(micros(amount) for amount in amounts) if amounts else None


def lane_of(new: NewTask, workspace: str, settings: Settings, boost: float, failures: int) -> LaneKey:
    constraints = new.spec.constraints if new.spec else None
    capabilities = constraints.required_capabilities if constraints else ()
    models = retry.models(constraints.model_preferences, constraints.fallback_models, failures) if constraints else ()
    rate = rank.lane_rate(settings, boost)
    return lane_key(workspace, new.type, capabilities, models, rate, new.target_agent_id)


def _body(new: NewTask, where: str) -> dict[str, Any]:
    """What stands in `bodies`: all that was written, without what has a column of its own."""
    body = {k: v for k, v in check.plain(new, where).items() if k not in _IN_ROW}
    if new.trigger_summary and len(new.trigger_summary) > SUMMARY_CHARS:
        body["trigger_summary"] = new.trigger_summary[: SUMMARY_CHARS - 1] + "…"
    return body


def _check(new: NewTask, settings: Settings, where: str) -> None:
    if settings.allowed_types is not None and new.type not in settings.allowed_types:
        allowed = ", ".join(settings.allowed_types)
        raise InputError(f"type {new.type!r} is not one of this workspace's: {allowed}", where=f"{where}.type")
    if len(new.dependencies) > settings.limits.dependencies:
        raise TooLarge(
            f"{len(new.dependencies)} dependencies, at most {settings.limits.dependencies}",
            where=f"{where}.dependencies",
        )
    for reference in (
        new.type,
        new.id,
        new.idempotency_key,
        new.target_agent_id,
        new.issue_id,
        new.session_id,
    ):
        check.text(reference, where)
    for reference in (*new.dependencies, *new.tags, new.work_dir):
        check.text(reference, where)
    if new.output and new.output.validation == "json-schema" and new.output.validation_schema is not None:
        verdict.check_schema(new.output.validation_schema)


def _boost(new: NewTask, settings: Settings, where: str) -> float:
    rate = new.priority_boost_per_minute
    if rate is None:
        return settings.priority_boost_per_minute
    if rate not in BOOST_CLASSES:
        classes = ", ".join(f"{c:g}" for c in BOOST_CLASSES)
        raise InputError(
            f"{rate:g} is not one of the ageing rates {classes}", where=f"{where}.priority_boost_per_minute"
        )
    return rate
