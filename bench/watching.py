"""Live events: the latency to one subscriber, and the rate to 500 of them over 10,000 events."""

from __future__ import annotations

import asyncio
import time

import aiohttp

from bench.report import Bench, measurement
from bench.serving import served
from bench.throughput import NOOP
from bench.times import Times
from tests.server.crowd import send_to_subscribers
from tests.server.watching import watch


@measurement
async def watching(bench: Bench) -> None:
    """Each subscriber gets each event once and in order, or the measurement fails."""
    async with bench.place.url() as url, served(url) as api:
        delays = Times()
        async with watch(api.http, api.url) as client:
            for _ in range(bench.size(200, 20)):
                began = time.perf_counter()
                await asyncio.gather(api.call("POST", "/api/tasks", NOOP), client.message())
                delays.add(1000 * (time.perf_counter() - began))
                await client.message()
        delays.show(bench, "HTTP submit to the event at one subscriber")
        subscribers, events = bench.size(500, 20), bench.size(10_000, 120)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as http:
            output = await send_to_subscribers(http, api.url, subscribers, events)
        rate = subscribers * output.events / output.seconds
        bench.figure(f"{subscribers} subscribers, {output.events:,} events each", [rate], "events/s")
        bench.figure("memory of the server", [api.member.memory_mib()], "MiB")
