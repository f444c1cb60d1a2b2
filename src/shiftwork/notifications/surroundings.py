"""What a notification says besides its event or alert: what a person is asked, and a link to the task's page."""

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


class Surroundings(NamedTuple):
    """Read once for many notifications."""

    url: str | None = None
    asked: dict[str, ApprovalRequest] = {}
    """By the task's UUID: what waits for a person there now."""

    def link(self, workspace: str, task_id: str | None) -> dict[str, Any]:
        """The page of the task, where it is known under which address people open pages."""
        if self.url is None or task_id is None:
            return {}
        return {"link": public_url.of_task(self.url, workspace, task_id)}

    def about(self, kind: str, uuid: str | None) -> dict[str, Any]:
        """What is asked, while it is."""
        asked = self.asked.get(uuid or "")
        if asked is None or kind not in ASKING:
            return {}
        found = {name: getattr(asked, name) for name in _SHOWN}
        return {"about": {name: value for name, value in found.items() if value not in (None, {}, [])}}


async def look(tx: Tx, alerts: Sequence[Row]) -> Surroundings:
    """For these alerts."""
    asked: dict[str, ApprovalRequest] = {}
    for row in alerts:
        if row["kind"] in ASKING and row["task_id"] is not None:
            for found in await approvals.listed(tx, row["workspace"], None, None, row["task_id"], None, 1):
                asked[row["task_id"]] = found
    return Surroundings(await public_url.read(tx), asked)


def bounded(about: dict[str, Any], limit: int) -> dict[str, Any]:
    """Without the payload where it is long: the page shows it whole."""
    if len(msgspec.json.encode(about)) <= limit:
        return about
    return {name: value for name, value in about.items() if name not in {"payload", "schema"}}
