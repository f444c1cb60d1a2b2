"""Claiming: which agent gets which task, in which order, and how a waiting agent is woken."""

import asyncio
from typing import Any

import pytest

from shiftwork import Queue
from shiftwork.agents.model import AgentStatus
from shiftwork.limits.model import Closed
from shiftwork.model.errors import AgentUnavailable, AgentUnregistered, InputError
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import finish, submit_dag, take


async def claim_order(queue: Queue) -> list[str | None]:
    """The names that callers gave to all ready tasks, in the order in which they are handed out."""
    await queue.agents.register(id="all", max_concurrent_tasks=None)
    return [assignment.task().external_id for assignment in await queue.claim("all", 100)]


@pytest.mark.requirement("F-003")
async def test_task_stays_ready_until_an_agent_claims_it(queue: Queue, clock: MovedClock) -> None:
    await queue.agents.register(id="idle")
    task_id = (await queue.submit(type="code")).id
    await pass_time(queue, clock, 86_400)
    assert (await queue.get(task_id)).status == "ready"


async def test_each_task_of_a_batch_claim_has_all_its_facts(queue: Queue, clock: MovedClock) -> None:
    """One claim gets a retried task, a task with a dependency, and a plain one."""
    tried = (await queue.submit(type="code")).id
    await queue.fail((await take(queue)).token, "crash", "it broke")
    first = (await queue.submit(type="code")).id
    await finish(queue)
    behind = (await queue.submit(type="code", dependencies=[first])).id
    plain = (await queue.submit(type="code")).id
    await pass_time(queue, clock, 3_600)
    await queue.agents.register(id="b", max_concurrent_tasks=None)
    held = {assignment.id: assignment for assignment in await queue.claim("b", 10)}
    assert held.keys() == {tried, behind, plain}
    assert {id_: each.task().dependencies for id_, each in held.items()} == {tried: [], behind: [first], plain: []}
    assert {id_: len(each.task().failure_history) for id_, each in held.items()} == {tried: 1, behind: 0, plain: 0}
    assert [each.inputs for each in held.values()] == [[], [], []]


@pytest.mark.requirement("F-017", "F-126", "F-132")
async def test_agent_gets_only_tasks_matching_its_capabilities(queue: Queue) -> None:
    capabilities = ["code-execution", "web-search"]
    spec = {"constraints": {"required_capabilities": capabilities}}
    task_id = (await queue.submit(type="code", spec=spec)).id
    await queue.agents.register(id="half", capabilities=["code-execution", "git"])
    await queue.agents.register(id="more", capabilities=[*capabilities, "git"])
    assert await queue.claim("half") == []
    assert (await take(queue, "more")).id == task_id


async def test_task_prefers_agent_with_its_preferred_models(queue: Queue) -> None:
    spec = {"constraints": {"model_preferences": ["claude-sonnet-4", "gpt-4o"]}}
    task_id = (await queue.submit(type="code", spec=spec)).id
    await queue.agents.register(id="small", models_available=["claude-haiku"])
    await queue.agents.register(id="large", models_available=["claude-haiku", "gpt-4o"])
    assert await queue.claim("small") == []
    assert (await take(queue, "large")).id == task_id


async def test_task_for_one_agent_is_not_assigned_to_another(queue: Queue) -> None:
    task_id = (await queue.submit(type="code", target_agent_id="ada")).id
    assert await queue.claim("bob") == []
    assert (await take(queue, "ada")).id == task_id


async def test_agent_claims_only_types_it_registered_or_requested(queue: Queue) -> None:
    review = await queue.submit(type="review")
    code = await queue.submit(type="code")
    await queue.agents.register(id="coder", types=["code"])
    assert (await take(queue, "coder")).id == code.id
    assert await queue.claim("other", types=["test"]) == []
    assert (await take(queue, "other", types=["review"])).id == review.id


async def test_a_claim_stays_in_its_workspace(queue: Queue) -> None:
    await queue.submit(type="code")
    assert await queue.in_workspace("other").claim("worker") == []


@pytest.mark.requirement("F-131")
async def test_only_ready_tasks_are_assigned(queue: Queue) -> None:
    ids = await submit_dag(queue, {"running": [], "pending": ["running"]})
    await queue.submit(type="code", id="retrying")
    await queue.submit(type="code", id="dead", max_attempts=1)
    await queue.submit(type="code", id="cancelled")
    assert (await take(queue, "a")).id == ids["running"]
    await queue.fail((await take(queue, "b")).token, "crash")
    await queue.fail((await take(queue, "c")).token, "crash")
    await queue.cancel("cancelled")
    counts = {"running": 1, "pending": 1, "retrying": 1, "dead_lettered": 1, "cancelled": 1}
    assert (await queue.status()).counts == counts
    assert await queue.claim("d", 10) == []


