"""Batches, as callers see them."""

from __future__ import annotations

from shiftwork.batches.model import Batch, BatchStatus
from shiftwork.model.errors import NotFound
from shiftwork.model.task import Name, PageSize
from shiftwork.operation.declare import Namespace, operation


class ProviderBatches(Namespace, name="batches", group="Tasks"):
    """Tasks that were sent to a provider together, at half the price."""

    @operation("GET /api/batches", "read", envelope="batches")
    async def list(self, *, status: BatchStatus | None = None, limit: PageSize = 50) -> list[Batch]:
        """Return batches, the newest first. One that ended is kept for 30 days."""

    @operation("GET /api/batches/{batch_id}", "read", errors=(NotFound,))
    async def show(self, batch_id: Name) -> Batch:
        """Return one batch with its tasks."""
