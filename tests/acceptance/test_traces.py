"""Traces of a server, a worker and a shell, each its own process, sent to a real receiver."""

from __future__ import annotations

import asyncio
import gzip
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.server.processes import start

WORKER = """
from shiftwork import Worker

worker = Worker("ada")


@worker.handler("plan")
async def plan(ctx):
    await ctx.step("outline", lambda: "one part")
    await ctx.spawn([{"type": "part"}])


@worker.handler("part")
async def part(ctx):
    return "done"
"""
GIVEN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Receiver:
    """Takes spans by OTLP over HTTP, as a collector does."""

    def __init__(self) -> None:
        self.url = ""
        self.spans: dict[str, tuple[str, Span]] = {}
        """By name, with the service that sent it."""

    async def take(self, request: web.Request) -> web.Response:
        raw = await request.read()
        sent = ExportTraceServiceRequest.FromString(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)
        for resource in sent.resource_spans:
            named = {pair.key: pair.value.string_value for pair in resource.resource.attributes}
            for scope in resource.scope_spans:
                self.spans.update({span.name: (named["service.name"], span) for span in scope.spans})
        return web.Response(content_type="application/x-protobuf")


@asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    receiver, app = Receiver(), web.Application()
    app.router.add_post("/v1/traces", receiver.take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        receiver.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield receiver
    finally:
        await runner.cleanup()


async def shiftwork(*words: str, folder: Path, **environment: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *[sys.executable, "-m", "shiftwork", *words],
        cwd=folder,
        env={**os.environ, **environment},
        stdout=asyncio.subprocess.DEVNULL,
    )
    async with asyncio.timeout(60):
        assert await process.wait() == 0


async def test_server_worker_and_shell_send_one_trace(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(WORKER, encoding="utf-8")
    store = f"sqlite:///{tmp_path}/q.db"
    async with receiving() as receiver:
        found = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url}
        async with await start(store, port=0, **found) as server:
            at = ["--store", server.url]
            await shiftwork("submit", "plan", *at, folder=tmp_path, TRACEPARENT=GIVEN)
            await shiftwork("work", "app:worker", *at, "--until-idle", folder=tmp_path, **found)
            assert await server.stop() == 0
    services = {name: service for name, (service, _) in receiver.spans.items()}
    assert services == {
        "POST /api/tasks": "shiftwork-server",
        "submit": "shiftwork-server",
        "execute plan": "shiftwork-worker",
        "step outline": "shiftwork-worker",
        **{name: "shiftwork-server" for name in services if name.startswith("POST /api/tasks/")},
        **{name: "shiftwork-server" for name in services if name.startswith("GET /api/")},
        "spawn": "shiftwork-server",
        "execute part": "shiftwork-worker",
    }
    spans = {name: span for name, (_, span) in receiver.spans.items()}
    assert {span.trace_id.hex() for span in spans.values()} == {GIVEN.split("-")[1]}
    assert spans["POST /api/tasks"].parent_span_id.hex() == GIVEN.split("-")[2]
    assert spans["execute plan"].parent_span_id == spans["submit"].span_id
    assert spans["execute part"].parent_span_id == spans["spawn"].span_id
