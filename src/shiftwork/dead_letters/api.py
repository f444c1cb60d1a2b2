"""Dead letters and the decisions about them, as callers see them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from shiftwork.dead_letters.model import DeadLetter, Decision, FailureGroup, Review
from shiftwork.model.errors import (
    IdempotencyKeyRequired,
    InvalidPayload,
    NotFound,
    UnknownReference,
    UnknownSetting,
    VersionConflict,
    WrongState,
)
from shiftwork.model.outcome import Outcome
from shiftwork.model.task import Name, PageSize, Text
from shiftwork.model.times import Time
from shiftwork.operation.declare import Namespace, operation
from shiftwork.operation.parameters import Accepts

GivenDecision = Annotated[Decision, Accepts(Name)]
"""Any word is accepted, because documents have their own words for decisions."""


class DeadLetters(Namespace, name="dead_letters", group="Dead letters"):
    """Tasks that failed for good, and people's decisions about them."""

    @operation(
        "POST /api/dead-letters/{task_id}/review",
        "operate",
        errors=(
            *(NotFound, WrongState, VersionConflict, UnknownSetting, IdempotencyKeyRequired),
            *(UnknownReference, InvalidPayload),
        ),
    )
    async def review(
        self,
        task_id: Name,
        decision: GivenDecision,
        *,
        note: Text | None = None,
        at: Time | None = None,
        change: Mapping[str, Any] | None = None,
        chain: bool = False,
        version: int | None = None,
    ) -> Outcome:
        """Decide about a dead letter: retry, retry_later, modify_and_retry, cancel, abandon, delete or escalate.

        `at` is when to retry (retry_later), `change` the fields of the task to replace (modify_and_retry). With
        `chain`, dependents that were cancelled because of it are restored, too.
        """

    async def retry(self, task_id: str, *, note: str | None = None) -> Outcome:
        """Retry a dead letter."""
        return await self.review(task_id, "retry", note=note)

    @operation("GET /api/dead-letters/{task_id}/reviews", "read", envelope="items", errors=(NotFound,))
    async def reviews(self, task_id: Name) -> list[Review]:
        """Return the decisions about a task: by whom, when and why."""

    @operation("POST /api/dead-letters/redrive", "operate", envelope="outcomes")
    async def redrive(
        self, signature: Name, decision: GivenDecision = "retry", *, note: Text | None = None, at: Time | None = None
    ) -> list[Outcome]:
        """Make the same decision about all dead letters with one signature."""

    @operation("GET /api/dead-letters/groups", "read", envelope="items")
    async def groups(self, *, limit: PageSize = 100) -> list[FailureGroup]:
        """Return open dead letters grouped by what they have in common, the largest group first."""

    @operation("GET /api/dead-letters", "read", envelope="dead_letters")
    async def list(
        self,
        *,
        reviewed_too: bool = False,
        signature: str | None = None,
        after: Name | None = None,
        limit: PageSize = 100,
    ) -> list[DeadLetter]:
        """Return dead letters that wait for a decision, or all of them."""
