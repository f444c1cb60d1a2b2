"""The stores of a benchmark: a SQLite file or its own PostgreSQL server, both with full durability."""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import apsw
import asyncpg

from bench.processor import seconds_of_tree
from shiftwork import Queue
from tests.services import Postgres

SERVER = {"synchronous_commit": "on", "shared_buffers": "512MB", "max_wal_size": "4GB"}


class Place(Protocol):
    """A store to measure on."""

    name: str

    @asynccontextmanager
    def url(self) -> AsyncIterator[str]:
        """Yield the URL of a new, empty queue; delete it afterwards."""

    async def sql(self, url: str, *statements: str) -> list[tuple[Any, ...]]:
        """Execute statements directly on the database and return the rows of the last one."""

    async def settle(self, url: str) -> None:
        """Bring the files into the state they have after a while at rest."""

    def server_cpu(self) -> float:
        """Return the CPU seconds that the server has used."""

    def about(self) -> dict[str, str]:
        """Return versions and durability."""

    def close(self) -> None: ...


class SqlitePlace:
    """A file in the folder for temporary files (`TMPDIR`), with synchronous=FULL as the store sets it."""

    name = "sqlite"

    @asynccontextmanager
    async def url(self) -> AsyncIterator[str]:
        folder = Path(tempfile.mkdtemp(prefix="shiftwork-bench-"))
        try:
            yield f"sqlite:///{folder / 'queue.db'}"
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    async def sql(self, url: str, *statements: str) -> list[tuple[Any, ...]]:
        return await asyncio.to_thread(_sqlite, url, statements)

    async def settle(self, url: str) -> None:
        await self.sql(url, "analyze", "pragma wal_checkpoint(truncate)")

    def server_cpu(self) -> float:
        return 0.0

    def about(self) -> dict[str, str]:
        return {"SQLite": f"{apsw.sqlite_lib_version()}, apsw {apsw.apsw_version()}, WAL, synchronous=FULL"}

    def close(self) -> None: ...


def _sqlite(url: str, statements: tuple[str, ...]) -> list[tuple[Any, ...]]:
    connection = apsw.Connection(url.removeprefix("sqlite:///"))
    connection.set_busy_timeout(10_000)
    rows: list[tuple[Any, ...]] = []
    for statement in statements:
        rows = list(connection.execute(statement))
    connection.close()
    return rows


class PostgresPlace:
    """Our own server with fsync and synchronous_commit on; a database for each queue."""

    name = "postgres"

    def __init__(self) -> None:
        self._server = Postgres.start(durable=True, settings=SERVER)
        self._template: str | None = None

    @asynccontextmanager
    async def url(self) -> AsyncIterator[str]:
        if self._template is None:
            self._template = await asyncio.to_thread(self._server.create_database)
            await (await Queue.open(self._server.dsn(self._template))).close()
        name = await asyncio.to_thread(self._server.create_database, self._template)
        try:
            yield self._server.dsn(name)
        finally:
            await asyncio.to_thread(self._server.drop_database, name)

    async def sql(self, url: str, *statements: str) -> list[tuple[Any, ...]]:
        connection = await asyncpg.connect(url, command_timeout=900)
        try:
            rows: list[Any] = []
            for statement in statements:
                rows = await connection.fetch(statement)
            return [tuple(row) for row in rows]
        finally:
            await connection.close()

    async def settle(self, url: str) -> None:
        await self.sql(url, "vacuum analyze", "checkpoint")

    def server_cpu(self) -> float:
        return seconds_of_tree([self._server.pid])

    def about(self) -> dict[str, str]:
        version = asyncio.run(self.sql(self._server.dsn(), "show server_version"))[0][0]
        settings = ", ".join(f"{key}={value}" for key, value in {"fsync": "on", **SERVER}.items())
        return {"PostgreSQL": f"{version}, {settings}"}

    def close(self) -> None:
        self._server.close()


def machine() -> dict[str, str]:
    """Return what the figures depend on besides the code."""
    names = [line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    memory = next((line.split()[1] for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), "0")
    return {
        "processor": names[0] if names else platform.processor() or platform.machine(),
        "cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
        "memory": f"{int(memory) / 1048576:.1f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
        "speed": f"{_nanoseconds_per_turn():.0f} ns a turn of a plain Python loop",
        "load": " ".join(f"{load:.1f}" for load in os.getloadavg()),
        "syncs": f"{_syncs_per_second():,.0f} fdatasync/s of 4 KiB in {tempfile.gettempdir()}",
    }


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def _nanoseconds_per_turn(round_robin: int = 1_000_000) -> float:
    """Measure the current speed of the processor: figures of two runs are as comparable as these are."""
    total, began = 0, time.process_time_ns()
    for number in range(round_robin):
        total += number * number
    return (time.process_time_ns() - began) / round_robin


def _syncs_per_second(count: int = 200) -> float:
    """Measure the disk's syncs: every write of the queue waits for one of these."""
    with tempfile.NamedTemporaryFile() as file:
        began = time.perf_counter()
        for _ in range(count):
            file.write(b"x" * 4096)
            file.flush()
            os.fdatasync(file.fileno())
        return count / (time.perf_counter() - began)
