"""Attempts in the words of OpenTelemetry's GenAI conventions, and metrics by OTLP to a real receiver."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from opentelemetry import metrics, trace
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from shiftwork import Client, Queue, Worker
from shiftwork.server.otlp_metrics import QueueMetrics
from shiftwork.worker.context import Context, Fail
from tests.server.running import running

WORKER = """
from shiftwork.worker import Context, Worker

worker = Worker("coder-1", provider="anthropic")

@worker.handler("code")
async def code(ctx: Context) -> str:
    ctx.spent(0.5, 100, 20, "opus")
    return "done"
"""


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    yield exporter
    provider.shutdown()


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemoryMetricReader]:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    monkeypatch.setattr(metrics, "get_meter_provider", lambda: provider)
    yield reader
    provider.shutdown()


def points(reader: InMemoryMetricReader) -> dict[str, list[Any]]:
    """The data points of each metric."""
    found = reader.get_metrics_data()
    assert found is not None
    every = [metric for each in found.resource_metrics for scope in each.scope_metrics for metric in scope.metrics]
    return {metric.name: list(metric.data.data_points) for metric in every}


def of(exporter: InMemorySpanExporter, name: str) -> dict[str, Any]:
    (span,) = [span for span in exporter.get_finished_spans() if span.name == name]
    return dict(span.attributes or {})


def coder() -> Worker:
    worker = Worker("coder-1", provider="anthropic", models=["opus"])

    @worker.handler("code")
    async def code(ctx: Context) -> str:
        await ctx.pin_session("s-1")
        ctx.spent(0.5, 100, 20, "opus-4")
        await ctx.book_usage()
        ctx.spent(0.1, 7, 3, "opus-4")
        return "done"

    @worker.handler("fails")
    async def fails(_: Context) -> None:
        raise Fail("auth_failure", "no key", retry=False)

    return worker


async def test_attempt_has_agent_model_tokens_and_conversation(queue: Queue, spans: InMemorySpanExporter) -> None:
    await queue.submit(type="code", spec={"constraints": {"model_preferences": ["opus"]}})
    await coder().run(queue, until_idle=True)
    found = {name: value for name, value in of(spans, "execute code").items() if name.startswith("gen_ai.")}
    assert found == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "coder-1",
        "gen_ai.provider.name": "anthropic",
        "gen_ai.request.model": "opus",
        "gen_ai.response.model": "opus-4",
        "gen_ai.usage.input_tokens": 107,
        "gen_ai.usage.output_tokens": 23,
        "gen_ai.conversation.id": "s-1",
    }


async def test_failed_attempt_names_its_error(
    queue: Queue, spans: InMemorySpanExporter, measured: InMemoryMetricReader
) -> None:
    await queue.submit(type="fails")
    await coder().run(queue, until_idle=True)
    found = of(spans, "execute fails")
    assert (found["error.type"], "gen_ai.usage.input_tokens" in found) == ("auth_failure", False)
    (took,) = points(measured)["gen_ai.client.operation.duration"]
    assert took.attributes["error.type"] == "auth_failure"


async def test_attempts_are_measured(queue: Queue, measured: InMemoryMetricReader) -> None:
    await queue.submit_many([{"type": "code", "payload": {"n": n}} for n in range(2)])
    await coder().run(queue, until_idle=True)
    found = points(measured)
    (took,) = found["gen_ai.client.operation.duration"]
    assert (took.count, took.attributes["gen_ai.agent.name"]) == (2, "coder-1")
    tokens = {point.attributes["gen_ai.token.type"]: point.sum for point in found["gen_ai.client.token.usage"]}
    assert tokens == {"input": 214, "output": 46}


async def test_spans_of_the_server_name_conversation_and_model_and_count_no_tokens(
    store_url: str, spans: InMemorySpanExporter
) -> None:
    async with running(store_url) as server, await Client.open(server.url) as client:
        with trace.get_tracer("a program").start_as_current_span("request"):
            await client.submit(type="code")
        await coder().run(client, until_idle=True)
    pinned = of(spans, "POST /api/tasks/{task_id}/session")
    assert pinned["gen_ai.conversation.id"] == "s-1"
    booked = of(spans, "POST /api/tasks/{task_id}/heartbeat")
    assert (booked["gen_ai.response.model"], booked["shiftwork.tokens_in"]) == ("opus-4", 100)
    counted = [span for span in spans.get_finished_spans() if "gen_ai.usage.input_tokens" in (span.attributes or {})]
    assert [span.name for span in counted] == ["execute code"]


async def test_metrics_of_the_queue_are_sent_by_workspace(queue: Queue, measured: InMemoryMetricReader) -> None:
    await queue.submit(type="code")
    await queue.in_workspace("other").submit_many([{"type": "code", "payload": {"n": n}} for n in range(3)])
    await QueueMetrics(queue, metrics.get_meter_provider().get_meter("shiftwork")).read()
    depth = {
        point.attributes["shiftwork.workspace"]: point.value
        for point in points(measured)["task_queue_depth"]
        if point.attributes["status"] == "ready" and point.value
    }
    assert depth == {"default": 1, "other": 3}
    assert "shiftwork_tasks_created" in points(measured)


@asynccontextmanager
async def otlp_receiver() -> AsyncIterator[tuple[str, dict[str, list[bytes]]]]:
    """A server that takes what is sent by OTLP over HTTP."""
    got: dict[str, list[bytes]] = {}

    async def take(request: web.Request) -> web.Response:
        got.setdefault(request.path, []).append(await request.read())
        return web.Response(content_type="application/x-protobuf")

    app = web.Application()
    app.router.add_post("/v1/{signal}", take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", got
    finally:
        await runner.cleanup()


async def test_worker_sends_spans_and_metrics_to_the_receiver_of_its_environment(
    sqlite_url: str, tmp_path: Path
) -> None:
    (tmp_path / "otel_app.py").write_text(WORKER)
    async with Queue.open(sqlite_url) as queue:
        await queue.submit(type="code")
    async with otlp_receiver() as (url, got):
        environment = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_EXPORTER_OTLP_COMPRESSION": "none"}
        line = [sys.executable, "-m", "shiftwork", "--store", sqlite_url, "work", "otel_app:worker", "--until-idle"]
        process = await asyncio.create_subprocess_exec(*line, cwd=tmp_path, env=environment)
        assert await process.wait() == 0
    sent = ExportMetricsServiceRequest.FromString(got["/v1/metrics"][-1])
    names = {metric.name for each in sent.resource_metrics for scope in each.scope_metrics for metric in scope.metrics}
    assert names >= {"gen_ai.client.operation.duration", "gen_ai.client.token.usage"}
    traced = ExportTraceServiceRequest.FromString(got["/v1/traces"][-1])
    found = [span for each in traced.resource_spans for scope in each.scope_spans for span in scope.spans]
    (span,) = [span for span in found if span.name == "execute code"]
    values = {each.key: each.value.string_value or each.value.int_value for each in span.attributes}
    assert (values["gen_ai.agent.name"], values["gen_ai.usage.input_tokens"]) == ("coder-1", 100)
