"""DAGs, as callers see them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from shiftwork.dags.model import DagChanges, DagPage, DagStatus, DagSummary
from shiftwork.engine.api import SUBMITTING, dag_result
from shiftwork.model.errors import InputError, NotFound
from shiftwork.model.outcome import Outcome
from shiftwork.model.task import Dag, DagResult, Name, NewTask, PageSize, Submitted, Text
from shiftwork.operation.declare import Namespace, operation
from shiftwork.operation.handle import DagHandle, Patience
from shiftwork.operation.parameters import SOMETHING, Accepts


class Dags(Namespace, name="dags", group="DAGs"):
    """DAGs: tasks and their edges, read and changed as a whole."""

    @operation("GET /api/dags/{dag_id}", "read", errors=(NotFound,))
    async def get(self, dag_id: Name) -> Dag:
        """Return a DAG with its tasks, shape, counts and costs."""

    async def result(self, dag: str | DagHandle, *, wait: Patience = 0) -> DagResult:
        """Return the outcome of each task of a DAG, by its id or handle; with `wait`, wait up to that long for its end.

        `wait` is in seconds or a timedelta; None waits as long as it takes. A DAG has failed when one of its tasks has
        and none of the others can run: `result.failures` lists those tasks. Raises `ResultTimeout` if it has not ended.
        """
        dag_id = dag if isinstance(dag, str) else dag.dag_id
        if dag_id is None:
            raise InputError("all of its tasks already existed, so there is no DAG", where="dag")
        return await dag_result(self._executor, dag_id, wait)

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
        """Change a DAG's title or ceiling."""

    @operation("POST /api/dags/{dag_id}/cancel", "operate", envelope="outcomes", errors=(NotFound,))
    async def cancel(self, dag_id: Name, reason: Text = "cancelled") -> list[Outcome]:
        """Cancel everything of a DAG that has not ended."""

    @operation("GET /api/dags", "read", errors=(NotFound,))
    async def list(
        self, *, status: DagStatus | None = None, after: Name | None = None, limit: PageSize = 100
    ) -> DagPage:
        """Return DAGs of more than one task, newest first, a page at a time."""
