"""The transition table and the verbs agree: every transition is made, and no other."""

from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

from shiftwork import Queue
from shiftwork.model.states import TRANSITIONS, State
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import dead_letter, take

Play = Callable[[Queue, MovedClock], Awaitable[object]]

TOLD_BY = {
    "release": "released",
    "reclaim": "lease_expired",
    "retry": "failed",
    "requeue": "failed",
    "review_retry": "reviewed",
    "review_later": "reviewed",
    "overdue": "deadline_passed",
}
"""Where two moves lead from one state to the same other, the event that tells which it was."""

NOT_MADE: dict[tuple[State, str], str] = {
    (State.VALIDATING, "reclaim"): "what waits for its verdict is in nobody's hands that could lose it",
}


async def complete_a_child_of_a_waiting_parent(queue: Queue, _: MovedClock) -> None:
    await queue.submit(type="parent")
    parent = await take(queue)
    await queue.spawn(parent.token, [{"type": "child"}], wait=True)
    child = await take(queue)
    await queue.complete(child.token)


async def start_after_the_claim(queue: Queue, _: MovedClock) -> None:
    await queue.submit(type="code")
    (claimed,) = await queue.claim("worker")
    await queue.start(claimed.token)


async def release(queue: Queue, _: MovedClock) -> None:
    await queue.submit(type="code")
    (claimed,) = await queue.claim("worker")
    await queue.release(claimed.token)
    await queue.release((await take(queue)).token)


async def lose_the_runtime(queue: Queue, _: MovedClock) -> None:
    await queue.settings.set("on_stale", "reclaim")
    await queue.submit(type="code")
    await queue.claim("worker", runtime_id="laptop")
    await queue.runtimes.report_gone("laptop")
    await take(queue, runtime_id="laptop")
    await queue.runtimes.report_gone("laptop")


async def restart_the_runtime(queue: Queue, _: MovedClock) -> None:
    await queue.settings.set("recover", "requeue")
    await queue.submit(type="code")
    await queue.claim("worker", runtime_id="laptop")
    await queue.runtimes.recover("laptop")


async def fail_and_come_back(queue: Queue, clock: MovedClock) -> None:
    await queue.submit(type="code")
    await queue.fail((await take(queue)).token, "crash")
    await pass_time(queue, clock, 60)
    (claimed,) = await queue.claim("worker")
    await queue.fail(claimed.token, "crash")


async def fail_validation(queue: Queue, _: MovedClock) -> None:
    schema = {"type": "object", "required": ["answer"]}
    await queue.submit(type="code", output={"validation": "json-schema", "validation_schema": schema})
    await queue.complete((await take(queue)).token, {})


async def be_cancelled_before_the_verdict(queue: Queue, _: MovedClock) -> None:
    made = await queue.submit(type="code", output={"validation": "test-pass"})
    await queue.complete((await take(queue)).token)
    await queue.cancel(made.id)


async def retry_as_a_new_task(queue: Queue, _: MovedClock) -> None:
    await queue.settings.set("retry.mode", "new_task")
    await queue.submit(type="code")
    await queue.fail((await take(queue)).token, "crash")


async def be_given_a_dependency(queue: Queue, _: MovedClock) -> None:
    ready = await queue.submit(type="code")
    await queue.tasks.update(ready.id, {"dependencies": ["later"]})
    failed = await queue.submit(type="code")
    await queue.fail((await take(queue)).token, "crash")
    await queue.tasks.update(failed.id, {"dependencies": ["later"]})


async def be_reviewed(queue: Queue, _: MovedClock) -> None:
    for on_exhausted in ("dead_letter", "stay_failed"):
        await queue.settings.set("on_exhausted", on_exhausted)
        await queue.dead_letters.review(await dead_letter(queue), "retry_later", at=queue.now() + 3600)
        await queue.dead_letters.review(await dead_letter(queue), "cancel")
        retried = await dead_letter(queue)
        await queue.dead_letters.review(retried, "retry")
        await queue.cancel(retried)