@pytest.mark.requirement("F-127")
async def test_fifty_concurrent_claims_get_twenty_tasks_once_each(queue: Queue, store_url: str) -> None:
    ids = [made.id for made in await queue.submit_many([{"type": "code"}] * 20)]
    async with Queue.open(store_url) as other:
        answers = await asyncio.gather(*((queue, other)[n % 2].claim(f"agent-{n}") for n in range(50)))
        won = [assignment.id for found in answers for assignment in found]
        while left := await other.claim(f"late-{len(won)}"):
            won += [assignment.id for assignment in left]
    assert sorted(won) == ids


@pytest.mark.requirement("F-136")
async def test_claim_takes_one_task_by_default(queue: Queue) -> None:
    await queue.submit_many([{"type": "code"}] * 3)
    assert len(await queue.claim("worker")) == 1
    assert (await queue.status()).counts == {"claimed": 1, "ready": 2}


@pytest.mark.parametrize("count", [0, -1, 1001, True])
async def test_claim_with_invalid_count_is_refused(queue: Queue, count: int) -> None:
    with pytest.raises(InputError):
        await queue.claim("worker", count)


async def test_assignment_contains_the_whole_task(queue: Queue, clock: MovedClock) -> None:
    fields: dict[str, Any] = {
        "title": "Fix it",
        "payload": {"n": 1},
        "spec": {"prompt": "Do it"},
        "tags": ["a", "b"],
        "idempotency_key": "k",
        "created_by": "human:adam",
        "timeout_sec": 600,
    }
    task_id = (await queue.submit(type="code", **fields)).id
    clock.advance(60)
    (assignment,) = await queue.claim("worker")
    assert assignment.assignment_id == f"{task_id}.1"
    assert assignment.ack_required_by == clock() + 60
    assert assignment.heartbeat_interval_sec == 30
    assert assignment.payload == {"n": 1}
    assert assignment.task() == await queue.get(task_id)
    await queue.start(assignment.token)
    assert (await queue.get(task_id)).claim.execution_deadline == clock() + 600


@pytest.mark.requirement("F-139", "F-140", "F-141", "F-142", "F-144", "F-264")
async def test_registered_agent_is_read_back_unchanged(queue: Queue, clock: MovedClock) -> None:
    capabilities = ["code-execution", "git", "testing", "typescript", "python"]
    await queue.agents.register(
        id="agent_coder_01",
        type="coder",
        capabilities=capabilities,
        models_available=["claude-sonnet-4", "claude-haiku"],
        max_concurrent_tasks=2,
        budget_remaining_usd=45.00,
    )
    (agent,) = await queue.agents.list()
    assert (agent.id, agent.type, agent.status) == ("agent_coder_01", "coder", "active")
    assert sorted(agent.capabilities) == sorted(capabilities)
    assert sorted(agent.models_available) == ["claude-haiku", "claude-sonnet-4"]
    assert (agent.max_concurrent_tasks, agent.current_tasks, agent.idle) == (2, 0, True)
    assert (agent.budget_remaining_usd, agent.poll_interval_sec) == (45.00, 5)
    assert (agent.last_heartbeat, agent.heartbeat_interval_sec) == (clock(), 30)
    await queue.submit(type="code")
    token = (await take(queue, "agent_coder_01")).token
    assert (await queue.agents.list())[0].current_tasks == 1
    await queue.complete(token)
    assert (await queue.agents.list())[0].current_tasks == 0


@pytest.mark.requirement("F-143", "F-222", "F-231")
async def test_agent_holds_at_most_max_concurrent_tasks(queue: Queue) -> None:
    await queue.submit_many([{"type": "code"}] * 4)
    await queue.agents.register(id="two", max_concurrent_tasks=2)
    first, second = await take(queue, "two"), await take(queue, "two")
    nothing = await queue.claims.request("two")
    assert (nothing.assignments, nothing.at_capacity) == ([], True)
    assert len((await queue.tasks.list(status="running")).tasks) == 2
    await queue.complete(first.token)
    await queue.fail(second.token, "crash")
    assert (await queue.agents.list())[0].current_tasks == 0
    assert len(await queue.claim("two", 10)) == 2


