"""Integers of hundreds of digits are refused like any number that is too large, and nothing breaks on them."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from shiftwork import Queue
from shiftwork.core.errors import InputError
from tests.conformance.steps import bury, take

HUGE = 10**400
"""No float can hold it."""

Use = Callable[[Queue, str], Awaitable[Any]]


@pytest.mark.parametrize(
    "use",
    [
        lambda queue, _: queue.set_setting("max_attempts", HUGE),
        lambda queue, _: queue.set_setting("retry.initial_delay_sec", HUGE),
        lambda queue, _: queue.submit(type="x", settings={"max_attempts": HUGE}),
        lambda queue, _: queue.submit(type="x", timeout_sec=HUGE),
        lambda queue, _: queue.submit(type="x", priority=HUGE),
        lambda queue, token: queue.wait(token, "w", until=HUGE),
        lambda queue, token: queue.wait(token, "w", signal="s", timeout_sec=HUGE),
        lambda queue, token: queue.heartbeat(token, usage={"cost_usd": HUGE}),
        lambda queue, token: queue.heartbeat(token, usage={"tokens_in": HUGE}),
        lambda queue, _: queue.cool_down("provider:a", HUGE),
    ],
)
async def test_huge_number_is_refused_where_a_number_counts(queue: Queue, use: Use) -> None:
    await queue.submit(type="x")
    token = (await take(queue)).token
    with pytest.raises(InputError):
        await use(queue, token)


async def test_huge_time_of_a_review_is_refused(queue: Queue) -> None:
    task_id = await bury(queue)
    with pytest.raises(InputError, match="needs a time"):
        await queue.review(task_id, "retry_later", at=HUGE)


async def test_huge_number_in_content_is_kept_as_it_is(queue: Queue) -> None:
    task_id = (await queue.submit(type="x", payload={"a": HUGE})).id
    await queue.complete((await take(queue)).token, {"b": HUGE})
    assert (await queue.get(task_id)).payload == {"a": HUGE}
    assert (await queue.result(task_id)).data == {"b": HUGE}


@pytest.mark.parametrize("data", [{"retry_after": HUGE}, {"status": HUGE}, {"resets_at": HUGE}])
async def test_huge_number_in_a_failure_is_no_time(queue: Queue, data: dict[str, Any]) -> None:
    task_id = (await queue.submit(type="x", max_attempts=1)).id
    await queue.fail((await take(queue)).token, "rate_limit", data=data)
    assert (await queue.get(task_id)).status in {"retrying", "dead_lettered"}