async def bring_back_a_chain(queue: Queue, _: MovedClock) -> None:
    await queue.settings.set("on_dependency_failed", "cancel")
    parent = await queue.submit(type="code")
    await queue.submit(type="code", dependencies=[parent.id])
    await queue.fail((await take(queue)).token, "crash", retry=False)
    await queue.dead_letters.review(parent.id, "retry", chain=True)


async def be_cancelled(queue: Queue, _: MovedClock) -> None:
    await queue.cancel((await queue.submit(type="code", dependencies=["later"])).id)
    await queue.cancel((await queue.submit(type="code")).id)
    await queue.submit(type="code")
    await queue.cancel((await queue.claim("worker"))[0].id)
    await queue.submit(type="code")
    running = await take(queue)
    await queue.cancel(running.id)
    await queue.submit(type="code")
    failed = await take(queue)
    await queue.fail(failed.token, "crash")
    await queue.cancel(failed.id)


async def make_room_and_come_back(queue: Queue, clock: MovedClock) -> None:
    await queue.settings.set("max_queue_size", 2)
    await queue.submit_many([{"type": "code", "priority": 70, "dependencies": above} for above in ([], ["later"])])
    await queue.submit_many([{"type": "code", "priority": 20}] * 2)
    await queue.settings.unset("max_queue_size")
    await pass_time(queue, clock, 300)


async def be_stopped_by_a_guard(queue: Queue, _: MovedClock) -> None:
    await queue.settings.set("on_exhausted", "stay_failed")
    failed = await dead_letter(queue)
    await queue.settings.set("guards", [{"type": "code"}])
    await queue.dead_letters.review(failed, "retry")
    await queue.approvals.approve(failed)
    await queue.tasks.update(failed, {"estimated_cost_usd": 5})
    await queue.tasks.update(failed, {"dependencies": ["later"]})
    rejected = await queue.submit(type="code")
    await queue.approvals.reject(rejected.id)


async def pass_the_deadline(queue: Queue, clock: MovedClock) -> None:
    await queue.settings.set("deadline.on_passed", "fail")
    limited = {"type": "code", "deadline": queue.now() + 60}
    await queue.submit({**limited, "retry": {"strategy": "fixed", "initial_delay_sec": 3600}})
    await queue.fail((await take(queue)).token, "crash")
    await queue.submit(limited)
    await queue.submit({**limited, "dependencies": ["later"]})
    await queue.settings.set("guards", [{"type": "code"}])
    await queue.submit(limited)
    await pass_time(queue, clock, 120)


PLAYS: list[Play] = [
    complete_a_child_of_a_waiting_parent,
    start_after_the_claim,
    release,
    lose_the_runtime,
    restart_the_runtime,
    fail_and_come_back,
    fail_validation,
    be_cancelled_before_the_verdict,
    retry_as_a_new_task,
    be_given_a_dependency,
    be_reviewed,
    bring_back_a_chain,
    be_cancelled,
    make_room_and_come_back,
    be_stopped_by_a_guard,
    pass_the_deadline,
]


async def played(queue: Queue, clock: MovedClock) -> set[tuple[str, str, str]]:
    """Return every transition of every scenario, each in a separate workspace: the event's verb, from, to."""
    moves: set[tuple[str, str, str]] = set()
    for play in PLAYS:
        stage = queue.in_workspace(str(getattr(play, "__name__", "stage")))
        await stage.settings.set("circuit_breaker", None)  # some play many failures of one type
        await play(stage, clock)
        events: list[Any] = (await stage.events(limit=10_000)).events
        for event in events:
            moves |= {(event.verb, a, b) for a, b in pairwise(event.path)}
    return moves


async def test_every_transition_of_the_table_is_made_by_some_verb(queue: Queue, clock: MovedClock) -> None:
    moves = await played(queue, clock)
    made = {
        (source, name)
        for (source, name), target in TRANSITIONS.items()
        if any((a, b) == (source, target) and TOLD_BY.get(name, verb) == verb for verb, a, b in moves)
    }
    assert TRANSITIONS.keys() - made == NOT_MADE.keys()


async def test_no_verb_makes_a_transition_outside_the_table(queue: Queue, clock: MovedClock) -> None:
    allowed = {(source.value, target.value) for (source, _), target in TRANSITIONS.items()}
    assert {(a, b) for _, a, b in await played(queue, clock)} <= allowed
