"""Context of notifications: the open question of a task, and a link to its page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from shiftwork.notifications import public_url
from shiftwork.store.store import Row, Tx
from shiftwork.waits import approvals
from shiftwork.waits.model import ApprovalRequest

ASKING = frozenset({"question_asked", "approval_wanted"})
"""Kinds of alert that a person answers."""

_SHOWN = (
    *("title", "type", "created_by", "tool_name", "estimated_cost_usd", "expires_at", "payload", "revision", "rule"),
    *("name", "question", "schema"),
)


class NotificationContext(NamedTuple):
    """The context of many notifications, read once."""

    url: str | None = None
    questions: dict[str, ApprovalRequest] = {}
    """Open questions and approvals, by the task's UUID."""

    def link(self, workspace: str, task_id: str | None) -> dict[str, Any]:
        """A link to the task's page, if the dashboard's address is known."""
        if self.url is None or task_id is None:
            return {}
        return {"link": public_url.of_task(self.url, workspace, task_id)}

    def about(self, kind: str, uuid: str | None) -> dict[str, Any]:
        """The open question or approval, if any."""
        question = self.questions.get(uuid or "")
        if question is None or kind not in ASKING:
            return {}
        found = {name: getattr(question, name) for name in _SHOWN}
        return {"about": {name: value for name, value in found.items() if value not in (None, {}, [])}}


async def load(tx: Tx, alerts: Sequence[Row]) -> NotificationContext:
    """Read the context of these alerts."""
    questions: dict[str, ApprovalRequest] = {}
    for row in alerts:
        if row["kind"] in ASKING and row["task_id"] is not None:
            for found in await approvals.listed(tx, row["workspace"], None, None, row["task_id"], None, 1):
                questions[row["task_id"]] = found
    return NotificationContext(await public_url.read(tx), questions)


def bounded(about: dict[str, Any], limit: int) -> dict[str, Any]:
    """Drop a long payload: the task's page shows it."""
    if len(msgspec.json.encode(about)) <= limit:
        return about
    return {name: value for name, value in about.items() if name not in {"payload", "schema"}}
