"""DAGs, as callers see them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from shiftwork.dags.model import DagChanges, DagPage, DagStatus, DagSummary
from shiftwork.engine.api import SUBMITTING
from shiftwork.model.errors import NotFound
from shiftwork.model.outcome import Outcome
from shiftwork.model.task import Dag, Name, NewTask, PageSize, Submitted, Text
from shiftwork.operation.declare import Namespace, operation
from shiftwork.operation.parameters import SOMETHING, Accepts


class Dags(Namespace, name="dags", group="DAGs"):
    """Tasks and their edges, watched and changed as one."""

    @operation("GET /api/dags/{dag_id}", "read", errors=(NotFound,))
    async def get(self, dag_id: Name) -> Dag:
        """Return a DAG with its tasks, shape, counts and money."""

    @operation("POST /api/dags/{dag_id}/tasks", "submit", envelope="tasks", status=201, errors=SUBMITTING)
    async def add_tasks(
        self, dag_id: Name, tasks: Sequence[Annotated[NewTask | Mapping[str, Any], Accepts(NewTask)]]
    ) -> list[Submitted]:
        """Add tasks to an existing DAG."""

    @operation("PATCH /api/dags/{dag_id}", "operate", body="changes", errors=(NotFound,))
    async def update(
        self,
        dag_id: Name,
        changes: Annotated[DagChanges | Mapping[str, Any], Accepts(Annotated[DagChanges, SOMETHING])],
    ) -> DagSummary:
        """Change a DAG's title or the most it may cost."""

    @operation("POST /api/dags/{dag_id}/cancel", "operate", envelope="outcomes", errors=(NotFound,))
    async def cancel(self, dag_id: Name, reason: Text = "cancelled") -> list[Outcome]:
        """Cancel everything of a DAG that has not ended."""

    @operation("GET /api/dags", "read", errors=(NotFound,))
    async def list(
        self, *, status: DagStatus | None = None, after: Name | None = None, limit: PageSize = 100
    ) -> DagPage:
        """Return DAGs of more than one task, newest first, a page at a time."""
