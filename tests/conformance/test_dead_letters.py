"""Dead letters: what is recorded about them, and the decisions of people."""

import pytest

from shiftwork import Queue
from shiftwork.dead_letters.model import Review
from shiftwork.model.errors import InputError, VersionConflict, WrongState
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import dead_letter, events_named, finish, sql, states, take

EXAMPLE = [
    ("agent_coder_01", "LLM returned invalid JSON", 45, 0.12),
    ("agent_coder_02", "Test suite failed: 3 failures", 120, 0.31),
    ("agent_coder_01", "Timeout after 300s", 300, 0.08),
]


@pytest.mark.requirement(
    "F-180", "F-181", "F-182", "F-183", "F-184", "F-185", "F-186", "F-187", "F-188", "F-189", "F-190",
    "F-191", "C-089", "C-090", "L-082", "L-083",
)  # fmt: skip
async def test_factory_dead_letter_matches_the_documented_example(factory: Queue, clock: MovedClock) -> None:
    task_id = (await factory.submit(type="code")).id
    for agent, error, duration, cost in EXAMPLE:
        token = (await take(factory, agent)).token
        clock.advance(duration)
        await factory.fail(token, "crash", error, usage={"cost_usd": cost})
        await pass_time(factory, clock, 300)
    (letter,) = await factory.dead_letters.list()
    assert (letter.task_id, letter.dag_id) == (task_id, (await factory.get(task_id)).dag_id)
    history = [(f.attempt, f.agent, f.error, f.duration_sec, f.cost_usd) for f in letter.failure_history]
    assert history == [(n, *item) for n, item in enumerate(EXAMPLE, 1)]
    assert letter.total_cost_usd == pytest.approx(0.51)
    assert letter.dead_lettered_at == clock() - 300
    assert (letter.reviewed, letter.resolution, letter.error) == (False, None, "Timeout after 300s")


async def test_dead_letter_keeps_tool_name_payload_and_error(streams: Queue, clock: MovedClock) -> None:
    task_id = await dead_letter(streams, error="refused", tool_name="publish", payload={"page": 7}, idempotency_key="k")
    (letter,) = await streams.dead_letters.list()
    assert (letter.task_id, letter.tool_name, letter.payload) == (task_id, "publish", {"page": 7})
    assert (letter.error, letter.dead_lettered_at) == ("refused", clock())


@pytest.mark.requirement("F-179", "L-081", "C-142")
async def test_dead_letter_is_kept_for_a_year_and_over_a_restart(
    queue: Queue, clock: MovedClock, store_url: str
) -> None:
    task_id = await dead_letter(queue)
    await pass_time(queue, clock, 365 * 86_400)
    await queue.close()
    async with Queue.open(store_url, clock=clock) as reopened:
        assert [letter.task_id for letter in await reopened.dead_letters.list()] == [task_id]
        assert (await reopened.get(task_id)).status == "dead_lettered"


@pytest.mark.requirement("F-195")
async def test_dead_letter_emits_an_event(queue: Queue) -> None:
    task_id = await dead_letter(queue)
    assert await events_named(queue, "task.dead_lettered") == [task_id]


@pytest.mark.requirement("F-192", "L-085", "L-088", "C-091")
async def test_review_retry_resets_attempts_and_keeps_history(queue: Queue, clock: MovedClock) -> None:
    task_id = await dead_letter(queue)
    assert (await queue.dead_letters.review(task_id, "retry")).status == "ready"
    task = await queue.get(task_id)
    assert (task.attempts, task.round, len(task.failure_history)) == (0, 2, 1)
    for expected in ("retrying", "retrying", "dead_lettered"):
        assert (await queue.fail((await take(queue)).token, "crash")).status == expected
        await pass_time(queue, clock, 300)
    first, second = await queue.dead_letters.list(reviewed_too=True)
    assert (first.reviewed, first.resolution, second.reviewed) == (True, "retry", False)
    assert [f.attempt for f in second.failure_history] == [1, 2, 3, 4]