@pytest.mark.requirement("F-146", "F-220")
@pytest.mark.parametrize("status", ["draining", "offline"])
async def test_leaving_agent_gets_nothing_new(queue: Queue, status: AgentStatus) -> None:
    await queue.agents.register(id="worker", max_concurrent_tasks=2)
    await queue.submit_many([{"type": "code"}] * 2)
    token = (await take(queue)).token
    await queue.agents.set_status("worker", status)
    assert (await queue.agents.list())[0].status == status
    with pytest.raises(AgentUnavailable):
        await queue.claim("worker")
    await queue.complete(token)
    await queue.agents.set_status("worker", "active")
    assert len(await queue.claim("worker")) == 1


@pytest.mark.requirement("F-147", "F-150")
async def test_heartbeat_of_a_claim_updates_last_heartbeat_of_its_agent(queue: Queue, clock: MovedClock) -> None:
    await queue.agents.register(id="worker")
    clock.advance(30)
    await queue.agents.heartbeat("worker")
    assert (await queue.agents.list())[0].last_heartbeat == clock()
    await queue.submit(type="code")
    (assignment,) = await queue.claim("worker", start=True)
    clock.advance(30)
    await queue.heartbeat(assignment.token)
    assert (await queue.agents.list())[0].last_heartbeat == clock()
    assert assignment.heartbeat_interval_sec == 30


async def test_agent_claim_ttl_overrides_the_workspace_setting(queue: Queue, clock: MovedClock) -> None:
    await queue.agents.register(id="slow", claim_ttl_sec=120)
    await queue.submit(type="code")
    (assignment,) = await queue.claim("slow")
    assert assignment.ack_required_by == clock() + 120


async def test_unregistered_agent_is_refused_when_registration_is_required(queue: Queue) -> None:
    await queue.settings.set("require_registration", True)
    with pytest.raises(AgentUnregistered):
        await queue.claim("stranger")
    await queue.agents.register(id="stranger")
    assert await queue.claim("stranger") == []


@pytest.mark.requirement("F-020", "F-112", "F-135")
async def test_lowest_priority_number_goes_first_then_the_oldest(queue: Queue) -> None:
    for name, priority in (("later", 50), ("background", 90), ("critical", 0), ("last", 50), ("high", 10)):
        await queue.submit(type="code", id=name, priority=priority)
    assert await claim_order(queue) == ["critical", "high", "later", "last", "background"]


async def test_priority_order_holds_across_lanes(queue: Queue) -> None:
    for place in range(30):
        await queue.submit(type=f"type-{place % 7}", id=str(place), priority=place)
    assert await claim_order(queue) == [str(place) for place in range(30)]


async def test_urgent_tasks_in_one_lane_are_not_passed_over(queue: Queue) -> None:
    await queue.submit_many([{"type": f"ordinary-{n % 20}", "priority": 50} for n in range(200)])
    await queue.submit_many([{"type": "urgent", "priority": 1}] * 60)
    await queue.agents.register(id="all", max_concurrent_tasks=None)
    assert {assignment.type for assignment in await queue.claim("all", 60)} == {"urgent"}


@pytest.mark.requirement("F-021", "F-110", "F-113", "F-114", "F-123")
async def test_effective_priority_improves_with_age_without_a_write(queue: Queue, clock: MovedClock) -> None:
    task_id = (await queue.submit(type="code")).id
    seen = []
    for minutes in (0, 10, 50):
        clock.advance(60 * minutes)
        task = await queue.get(task_id)
        seen.append((task.effective_priority, task.priority_parts["age"], task.version))
    assert seen == [(50, 0, 1), (49, 1, 1), (44, 6, 1)]


@pytest.mark.requirement("F-111", "F-116")
async def test_effective_priority_is_the_sum_of_its_parts(queue: Queue, clock: MovedClock) -> None:
    await queue.settings.use_profile("factory")
    deadline = clock() + 1800
    tasks = [
        {"type": "code", "key": "head", "deadline": deadline},
        {"type": "code", "key": "tail", "dependencies": ["head"]},
    ]
    head, _ = await queue.submit_dag({"tasks": tasks})
    boosts = []
    for minutes_left in (10, 5, 1):
        clock.advance(deadline - 60 * minutes_left - clock())
        task = await queue.get(head.id)
        parts = task.priority_parts
        total = parts["base"] - parts["age"] - parts["deadline"] - parts["dependency"]
        assert task.effective_priority == pytest.approx(total)
        assert parts["dependency"] > 0
        boosts.append(parts["deadline"])
    per_minute = [(boosts[1] - boosts[0]) / 5, (boosts[2] - boosts[1]) / 4]
    assert boosts[0] > 0
    assert 0 < per_minute[0] < per_minute[1]


