"""A worker from its registration to its stop: claims, heartbeats, cancellations and releases."""

import asyncio
import time
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

from shiftwork import Queue
from shiftwork.model.errors import InputError, LeaseLost
from shiftwork.store.store import Verb
from shiftwork.worker import Context, Worker
from shiftwork.worker.load_worker import load
from tests.worker.steps import at_work, beat_fast, knows, until, until_status, verbs


class Gate:
    """A handler that reports its start and continues on request."""

    def __init__(self) -> None:
        self.begun = asyncio.Semaphore(0)
        self.open = asyncio.Event()
        self.interrupted = 0

    async def __call__(self, ctx: Context) -> str:
        ctx.spent(cost_usd=0.5)
        self.begun.release()
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.interrupted += 1
            raise
        return "done"


def gated(**options: Any) -> tuple[Worker, Gate]:
    worker, gate = Worker("gated", **options), Gate()
    worker.handler("gated")(gate)
    return worker, gate


@pytest.mark.requirement("F-218", "F-225")
async def test_worker_registers_its_abilities_and_sends_heartbeats(shop: Queue, store_url: str) -> None:
    await beat_fast(shop, 2)
    known = {"capabilities": ["python"], "models": ["opus"], "provider": "anthropic", "account": "team-a"}
    worker, gate = gated(concurrency=3, budget_usd=10, **known)
    made = await shop.submit(type="gated")
    async with at_work(worker, store_url):
        await gate.begun.acquire()
        (agent,) = await shop.agents.list()
        assert (agent.id, agent.status, agent.types, agent.current_tasks) == ("gated", "active", ["gated"], 1)
        assert (agent.max_concurrent_tasks, agent.budget_remaining_usd) == (3, 9.75)  # it holds a task of unknown cost
        assert (agent.capabilities, agent.models_available) == (["python"], ["opus"])
        assert (agent.provider, agent.account) == ("anthropic", "team-a")
        beats: set[float | None] = set()

        async def advanced_twice() -> bool:
            beats.add((await shop.get(made.id)).claim.heartbeat_at)
            return len(beats - {None}) >= 3

        await until(advanced_twice)
        gate.open.set()
    (agent,) = await shop.agents.list()
    assert (agent.status, agent.current_tasks, agent.spent_usd) == ("offline", 0, 0.5)


async def test_restart_does_not_refill_the_budget(shop: Queue, store_url: str) -> None:
    worker, gate = gated(budget_usd=2)
    gate.open.set()
    for left in (1.5, 1.0):
        await shop.submit(type="gated")
        await worker.run(store_url, until_idle=True)
        assert (await shop.agents.list())[0].budget_remaining_usd == left


@pytest.mark.requirement("F-221", "F-222", "F-231")
async def test_worker_claims_at_most_its_concurrency(shop: Queue, store_url: str) -> None:
    worker, gate = gated(concurrency=2)
    made = await shop.submit_many([{"type": "gated"}] * 3)
    async with at_work(worker, store_url):
        await gate.begun.acquire()
        await gate.begun.acquire()
        assert [(await shop.get(task.id)).status for task in made] == ["running", "running", "ready"]
        assert (await shop.agents.list())[0].current_tasks == 2
        assert [hold.kind for hold in (await shop.explain(made[2].id)).holds] == ["capacity"]
        gate.open.set()
        await until_status(shop, made[2].id, "completed")
    assert (await shop.agents.list())[0].current_tasks == 0


@pytest.mark.parametrize(
    ("profile", "setting", "slots"), [("standard", None, 10), ("coscientist", None, 1), ("standard", 3, 3)]
)
async def test_worker_without_concurrency_uses_the_workspace_setting(
    shop: Queue, store_url: str, profile: str, setting: int | None, slots: int
) -> None:
    await shop.settings.change({"max_concurrent_tasks": setting} if setting else {}, profile=profile)
    worker, gate = gated()
    made = await shop.submit_many([{"type": "gated", "payload": {"n": n}} for n in range(slots + 1)])
    async with at_work(worker, store_url):
        for _ in range(slots):
            await gate.begun.acquire()
        (agent,) = await shop.agents.list()
        assert (agent.max_concurrent_tasks, agent.current_tasks) == (slots, slots)
        statuses = sorted([(await shop.get(task.id)).status for task in made])
        assert statuses == ["ready"] + ["running"] * slots
        gate.open.set()


