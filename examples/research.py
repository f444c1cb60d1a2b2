"""A research fleet: split a question into sources, read them in parallel, and write a report from all of them.

    python research.py sqlite:///research.db                       # or postgresql://…, or http://127.0.0.1:8080
    shiftwork --store sqlite:///research.db work research:worker   # or: a fleet that keeps running

Every model call is a step: you pay for it once, whatever fails or is killed afterwards. Instead of calling a model,
this example looks up its answers.
"""

import asyncio
import sys
from typing import Any

from shiftwork import open_queue
from shiftwork.worker import Context, Done, Fail, Worker

worker = Worker(concurrency=4)

LIBRARY = {
    "field notes": "Foragers dance in the dark of the hive. The dance has a direction.",
    "a thesis": "The angle of the dance is the angle to the sun. Its length is the distance.",
    "letters": "I have followed them for years. They find the dish every time.",
}
calls: list[str] = []


async def model(ctx: Context, prompt: str, answer: Any) -> Any:
    """Simulate a model: it takes time and money, and its answer may differ on every call."""
    calls.append(prompt)
    await asyncio.sleep(0.01)
    ctx.spent(cost_usd=0.02, tokens_in=len(prompt), tokens_out=len(str(answer)), model="a-model")
    return answer


@worker.handler("research")
async def research(ctx: Context) -> Done:
    """The lead. It occupies no slot while its readers read, and runs again from the top when they are done."""
    question = ctx.payload["question"]
    sources = await ctx.step("plan", model, ctx, f"Where to look: {question}", list(LIBRARY))
    readings = await ctx.spawn_and_wait([reading(source, question) for source in sources])
    notes = [subtask.data for subtask in readings]
    text = " ".join(note["finding"] for note in notes)
    report = await ctx.step("report", model, ctx, f"Answer {question} from {len(notes)} notes", text)
    return Done({"sources": sorted(note["source"] for note in notes)}, text=report)


def reading(source: str, question: str) -> dict[str, Any]:
    """Return a subtask: it joins the DAG of the task that spawns it, and shares its budget."""
    return {
        "type": "read",
        "title": f"Read {source}",
        "payload": {"source": source, "question": question},
        "retry": {"strategy": "immediate"},
    }


@worker.handler("read")
async def read(ctx: Context) -> dict[str, str]:
    """A reader. Fetched text and findings are stored, so a failed attempt costs nothing twice."""
    source = ctx.payload["source"]
    text = await ctx.step("fetch", LIBRARY.__getitem__, source)
    finding = await ctx.step("find", model, ctx, f"What does {source} say?", text.split(". ")[0] + ".")
    if source == "a thesis" and ctx.task.attempts == 0:
        raise Fail("network", "the connection broke after the model had answered")
    return {"source": source, "finding": finding}


async def main(url: str) -> None:
    async with open_queue(url) as queue:
        task = await queue.submit(
            type="research",
            title="How do bees tell each other where to fly?",
            payload={"question": "How do bees tell each other where to fly?"},
            tree_budget_usd=1.0,  # for the task and everything it spawns; work stops when it is spent
        )
        await worker.run(queue, until_idle=True)

        done = await queue.get(task.id)
        result = await queue.result(task.id)
        readers = (await queue.tasks.list(parent=task.id)).tasks
        print(result.text)
        print("from", ", ".join(result.data["sources"]))
        print(f"{len(calls)} calls of the model, {sum(each.attempts for each in readers)} failed attempt")
        steps = [step.name for step in await queue.steps.list(task.id)]
        spent = done.cost_usd + sum(each.cost_usd for each in readers)
        print(f"steps of the lead: {', '.join(steps)}; spent {spent:.2f} USD")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "sqlite:///research.db"))
