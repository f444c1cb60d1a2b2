"""Restate over HTTP: its server, which calls the tasks itself, and a service of three handlers under Hypercorn.

The server listens on the URL's port; its admin API, its node and the service on the next three ports.
"""

import asyncio
import os
import subprocess
import sys
import time
import urllib.request
from urllib.parse import urlsplit

import aiohttp
import restate
from common import CALLERS, EVERY_SEC, free_ports, main, mark, timed
from hypercorn.asyncio import serve as serve_app
from hypercorn.config import Config

SETTINGS = {"default": "asyncio", "fast": "uvloop"}
START_SEC = 60.0

service = restate.Service("bench")


@service.handler()
async def noop(_context: restate.Context, _number: int) -> None:
    mark()


@service.handler()
async def stamp(_context: restate.Context, sent: int) -> None:
    mark(sent)


@service.handler()
async def hang(_context: restate.Context, _number: int) -> None:
    mark()
    await asyncio.sleep(600)


app = restate.app(services=[service])


def port_of(url: str) -> int:
    return urlsplit(url).port or 8080


def config(url: str, settings: str = "default") -> Config:
    found = Config()
    found.bind = [f"127.0.0.1:{port_of(url) + 3}"]
    found.worker_class = SETTINGS[settings]
    found.errorlog = None
    return found


def serve(folder: str) -> None:
    """Start the server, register the service, print the server's URL, and serve until stopped."""
    port = free_ports(4)
    url = f"http://127.0.0.1:{port}"
    variables = {
        **os.environ,
        "RESTATE_INGRESS__BIND_ADDRESS": f"127.0.0.1:{port}",
        "RESTATE_ADMIN__BIND_ADDRESS": f"127.0.0.1:{port + 1}",
        "RESTATE_BIND_ADDRESS": f"127.0.0.1:{port + 2}",
        "RESTATE_ADVERTISED_ADDRESS": f"http://127.0.0.1:{port + 2}",
        "RESTATE_LISTEN_MODE": "tcp",
        "RUST_LOG": "error",
    }
    server = subprocess.Popen(["restate-server", "--base-dir", folder], env=variables, stdout=sys.stderr)
    wait_for(f"http://127.0.0.1:{port + 1}/health")
    asyncio.run(register(url))
    print(url, flush=True)
    server.wait()


def wait_for(url: str) -> None:
    until = time.monotonic() + START_SEC
    while True:
        try:
            urllib.request.urlopen(url, timeout=5).close()  # noqa: S310  # of this machine
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)
        else:
            return


async def register(url: str) -> None:
    """Register the service. It runs meanwhile, since the server asks it for its handlers."""
    done = asyncio.Event()
    running = asyncio.create_task(serve_app(app, config(url), shutdown_trigger=done.wait))  # type: ignore[arg-type]  # as documented
    async with aiohttp.ClientSession() as http:
        where = {"uri": f"http://127.0.0.1:{port_of(url) + 3}"}
        for _ in range(100):
            async with http.post(f"http://127.0.0.1:{port_of(url) + 1}/deployments", json=where) as answer:
                if answer.ok:
                    break
            await asyncio.sleep(0.1)
        else:
            raise SystemExit("Restate does not accept the service")
    done.set()
    await running


async def invoke(http: aiohttp.ClientSession, url: str, handler: str, argument: int) -> None:
    async with http.post(f"{url}/bench/{handler}", json=argument) as answer:
        answer.raise_for_status()
        await answer.read()


def single(url: str, count: int) -> None:
    async def submit() -> None:
        async with aiohttp.ClientSession() as http:
            with timed():
                for number in range(count):
                    await invoke(http, url, "noop/send", number)

    asyncio.run(submit())


def by_callers(url: str, count: int, handler: str) -> None:
    """Call the handler from 50 concurrent callers, one call at a time each."""

    async def call() -> None:
        numbers = iter(range(count))
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:

            async def caller() -> None:
                for number in numbers:
                    await invoke(http, url, handler, number)

            with timed():
                await asyncio.gather(*(caller() for _ in range(CALLERS)))

    asyncio.run(call())


def send(url: str, count: int) -> None:
    async def submit() -> None:
        async with aiohttp.ClientSession() as http:
            for _ in range(count):
                began = time.perf_counter()
                await invoke(http, url, "stamp/send", time.time_ns())
                await asyncio.sleep(max(0.0, EVERY_SEC - (time.perf_counter() - began)))

    asyncio.run(submit())


def hang_one(url: str) -> None:
    by_callers(url, 1, "hang/send")


def work(url: str, settings: str) -> None:
    async def run() -> None:
        await serve_app(app, config(url, settings))  # type: ignore[arg-type]  # as documented

    if settings == "fast":
        import uvloop  # noqa: PLC0415  # for this setting

        uvloop.run(run())
    asyncio.run(run())


main(
    prepare=lambda _url: None,
    serve=serve,
    single=single,
    bulk=lambda url, count, _mixed: by_callers(url, count, "noop/send"),
    agents=lambda url, count: by_callers(url, count, "noop"),
    send=send,
    hang=hang_one,
    work=work,
)
