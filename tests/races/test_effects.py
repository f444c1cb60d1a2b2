"""Concurrent requests for one effect: exactly one performs it, whichever process dies."""

from collections import Counter

import pytest

from shiftwork import Queue
from tests.races.fleet import errors, handles, hire, together

AT_ONCE = 8


async def hired(queue: Queue, count: int) -> list[str]:
    """Start this many tasks and return their tokens."""
    await queue.submit_many([{"type": "order", "retry": {"strategy": "immediate"}}] * count)
    await hire(queue, "worker")
    return [claim.token for claim in await queue.claim("worker", count, start=True)]


@pytest.mark.requirement("R-032")
async def test_only_one_of_many_performs_the_effect(store_url: str) -> None:
    async with handles(store_url, AT_ONCE) as queues:
        tokens = await hired(queues[0], AT_ONCE)
        for round_ in range(5):
            asked = [
                queue.effects.begin(token, key=f"deploy {round_}") for queue, token in zip(queues, tokens, strict=True)
            ]
            statuses = Counter(effect.status for effect in await together(*asked))
            assert statuses == {"new": 1, "in_flight": AT_ONCE - 1}


async def test_only_one_of_many_takes_over_an_abandoned_effect(store_url: str) -> None:
    async with handles(store_url, AT_ONCE) as queues:
        owner, *tokens = await hired(queues[0], AT_ONCE + 1)
        await queues[0].effects.begin(owner, key="deploy")
        await queues[0].cancel(owner.partition(".")[0])
        asked = [queue.effects.begin(token, key="deploy") for queue, token in zip(queues, tokens, strict=True)]
        statuses = Counter(effect.status for effect in await together(*asked))
        assert statuses == {"unknown": 1, "in_flight": AT_ONCE - 1}


async def test_effect_is_finished_or_resolved_but_never_both(store_url: str) -> None:
    async with handles(store_url, 2) as (worker, operator):
        for token in await hired(worker, AT_ONCE):
            await worker.effects.begin(token, key=token)
            await worker.fail(token, "effect_unknown")
            (again,) = await errors(
                operator.effects.resolve(token, happened=True, result="by a person"),
                operator.effects.resolve(token, happened=False),
            )
            assert again in {"wrong_state", "not_found"}


async def test_only_one_of_two_step_results_is_kept(store_url: str) -> None:
    async with handles(store_url, 2) as (one, other):
        (token,) = await hired(one, 1)
        for round_ in range(10):
            name, usage = f"step {round_}", {"cost_usd": 1}
            both = await together(
                one.steps.complete(token, name, "one", usage), other.steps.complete(token, name, "other", usage)
            )
            assert len({step.result for step in both}) == 1
        assert [step.place for step in await one.steps.list(token.partition(".")[0])] == list(range(1, 11))
        await one.complete(token)
        assert (await one.get(token.partition(".")[0])).cost_usd == 10
