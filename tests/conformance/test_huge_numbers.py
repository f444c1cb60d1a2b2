"""Integers of hundreds of digits are refused like any number that is too large."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from shiftwork import Queue
from shiftwork.model.errors import InputError
from tests.conformance.steps import dead_letter, take

HUGE = 10**400
"""No float can hold it."""

ArtifactUse = Callable[[Queue, str], Awaitable[Any]]


@pytest.mark.parametrize(
    "use",
    [
        lambda queue, _: queue.settings.set("max_attempts", HUGE),
        lambda queue, _: queue.settings.set("retry.initial_delay_sec", HUGE),
        lambda queue, _: queue.submit(type="x", settings={"max_attempts": HUGE}),
        lambda queue, _: queue.submit(type="x", timeout_sec=HUGE),
        lambda queue, _: queue.submit(type="x", priority=HUGE),
        lambda queue, token: queue.waits.wait(token, "w", until=HUGE),
        lambda queue, token: queue.waits.wait(token, "w", signal="s", timeout_sec=HUGE),
        lambda queue, token: queue.heartbeat(token, usage={"cost_usd": HUGE}),
        lambda queue, token: queue.heartbeat(token, usage={"tokens_in": HUGE}),
        lambda queue, _: queue.cooldowns.set("provider:a", HUGE),
    ],
)
async def test_huge_number_is_refused_in_numeric_fields(queue: Queue, use: ArtifactUse) -> None:
    await queue.submit(type="x")
    token = (await take(queue)).token
    with pytest.raises(InputError):
        await use(queue, token)


async def test_huge_review_time_is_refused(queue: Queue) -> None:
    task_id = await dead_letter(queue)
    with pytest.raises(InputError, match=r"out of range \(at at\)"):
        await queue.dead_letters.review(task_id, "retry_later", at=HUGE)


async def test_huge_number_in_content_is_kept_unchanged(queue: Queue) -> None:
    task_id = (await queue.submit(type="x", payload={"a": HUGE})).id
    await queue.complete((await take(queue)).token, {"b": HUGE})
    assert (await queue.get(task_id)).payload == {"a": HUGE}
    assert (await queue.result(task_id)).data == {"b": HUGE}


@pytest.mark.parametrize("data", [{"retry_after": HUGE}, {"status": HUGE}, {"resets_at": HUGE}])
async def test_huge_number_in_failure_data_is_not_a_wait(queue: Queue, data: dict[str, Any]) -> None:
    task_id = (await queue.submit(type="x", max_attempts=1)).id
    await queue.fail((await take(queue)).token, "rate_limit", data=data)
    assert (await queue.get(task_id)).status in {"retrying", "dead_lettered"}
