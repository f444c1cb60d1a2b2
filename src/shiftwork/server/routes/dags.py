"""DAGs: tasks and their edges, submitted and watched as one."""

from __future__ import annotations

from typing import Annotated, Any

from shiftwork.core.errors import NotFound
from shiftwork.core.task import Dag, NewDag
from shiftwork.queue import check
from shiftwork.queue.dags import DagChanges, DagPage, DagStatus, DagSummary
from shiftwork.server.ask import Ask, plain
from shiftwork.server.door import SOMETHING, Doors, PageSize, ViewQuery
from shiftwork.server.routes.tasks import with_tag
from shiftwork.server.routes.working import SUBMITTING
from shiftwork.wire.shapes import Batch, CancelDagBody, Outcomes, SubmittedBatch

door = Doors("DAGs")


@door(
    "POST /api/dags",
    "submit",
    body=NewDag,
    query=ViewQuery,
    answer=SubmittedBatch,
    status=201,
    errors=SUBMITTING,
    viewed_body=True,
)
async def submit_dag(ask: Ask, body: Any) -> Any:
    """Submit tasks and edges as one DAG, all or nothing."""
    return await ask.submitted(await ask.queue.submit_dag(body if ask.view is None else ask.all_ours(body)))


class DagQuery(ViewQuery):
    """Which DAGs."""

    status: DagStatus | None = None
    after: str | None = None
    limit: PageSize = 100


@door("GET /api/dags", "read", query=DagQuery, answer=DagPage, errors=(NotFound,))
async def list_dags(ask: Ask) -> Any:
    """DAGs of more than one task, newest first, a page at a time."""
    page = await ask.queue.dags(status=ask.query.status, after=ask.query.after, limit=ask.query.limit)
    shown = page if ask.view is None else {"dags": [_shown(ask, dag) for dag in page.dags], "next": page.next}
    return with_tag(ask, shown, page)


def _shown(ask: Ask, dag: Dag | DagSummary) -> Any:
    return dag if ask.view is None else ask.view.dag_out(plain(dag))


@door("GET /api/dags/{dag_id}", "read", query=ViewQuery, answer=Dag, errors=(NotFound,))
async def get_dag(ask: Ask) -> Any:
    """A DAG with its tasks, shape, counts and money."""
    dag = await ask.queue.dag(ask.path["dag_id"])
    return with_tag(ask, _shown(ask, dag), dag)


@door(
    "PATCH /api/dags/{dag_id}",
    "operate",
    body=Annotated[DagChanges, SOMETHING],
    query=ViewQuery,
    answer=DagSummary,
    errors=(NotFound,),
)
async def update_dag(ask: Ask, body: DagChanges) -> Any:
    """Change a DAG's title or the most it may cost."""
    return _shown(ask, await ask.queue.update_dag(ask.path["dag_id"], body))


@door(
    "POST /api/dags/{dag_id}/tasks",
    "submit",
    body=Batch,
    query=ViewQuery,
    answer=SubmittedBatch,
    status=201,
    errors=SUBMITTING,
    viewed_body=True,
)
async def add_to_dag(ask: Ask, body: Any) -> Any:
    """Add tasks to an existing DAG."""
    new = body if ask.view is None else check.read(ask.all_ours(body), Batch)
    return await ask.submitted(await ask.queue.add_to_dag(ask.path["dag_id"], new.tasks))


@door(
    "POST /api/dags/{dag_id}/cancel",
    "operate",
    body=CancelDagBody,
    query=ViewQuery,
    answer=Outcomes,
    errors=(NotFound,),
)
async def cancel_dag(ask: Ask, body: CancelDagBody) -> Any:
    """Cancel everything of a DAG that has not ended."""
    told = await ask.queue.cancel_dag(ask.path["dag_id"], body.reason)
    return await ask.tasks_after(told)
