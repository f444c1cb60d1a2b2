"""A small fleet of agents on one queue. Run it in an empty folder:

    python fleet.py sqlite:///fleet.db                        # submit, work to the end, print what came of it
    python fleet.py postgresql://user@host/database           # the same on PostgreSQL: only the address changes
    python fleet.py http://127.0.0.1:8080                     # or through a server: shiftwork serve

    shiftwork --store sqlite:///fleet.db work fleet:worker --processes 2    # or: keep two processes at work, for ever

Kill a process with `kill -9` while it works: its tasks go to another one at once, and cost no attempt.
"""

import asyncio
import os
import sys
import time
from typing import Any

from shiftwork import AnyQueue, open_queue
from shiftwork.worker import Context, Fail, Worker

# A worker is a set of handlers. `concurrency` says how many tasks one process runs at the same time.
worker = Worker(concurrency=4, stop_grace_sec=10)


@worker.handler("research")
async def research(ctx: Context) -> dict[str, Any]:
    """An async handler. What it returns is the task's result. Heartbeats are not its business."""
    for percent in (0, 50, 100):
        await ctx.progress({"pct": percent})
        await asyncio.sleep(0.05)  # a call of a model
    ctx.spent(cost_usd=0.02, tokens_in=1200, tokens_out=300)
    return {"topic": ctx.payload["topic"], "findings": 3}


@worker.handler("write")
def write(ctx: Context) -> str:
    """A plain function: it runs in a thread of its own and may block."""
    time.sleep(0.05)
    return f"Dear reader, about {ctx.payload['subject']} ..."


@worker.handler("publish")
async def publish(ctx: Context) -> str:
    """Fails at first. Any exception is a failed attempt; `Fail` gives it a reason. The queue tries again."""
    if ctx.task.attempts == 0:
        raise Fail("network", "the site did not answer")
    return "https://example.org/page"


@worker.handler("survey")
async def survey(ctx: Context) -> int:
    """Splits its work. It holds no slot while it waits, and is run again from the top when its subtasks are done."""
    answers = await ctx.subtasks()
    if not answers:
        await ctx.spawn_and_wait([{"type": "ask", "payload": {"person": name}} for name in ("Ada", "Grace", "Edsger")])
    return sum(answer.data for answer in answers)


@worker.handler("ask")
def ask(ctx: Context) -> int:
    return len(ctx.payload["person"])


@worker.handler("watch")
async def watch(ctx: Context) -> None:
    """Works until somebody cancels it: the handler is then interrupted within seconds."""
    ctx.spent(cost_usd=0.01)
    await asyncio.Event().wait()


# A DAG goes in whole or not at all. `key` is a name inside it, for its edges.
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
    async with await open_queue(url) as queue:
        made = {task.key: task for task in await queue.submit_dag(PAGE)}
        watching = await queue.submit(type="watch")

        working = asyncio.create_task(worker.run(url))  # in a program of its own: `shiftwork work fleet:worker`
        await wait_until(queue, watching.id, "running")
        await queue.cancel(watching.id, "seen enough")
        for task in made.values():
            await wait_until(queue, task.id, "completed")

        worker.stop()  # as SIGTERM does: what runs may finish, the rest is given back and costs no attempt
        await working

        for key, task in made.items():
            found, result = await queue.get(task.id), await queue.result(task.id)
            print(f"{key:<8}{found.status:<11}attempts failed: {found.attempts}  result: {result.data}")
        stopped = await queue.get(watching.id)
        print(f"{'watch':<8}{stopped.status:<11}because: {stopped.cancel_reason}")
        dag = await queue.dag((await queue.get(made["page"].id)).dag_id)
        print(f"The DAG is {dag.status}: {dag.done} of {dag.total} tasks, {dag.spent_usd:.2f} USD.")


async def wait_until(queue: AnyQueue, task_id: str, status: str) -> None:
    while (await queue.get(task_id)).status != status:
        await asyncio.sleep(0.05)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("SHIFTWORK_STORE", "sqlite:///fleet.db")))