@pytest.mark.requirement("F-162", "F-219", "F-223")
async def test_idle_worker_is_woken_by_new_work(shop: Queue, store_url: str) -> None:
    worker, gate = gated()
    gate.open.set()
    await shop.settings.set("fallback_poll_sec", 3600)
    first = await shop.submit(type="gated")
    async with at_work(worker, store_url):
        await until_status(shop, first.id, "completed")
        await until_status(shop, (await shop.submit(type="gated")).id, "completed")


async def test_two_workers_share_the_work(shop: Queue, store_url: str) -> None:
    """Each task waits for the other: with one slot, no worker could run both."""
    both = asyncio.Barrier(2)
    workers = [Worker(name, concurrency=1) for name in ("left", "right")]
    for worker in workers:

        @worker.handler("meet")
        async def meet(ctx: Context) -> None:
            async with asyncio.timeout(30):
                await both.wait()

    made = await shop.submit_many([{"type": "meet"}] * 2)
    async with at_work(workers[0], store_url), at_work(workers[1], store_url):
        for task in made:
            await until_status(shop, task.id, "completed")
    done_by = {(await shop.result(task.id)).worker_id for task in made}
    assert done_by == {"left", "right"}


async def test_progress_messages_and_usage_of_a_handler_are_stored(shop: Queue, store_url: str) -> None:
    worker = Worker()

    @worker.handler("code")
    async def code(ctx: Context) -> str:
        await ctx.progress({"pct": 50})
        await ctx.message("ran the tests", kind="tool_call", data={"passed": 7})
        await ctx.pin_session("session-1", "/srv/tree")
        ctx.spent(cost_usd=0.5, tokens_in=10)
        ctx.spent(cost_usd=0.25, tokens_out=20)
        return (await ctx.read()).status

    made = await shop.submit(type="code")
    await worker.run(store_url, until_idle=True)
    task = await shop.get(made.id)
    assert (task.session_id, task.work_dir, task.progress) == ("session-1", "/srv/tree", {"pct": 50})
    assert (task.cost_usd, task.tokens_used) == (0.75, {"input": 10, "output": 20})
    assert (await shop.result(made.id)).data == "running"
    assert "message" in await verbs(shop, made.id)


async def test_parent_continues_with_outputs_of_its_children(shop: Queue, store_url: str) -> None:
    worker = Worker(concurrency=1)

    @worker.handler("sum")
    async def add_up(ctx: Context) -> int:
        subtasks = await ctx.subtasks()
        if not subtasks:
            ctx.spent(cost_usd=0.5)
            await ctx.spawn_and_wait([{"type": "square", "payload": {"n": n}} for n in (2, 3)])
        return sum(subtask.data for subtask in subtasks)

    @worker.handler("square")
    def square(ctx: Context) -> int:
        return int(ctx.payload["n"]) ** 2

    made = await shop.submit(type="sum")
    summary = await worker.run(store_url, until_idle=True)
    task = await shop.get(made.id)
    assert ((await shop.result(made.id)).data, task.attempts, task.cost_usd) == (13, 0, 0.5)
    assert (summary.completed, summary.parked) == (3, 1)


async def test_handler_can_spawn_and_continue(shop: Queue, store_url: str) -> None:
    worker = Worker()

    @worker.handler("plan")
    async def plan(ctx: Context) -> str:
        (made,) = await ctx.spawn([{"type": "note"}])
        return made.id

    worker.handler("note")(lambda _: "noted")
    made = await shop.submit(type="plan")
    assert (await worker.run(store_url, until_idle=True)).completed == 2
    child = await shop.get((await shop.result(made.id)).data)
    assert (child.status, child.parent_id, child.dag_id) == ("completed", made.id, made.dag_id)


async def test_cancelling_a_running_task_stops_its_handler_and_charges_usage(shop: Queue, store_url: str) -> None:
    await beat_fast(shop, 0.8)
    worker, gate = gated(concurrency=1)
    made = await shop.submit(type="gated")
    async with at_work(worker, store_url) as running:
        await gate.begun.acquire()
        await shop.cancel(made.id, "not wanted")
        await until(lambda: gate.interrupted == 1)
        following = await shop.submit(type="gated")
        gate.open.set()
        await until_status(shop, following.id, "completed")
    task = await shop.get(made.id)
    assert (task.status, task.cancel_reason, task.cost_usd) == ("cancelled", "not wanted", 0.5)
    assert (running.result().cancelled, running.result().completed) == (1, 1)