@pytest.mark.parametrize(
    ("priority", "tier"),
    [
        pytest.param(0, "critical", marks=pytest.mark.requirement("F-118")),
        pytest.param(9, "critical", marks=pytest.mark.requirement("F-118")),
        pytest.param(10, "high", marks=pytest.mark.requirement("F-119")),
        pytest.param(29, "high", marks=pytest.mark.requirement("F-119")),
        pytest.param(30, "normal", marks=pytest.mark.requirement("F-120")),
        pytest.param(59, "normal", marks=pytest.mark.requirement("F-120")),
        pytest.param(60, "low", marks=pytest.mark.requirement("F-121")),
        pytest.param(79, "low", marks=pytest.mark.requirement("F-121")),
        pytest.param(80, "background", marks=pytest.mark.requirement("F-122")),
        pytest.param(100, "background", marks=pytest.mark.requirement("F-122")),
    ],
)
async def test_priority_maps_to_its_tier(queue: Queue, priority: int, tier: str) -> None:
    task = await queue.get((await queue.submit(type="code", priority=priority)).id)
    assert (task.priority_tier, task.effective_priority) == (tier, priority)


@pytest.mark.requirement("F-124")
async def test_background_task_becomes_normal_after_five_hours(queue: Queue, clock: MovedClock) -> None:
    task_id = (await queue.submit(type="code", priority=90)).id
    clock.advance(300 * 60)
    assert (await queue.get(task_id)).effective_priority == 60.0
    clock.advance(10 * 60)
    task = await queue.get(task_id)
    assert (task.effective_priority, task.priority_tier) == (59.0, "normal")


@pytest.mark.requirement("F-112", "F-123")
async def test_aged_task_overtakes_newer_more_urgent_task(queue: Queue, clock: MovedClock) -> None:
    await queue.submit(type="code", id="old", priority=60)
    clock.advance(99 * 60)
    await queue.submit(type="code", id="before", priority=50)
    clock.advance(2 * 60)
    await queue.submit(type="code", id="after", priority=50)
    await queue.submit(type="review", id="elsewhere", priority=50)
    assert await claim_order(queue) == ["before", "old", "after", "elsewhere"]


@pytest.mark.requirement("F-125")
async def test_background_task_is_claimed_despite_endless_normal_work(queue: Queue, clock: MovedClock) -> None:
    background = (await queue.submit(type="code", priority=90)).id
    rounds = 0
    while (await queue.get(background)).status == "ready":
        rounds += 1
        clock.advance(20 * 60)
        await queue.submit_many([{"type": "code", "priority": 50}] * 2)
        await finish(queue)
    # Work of round k ranks at 50 + 2k against its 90: the 38 tasks of the first 19 rounds go before it.
    assert rounds == 39


@pytest.mark.requirement("F-117")
async def test_head_of_the_longer_chain_goes_first(queue: Queue) -> None:
    await submit_dag(queue, {"short": [], "s1": ["short"]})
    ids = await submit_dag(queue, {"long": [], "l1": ["long"], "l2": ["l1"], "l3": ["l2"]})
    assert (await take(queue)).id == ids["long"]


async def test_task_near_its_deadline_goes_first(queue: Queue, clock: MovedClock) -> None:
    await queue.submit(type="code", id="due", priority=90, deadline=clock() + 3600)
    await queue.submit(type="code", id="critical", priority=0)
    await pass_time(queue, clock, 3600 - 121)
    (first,) = await queue.claim("early")
    assert first.task().external_id == "critical"
    await queue.release(first.token)
    await pass_time(queue, clock, 1)
    assert await claim_order(queue) == ["due", "critical"]


async def waiting_claim(queue: Queue, agent: str = "worker", **options: Any) -> asyncio.Task[list[Any]]:
    """A claim that found nothing and waits."""
    claim = asyncio.create_task(queue.claim(agent, wait=20, **options))
    waiters = queue.executor.shared.claim_waiters._waiters
    before = len(waiters)
    while len(waiters) == before and not claim.done():  # noqa: ASYNC110  # there is nothing to wait for
        await asyncio.sleep(0)
    return claim


