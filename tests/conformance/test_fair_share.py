"""Fair share: a flood of one submitter delays the others by at most one round."""

import pytest

from shiftwork import Queue
from shiftwork.fairness import policy
from shiftwork.model.errors import InputError
from shiftwork.settings.model import FairShare
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import ids_in_order, sql, take

SHARES = 64
FLOOD = 500


async def share_by(queue: Queue, by: str, shares: int = SHARES) -> None:
    await queue.settings.set("fair_share.by", by)
    await queue.settings.set("fair_share.shares", shares)


async def flood(queue: Queue, count: int = FLOOD, **fields: object) -> list[str]:
    return [made.id for made in await queue.submit_many([{"type": "code", **fields}] * count)]


async def authors(queue: Queue, count: int) -> list[str | None]:
    """Return the authors of the next tasks, one claim each."""
    await queue.agents.register(id="taker", max_concurrent_tasks=100_000)
    return [(await queue.claim("taker"))[0].task().created_by for _ in range(count)]


async def test_one_task_behind_a_flood_waits_one_turn(queue: Queue, clock: MovedClock) -> None:
    await share_by(queue, "created_by")
    await flood(queue, created_by="alice", priority=0)
    assert await authors(queue, 5) == ["alice"] * 5
    clock.advance(60)
    await flood(queue, 1, created_by="bob", priority=100)
    assert "bob" in await authors(queue, 2)


async def test_each_share_gets_equal_turns_regardless_of_backlog(queue: Queue) -> None:
    await share_by(queue, "created_by")
    names = ["alice", "bob", "carol"]
    assert len({policy.share_of(FairShare(by="created_by", shares=SHARES), name, None, []) for name in names}) == 3
    for name, count in zip(names, (FLOOD, 20, 20), strict=True):
        await flood(queue, count, created_by=name)
    handed = await authors(queue, 60)
    for first in range(0, 60, 3):
        assert sorted(map(str, handed[first : first + 3])) == names


async def test_large_claim_divides_shares_like_many_small_ones(queue: Queue) -> None:
    await share_by(queue, "issue_id")
    for issue, count in (("a", 100), ("b", 10), ("c", 2)):
        await flood(queue, count, issue_id=issue)
    await queue.agents.register(id="taker", max_concurrent_tasks=1000)
    handed = [assignment.task().issue_id for assignment in await queue.claim("taker", 12)]
    assert {issue: handed.count(issue) for issue in "abc"} == {"a": 5, "b": 5, "c": 2}


async def test_within_a_share_highest_priority_goes_first(queue: Queue) -> None:
    await share_by(queue, "tag:team-")
    low, high = [(await flood(queue, 1, tags=["team-a"], priority=p))[0] for p in (90, 10)]
    other = (await flood(queue, 1, tags=["team-b", "x"], priority=50))[0]
    order = await ids_in_order(queue)
    assert order.index(high) < order.index(low)
    assert order.index(other) < 2


async def test_shares_hold_across_types_and_specialised_agents(queue: Queue) -> None:
    """An agent that can only run one share must not use up the turns of the others."""
    await share_by(queue, "created_by")
    for name in ("alice", "bob", "carol"):
        await flood(queue, 50, created_by=name)
    await flood(queue, 50, created_by="alice", type="draw")
    await queue.agents.register(id="artist", types=["draw"], max_concurrent_tasks=1000)
    await queue.agents.register(id="coder", types=["code"], max_concurrent_tasks=1000)
    handed: list[str] = []
    for _ in range(30):
        await queue.claim("artist")
        handed.append(str((await queue.claim("coder"))[0].task().created_by))
    assert {handed.count(name) for name in ("alice", "bob", "carol")} == {10}


async def test_fair_share_never_overrides_strict_level_or_deadline(coscientist: Queue, clock: MovedClock) -> None:
    await share_by(coscientist, "created_by")
    high = [
        (await coscientist.submit(type="a", priority=20, created_by="alice", payload={"n": n})).id for n in range(5)
    ]
    low = (await coscientist.submit(type="a", priority=70, created_by="bob", payload={"n": "low"})).id
    urgent = await coscientist.submit(
        type="a", priority=70, created_by="alice", payload={"n": "urgent"}, deadline=clock() + 60
    )
    order = await ids_in_order(coscientist)
    assert order == [urgent.id, *high, low]


