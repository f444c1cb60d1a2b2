"""Health of agents: missed checks fail an agent, its tasks are reassigned, and a small pool is reported."""

import pytest

from shiftwork import Queue
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import states, take
from tests.conformance.test_watching import emitted, open_alerts


async def status_of(queue: Queue, agent: str) -> str:
    return (await queue.agents.get(agent)).status


@pytest.mark.requirement("C-175", "C-176", "C-179", "C-180")
async def test_third_missed_health_check_marks_agent_failed(coscientist: Queue, clock: MovedClock) -> None:
    queue = coscientist
    await queue.agents.register(id="mule")
    await pass_time(queue, clock, 89)
    assert await status_of(queue, "mule") == "active"
    await pass_time(queue, clock, 1)
    assert await status_of(queue, "mule") == "failed"
    assert (await queue.status()).agents["failed"] == 1
    (alert,) = await open_alerts(queue, "agent_failed")
    assert (alert.message, alert.severity) == ("Agent mule failed", "critical")
    await pass_time(queue, clock, 90)
    assert len(await queue.alerts.list(kind="agent_failed")) == 1


@pytest.mark.requirement("C-173", "C-178")
@pytest.mark.parametrize(("checks", "after"), [(1, 30), (2, 60), (3, 90)])
async def test_tasks_of_a_failed_agent_are_reassigned(
    coscientist: Queue, clock: MovedClock, checks: int, after: float
) -> None:
    queue = coscientist
    await queue.settings.set("health_checks", checks)
    await queue.agents.register(id="mule")
    made = await queue.submit(type="Ranking")
    held = await take(queue, "mule")
    await pass_time(queue, clock, after - 1)
    assert (await queue.get(made.id)).status == "running"
    await pass_time(queue, clock, 1)
    assert await status_of(queue, "mule") == "failed"
    assert (await queue.get(made.id)).status == "ready"
    assert (await states(queue, made.id))[-3:] == ["running", "failed", "ready"]
    assert (await take(queue, "horse")).id == held.id


async def test_heartbeats_claims_and_runtimes_keep_agents_active(queue: Queue, clock: MovedClock) -> None:
    for agent in ("beats", "asks", "hosted", "silent"):
        await queue.agents.register(id=agent)
    await queue.submit_many(
        [{"type": "code", "target_agent_id": "hosted"}, {"type": "code", "target_agent_id": "beats"}]
    )
    beating = await take(queue, "beats")
    await take(queue, "hosted", runtime_id="laptop")
    for _ in range(8):
        await pass_time(queue, clock, 25)
        await queue.heartbeat(beating.token)
        await queue.runtimes.heartbeat("laptop")
        await queue.claim("asks")
    assert {agent.id: agent.status for agent in await queue.agents.list()} == {
        "beats": "active",
        "asks": "active",
        "hosted": "active",
        "silent": "failed",
    }


@pytest.mark.parametrize("sign", ["claim", "beat", "register"])
async def test_failed_agent_is_active_again_after_contact(queue: Queue, clock: MovedClock, sign: str) -> None:
    await queue.agents.register(id="mule")
    await pass_time(queue, clock, 90)
    assert await status_of(queue, "mule") == "failed"
    if sign == "claim":
        await queue.claim("mule")
    elif sign == "beat":
        await queue.runtimes.heartbeat("mule")
    else:
        await queue.agents.register(id="mule")
    assert await status_of(queue, "mule") == "active"
    await pass_time(queue, clock, 30)
    assert await open_alerts(queue, "agent_failed") == []


async def test_unregistered_agent_is_not_health_checked(queue: Queue, clock: MovedClock) -> None:
    await queue.claim("passer-by")
    await pass_time(queue, clock, 1000)
    assert await status_of(queue, "passer-by") == "active"
    assert await queue.alerts.list() == []


@pytest.mark.parametrize("profile", ["loki", "redis", "aegis"])
async def test_profiles_without_health_checks_fail_no_agent(queue: Queue, clock: MovedClock, profile: str) -> None:
    await queue.settings.use_profile(profile)
    await queue.agents.register(id="mule")
    await pass_time(queue, clock, 1000)
    assert await status_of(queue, "mule") == "active"


@pytest.mark.requirement("C-125")
async def test_worker_timeout_bounds_every_silence(coscientist: Queue, clock: MovedClock) -> None:
    await coscientist.settings.change({"heartbeat_timeout_sec": None})
    made = await coscientist.submit(type="Ranking")
    await take(coscientist, "mule")
    await pass_time(coscientist, clock, 299)
    assert (await coscientist.get(made.id)).status == "running"
    await pass_time(coscientist, clock, 1)
    assert (await coscientist.get(made.id)).status == "ready"


@pytest.mark.requirement("C-119", "C-185", "C-186")
async def test_pool_below_minimum_is_reported_once_until_restored(queue: Queue, clock: MovedClock) -> None:
    await queue.settings.set("min_agents", 2)
    await queue.agents.register(id="one")
    await queue.agents.register(id="two")
    await pass_time(queue, clock, 30)
    assert await emitted(queue, "pool.below_minimum") == []
    await queue.agents.set_status("two", "offline")
    await pass_time(queue, clock, 30)
    (alert,) = await open_alerts(queue, "pool_below_minimum")
    assert alert.message == "1 agents are live, at least 2 are required"
    await pass_time(queue, clock, 20)
    assert await emitted(queue, "pool.below_minimum", "pool.restored") == ["pool.below_minimum"]
    await queue.claim("one")
    await queue.agents.register(id="three")
    await pass_time(queue, clock, 30)
    assert await emitted(queue, "pool.below_minimum", "pool.restored") == ["pool.below_minimum", "pool.restored"]
    assert await open_alerts(queue, "pool_below_minimum") == []
