"""Decides which tasks need approval before they run and for which revision, and reads stored waits."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from shiftwork.model.task import Wait
from shiftwork.settings.model import Guard

ORDER_ONLY = frozenset({"priority", "priority_boost_per_minute", "deadline", "run_at", "expires_at", "tags"})
"""Fields of a body about when the work is done, not what; tags are compared separately, since they may change alone."""


class GuardFacts(NamedTuple):
    """The facts that rules examine."""

    type: str
    tool_name: str | None
    tags: Sequence[str]
    created_by: str | None
    trigger_type: str | None
    cost_usd: float | None
    """The most it may cost; a task without an amount meets no rule about amounts."""


def rule_for(guards: Sequence[Guard], facts: GuardFacts) -> Guard | None:
    """The first rule that the task meets."""
    return next((guard for guard in guards if _meets(guard, facts)), None)


def _meets(guard: Guard, facts: GuardFacts) -> bool:
    same = all(
        wanted is None or wanted == given
        for wanted, given in (
            (guard.type, facts.type),
            (guard.tool_name, facts.tool_name),
            (guard.created_by, facts.created_by),
            (guard.trigger_type, facts.trigger_type),
        )
    )
    tagged = guard.tag is None or guard.tag in facts.tags
    expensive = guard.min_cost_usd is None or (facts.cost_usd is not None and facts.cost_usd >= guard.min_cost_usd)
    return same and tagged and expensive


def shown(rule: Mapping[str, Any]) -> dict[str, Any]:
    """A rule's conditions, without unset ones."""
    given = {name: value for name, value in rule.items() if value is not None}
    return given if "expire_after_sec" in given else {name: given[name] for name in given if name != "on_expire"}


def revision(body: Mapping[str, Any], tags: Sequence[str]) -> str:
    """A digest that is equal for the same work with the same limits, whatever its urgency."""
    work = {name: value for name, value in body.items() if name not in ORDER_ONLY}
    text = msgspec.json.encode([work, sorted(set(tags))], order="deterministic")
    return hashlib.sha256(text).hexdigest()[:16]


def wait_of(row: Mapping[str, Any]) -> Wait:
    """A stored wait as a reader sees it."""
    same = {name: row[name] for name in Wait.__struct_fields__ if name not in {"schema", "value"}}
    return Wait(**same, schema=decoded(row["schema"]), value=decoded(row["value"]))


def decoded(text: str | None) -> Any:
    """JSON that may be missing."""
    return None if text is None else msgspec.json.decode(text)
