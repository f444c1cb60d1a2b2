"""The cost of retained tasks: single calls and the dashboard's queries with few and with millions of finished tasks."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable

from bench.growth import columns_of, series_of
from bench.report import Bench, measurement
from bench.throughput import NOOP, drain_in_process, load
from bench.times import Times
from shiftwork import Completion, Queue
from shiftwork.maintenance.loop import run_once

CALLS = 30
READY = 1_000


@measurement
async def retained(bench: Bench) -> None:
    """Measure calls with 10,000, a million and five million retained tasks, with their bodies, attempts and events."""
    for finished in bench.sizes((10_000, 1_000_000, 5_000_000), (10_000,)):
        async with bench.place.url() as url, await Queue.open(url) as queue:
            await queue.agents.register(id="bench", max_concurrent_tasks=None)
            await load(queue, 1)
            await drain_in_process(queue)
            await run_once(queue.engine, force=True)
            await _multiply(bench, url, finished)
            await load(queue, READY)
            await bench.place.settle(url)
            await bench.place.sql(url, "update count_marks set whole = false, generation = generation + 1")
            await run_once(queue.engine, force=True)
            for name, call in (await _calls(queue)).items():
                await call()
                times = Times()
                cpu = bench.place.server_cpu()
                for _ in range(CALLS):
                    await times.of(call())
                spent = 1e3 * (bench.place.server_cpu() - cpu) / CALLS
                note = f"server {spent:.1f} ms" if bench.place.name == "postgres" else ""
                bench.figure(f"{name}, {finished:,} kept, p50", [times.at(0.5)], "ms", note)


async def _calls(queue: Queue) -> dict[str, Callable[[], Awaitable[object]]]:
    """Return, by name, the calls of a fleet and of the dashboard's pages."""
    task = (await queue.tasks.list(status="ready", limit=1)).tasks[0].id
    done = (await queue.tasks.list(status="completed", limit=1)).tasks[0].id
    held: list[str] = []

    async def claim() -> None:
        held.extend(each.token for each in await queue.claim("bench", 1, start=True))

    async def complete() -> None:
        await queue.batch.complete([Completion(token=held.pop())])

    return {
        "submit": functools.partial(queue.submit, NOOP),
        "claim": claim,
        "complete": complete,
        "list": functools.partial(queue.tasks.list, limit=50),
        "list of one state": functools.partial(queue.tasks.list, status="ready", limit=50),
        "list of failures": functools.partial(queue.tasks.list, status="dead_lettered", limit=50),
        "count": queue.tasks.count,
        "get": functools.partial(queue.get, done),
        "explain": functools.partial(queue.explain, task),
        "history": functools.partial(queue.tasks.history, done),
        "status": functools.partial(queue.status, fresh=True),
        "failures": queue.metrics.failures,
        "dags": queue.dags.list,
        "search": functools.partial(queue.tasks.list, search="nothing", limit=50),
    }


_VALUES = {
    **dict.fromkeys(("id", "dag_id", "root_id", "task_id"), "{1}"),
    **dict.fromkeys(
        ("at", "created_at", "ordered_at", "updated_at", "claimed_at", "finished_at", "ended_at"), "t.{0} - 86400"
    ),
}
"""The expressions of columns that differ in the copies: their ids, and times of yesterday."""


async def _multiply(bench: Bench, url: str, count: int) -> None:
    """Copy the one completed task by SQL, with its body, attempt and events."""
    series, id_ = series_of(bench.place.name, count)
    for table in ("tasks", "bodies", "attempts", "events"):
        columns = [name for name in await columns_of(bench.place, url, table) if name != "seq"]
        kept = [name for name in columns if name not in ("task_ids", "fences", "spans", "seqs", "size")]
        values = ", ".join(_VALUES.get(name, "t.{0}").format(name, id_) for name in kept)
        which = "where verb = 'completed'" if table == "events" else ""
        one = f"(select * from {table} {which} limit 1) t"
        await bench.place.sql(url, f"insert into {table} ({', '.join(kept)}) select {values} from {one}, {series}")
