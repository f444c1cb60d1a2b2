"""Shows the queue's verbs at work on one SQLite file: a DAG, a failure that is retried, a worker that goes silent."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from shiftwork.queue.queue import Queue
from shiftwork.testing import MovedClock, pass_time

LANDING_PAGE = {
    "title": "Build a landing page for X",
    "created_by": "human:adam",
    "tasks": [
        {"key": "research", "type": "research", "title": "Research competitors"},
        {"key": "design", "type": "design", "title": "Design a wireframe"},
        {"key": "implement", "type": "code", "title": "Implement the page", "retry": {"jitter": False}},
        {"key": "synthesize", "type": "synthesis", "title": "Synthesize", "dependencies": ["research", "design"]},
        {"key": "ship", "type": "deploy", "title": "Test and deploy", "dependencies": ["implement", "synthesize"]},
    ],
}


def say(text: str) -> None:
    print(text)  # noqa: T201  # a demo talks


async def main() -> None:
    clock = MovedClock()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "demo.db"
        async with await Queue.open(f"sqlite:///{path}", clock=clock) as queue:
            await _run(queue, clock)


async def _run(queue: Queue, clock: MovedClock) -> None:
    say("A DAG of five tasks goes in, all or nothing.")
    tasks = await queue.as_caller("human:adam").submit_dag(LANDING_PAGE)
    names = {task.id: str(task.key) for task in tasks}
    for task in tasks:
        say(f"  {task.key:<11} {task.status}")
    await _a_worker_goes_silent(queue, clock, names)
    await _drain(queue, clock, names)
    dag = await queue.dag(str(tasks[0].dag_id))
    say(f"\nThe DAG is {dag.status}: {dag.done} of {dag.total} done, {dag.spent_usd:.2f} USD spent.")
    say("\nWhat happened to `implement`, from the event log:")
    for event in await queue.history(next(id_ for id_, key in names.items() if key == "implement")):
        say(f"  {' > '.join(event.path) or event.verb:<34} by {event.actor}  {event.reason or ''}")


async def _a_worker_goes_silent(queue: Queue, clock: MovedClock, names: dict[str, str]) -> None:
    (lost,) = await queue.claim("zombie", start=True, types=["code"])
    say(f"\nAgent zombie takes {names[lost.id]} and goes silent. The clock is moved by 91 seconds.")
    await pass_time(queue, clock, 91)
    task = await queue.get(lost.id)
    say(
        f"  {names[lost.id]} is {task.status} after {task.failure_reason}, attempt {task.attempts} of {task.max_attempts}"
    )
    explanation = await queue.explain(task.id)
    say(f"  explain says: {explanation.summary}")
    await pass_time(queue, clock, 60)
    try:
        await queue.complete(lost.token, "too late")
    except Exception as error:  # noqa: BLE001  # any error is shown: that is the point
        say(f"  the zombie comes back: {error}")


async def _drain(queue: Queue, clock: MovedClock, names: dict[str, str]) -> None:
    say("\nThree agents work off the rest.")
    await asyncio.gather(*(queue.register_agent(id=f"agent-{n}", max_concurrent_tasks=1) for n in range(1, 4)))
    busy = True
    while busy:
        busy = False
        for agent in ("agent-1", "agent-2", "agent-3"):
            for task in await queue.claim(agent, start=True):
                busy = True
                say(f"  {agent} does {names[task.id]}")
                await queue.complete(task.token, {"by": agent}, usage={"cost_usd": 0.05})
        clock.advance(1)


if __name__ == "__main__":
    asyncio.run(main())