@pytest.mark.requirement("F-193")
async def test_review_cancel_cancels_a_dead_letter(queue: Queue) -> None:
    task_id = await dead_letter(queue)
    assert (await queue.dead_letters.review(task_id, "cancel", note="not needed")).status == "cancelled"
    (letter,) = await queue.dead_letters.list(reviewed_too=True)
    assert (letter.reviewed, letter.resolution) == (True, "cancel")
    task = await queue.get(task_id)
    assert (task.cancel_reason, task.failure_reason) == ("not needed", "cancelled")
    assert await events_named(queue, "task.cancelled") == [task_id]


@pytest.mark.requirement("F-194")
async def test_modified_task_runs_with_the_changed_fields(queue: Queue) -> None:
    task_id = await dead_letter(queue, payload={"file": "wrong.py"}, spec={"prompt": "old"})
    change = {"payload": {"file": "right.py"}, "spec": {"prompt": "new"}, "priority": 5}
    await queue.dead_letters.review(task_id, "modify_and_retry", change=change)
    assignment = await take(queue)
    assert (assignment.id, assignment.payload) == (task_id, {"file": "right.py"})
    assert (assignment.spec or {})["prompt"] == "new"
    assert (await queue.get(task_id)).priority == 5


async def test_modified_retry_rules_apply_at_the_next_failure(queue: Queue, clock: MovedClock) -> None:
    task_id = await dead_letter(queue)
    rules = {"strategy": "fixed", "initial_delay_sec": 33, "jitter": False}
    await queue.dead_letters.review(task_id, "modify_and_retry", change={"retry": rules})
    await queue.fail((await take(queue)).token, "crash")
    assert (await queue.get(task_id)).available_at == clock() + 33


async def test_modified_output_schema_is_checked(queue: Queue) -> None:
    task_id = await dead_letter(queue)
    schema = {"validation": "json-schema", "validation_schema": {"type": "object", "required": ["summary"]}}
    await queue.dead_letters.review(task_id, "modify_and_retry", change={"output": schema})
    await queue.complete((await take(queue)).token, {"other": 1})
    assert (await queue.get(task_id)).failure_reason == "invalid_output"


@pytest.mark.parametrize(
    ("decision", "options", "where"),
    [
        ("forget", {}, "decision"),
        ("retry_later", {}, "at"),
        ("modify_and_retry", {}, "change"),
        ("modify_and_retry", {"change": {"type": "other"}}, "change.type"),
        ("modify_and_retry", {"change": {"nonsense": 1}}, "change"),
    ],
)
async def test_invalid_review_decision_changes_nothing(
    queue: Queue, decision: str, options: dict[str, object], where: str
) -> None:
    task_id = await dead_letter(queue)
    with pytest.raises(InputError) as refused:
        await queue.dead_letters.review(task_id, decision, **options)  # type: ignore[arg-type]  # wrong on purpose
    assert refused.value.where == where
    assert (await queue.get(task_id)).status == "dead_lettered"
    assert await queue.dead_letters.reviews(task_id) == []


@pytest.mark.requirement("L-086")
async def test_review_can_schedule_a_later_retry(queue: Queue, clock: MovedClock) -> None:
    task_id = await dead_letter(queue)
    assert (await queue.dead_letters.review(task_id, "retry_later", at=clock() + 600)).status == "retrying"
    await pass_time(queue, clock, 599)
    assert not await queue.claim("worker")
    await pass_time(queue, clock, 1)
    assert (await take(queue)).id == task_id


@pytest.mark.requirement("L-084")
async def test_deleted_dead_letter_is_hidden_but_its_review_is_kept(queue: Queue) -> None:
    task_id = await dead_letter(queue)
    assert (await queue.dead_letters.review(task_id, "delete")).status == "dead_lettered"
    assert await queue.dead_letters.list(reviewed_too=True) == []
    assert [review.decision for review in await queue.dead_letters.reviews(task_id)] == ["delete"]


async def test_abandoned_dead_letter_stays_listed_as_reviewed(queue: Queue) -> None:
    task_id = await dead_letter(queue)
    assert (await queue.dead_letters.review(task_id, "abandon")).status == "dead_lettered"
    assert await queue.dead_letters.list() == []
    (letter,) = await queue.dead_letters.list(reviewed_too=True)
    assert (letter.reviewed, letter.resolution) == (True, "abandon")