async def test_plain_handler_can_see_its_cancellation(shop: Queue, store_url: str) -> None:
    await beat_fast(shop, 0.8)
    worker = Worker()
    seen: list[bool] = []

    @worker.handler("loop")
    def loop(ctx: Context) -> None:
        seen.append(ctx.cancelled)
        while not ctx.cancelled:
            time.sleep(0.01)
        seen.append(ctx.cancelled)

    made = await shop.submit(type="loop")
    async with at_work(worker, store_url):
        await until(lambda: seen == [False])
        await shop.cancel(made.id)
        await until(lambda: seen == [False, True])


@pytest.mark.parametrize("swallows", [False, True], ids=["raised", "swallowed"])
async def test_cancelled_task_reporting_progress_counts_as_cancelled(
    shop: Queue, store_url: str, *, swallows: bool
) -> None:
    """A write of the handler finds the cancellation before any heartbeat does; its usage is still charged."""
    worker = Worker("told", concurrency=1)
    begun, cancelled = asyncio.Event(), asyncio.Event()

    @worker.handler("code")
    async def code(ctx: Context) -> None:
        ctx.spent(cost_usd=0.5)
        begun.set()
        await cancelled.wait()
        with suppress(LeaseLost) if swallows else nullcontext():
            await ctx.progress({"pct": 50})

    made = await shop.submit(type="code")
    async with at_work(worker, store_url) as running:
        await begun.wait()
        await shop.cancel(made.id, "not wanted")
        cancelled.set()
        following = await shop.submit(type="code")
        await until_status(shop, following.id, "completed")
    summary = running.result()
    assert (summary.cancelled, summary.lost, summary.completed) == (1, 0, 1)
    assert (await shop.get(made.id)).cost_usd == 0.5


async def test_graceful_stop_lets_handlers_finish(shop: Queue, store_url: str) -> None:
    worker, gate = gated(concurrency=1)
    made = await shop.submit_many([{"type": "gated"}] * 2)
    running = asyncio.create_task(worker.run(store_url))
    await gate.begun.acquire()
    worker.stop()
    gate.open.set()
    assert (await running).completed == 1
    assert [(await shop.get(task.id)).status for task in made] == ["completed", "ready"]


async def _wait(ctx: Context) -> None:
    await asyncio.Event().wait()


async def _raise_when_cancelled(ctx: Context) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        raise OSError("cannot remove the temporary folder")


async def _ignore(ctx: Context) -> None:
    for _ in range(2):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            continue


def _sleep(ctx: Context) -> None:
    time.sleep(2)


@pytest.mark.parametrize("handler", [_wait, _raise_when_cancelled, _ignore, _sleep])
async def test_unfinished_task_is_released_without_cost_at_stop(shop: Queue, store_url: str, handler: Any) -> None:
    worker = Worker(stop_grace_sec=0.05, cancel_grace_sec=0.05)
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()

    @worker.handler("long")
    def long(ctx: Context) -> Any:
        loop.call_soon_threadsafe(begun.set)
        return handler(ctx)

    made = await shop.submit(type="long")
    running = asyncio.create_task(worker.run(store_url))
    await begun.wait()
    worker.stop()
    assert (await running).released == 1
    task = await shop.get(made.id)
    assert (task.status, task.attempts) == ("ready", 0)
    assert await verbs(shop, made.id) == ["submitted", "claimed", "released"]
    for left in asyncio.all_tasks() - {asyncio.current_task()}:  # the deaf one
        left.cancel()


async def test_cancelled_worker_releases_its_tasks(shop: Queue, store_url: str) -> None:
    worker, gate = gated()
    made = await shop.submit(type="gated")
    running = asyncio.create_task(worker.run(store_url))
    await gate.begun.acquire()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    task = await shop.get(made.id)
    assert (task.status, task.attempts, task.cost_usd) == ("ready", 0, 0.5)


@pytest.mark.requirement("F-220")
async def test_worker_ends_when_its_agent_is_set_offline(shop: Queue, store_url: str) -> None:
    worker, gate = gated(concurrency=2)
    first = await shop.submit(type="gated")
    running = asyncio.create_task(worker.run(store_url))
    await gate.begun.acquire()
    await shop.agents.set_status("gated", "offline")
    second = await shop.submit(type="gated")
    gate.open.set()
    assert (await running).went_offline
    assert (await shop.get(first.id)).status == "completed"
    assert (await shop.get(second.id)).status == "ready"


