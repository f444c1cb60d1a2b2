"""Steps that tests of batches take again and again."""

from typing import Any

from shiftwork import Queue
from shiftwork.batches import maintenance
from shiftwork.store import crash_points
from shiftwork.testing import MovedClock

GATHER_SEC = 601.0
MODELS = {"anthropic": "claude-sonnet-4-5", "openai": "gpt-4.1"}


def task(prompt: str, provider: str = "anthropic", model: str | None = None, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": prompt}]
    request = {"model": model or MODELS[provider], "max_tokens": 100, "messages": messages}
    return {"type": "ask", "urgency": "batch", "payload": {"provider": provider, "request": request}, **fields}


async def submit(queue: Queue, *prompts: str, **fields: Any) -> list[str]:
    return [made.id for made in await queue.submit_many([task(prompt, **fields) for prompt in prompts])]


async def turn(queue: Queue, clock: MovedClock | None = None, later: float = 0) -> dict[str, int]:
    """Run the maintenance job after this many seconds."""
    if clock is not None:
        clock.advance(later)
    engine = queue.engine
    await crash_points.named("batches", engine.store.run(lambda tx: maintenance.elect(tx, engine)))
    return await crash_points.named("batches", maintenance.run(engine))


async def statuses(queue: Queue, tasks: list[str]) -> list[str]:
    return [(await queue.get(task_id)).status for task_id in tasks]