async def test_escalated_dead_letter_still_awaits_a_decision(queue: Queue) -> None:
    task_id = await dead_letter(queue)
    assert (await queue.dead_letters.review(task_id, "escalate")).status == "dead_lettered"
    (letter,) = await queue.dead_letters.list()
    assert (letter.reviewed, letter.resolution) == (False, "escalate")


async def test_review_records_actor_decision_and_note(queue: Queue, clock: MovedClock) -> None:
    task_id = await dead_letter(queue)
    await queue.as_caller("human:ada").dead_letters.review(task_id, "retry", note="the disk was full")
    assert await queue.dead_letters.reviews(task_id) == [
        Review(round=1, at=clock(), actor="human:ada", decision="retry", note="the disk was full", change=None)
    ]


async def test_a_retry_is_a_review(queue: Queue) -> None:
    task_id = await dead_letter(queue)
    assert (await queue.dead_letters.retry(task_id, note="again")).status == "ready"
    assert [(review.decision, review.note) for review in await queue.dead_letters.reviews(task_id)] == [
        ("retry", "again")
    ]


async def test_two_decisions_at_the_same_time_are_both_recorded(queue: Queue) -> None:
    task_id = await dead_letter(queue)
    await queue.dead_letters.review(task_id, "escalate")
    await queue.dead_letters.review(task_id, "retry")
    assert [review.decision for review in await queue.dead_letters.reviews(task_id)] == ["escalate", "retry"]


@pytest.mark.requirement("C-246")
async def test_review_with_outdated_version_is_refused(queue: Queue) -> None:
    task_id = await dead_letter(queue)
    read = (await queue.get(task_id)).version
    await queue.dead_letters.review(task_id, "escalate")
    await queue.dead_letters.review(task_id, "retry", version=read)
    with pytest.raises(WrongState):
        await queue.dead_letters.review(task_id, "retry")
    await queue.fail((await take(queue)).token, retry=False)
    with pytest.raises(VersionConflict):
        await queue.dead_letters.review(task_id, "retry", version=read)
    assert (await queue.get(task_id)).status == "dead_lettered"


async def test_only_dead_letters_can_be_reviewed(queue: Queue) -> None:
    task_id = (await queue.submit(type="code")).id
    with pytest.raises(WrongState):
        await queue.dead_letters.review(task_id, "retry")
    await finish(queue)
    with pytest.raises(WrongState):
        await queue.dead_letters.review(task_id, "retry")


@pytest.mark.requirement("C-100")
async def test_similar_failures_are_grouped_and_redriven_together(queue: Queue) -> None:
    alike = [await dead_letter(queue, error=f"port {port} is taken") for port in (8080, 9090)]
    await dead_letter(queue, error="no such file")
    largest = (await queue.dead_letters.groups())[0]
    assert (largest.total, largest.reason, largest.type) == (2, "crash", "code")
    outcomes = await queue.dead_letters.redrive(largest.signature)
    assert sorted(outcome.task_id for outcome in outcomes) == sorted(alike)
    assert [letter.error for letter in await queue.dead_letters.list()] == ["no such file"]


async def test_every_review_round_ends_with_one_final_event(queue: Queue) -> None:
    task_id = await dead_letter(queue)
    await queue.dead_letters.review(task_id, "retry")
    await queue.fail((await take(queue)).token, retry=False)
    await queue.dead_letters.review(task_id, "retry")
    await finish(queue)
    assert await events_named(queue, "task.failed") == [task_id, task_id]
    assert await events_named(queue, "task.completed") == [task_id]


async def test_cancelling_a_dead_letter_is_recorded_as_a_review(queue: Queue) -> None:
    task_id = await dead_letter(queue)
    await queue.as_caller("human:ada").cancel(task_id, "obsolete")
    assert await queue.dead_letters.list() == []
    (review,) = await queue.dead_letters.reviews(task_id)
    assert (review.decision, review.actor, review.note) == ("cancel", "human:ada", "obsolete")
    assert (await states(queue, task_id))[-2:] == ["dead_lettered", "cancelled"]


async def test_task_changed_to_at_most_once_on_review_is_not_preempted(queue: Queue) -> None:
    task_id = await dead_letter(queue)
    await queue.dead_letters.review(task_id, "modify_and_retry", change={"delivery": "at_most_once"})
    assert await sql(queue, "select at_most_once from tasks") in ([{"at_most_once": 1}], [{"at_most_once": True}])