async def test_tasks_from_before_the_setting_form_their_own_share(queue: Queue) -> None:
    old = await flood(queue, 20)
    await share_by(queue, "created_by")
    new = await flood(queue, 20, created_by="alice")
    order = (await ids_in_order(queue))[:10]
    assert sum(task in old for task in order) == sum(task in new for task in order) == 5


async def test_with_fair_share_off_rank_alone_decides(queue: Queue, clock: MovedClock) -> None:
    await share_by(queue, "created_by")
    first = await flood(queue, 10, created_by="alice")
    clock.advance(60)
    second = await flood(queue, 10, created_by="bob")
    await queue.settings.set("fair_share.by", "none")
    assert await ids_in_order(queue) == [*first, *second]


async def test_retried_task_stays_in_its_share(queue: Queue, clock: MovedClock) -> None:
    await share_by(queue, "created_by")
    await flood(queue, 20, created_by="alice")
    failed = (await flood(queue, 1, created_by="bob"))[0]
    taken = [await take(queue, f"w{n}") for n in range(2)]
    mine = next(each for each in taken if each.id == failed)
    await queue.fail(mine.token, "crash")
    await pass_time(queue, clock, 30)
    assert failed in [(await take(queue, f"v{n}")).id for n in range(2)]


async def test_changed_tag_changes_the_share(queue: Queue) -> None:
    await share_by(queue, "tag:team-")
    many = await flood(queue, 20, tags=["team-a"])
    moved = many[-1]
    await queue.tasks.update(moved, {"tags": ["team-b"]})
    await queue.agents.register(id="taker", max_concurrent_tasks=10)
    assert moved in [assignment.id for assignment in await queue.claim("taker", 2)]


async def test_lane_count_is_bounded_and_fairness_still_holds(queue: Queue) -> None:
    await share_by(queue, "created_by")
    tasks = [
        {"type": f"type-{n % 10}", "created_by": f"author-{n}", "spec": {"constraints": {"required_capabilities": [c]}}}
        for n in range(400)
        for c in ("x", "y")
    ]
    await queue.submit_many(tasks)
    lanes = await sql(queue, "select mixed, count(*) as number from lanes group by mixed order by mixed")
    assert lanes[0]["number"] <= 256
    assert sum(row["number"] for row in lanes) <= 256 + 10 * SHARES
    await queue.agents.register(id="taker", capabilities=["x"], max_concurrent_tasks=1000)
    handed = await queue.claim("taker", 40)
    assert len({assignment.task().created_by for assignment in handed}) == 40
    assert all("y" not in str(assignment.spec) for assignment in handed)


async def test_invalid_fair_share_setting_is_refused(queue: Queue) -> None:
    for key, value in (("fair_share.by", "payload.x"), ("fair_share.by", "tag:"), ("fair_share.shares", 65)):
        with pytest.raises(InputError) as refused:
            await queue.settings.set(key, value)
        assert refused.value.where == key
    with pytest.raises(InputError, match="cannot be set for one type"):
        await queue.settings.set("fair_share.by", "created_by", type="code")


async def test_explain_names_the_share_and_position(queue: Queue) -> None:
    await share_by(queue, "created_by")
    ids = await flood(queue, 3, created_by="alice")
    await flood(queue, 3, created_by="bob")
    found = await queue.explain(ids[2])
    assert found.position == 2
    assert found.share is not None
    assert found.share.by == "created_by"
    assert found.share.waiting == 2


async def test_runtime_claim_serves_each_agent_regardless_of_shares(queue: Queue) -> None:
    await share_by(queue, "created_by")
    await queue.submit_many(
        [{"type": "code", "created_by": f"author-{n}", "target_agent_id": "crowded"} for n in range(200)]
    )
    await queue.submit(type="code", target_agent_id="lonely")
    answer = await queue.claims.for_runtime("machine", 10)
    assert sorted(str(each.task().claim.agent_id) for each in answer.assignments) == ["crowded", "lonely"]
