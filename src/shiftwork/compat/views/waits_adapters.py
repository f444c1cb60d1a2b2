"""Decisions of people in the names of a document."""

from __future__ import annotations

from typing import Any

from shiftwork.views.view_adapters import writes
from shiftwork.waits.api import Approvals


@writes(Approvals.approve)
@writes(Approvals.reject)
@writes(Approvals.answer)
async def task_after(request: Any, outcome: Any) -> Any:
    """A document's reader wants the task after the change."""
    return request.task(await request.queue.get(outcome.task_id))
