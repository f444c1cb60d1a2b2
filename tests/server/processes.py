"""Server processes, started as by an operator."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self

PATIENCE_SEC = 60


class ServerProcess:
    """`shiftwork serve` on a free port."""

    def __init__(self, process: asyncio.subprocess.Process, url: str) -> None:
        self.process = process
        self.url = url

    async def kill(self) -> None:
        """Kill it with SIGKILL."""
        self.process.send_signal(signal.SIGKILL)
        await self.process.wait()

    async def stop(self) -> int:
        """Stop it as an operator would; return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE_SEC):
            return await self.process.wait()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.returncode is None:
            await self.kill()


async def start(store: str, *options: str, port: int = 0, **environment: str) -> ServerProcess:
    """Start a server and wait until it says where it serves."""
    process = await asyncio.create_subprocess_exec(
        *[sys.executable, "-m", "shiftwork", "serve", "--store", store, "--port", str(port), "--json", *options],
        env={**os.environ, **environment},
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE_SEC):
        line = await process.stdout.readline()
    if not line:
        raise RuntimeError(f"the server ended with {await process.wait()} before it served")
    data: dict[str, Any] = json.loads(line)
    return ServerProcess(process, data["url"])


@asynccontextmanager
async def servers(store: str, count: int, *options: str) -> AsyncIterator[list[ServerProcess]]:
    """Several on one store; those still alive are killed afterwards."""
    started = [await start(store, *options) for _ in range(count)]
    try:
        yield started
    finally:
        for each in started:
            if each.process.returncode is None:
                await each.kill()
