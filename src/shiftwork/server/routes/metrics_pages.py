"""Routes for metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from starlette.responses import Response

from shiftwork.access.model import SERVER
from shiftwork.databases.model import DatabaseInfo, WorkspaceInfo
from shiftwork.model.errors import StoreError
from shiftwork.observe.model import Metrics, Sample
from shiftwork.server import prometheus
from shiftwork.server.endpoint import EndpointGroup, PlainText
from shiftwork.server.request_context import RequestContext
from shiftwork.server.state import ServerState

endpoint = EndpointGroup("Metrics")


@endpoint("GET /metrics", "read", answer=PlainText)
async def scrape(context: RequestContext) -> Any:
    """Return every metric of a workspace in the text format of Prometheus.

    With the scope `server`, include those counted for all workspaces together: latencies and refused writes.
    """
    found = await context.queue.metrics.read()
    shared = _of_process(context.state) if context.who.may(SERVER) else (None, Counter[str]())
    return _text(prometheus.text(found.samples, *shared))


@endpoint("GET /metrics/all", "server", answer=PlainText)
async def scrape_all(context: RequestContext) -> Any:
    """Return every metric of every workspace, with labels `workspace` and `database`, and the state of each database.

    While a database does not answer, `shiftwork_database_up` is 0, and its workspaces are left out.
    """
    workspaces, databases = await context.queue.workspaces.list(), await context.queue.workspaces.databases()
    samples: list[Sample] = []
    for each in workspaces:
        with suppress(StoreError):  # its database has just become unreachable
            if each.state != "unreachable":
                samples += _labelled(await context.queue.in_workspace(each.name).metrics.read(), each)
    samples += [sample for each in databases for sample in _of_database(each)]
    return _text(prometheus.text(samples, *_of_process(context.state)))


def _of_process(state: ServerState) -> tuple[prometheus.Latencies, Counter[str]]:
    return state.latencies, sum((each.engine.counters for each in state.queue.databases()), Counter[str]())


def _labelled(found: Metrics, workspace: WorkspaceInfo) -> Iterator[Sample]:
    more = {"workspace": workspace.name, "database": workspace.database or ""}
    return (Sample(sample.name, sample.value, {**sample.labels, **more}) for sample in found.samples)


def _of_database(found: DatabaseInfo) -> Iterator[Sample]:
    labels = {"database": found.name or ""}
    yield Sample("shiftwork_database_up", float(found.state == "up"), labels)
    yield Sample("shiftwork_database_workspaces", float(found.workspaces), labels)
    if found.answered_in_ms is not None:
        yield Sample("shiftwork_database_answer_seconds", found.answered_in_ms / 1000, labels)
    if found.maintenance_late_sec is not None:
        yield Sample("shiftwork_database_maintenance_late_seconds", found.maintenance_late_sec, labels)


def _text(body: bytes) -> Response:
    return Response(body, headers={"content-type": prometheus.MEDIA_TYPE})
