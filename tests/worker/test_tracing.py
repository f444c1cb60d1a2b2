"""Traces: one tree from the submit through every attempt, step and child, over HTTP and in one process."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from shiftwork import Client, Queue, Worker, logs, tracing
from shiftwork.model.errors import InputError
from shiftwork.worker.context import Context, Fail
from tests.conformance.steps import take
from tests.server.running import running
from tests.worker.command_runner import desk_on

GIVEN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """Return the spans that a program with OpenTelemetry would export."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    yield exporter
    provider.shutdown()


def three_levels() -> Worker:
    """A plan that spawns parts, each of which spawns a check; each does a step."""
    worker = Worker("ada", concurrency=4)

    @worker.handler("plan")
    async def plan(ctx: Context) -> str:
        await ctx.step("outline", lambda: "two parts")
        if not await ctx.subtasks():
            await ctx.spawn_and_wait([{"type": "part"}, {"type": "part"}])
        return "done"

    @worker.handler("part")
    async def part(ctx: Context) -> str:
        await ctx.step("write", lambda: "text")
        await ctx.spawn([{"type": "check"}])
        return "done"

    @worker.handler("check")
    async def check(ctx: Context) -> str:
        return str(await ctx.effect("mail", lambda _effect: "sent"))

    return worker


def tree(found: tuple[ReadableSpan, ...]) -> dict[str, list[str]]:
    """The names of the spans above each span, nearest first, by its name."""
    by_id = {span.context.span_id: span for span in found if span.context is not None}
    paths: dict[str, list[str]] = {}
    for span in found:
        path, above = [], span.parent
        while above is not None and above.span_id in by_id:
            path.append(by_id[above.span_id].name)
            above = by_id[above.span_id].parent
        paths.setdefault(span.name, path)
    return paths


async def test_dag_of_three_levels_with_steps_is_one_trace(queue: Queue, spans: InMemorySpanExporter) -> None:
    with trace.get_tracer("a program").start_as_current_span("request"):
        await queue.submit(type="plan")
    await three_levels().run(queue, until_idle=True)
    found = spans.get_finished_spans()
    assert len({span.context.trace_id for span in found if span.context is not None}) == 1
    paths = tree(found)
    assert paths["execute plan"] == ["submit", "request"]
    assert paths["step outline"] == ["execute plan", "submit", "request"]
    assert paths["execute part"][:2] == ["spawn", "execute plan"]
    assert paths["step write"][0] == "execute part"
    assert paths["execute check"][:4] == ["spawn", "execute part", "spawn", "execute plan"]
    assert paths["effect mail"][0] == "execute check"
    counts = [span.name for span in found]
    assert (counts.count("execute part"), counts.count("execute check"), counts.count("execute plan")) == (2, 2, 2)
    assert counts.count("step outline") == 1  # stored, it is not done again


async def test_trace_spans_http_client_and_server(store_url: str, spans: InMemorySpanExporter) -> None:
    async with running(store_url) as server, await Client.open(server.url) as client:
        with trace.get_tracer("a program").start_as_current_span("request"):
            await client.submit(type="plan")
        await three_levels().run(client, until_idle=True)
    found = spans.get_finished_spans()
    assert len({span.context.trace_id for span in found if span.context is not None}) == 1
    paths = tree(found)
    assert paths["execute plan"] == ["submit", "POST /api/tasks", "request"]
    assert paths["execute check"][:3] == ["spawn", "POST /api/tasks/{task_id}/spawn", "execute part"]


async def test_failed_attempt_marks_its_span_as_error(queue: Queue, spans: InMemorySpanExporter) -> None:
    worker = Worker("ada")

    @worker.handler("code")
    async def code(_ctx: Context) -> None:
        raise Fail("crash", "no disk")

    await queue.submit(type="code", max_attempts=1)
    await worker.run(queue, until_idle=True)
    (span,) = [span for span in spans.get_finished_spans() if span.name == "execute code"]
    assert span.status.status_code is trace.StatusCode.ERROR
    assert span.attributes is not None
    assert span.attributes["shiftwork.type"] == "code"


