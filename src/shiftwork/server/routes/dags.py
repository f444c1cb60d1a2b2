"""DAGs: tasks and their edges, submitted and watched as one."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from shiftwork.core.errors import NotFound
from shiftwork.core.task import Dag, NewDag
from shiftwork.queue.dags import DagChanges, DagPage, DagStatus, DagSummary
from shiftwork.server.ask import Ask
from shiftwork.server.door import SOMETHING, Doors, Query
from shiftwork.server.routes.tasks import with_tag
from shiftwork.server.routes.working import SUBMITTING, outcome
from shiftwork.wire.shapes import Batch, CancelBody, Outcomes, SubmittedBatch

door = Doors("DAGs")


@door("POST /api/dags", "submit", body=NewDag, answer=SubmittedBatch, status=201, errors=SUBMITTING)
async def submit_dag(ask: Ask, body: NewDag) -> Any:
    """Submit tasks and edges as one DAG, all or nothing."""
    return SubmittedBatch(await ask.queue.submit_dag(body))


class DagQuery(Query):
    """Which DAGs."""

    status: DagStatus | None = None
    after: str | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


@door("GET /api/dags", "read", query=DagQuery, answer=DagPage, errors=(NotFound,))
async def list_dags(ask: Ask) -> Any:
    """DAGs of more than one task, newest first, a page at a time."""
    return await ask.queue.dags(status=ask.query.status, after=ask.query.after, limit=ask.query.limit)


@door("GET /api/dags/{dag_id}", "read", answer=Dag, errors=(NotFound,))
async def get_dag(ask: Ask) -> Any:
    """A DAG with its tasks, shape, counts and money."""
    dag = await ask.queue.dag(ask.path["dag_id"])
    return with_tag(ask, dag, dag)


@door(
    "PATCH /api/dags/{dag_id}", "operate", body=Annotated[DagChanges, SOMETHING], answer=DagSummary, errors=(NotFound,)
)
async def update_dag(ask: Ask, body: DagChanges) -> Any:
    """Change a DAG's title or the most it may cost."""
    return await ask.queue.update_dag(ask.path["dag_id"], body)


@door("POST /api/dags/{dag_id}/tasks", "submit", body=Batch, answer=SubmittedBatch, status=201, errors=SUBMITTING)
async def add_to_dag(ask: Ask, body: Batch) -> Any:
    """Add tasks to an existing DAG."""
    return SubmittedBatch(await ask.queue.add_to_dag(ask.path["dag_id"], body.tasks))


@door("POST /api/dags/{dag_id}/cancel", "operate", body=CancelBody, answer=Outcomes, errors=(NotFound,))
async def cancel_dag(ask: Ask, body: CancelBody) -> Any:
    """Cancel everything of a DAG that has not ended."""
    return Outcomes([outcome(told) for told in await ask.queue.cancel_dag(ask.path["dag_id"], body.reason)])
