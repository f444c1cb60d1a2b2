"""Changes to all tasks that a filter matches, as callers see them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from msgspec import Meta

from shiftwork.bulk.model import Action, BulkPage, BulkResult
from shiftwork.model.errors import NotFound
from shiftwork.model.task import Name, Priority, Text
from shiftwork.operation.declare import Namespace, operation
from shiftwork.operation.parameters import Accepts
from shiftwork.search.model import TaskFilter

MAX_REFUSED = 20
Where = Annotated[TaskFilter | Mapping[str, Any], Accepts(TaskFilter)]
Progress = Callable[[BulkPage], None]


class Bulk(Namespace, name="bulk", group="Tasks"):
    """The same change for all tasks that match a filter."""

    @operation("POST /api/bulk", "operate", errors=(NotFound,))
    async def page(
        self,
        action: Action,
        where: Where,
        *,
        reason: Text | None = None,
        priority: Priority | None = None,
        dry_run: bool = False,
        after: Name | None = None,
        as_of: float | None = None,
        limit: Annotated[int, Meta(ge=1, le=500)] = 200,
    ) -> BulkPage:
        """Change a page of the tasks that match, in one transaction; with `dry_run`, only count all of them.

        Repeat with `after` and `as_of` from the answer until `next` is null. Without `status`, cancel takes tasks that
        have not ended, retry takes dead letters and failed tasks, set_priority takes unclaimed tasks, and purge takes
        waiting ones. `set_priority` needs `priority`. The filter needs at least one condition.
        """

    async def cancel(
        self,
        where: TaskFilter | Mapping[str, Any],
        reason: str = "cancelled",
        *,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> BulkResult:
        """Cancel all tasks that match; with `dry_run`, count them. `progress` is called after each page."""
        return await self._run("cancel", where, progress, dry_run=dry_run, reason=reason)

    async def retry(
        self,
        where: TaskFilter | Mapping[str, Any],
        note: str | None = None,
        *,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> BulkResult:
        """Retry all matching dead letters and failed tasks, with fresh attempts."""
        return await self._run("retry", where, progress, dry_run=dry_run, reason=note)

    async def set_priority(
        self,
        where: TaskFilter | Mapping[str, Any],
        priority: float,
        *,
        note: str | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> BulkResult:
        """Change the priority of all matching unclaimed tasks."""
        return await self._run("set_priority", where, progress, dry_run=dry_run, priority=priority, reason=note)

    async def purge(
        self, where: TaskFilter | Mapping[str, Any], *, dry_run: bool = False, progress: Progress | None = None
    ) -> BulkResult:
        """Remove all tasks that match. The setting `purge.mode` says whether they are cancelled or deleted."""
        return await self._run("purge", where, progress, dry_run=dry_run)

    async def _run(
        self,
        action: Action,
        where: TaskFilter | Mapping[str, Any],
        progress: Progress | None,
        *,
        dry_run: bool,
        reason: str | None = None,
        priority: float | None = None,
    ) -> BulkResult:
        """Run page after page. Finished pages stay: after a crash, the same call does the rest."""
        known: dict[str, Any] = {"reason": reason, "priority": priority}
        page = await self.page(action, where, dry_run=dry_run, **known)
        if dry_run:
            return BulkResult(action, dry_run=True, matched=sum(page.counts.values()), counts=page.counts)
        counts, skipped, refused = Counter(page.counts), page.skipped, list(page.refused)
        while True:
            if progress is not None:
                progress(page)
            if page.next is None:
                break
            page = await self.page(action, where, after=page.next, as_of=page.as_of, **known)
            counts.update(page.counts)
            skipped += page.skipped
            refused += page.refused[: MAX_REFUSED - len(refused)]
        changed = counts.total()
        return BulkResult(
            action,
            dry_run=False,
            matched=changed + skipped,
            counts=dict(counts),
            changed=changed,
            skipped=skipped,
            refused=refused,
        )