async def test_traceparent_is_stored_with_the_task(queue: Queue) -> None:
    made = await queue.submit(type="code", traceparent=GIVEN)
    held = await take(queue)
    assert held.traceparent == held.task().traceparent == GIVEN
    assert (await queue.get(made.id)).traceparent == GIVEN


async def test_children_inherit_the_trace_unless_they_have_their_own(queue: Queue) -> None:
    await queue.submit(type="plan", traceparent=GIVEN)
    held = await take(queue)
    own = GIVEN.replace("b7ad", "c7ad")
    made = await queue.spawn(held.token, [{"type": "part"}, {"type": "part", "traceparent": own}])
    assert [(await queue.get(child.id)).traceparent for child in made] == [GIVEN, own]


async def test_rerun_stays_in_the_trace(queue: Queue) -> None:
    made = await queue.submit(type="code", traceparent=GIVEN)
    await queue.fail((await take(queue)).token, "crash", retry=False)
    again = await queue.tasks.rerun(made.id)
    assert (await queue.get(again.task_id)).traceparent == GIVEN


@pytest.mark.parametrize("header", [GIVEN, "nonsense", "00-" + 32 * "0" + "-b7ad6b7169203331-01"])
async def test_traceparent_header_of_a_submit_is_used_when_valid(store_url: str, header: str) -> None:
    async with running(store_url) as server:
        made = await server.post("/api/tasks", {"type": "code"}, headers={"traceparent": header})
        found = await server.get(f"/api/tasks/{made['id']}")
    assert found["traceparent"] == (GIVEN if header == GIVEN else None)


async def test_invalid_traceparent_is_refused(queue: Queue) -> None:
    with pytest.raises(InputError):
        await queue.submit(type="code", traceparent="nonsense")


async def test_command_gets_traceparent_in_its_environment(shop: Queue, store_url: str, tmp_path: Path) -> None:
    made = await shop.submit(type="code", traceparent=GIVEN)
    with desk_on(store_url, tmp_path) as mcp_server:
        mcp_server.run(["sh", "-c", 'echo "$TRACEPARENT"'])
    assert (await shop.result(made.id)).text == GIVEN


@pytest.mark.requirement("F-242")
async def test_log_line_names_its_task_and_trace(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    lines: list[dict[str, Any]] = []

    class Written(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(json.loads(logs.JsonLines().format(record)))

    caplog.set_level(logging.INFO)
    own = logging.getLogger("a.program")
    own.addHandler(handler := Written())
    worker = Worker("ada")

    @worker.handler("code")
    def code(_ctx: Context) -> None:
        own.info("at work", extra={"file": "x"})

    try:
        made = await queue.submit(type="code", traceparent=GIVEN)
        await worker.run(queue, until_idle=True)
    finally:
        own.removeHandler(handler)
    (line,) = lines
    assert line["task_id"] == made.id
    assert line["trace_id"] == GIVEN.split("-")[1]
    assert (line["message"], line["level"], line["file"]) == ("at work", "info", "x")


async def test_log_lines_about_a_report_name_only_its_task(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    answer: list[tuple[Any, Any]] = []

    class Written(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if hasattr(record, "retry"):
                answer.append((record.__dict__["task"], tracing.facts().get("task_id", record.__dict__["task"])))

    caplog.set_level(logging.INFO, "shiftwork")
    log = logging.getLogger("shiftwork")
    log.addHandler(handler := Written())
    worker = Worker("ada", concurrency=3)

    @worker.handler("code")
    async def code(_ctx: Context) -> None:
        raise ValueError("no")

    try:
        made = await queue.submit_many([{"type": "code", "max_attempts": 2}] * 3)
        await worker.run(queue, until_idle=True)
    finally:
        log.removeHandler(handler)
    assert {task for task, _ in answer} == {task.id for task in made}
    assert all(task == named for task, named in answer)
