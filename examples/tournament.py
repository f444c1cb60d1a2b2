"""A co-scientist's tournament: propose ideas, judge them in pairs, rank them by Elo, and refine the best.

    python tournament.py sqlite:///tournament.db          # or postgresql://…, or http://127.0.0.1:8080

The tournament is one task that spawns one round of subtasks at a time and waits for them without occupying a slot. A
crash loses at most the subtasks that were running. Instead of asking models, the judges use a made-up score.
"""

import asyncio
import itertools
import sys
from typing import Any

from shiftwork import open_queue
from shiftwork.worker import Context, Worker

worker = Worker(concurrency=8)

STRANDS = ("light", "heat", "sound", "smell")
VERDICT = {
    "type": "object",
    "required": ["winner", "why"],
    "properties": {"winner": {"type": "integer", "minimum": 0}, "why": {"type": "string", "minLength": 1}},
}


def worth(idea: str) -> int:
    """Simulate an expert's rating."""
    return sum(map(ord, idea)) % 101


@worker.handler("tournament")
async def tournament(ctx: Context) -> dict[str, Any]:
    """Run the rounds in order: the handler runs from the top until every round is complete."""
    goal = ctx.payload["goal"]
    proposed = await a_round(ctx, "propose", [{"goal": goal, "strand": strand} for strand in STRANDS])
    ideas = sorted(proposed)
    pairs = itertools.combinations(range(len(ideas)), 2)
    verdicts = await a_round(ctx, "judge", [{"pair": pair, "ideas": [ideas[i] for i in pair]} for pair in pairs])
    ranking = ranked(len(ideas), verdicts)
    best = [ideas[place] for place, _ in ranking[:2]]
    refined = await a_round(ctx, "refine", [{"idea": idea} for idea in best])
    return {"ranking": [(ideas[place], round(rating)) for place, rating in ranking], "refined": sorted(refined)}


async def a_round(ctx: Context, kind: str, payloads: list[dict[str, Any]]) -> list[Any]:
    """Return the results of one kind of subtask; the first time, spawn them and end the handler here."""
    done = [subtask.data for subtask in await ctx.subtasks() if subtask.type == kind]
    if not done:
        await ctx.spawn_and_wait([a_task(kind, payload) for payload in payloads])
    return done


def a_task(kind: str, payload: dict[str, Any]) -> dict[str, Any]:
    task: dict[str, Any] = {"type": kind, "payload": payload, "retry": {"strategy": "immediate"}}
    if kind == "judge":  # an answer that is not a valid verdict is a failed attempt
        task["output"] = {"type": "json", "validation": "json-schema", "validation_schema": VERDICT}
    return task


def ranked(count: int, verdicts: list[dict[str, Any]]) -> list[tuple[int, float]]:
    """Return the indexes of the ideas with their Elo ratings, the best first."""
    ratings = dict.fromkeys(range(count), 1200.0)
    for verdict in sorted(verdicts, key=lambda each: (each["winner"], each["loser"])):
        winner, loser = verdict["winner"], verdict["loser"]
        expected = 1 / (1 + 10 ** ((ratings[loser] - ratings[winner]) / 400))
        ratings[winner] += 32 * (1 - expected)
        ratings[loser] -= 32 * (1 - expected)
    return sorted(ratings.items(), key=lambda each: -each[1])


@worker.handler("propose")
async def propose(ctx: Context) -> str:
    ctx.spent(cost_usd=0.03)
    return f"{ctx.payload['goal']} by {ctx.payload['strand']}"


@worker.handler("judge")
async def judge(ctx: Context) -> dict[str, Any]:
    """Choose one of two ideas. On its first try, this judge sometimes gives an invalid answer, as models do."""
    (first, second), (one, other) = ctx.payload["pair"], ctx.payload["ideas"]
    ctx.spent(cost_usd=0.01)
    if ctx.task.attempts == 0 and first == 0:
        return {"winner": "both are fine"}
    first_wins = worth(one) >= worth(other)
    winner, loser = (first, second) if first_wins else (second, first)
    return {"winner": winner, "loser": loser, "why": f"{max(worth(one), worth(other))} against the other"}


@worker.handler("refine")
async def refine(ctx: Context) -> str:
    ctx.spent(cost_usd=0.05)
    return f"{ctx.payload['idea']}, and measured twice"


async def main(url: str) -> None:
    async with open_queue(url) as queue:
        task = await queue.submit(type="tournament", payload={"goal": "finding the hive"}, tree_budget_usd=2.0)
        await worker.run(queue, until_idle=True)

        result = (await queue.result(task.id)).data
        for place, (idea, rating) in enumerate(result["ranking"], 1):
            print(f"{place}. {idea} ({rating})")
        print("refined:", "; ".join(result["refined"]))
        played = (await queue.tasks.list(parent=task.id, type="judge")).tasks
        spent = sum(each.cost_usd for each in (await queue.tasks.list(parent=task.id)).tasks)
        refused = sum(each.attempts for each in played)
        print(f"{len(played)} matches, {refused} verdicts refused, {spent:.2f} USD")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "sqlite:///tournament.db"))
