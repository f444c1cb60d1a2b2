"""A small fleet of agents on one queue. Run it in an empty folder:

    python fleet.py sqlite:///fleet.db                        # submit, run all tasks, print the results
    python fleet.py postgresql://user@host/database           # the same on PostgreSQL: only the address changes
    python fleet.py http://127.0.0.1:8080                     # or through a server: shiftwork serve

    shiftwork --store sqlite:///fleet.db work fleet:worker --processes 2    # or: keep two processes running

Kill a process with `kill -9` while it works: its tasks go to another one at once, and cost no attempt.
"""

import asyncio
import os
import sys
import time
from typing import Any

from shiftwork import AnyQueue, open_queue
from shiftwork.worker import Context, Fail, Worker

# A worker is a set of handlers. `concurrency` is the number of tasks that one process runs at the same time.
worker = Worker(concurrency=4, stop_grace_sec=10)


@worker.handler("research")
async def research(ctx: Context) -> dict[str, Any]:
    """An async handler. Its return value is the task's result. The worker sends heartbeats for it."""
    for percent in (0, 50, 100):
        await ctx.progress({"pct": percent})
        await asyncio.sleep(0.05)  # a model call
    ctx.spent(cost_usd=0.02, tokens_in=1200, tokens_out=300)
    return {"topic": ctx.payload["topic"], "findings": 3}


@worker.handler("write")
def write(ctx: Context) -> str:
    """A plain function: it runs in its own thread and may block."""
    time.sleep(0.05)
    return f"Dear reader, about {ctx.payload['subject']} ..."


@worker.handler("publish")
async def publish(ctx: Context) -> str:
    """Fails at first. Any exception is a failed attempt; `Fail` gives it a reason. The queue retries it."""
    if ctx.task.attempts == 0:
        raise Fail("network", "the site did not answer")
    return "https://example.org/page"


@worker.handler("survey")
async def survey(ctx: Context) -> int:
    """Splits its work. It occupies no slot while it waits, and runs again from the top when its subtasks are done."""
    answers = await ctx.subtasks()
    if not answers:
        await ctx.spawn_and_wait([{"type": "ask", "payload": {"person": name}} for name in ("Ada", "Grace", "Edsger")])
    return sum(answer.data for answer in answers)


@worker.handler("ask")
def ask(ctx: Context) -> int:
    return len(ctx.payload["person"])


@worker.handler("watch")
async def watch(ctx: Context) -> None:
    """Runs until it is cancelled: the handler is then interrupted within seconds."""
    ctx.spent(cost_usd=0.01)
    await asyncio.Event().wait()


# A DAG is submitted whole or not at all. Dependencies refer to tasks by their `key`.
PAGE = {
    "title": "A page",
    "tasks": [
        {"key": "market", "type": "research", "payload": {"topic": "the market"}},
        {"key": "rivals", "type": "research", "payload": {"topic": "the rivals"}},
        {"key": "text", "type": "write", "payload": {"subject": "us"}, "dependencies": ["market", "rivals"]},
        {"key": "page", "type": "publish", "dependencies": ["text"], "retry": {"strategy": "immediate"}},
        {"key": "survey", "type": "survey"},
    ],
}


async def main(url: str) -> None:
    async with open_queue(url) as queue:
        submitted = {task.key: task for task in await queue.submit_dag(PAGE)}
        watching = await queue.submit(type="watch")

        working = asyncio.create_task(worker.run(url))  # usually a separate program: `shiftwork work fleet:worker`
        await wait_until(queue, watching.id, "running")
        await queue.cancel(watching.id, "seen enough")
        for task in submitted.values():
            await wait_until(queue, task.id, "completed")

        worker.stop()  # like SIGTERM: running tasks may finish, the rest is released and costs no attempt
        await working

        for key, task in submitted.items():
            found, result = await queue.get(task.id), await queue.result(task.id)
            print(f"{key:<8}{found.status:<11}attempts failed: {found.attempts}  result: {result.data}")
        stopped = await queue.get(watching.id)
        print(f"{'watch':<8}{stopped.status:<11}because: {stopped.cancel_reason}")
        dag = await queue.dags.get((await queue.get(submitted["page"].id)).dag_id)
        print(f"The DAG is {dag.status}: {dag.done} of {dag.total} tasks, {dag.spent_usd:.2f} USD.")


async def wait_until(queue: AnyQueue, task_id: str, status: str) -> None:
    while (await queue.get(task_id)).status != status:
        await asyncio.sleep(0.05)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("SHIFTWORK_STORE", "sqlite:///fleet.db")))
