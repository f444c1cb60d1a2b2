"""A task waits briefly for a better suited agent, and only while such an agent claims work."""

import pytest

from shiftwork import Queue
from shiftwork.engine.claim_requests import Wanted, for_agent
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import take

PATIENCE = 30
SPEC = {"constraints": {"model_preferences": ["gpt-4o"], "fallback_models": ["claude-haiku"]}}
JUDGED = {"type": "json", "validation": "llm-judge", "validation_schema": {"criteria": "is it so"}}


async def fail_once(queue: Queue, clock: MovedClock, agent: str, **options: object) -> str:
    """A task that this agent failed and that is ready again; its id."""
    task_id = (await queue.submit(type="Generation")).id
    await queue.fail((await take(queue, agent, **options)).token, "network")
    clock.advance(8)
    await queue.agents.heartbeat("first")
    await queue.agents.heartbeat("second")
    await pass_time(queue, clock, 0)
    return task_id


async def register_two(queue: Queue) -> None:
    for name in ("first", "second"):
        await queue.agents.register(id=name)


@pytest.mark.requirement("C-172")
async def test_retry_is_reserved_for_another_agent_only_briefly(coscientist: Queue, clock: MovedClock) -> None:
    await register_two(coscientist)
    task_id = await fail_once(coscientist, clock, "first")
    assert await coscientist.claim("first") == []
    clock.advance(PATIENCE - 1)
    assert await coscientist.claim("first") == []
    clock.advance(1)
    assert (await take(coscientist, "first")).id == task_id


async def test_retry_does_not_wait_for_agent_claiming_other_types(coscientist: Queue, clock: MovedClock) -> None:
    await register_two(coscientist)
    assert await coscientist.claim("second", types=["Ranking"]) == []
    task_id = await fail_once(coscientist, clock, "first", types=["Generation"])
    assert (await take(coscientist, "first", types=["Generation"])).id == task_id


async def test_retry_does_not_wait_for_agent_that_never_claims(coscientist: Queue, clock: MovedClock) -> None:
    await register_two(coscientist)
    for _ in range(3):
        clock.advance(25)
        await coscientist.agents.heartbeat("second")
    task_id = await fail_once(coscientist, clock, "first")
    assert (await take(coscientist, "first")).id == task_id


async def test_retry_waits_for_agent_that_claimed_its_type(coscientist: Queue, clock: MovedClock) -> None:
    await register_two(coscientist)
    clock.advance(120)
    assert await coscientist.claim("second", types=["Generation"]) == []
    task_id = await fail_once(coscientist, clock, "first")
    assert await coscientist.claim("first") == []
    assert (await take(coscientist, "second", types=["Generation"])).id == task_id


async def test_explain_names_the_preference_wait_and_its_end(coscientist: Queue, clock: MovedClock) -> None:
    await register_two(coscientist)
    task_id = await fail_once(coscientist, clock, "first")
    (hold,) = (await coscientist.explain(task_id)).holds
    assert (hold.kind, hold.until) == ("preference", clock() + PATIENCE)
    assert "second" in hold.what
    assert "first failed at it" in hold.what
    clock.advance(PATIENCE)
    assert (await coscientist.explain(task_id)).holds == []


async def test_rerank_does_not_restart_the_preference_wait(coscientist: Queue, clock: MovedClock) -> None:
    await register_two(coscientist)
    await coscientist.settings.set("escalation", [{"after_sec": 20, "to_level": "high"}])
    task_id = await fail_once(coscientist, clock, "first")
    clock.advance(PATIENCE - 1)
    assert (await pass_time(coscientist, clock, 0))["rerank"] == {"reranked": 1}
    assert await coscientist.claim("first") == []
    clock.advance(1)
    assert (await take(coscientist, "first")).id == task_id


async def test_empty_claim_reports_when_the_preference_wait_ends(coscientist: Queue, clock: MovedClock) -> None:
    await register_two(coscientist)
    await fail_once(coscientist, clock, "first")
    clock.advance(10)
    assert (await for_agent(coscientist.executor, "first", None, Wanted(1))).look_again_sec == PATIENCE - 10


