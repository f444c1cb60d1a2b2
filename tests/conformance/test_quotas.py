"""Quotas: what a workspace may store and submit, enforced for every way to create tasks."""

from __future__ import annotations

from typing import Any

import pytest

from shiftwork import Queue
from shiftwork.limits import quota_policy as policy
from shiftwork.limits import quotas
from shiftwork.model.errors import InputError, QuotaExceeded, TooManyRequests
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import everything, take


async def test_task_quota_refuses_submit_over_the_maximum(queue: Queue) -> None:
    await queue.quotas.set("default", max_tasks=3)
    await queue.submit_many([{"type": "noop"}, {"type": "noop"}])
    before = await everything(queue)
    with pytest.raises(QuotaExceeded) as refused:
        await queue.submit_many([{"type": "noop"}, {"type": "noop"}])
    assert await everything(queue) == before, "all or nothing"
    assert refused.value.facts == {"quota": 3, "used": 2}
    await queue.submit(type="noop")
    assert (await queue.quotas.get()).tasks == 3
    await queue.in_workspace("other").submit_many([{"type": "noop"}] * 5)


async def test_purged_tasks_free_quota(queue: Queue) -> None:
    await queue.settings.change({"purge.mode": "delete"})
    await queue.quotas.set("default", max_tasks=2)
    await queue.submit_many([{"type": "noop"}, {"type": "noop"}])
    await queue.control.purge(type="noop")
    await queue.submit(type="noop")
    assert (await queue.quotas.get()).tasks == 1


async def test_quota_usage_is_recounted_rarely_when_full(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    counted, count = [], quotas.count

    def noted(*given: Any) -> Any:
        counted.append(given)
        return count(*given)

    monkeypatch.setattr(quotas, "count", noted)
    await queue.quotas.set("default", max_tasks=1)
    await queue.submit(type="noop")
    for _ in range(5):
        with pytest.raises(QuotaExceeded):
            await queue.submit(type="noop")
    assert len(counted) == 2, "when it was set, and once for all that were refused"


async def test_duplicate_submit_uses_no_quota(queue: Queue) -> None:
    await queue.quotas.set("default", max_tasks=1, submits_per_minute=1)
    first = await queue.submit(type="noop", idempotency_key="k")
    again = await queue.submit(type="noop", idempotency_key="k")
    assert (again.id, again.duplicate) == (first.id, True)


async def test_spawned_tasks_count_against_the_quota(queue: Queue) -> None:
    await queue.quotas.set("default", max_tasks=2)
    await queue.submit(type="noop")
    held = await take(queue)
    await queue.spawn(held.token, [{"type": "noop"}])
    with pytest.raises(QuotaExceeded):
        await queue.spawn(held.token, [{"type": "noop"}])


async def test_triggered_tasks_count_against_the_quota(queue: Queue) -> None:
    await queue.quotas.set("default", max_tasks=1)
    await queue.triggers.save("nightly", on={"kind": "cron", "at": "@daily"}, task={"type": "noop"})
    await queue.triggers.fire("nightly")
    with pytest.raises(QuotaExceeded):
        await queue.triggers.fire("nightly")


async def test_tasks_and_artifacts_share_the_byte_quota(queue: Queue) -> None:
    await queue.quotas.set("default", max_bytes=10_000)
    await queue.submit(type="noop", payload={"text": "x" * 6000})
    with pytest.raises(QuotaExceeded):
        await queue.submit(type="noop", payload={"text": "x" * 6000})
    with pytest.raises(QuotaExceeded):
        await queue.artifacts.put(b"y" * 6000)
    kept = await queue.artifacts.put(b"y" * 3000)
    assert (await queue.artifacts.put(b"y" * 3000)).id == kept.id, "known content takes no room"
    used = (await queue.quotas.get()).bytes
    assert used is not None
    assert 9000 < used <= 10_000


async def test_submit_rate_is_limited_per_minute(queue: Queue, clock: MovedClock) -> None:
    await queue.quotas.set("default", submits_per_minute=60)
    await queue.submit_many([{"type": "noop"}] * 50)
    with pytest.raises(TooManyRequests) as refused:
        await queue.submit_many([{"type": "noop"}] * 20)
    assert refused.value.facts["retry_after"] == pytest.approx(10)
    clock.advance(10)
    await queue.submit_many([{"type": "noop"}] * 20)
    with pytest.raises(TooManyRequests):
        await queue.submit(type="noop")
    with pytest.raises(QuotaExceeded, match="61 tasks at once"):
        await queue.submit_many([{"type": "noop"}] * 61)


async def test_quota_can_be_shown_changed_and_removed(queue: Queue) -> None:
    assert (await queue.status()).quota is None
    await queue.quotas.set("default", max_tasks=3, submits_per_minute=9)
    shown = await queue.quotas.get()
    assert (shown.max_tasks, shown.max_bytes, shown.submits_per_minute, shown.room) == (3, None, 9, 9)
    assert (await queue.status(fresh=True)).quota == shown
    assert await queue.quotas.list() == [shown]
    assert await queue.in_workspace("other").quotas.list() == [shown], "all of them, for the operator"
    await queue.quotas.set("default")
    assert await queue.quotas.list() == []
    await queue.submit_many([{"type": "noop"}] * 5)
    events = (await queue.events()).events
    assert [event.data for event in events if event.verb == "quota_set"] == [
        {"max_tasks": 3, "submits_per_minute": 9},
        {},
    ]


@pytest.mark.parametrize("wrong", [{"max_tasks": 0}, {"max_bytes": -1}, {"submits_per_minute": 1.5}])
async def test_invalid_quota_is_refused(queue: Queue, wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        await queue.quotas.set("default", **wrong)


async def test_clock_going_back_gives_no_extra_submits(queue: Queue, clock: MovedClock) -> None:
    await queue.quotas.set("default", submits_per_minute=60)
    await queue.submit_many([{"type": "noop"}] * 60)
    clock.advance(-3600)
    with pytest.raises(TooManyRequests):
        await queue.submit(type="noop")


def test_submit_rate_refills_evenly() -> None:
    assert policy.refilled(0.0, 60, 1.0) == 1.0
    assert policy.refilled(59.0, 60, 600.0) == 60.0
    assert policy.wait_for(10, 4.0, 60) == 6.0


async def test_excessive_usage_is_refused(queue: Queue, clock: MovedClock) -> None:
    """A worker is trusted with its tasks, not with the accounts of the whole workspace."""
    await queue.submit(type="noop", timeout_sec=1e6)
    held = await take(queue)
    for usage in ({"cost_usd": 9e12}, {"cost_usd": 100_001}, {"tokens_in": 10**13}):
        with pytest.raises(InputError):
            await queue.heartbeat(held.token, usage=usage)
    for _ in range(10):
        await queue.heartbeat(held.token, usage={"cost_usd": 100_000})
    with pytest.raises(InputError, match="at most 1,000,000 dollars"):
        await queue.heartbeat(held.token, usage={"cost_usd": 1})
    await pass_time(queue, clock, 0)
    assert (await queue.get(held.id)).cost_usd == 1_000_000
