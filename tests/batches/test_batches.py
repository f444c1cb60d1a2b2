"""Work that may wait a day: how it is batched, sent, answered and recovered."""

import pytest

from shiftwork import Queue
from shiftwork.maintenance.loop import run_once
from shiftwork.model.errors import InputError, NotFound
from shiftwork.providers.prices import cost_usd
from shiftwork.testing import MovedClock
from tests.batches.fake_provider import TOKENS_IN, TOKENS_OUT, FakeProvider
from tests.batches.steps import GATHER_SEC, MODELS, statuses, submit, task, turn
from tests.conformance.steps import take

DAY = 86_400.0
each_provider = pytest.mark.parametrize("provider", ["anthropic", "openai"])


@each_provider
async def test_tasks_are_sent_together_and_get_their_answers_at_half_the_price(
    queue: Queue, clock: MovedClock, fake: FakeProvider, provider: str
) -> None:
    tasks = await submit(queue, "one", "two", provider=provider)
    await turn(queue)
    assert fake.batches == {}, "it waits for others first"
    tasks += await submit(queue, "three", provider=provider)
    await turn(queue, clock, GATHER_SEC)
    (batch,) = fake.batches.values()
    assert batch.prompts() == ["one", "two", "three"]
    assert await statuses(queue, tasks) == ["running"] * 3
    await turn(queue, clock, 60)
    fake.end()
    await turn(queue, clock, 60)
    done = await queue.get(tasks[1])
    assert done.result is not None
    assert (done.status, done.result.text, done.urgency) == ("completed", "answer to two", "batch")
    assert done.tokens_used == {"input": TOKENS_IN, "output": TOKENS_OUT}
    assert done.cost_usd == pytest.approx(cost_usd(MODELS[provider], TOKENS_IN, TOKENS_OUT) / 2) != 0
    (spent,) = (await queue.budgets.costs("model")).costs
    assert spent.value == MODELS[provider]
    assert spent.cost_usd == pytest.approx(3 * done.cost_usd)
    (shown,) = await queue.batches.list()
    assert (shown.status, shown.requests, shown.open, shown.external_id) == ("ended", 3, 0, batch.id)
    assert shown.cost_usd == pytest.approx(3 * done.cost_usd)


async def test_each_provider_and_model_has_its_own_batch(queue: Queue, clock: MovedClock, fake: FakeProvider) -> None:
    await submit(queue, "a", "b")
    await submit(queue, "c", model="claude-opus-4-5")
    await submit(queue, "d", provider="openai")
    await turn(queue, clock, GATHER_SEC)
    asked = sorted(batch.prompts() for batch in fake.batches.values())
    assert asked == [["a", "b"], ["c"], ["d"]]


async def test_batches_leave_other_work_alone(queue: Queue, clock: MovedClock, fake: FakeProvider) -> None:
    other = await queue.submit(type="code")
    alike = await queue.submit({**task("for an agent"), "urgency": "normal"})
    waiting = await submit(queue, "one")
    await turn(queue, clock, GATHER_SEC)
    assert fake.prompts() == ["one"]
    assert await statuses(queue, [other.id, alike.id, *waiting]) == ["ready", "ready", "running"]
    (hold,) = (await queue.explain(other.id)).holds
    assert (hold.kind, (await queue.explain(other.id)).able_agents) == ("no_agent", [])


async def test_batches_do_not_count_as_a_live_agent(queue: Queue, clock: MovedClock, fake: FakeProvider) -> None:
    await queue.settings.set("min_agents", 1)
    await submit(queue, "one")
    await turn(queue, clock, GATHER_SEC)
    await run_once(queue.engine, force=True)
    (alert,) = [each for each in await queue.alerts.list() if each.kind == "pool_below_minimum"]
    assert alert.message == "0 agents are live, at least 1 are required"


async def test_no_agent_gets_work_of_the_batch_lane(queue: Queue, clock: MovedClock, fake: FakeProvider) -> None:
    (waiting,) = await submit(queue, "one")
    assert await queue.claim("worker") == []
    explained = await queue.explain(waiting)
    assert explained.summary.startswith("it waits to be sent to anthropic in a batch; at the latest until ")
    (cause,) = (await queue.control.blocked()).causes
    assert (cause.kind, cause.what) == ("batch", "it waits to be sent to anthropic in a batch")
    await turn(queue, clock, GATHER_SEC)
    assert await queue.claim("worker") == []
    explained = await queue.explain(waiting)
    assert explained.summary.startswith("it waits in a batch at anthropic since ")
    assert explained.holds[0].until == clock() + DAY


@pytest.mark.parametrize("profile", ["standard", "factory", "redis", "aegis", "coscientist"])
async def test_task_in_a_batch_needs_no_heartbeat(
    queue: Queue, clock: MovedClock, fake: FakeProvider, profile: str
) -> None:
    await queue.settings.use_profile(profile)
    tasks = await submit(queue, "one", timeout_sec=60, idempotency_key="once")
    await turn(queue, clock, GATHER_SEC)
    for _ in range(4):
        clock.advance(DAY / 5)
        await run_once(queue.engine, force=True)
    assert await statuses(queue, tasks) == ["running"]
    fake.end()
    await turn(queue, clock, 60)
    assert await statuses(queue, tasks) == ["completed"]