async def test_author_judges_its_output_when_other_judges_claim_other_types(factory: Queue, clock: MovedClock) -> None:
    for name in ("ada", "bob"):
        await factory.agents.register(id=name, capabilities=["judge"])
    assert await factory.claim("bob", types=["code"]) == []
    made = await factory.submit(type="docs", output=JUDGED)
    await factory.complete((await take(factory, "ada")).token, {"a": 1})
    judge = await take(factory, "ada")
    await factory.complete(judge.token, {"verdict": "accept"})
    assert (await factory.get(made.id)).status == "completed"


async def test_output_waits_briefly_for_another_judge(factory: Queue, clock: MovedClock) -> None:
    for name in ("ada", "bob"):
        await factory.agents.register(id=name, capabilities=["judge"])
    made = await factory.submit(type="docs", output=JUDGED)
    await factory.complete((await take(factory, "ada")).token, {"a": 1})
    (judging,) = (await factory.explain(made.id)).holds
    assert await factory.claim("ada") == []
    (hold,) = (await factory.explain(judging.tasks[0])).holds
    assert (hold.kind, hold.until) == ("preference", clock() + PATIENCE)
    clock.advance(PATIENCE)
    assert (await take(factory, "ada")).id == judging.tasks[0]


@pytest.mark.requirement("F-018")
async def test_model_no_agent_has_does_not_block_a_task(factory: Queue) -> None:
    await factory.agents.register(id="ada", models_available=["claude-sonnet-4"])
    task_id = (await factory.submit(type="code", spec={"constraints": {"model_preferences": ["gpt-4o"]}})).id
    held = await take(factory, "ada")
    assert (held.id, held.model) == (task_id, "claude-sonnet-4")
    assert (held.task().spec or {})["constraints"]["model_preferences"] == ["gpt-4o"]


@pytest.mark.requirement("F-018", "F-019")
async def test_task_goes_to_preferred_then_fallback_then_any_model(factory: Queue, clock: MovedClock) -> None:
    models = {"best": "gpt-4o", "small": "claude-haiku", "other": "llama"}
    for agent, model in models.items():
        await factory.agents.register(id=agent, models_available=[model], max_concurrent_tasks=1)
    task_ids = [(await factory.submit(type="code", spec=SPEC)).id for _ in models]
    assert await factory.claim("small") == []
    assert await factory.claim("other") == []
    taken = [await take(factory, "best")]  # and it is free no more
    assert await factory.claim("other") == []
    taken.append(await take(factory, "small"))
    taken.append(await take(factory, "other"))
    assert [held.id for held in taken] == task_ids
    assert [held.model for held in taken] == list(models.values())


@pytest.mark.requirement("F-018")
async def test_task_waits_briefly_for_its_preferred_model(factory: Queue, clock: MovedClock) -> None:
    await factory.agents.register(id="best", models_available=["gpt-4o"])
    await factory.agents.register(id="other", models_available=["llama"])
    task_id = (await factory.submit(type="code", spec=SPEC)).id
    assert await factory.claim("other") == []
    (hold,) = (await factory.explain(task_id)).holds
    assert (hold.kind, hold.until) == ("preference", clock() + PATIENCE)
    assert "best" in hold.what
    clock.advance(PATIENCE)
    assert (await take(factory, "other")).id == task_id


async def test_registered_capabilities_apply_to_claim_without_capabilities(coscientist: Queue) -> None:
    spec = {"constraints": {"required_capabilities": ["protein-folding"]}}
    task_id = (await coscientist.submit(type="Generation", spec=spec)).id
    await coscientist.agents.register(id="plain")
    await coscientist.agents.register(id="folder", capabilities=["protein-folding"])
    assert await coscientist.claim("plain") == []
    assert (await take(coscientist, "folder")).id == task_id