async def answer(claim: asyncio.Task[list[Any]]) -> list[Any]:
    """Return the answer of a waiting claim, which must come long before its timeout."""
    return await asyncio.wait_for(claim, 10)


@pytest.mark.requirement("F-159", "F-162", "F-165", "F-223")
async def test_waiting_claim_is_answered_by_submit_in_another_process(
    queue: Queue, store_url: str, clock: MovedClock
) -> None:
    async with Queue.open(store_url, clock=clock) as other:
        claim = await waiting_claim(queue)
        submitted = await other.submit(type="code")
        (assignment,) = await answer(claim)
        assert assignment.id == submitted.id


@pytest.mark.requirement("F-159", "F-163", "F-164")
async def test_fallback_poll_finds_work_after_a_lost_notification(
    queue: Queue, store_url: str, clock: MovedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_force = {setting.key: setting.value for setting in await queue.settings.list()}
    assert (in_force["wakeup"], in_force["fallback_poll_sec"]) == ("notify", 30)
    await queue.settings.set("fallback_poll_sec", 0.05)
    monkeypatch.setattr(queue.executor.shared.claim_waiters, "wake", lambda *_: None)
    async with Queue.open(store_url, clock=clock) as other:
        claim = await waiting_claim(queue)
        submitted = await other.submit(type="code")
        (assignment,) = await answer(claim)
        assert assignment.id == submitted.id


@pytest.mark.requirement("F-159", "F-223")
async def test_polling_agent_finds_new_work(queue: Queue, store_url: str, clock: MovedClock) -> None:
    await queue.settings.set("wakeup", "poll")
    await queue.settings.set("poll_interval_sec", 0.05)
    async with Queue.open(store_url, clock=clock) as other:
        claim = asyncio.create_task(queue.claim("worker", wait=20))
        submitted = await other.submit(type="code")
        (assignment,) = await answer(claim)
        assert assignment.id == submitted.id
        assert not queue.executor.shared.claim_waiters._waiters


async def test_waiting_claim_is_answered_by_dependency_and_retry_becoming_ready(
    queue: Queue, clock: MovedClock
) -> None:
    ids = await submit_dag(queue, {"first": [], "then": ["first"]})
    running = await take(queue, "other")
    claim = await waiting_claim(queue)
    await queue.complete(running.token)
    (assignment,) = await answer(claim)
    assert assignment.id == ids["then"]
    await queue.start(assignment.token)
    await queue.fail(assignment.token, "crash")
    claim = await waiting_claim(queue)
    await pass_time(queue, clock, 15)
    assert [again.id for again in await answer(claim)] == [ids["then"]]


async def test_wakeup_is_passed_on_to_an_agent_that_can_take_the_task(queue: Queue) -> None:
    await queue.agents.register(id="able", capabilities=["git"])
    unable = [await waiting_claim(queue, f"unable-{n}") for n in range(3)]
    able = await waiting_claim(queue, "able")
    spec = {"constraints": {"required_capabilities": ["git"]}}
    submitted = await queue.submit(type="code", spec=spec)
    (assignment,) = await answer(able)
    assert assignment.id == submitted.id
    for claim in unable:
        claim.cancel()
    await asyncio.gather(*unable, return_exceptions=True)


async def test_one_batch_answers_all_waiting_claims(queue: Queue) -> None:
    claims = [await waiting_claim(queue, f"agent-{n}") for n in range(5)]
    submitted = await queue.submit_many([{"type": "code"}] * 5)
    answers = [await answer(claim) for claim in claims]
    assert sorted(assignment.id for found in answers for assignment in found) == [made.id for made in submitted]


async def test_claim_wait_without_work_returns_empty_and_is_bounded(queue: Queue) -> None:
    assert await queue.claim("worker", wait=0.01) == []
    with pytest.raises(InputError):
        await queue.claim("worker", wait=26)


async def test_resume_wakes_waiting_claims_of_a_paused_queue(queue: Queue) -> None:
    await queue.submit(type="code")
    await queue.control.pause()
    nothing = await queue.claims.request("worker")
    assert (nothing.assignments, nothing.closed) == ([], (Closed("paused", "*"),))
    claim = await waiting_claim(queue)
    await queue.control.resume()
    assert len(await answer(claim)) == 1