async def test_work_that_no_batch_takes_goes_to_any_agent_after_a_day(
    queue: Queue, clock: MovedClock, fake: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    (waiting,) = await submit(queue, "one")
    await turn(queue, clock, DAY - 1)
    assert await queue.claim("worker") == []
    await turn(queue, clock, 1)
    assignment = await take(queue)
    assert (assignment.id, assignment.payload["request"]["model"]) == (waiting, MODELS["anthropic"])
    names = [name for event in (await queue.tasks.history(waiting)).events for name in event.names]
    assert "task.batch_missed" in names


@each_provider
async def test_failed_request_of_a_batch_fails_only_its_own_task(
    queue: Queue, clock: MovedClock, fake: FakeProvider, provider: str
) -> None:
    tasks = await submit(queue, "good", "error here", "expires", provider=provider)
    await turn(queue, clock, GATHER_SEC)
    fake.end()
    await turn(queue, clock, 60)
    good, failed, expired = [await queue.get(each) for each in tasks]
    assert good.status == "completed"
    assert (failed.status, failed.attempts) == ("retrying", 1)
    assert "invalid_request_error: max_tokens: too large" in str(failed.last_error)
    assert (expired.status, expired.attempts) == ("ready", 0)
    assert (await take(queue)).id == expired.id, "any agent may take it now"
    (batch,) = await queue.batches.list()
    shown = {each.task_id: each.status for each in (await queue.batches.show(batch.id)).tasks}
    assert list(shown.values()) == ["completed", "failed", "released"]


@each_provider
async def test_expired_batch_leaves_its_tasks_to_any_agent(
    queue: Queue, clock: MovedClock, fake: FakeProvider, provider: str
) -> None:
    tasks = await submit(queue, "one", "two", provider=provider)
    await turn(queue, clock, GATHER_SEC)
    fake.end("expired")
    await turn(queue, clock, DAY)
    assert await statuses(queue, tasks) == ["ready", "ready"]
    assert {(await take(queue, agent)).id for agent in ("first", "second")} == set(tasks)


async def test_overdue_batch_is_cancelled_and_its_finished_answers_are_used(
    queue: Queue, clock: MovedClock, fake: FakeProvider
) -> None:
    tasks = await submit(queue, "one", "expires")
    await turn(queue, clock, GATHER_SEC)
    cancelling = "POST /v1/messages/batches/ID/cancel"
    await turn(queue, clock, DAY - 1)
    assert fake.calls[cancelling] == 0
    await turn(queue, clock, 1)
    await turn(queue, clock, 60)
    assert fake.calls[cancelling] == 1
    fake.end()
    await turn(queue, clock, 60)
    assert await statuses(queue, tasks) == ["completed", "ready"]


async def test_unreadable_batch_releases_its_tasks(
    queue: Queue, clock: MovedClock, fake: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = await submit(queue, "one")
    await turn(queue, clock, GATHER_SEC)
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    clock.advance(DAY + 3601)
    await run_once(queue.engine)
    assert await statuses(queue, tasks) == ["ready"]
    assert (await queue.get(tasks[0])).attempts == 0


async def test_cancelled_task_ends_at_once_and_the_cost_of_its_answer_is_booked(
    queue: Queue, clock: MovedClock, fake: FakeProvider
) -> None:
    gone, kept = await submit(queue, "gone", "kept")
    await turn(queue, clock, GATHER_SEC)
    await queue.cancel(gone)
    fake.end()
    await turn(queue, clock, 60)
    cancelled, completed = await queue.get(gone), await queue.get(kept)
    assert (cancelled.status, completed.status) == ("cancelled", "completed")
    assert cancelled.result is None or cancelled.result.text is None
    assert cancelled.cost_usd == completed.cost_usd != 0
    (batch,) = await queue.batches.list()
    assert [each.status for each in (await queue.batches.show(batch.id)).tasks] == ["late", "completed"]


async def test_task_cancelled_before_its_batch_is_sent_is_not_sent(
    queue: Queue, clock: MovedClock, fake: FakeProvider
) -> None:
    fake.refuse_with = 429
    gone, _ = await submit(queue, "gone", "kept")
    await turn(queue, clock, GATHER_SEC)
    await queue.cancel(gone)
    fake.refuse_with = None
    await turn(queue, clock, 60)
    assert fake.prompts() == ["kept"]


async def test_batch_whose_tasks_are_all_cancelled_is_cancelled(
    queue: Queue, clock: MovedClock, fake: FakeProvider
) -> None:
    tasks = await submit(queue, "one", "two")
    await turn(queue, clock, GATHER_SEC)
    for each in tasks:
        await queue.cancel(each)
    await turn(queue, clock, 60)
    (batch,) = fake.batches.values()
    assert batch.cancelled


async def test_answer_failing_its_validation_is_retried_by_an_agent(
    queue: Queue, clock: MovedClock, fake: FakeProvider
) -> None:
    schema = {"type": "object", "required": ["found"]}
    output = {"type": "json", "validation": "json-schema", "validation_schema": schema}
    good, bad = await submit(queue, "as json", "as prose", output=output)
    await turn(queue, clock, GATHER_SEC)
    fake.end()
    await turn(queue, clock, 60)
    done, failed = await queue.get(good), await queue.get(bad)
    assert done.result is not None
    assert (done.status, done.result.data) == ("completed", {"found": 3})
    assert (failed.status, failed.failure_reason, failed.attempts) == ("retrying", "invalid_output", 1)
    assert failed.cost_usd == done.cost_usd
    clock.advance(3600)
    await run_once(queue.engine)
    assert (await take(queue)).id == bad
    assert len(fake.batches) == 1


async def test_answer_without_a_required_report_is_a_failed_attempt(
    queue: Queue, clock: MovedClock, fake: FakeProvider
) -> None:
    await queue.settings.set("require_decision_report", True)
    (waiting,) = await submit(queue, "one")
    await turn(queue, clock, GATHER_SEC)
    fake.end()
    await turn(queue, clock, 60)
    failed = await queue.get(waiting)
    assert (failed.status, failed.failure_reason, failed.attempts) == ("retrying", "invalid_output", 1)


@pytest.mark.parametrize("status", [401, 429])
async def test_refused_batch_is_sent_again_later(
    queue: Queue, clock: MovedClock, fake: FakeProvider, status: int
) -> None:
    fake.refuse_with = status
    tasks = await submit(queue, "one")
    await turn(queue, clock, GATHER_SEC)
    (batch,) = await queue.batches.list()
    assert batch.status == "gathered"
    assert f"returned {status}" in str(batch.error)
    fake.refuse_with, fake.ends_at_once = None, True
    await turn(queue, clock, 60)
    assert await statuses(queue, tasks) == ["completed"]
    assert fake.prompts() == ["one"]


async def test_batch_refused_by_its_provider_is_left_to_agents(
    queue: Queue, clock: MovedClock, fake: FakeProvider
) -> None:
    fake.refuse_with = 400
    (waiting,) = await submit(queue, "one")
    await turn(queue, clock, GATHER_SEC)
    assert (await take(queue)).id == waiting
    (batch,) = await queue.batches.list()
    assert (batch.status, batch.open) == ("ended", 0)


@each_provider
async def test_batch_whose_answer_was_lost_is_found_and_not_sent_twice(
    queue: Queue, clock: MovedClock, fake: FakeProvider, provider: str
) -> None:
    fake.lose_answers = 1
    tasks = await submit(queue, "one", "two", provider=provider)
    await turn(queue, clock, GATHER_SEC)
    assert (await queue.batches.list())[0].status == "posting"
    for _ in range(3):  # someone else's, of the same size
        fake.create({f"theirs-{n}": {"messages": [{"content": "theirs"}], "model": "m"} for n in range(2)})
    await turn(queue, clock, 60)
    await turn(queue, clock, 900)
    fake.end()
    await turn(queue, clock, 60)
    await turn(queue, clock, 60)
    assert await statuses(queue, tasks) == ["completed", "completed"]
    assert fake.prompts().count("one") == 1


@each_provider
async def test_batch_that_never_arrived_is_sent_again(
    queue: Queue, clock: MovedClock, fake: FakeProvider, provider: str
) -> None:
    fake.refuse_with = 500
    tasks = await submit(queue, "one", provider=provider)
    await turn(queue, clock, GATHER_SEC)
    fake.refuse_with, fake.ends_at_once = None, True
    await turn(queue, clock, 60)
    assert fake.batches == {}, "it may still arrive"
    await turn(queue, clock, 900)
    assert await statuses(queue, tasks) == ["completed"]
    assert fake.prompts() == ["one"]


async def test_only_valid_provider_requests_may_wait_for_a_batch(queue: Queue) -> None:
    for wrong, where in (
        ({"payload": {}}, "payload.provider"),
        ({"payload": {"provider": "other", "request": {}}}, "payload.provider"),
        ({"payload": {"provider": "anthropic"}}, "payload.request"),
        ({"payload": {"provider": "anthropic", "request": {"messages": [1]}}}, "payload.request.model"),
        ({"payload": {"provider": "anthropic", "request": {"model": "m"}}}, "payload.request.messages"),
        ({"target_agent_id": "me"}, "target_agent_id"),
    ):
        with pytest.raises(InputError) as refused:
            await queue.submit({**task("one"), **wrong})
        assert str(refused.value.where).endswith(where)
    assert await queue.batches.list() == []
    with pytest.raises(NotFound):
        await queue.batches.show("nothing")


async def test_private_address_is_refused_unless_it_is_allowed(
    store_url: str, clock: MovedClock, fake: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SHIFTWORK_PRIVATE_SINKS")
    async with Queue.open(store_url, clock=clock) as queue:
        await submit(queue, "one")
        await turn(queue, clock, GATHER_SEC)
        (batch,) = await queue.batches.list()
        assert "SHIFTWORK_PRIVATE_SINKS=1" in str(batch.error)
    assert not fake.calls