async def test_worker_continues_when_its_agent_is_active_again(shop: Queue, store_url: str) -> None:
    worker, gate = gated(concurrency=2)
    gate.open.set()
    async with at_work(worker, store_url):
        await until_status(shop, (await shop.submit(type="gated")).id, "completed")
        await shop.agents.set_status("gated", "draining")
        waiting = await shop.submit(type="gated")
        await until(lambda: _waits_for(shop, waiting.id, "agents_away"))
        await shop.agents.set_status("gated", "active")
        await until_status(shop, waiting.id, "completed")


async def _waits_for(queue: Queue, task_id: str, hold: str) -> bool:
    return [found.kind for found in (await queue.explain(task_id)).holds] == [hold]


async def test_claim_whose_caller_was_cancelled_is_released(
    shop: Queue, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller is cancelled after the commit and before the answer, and closes the queue at once."""
    made = await shop.submit(type="code")
    async with Queue.open(store_url) as other:
        store, committed = other.engine.store, asyncio.Event()
        run = store.run

        async def slow(verb: Verb[Any], /) -> Any:
            answer = await run(verb)
            committed.set()
            await asyncio.sleep(0.2)
            return answer

        await other.agents.register(id="hasty")
        monkeypatch.setattr(store, "run", slow)
        claiming = asyncio.create_task(other.claim("hasty", wait=20, start=True))
        await committed.wait()
        claiming.cancel()
    task = await shop.get(made.id)
    assert (task.status, task.attempts) == ("ready", 0)
    assert await verbs(shop, made.id) == ["submitted", "claimed", "released"]


async def test_cancelled_waiting_claim_takes_no_task(shop: Queue, store_url: str) -> None:
    async with Queue.open(store_url) as other:
        claiming = asyncio.create_task(other.claim("hasty", wait=20))
        await until(lambda: knows(shop, "hasty"))
        claiming.cancel()
        with pytest.raises(asyncio.CancelledError):
            await claiming
        made = await shop.submit(type="code")
        assert [taken.id for taken in await shop.claim("patient", wait=5)] == [made.id]


async def test_claim_with_a_lost_answer_is_released_by_its_worker(shop: Queue, store_url: str) -> None:
    """Its runtime sends heartbeats, so the lease would never expire, but no one works on it."""
    await beat_fast(shop, 0.8)
    worker, _ = gated()
    running = asyncio.create_task(worker.run(store_url, runtime_id="host-1"))
    await until(lambda: knows(shop, "gated"))
    await shop.agents.register(id="other", max_concurrent_tasks=None)
    await shop.agents.set_status("gated", "draining")
    made = await shop.submit(type="gated")
    await shop.claim("other", runtime_id="host-1", start=True)
    await until_status(shop, made.id, "ready")
    assert (await shop.tasks.history(made.id)).events[-1].reason == "the answer to its claim was lost"
    worker.stop()
    await running


@pytest.mark.requirement("A-079")
async def test_restarted_runtime_reports_its_earlier_claims(shop: Queue, store_url: str) -> None:
    worker, gate = gated()
    gate.open.set()
    await shop.settings.set("recover", "requeue")
    made = await shop.submit(type="gated")
    await shop.claim("gated", runtime_id="daemon-1", start=True)
    await worker.run(store_url, until_idle=True, runtime_id="daemon-1")
    task = await shop.get(made.id)
    assert (task.status, task.attempts) == ("completed", 1)
    assert task.failure_history[0].reason == "runtime_offline"


async def test_invalid_worker_is_refused_with_a_hint() -> None:
    with pytest.raises(InputError, match="at least one task"):
        Worker(concurrency=0)
    worker = Worker()
    with pytest.raises(InputError, match="no handlers"):
        await worker.run("sqlite://:memory:")
    worker.handler("code")(print)
    with pytest.raises(InputError, match="has a handler already"):
        worker.handler("code")(print)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("shop", "Write module:worker"),
        ("no_such_module:worker", "there is no module 'no_such_module'"),
        ("asyncio:worker", "write `worker = Worker"),
        ("tests.worker.mill:nobody", "It has: worker"),
    ],
)
def test_target_without_a_worker_is_refused(target: str, message: str) -> None:
    with pytest.raises(InputError) as refused:
        load(target)
    assert message in str(refused.value)


async def test_worker_given_an_open_queue_uses_its_workspace(tmp_path: Path) -> None:
    worker, gate = gated()
    gate.open.set()
    async with Queue.open(f"sqlite:///{tmp_path}/q.db") as queue:
        other = queue.in_workspace("other")
        made = await other.submit(type="gated")
        assert (await worker.run(other, until_idle=True)).completed == 1
        assert (await other.get(made.id)).status == "completed"
