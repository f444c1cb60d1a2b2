"""Handlers with steps and effects: what was done is not done again, and what nobody knows is asked of a person."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from shiftwork import Queue
from shiftwork.core.errors import EffectInFlight, StoreUnavailable
from shiftwork.queue.durable.effects import Effect
from shiftwork.testing import MovedClock, run_until_idle
from shiftwork.worker import Context, Happened, NotHappened, Worker, durable

Handle = Callable[[Context], Coroutine[Any, Any, Any]]


class Boom(Exception):
    pass


def worker_of(handle: Handle) -> Worker:
    worker = Worker("ada", concurrency=1)
    worker.handler("code")(handle)
    return worker


async def run(queue: Queue, handle: Handle, clock: MovedClock | None = None, **fields: Any) -> Any:
    """A task's result, or None where there is none."""
    made = await queue.submit({"type": "code", "retry": {"strategy": "immediate"}, **fields})
    await run_until_idle(worker_of(handle), queue, clock=clock)
    task = await queue.get(made.id)
    return task.result.data if task.status == "completed" and task.result else None


async def only_task(queue: Queue) -> str:
    (task,) = (await queue.tasks()).tasks
    return task.id


# -- steps -------------------------------------------------------------------------------------------------------


async def test_a_retry_repeats_only_what_was_not_done(queue: Queue) -> None:
    ran: list[str] = []

    def note(word: str) -> dict[str, str]:
        ran.append(word)
        return {"word": word}

    async def handle(ctx: Context) -> list[Any]:
        words = [await ctx.step("read", note, "one"), await ctx.step("write", note, "two")]
        if ctx.task.attempts == 0:
            raise Boom
        return [*words, await ctx.step("send", note, "three")]

    assert await run(queue, handle) == [{"word": word} for word in ("one", "two", "three")]
    assert ran == ["one", "two", "three"]


async def test_a_name_called_again_is_another_step(queue: Queue) -> None:
    async def handle(ctx: Context) -> list[Any]:
        found = [await ctx.step(name, lambda: ctx.task.attempts) for name in NAMES]
        if ctx.task.attempts == 0:
            raise Boom
        return found

    assert await run(queue, handle) == [0] * len(NAMES)
    names = [step.name for step in await queue.steps(await only_task(queue))]
    assert names == ["turn", "turn#2", "tool", "turn#3", "turn#2#2", "tool#2"]


NAMES = ["turn", "turn", "tool", "turn", "turn#2", "tool"]


async def test_the_first_run_answers_as_the_later_ones_will(queue: Queue) -> None:
    seen: list[Any] = []

    async def handle(ctx: Context) -> None:
        seen.append(await ctx.step("read", lambda: {1: ("a", "b")}))
        if ctx.task.attempts == 0:
            raise Boom

    await run(queue, handle)
    assert seen == [{"1": ["a", "b"]}] * 2


async def test_a_plain_function_may_block_and_a_coroutine_function_does_not_leave_the_loop(queue: Queue) -> None:
    async def here() -> str:
        return threading.current_thread().name

    async def handle(ctx: Context) -> list[str]:
        return [await ctx.step("a", lambda: threading.current_thread().name), await ctx.step("b", here)]

    plain, on_loop = await run(queue, handle)
    assert (plain, on_loop) == ("shiftwork-a", threading.current_thread().name)


async def test_many_stored_steps_are_found_in_any_order(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable, "PAGE", 3)
    ran: list[int] = []

    def note(number: int) -> int:
        ran.append(number)
        return number

    async def handle(ctx: Context) -> list[int]:
        numbers = range(10) if ctx.task.attempts == 0 else [9, 0, 5, 10, 4]
        found = [await ctx.step(f"s{number}", note, number) for number in numbers]
        if ctx.task.attempts == 0:
            raise Boom
        return found

    assert await run(queue, handle) == [9, 0, 5, 10, 4]
    assert ran == [*range(10), 10]


async def test_a_large_result_is_found_again(store_url: str, tmp_path: Path) -> None:
    async def handle(ctx: Context) -> list[int]:
        large = await ctx.step("read", lambda: "x" * 100_000 * (ctx.task.attempts + 1))
        if ctx.task.attempts == 0:
            raise Boom
        return [len(large)]

    async with await Queue.open(store_url, artifacts=str(tmp_path / "shelf")) as queue:
        assert await run(queue, handle) == [100_000]


async def test_turns_of_a_conversation_are_rebuilt_from_their_steps(queue: Queue) -> None:
    """Each turn stores what it added, never the whole conversation."""
    asked: list[int] = []

    async def handle(ctx: Context) -> list[str]:
        messages = ["do it"]
        while len(messages) < 5:
            turn = await ctx.begin_step("turn")
            if turn.status == "done":
                messages.append(turn.result)
                continue
            asked.append(len(messages))
            ctx.spent(cost_usd=0.1)
            messages.append(await ctx.complete_step(turn, f"answer {len(messages)}"))
            if len(asked) == 3:
                raise Boom
        return messages

    assert await run(queue, handle) == ["do it", *(f"answer {n}" for n in range(1, 5))]
    assert asked == [1, 2, 3, 4]
    found = await queue.steps(await only_task(queue))
    assert [(step.name, step.result, step.cost_usd) for step in found] == [
        (f"turn#{n}" if n > 1 else "turn", f"answer {n}", 0.1) for n in range(1, 5)
    ]


async def test_what_is_spent_belongs_to_the_step_it_was_spent_in(queue: Queue) -> None:
    async def handle(ctx: Context) -> None:
        async def spend(cost: float) -> None:
            ctx.spent(cost_usd=cost)
            await asyncio.sleep(0)
            ctx.spent(cost_usd=cost)

        ctx.spent(cost_usd=0.01)
        await asyncio.gather(ctx.step("a", spend, 1), ctx.step("b", spend, 2))
        await ctx.step("c", lambda: ctx.spent(cost_usd=0.5))
        ctx.spent(cost_usd=0.02)

    await run(queue, handle)
    task_id = await only_task(queue)
    assert {step.name: step.cost_usd for step in await queue.steps(task_id)} == {"a": 2, "b": 4, "c": 0.5}
    assert [attempt.cost_usd for attempt in await queue.attempts(task_id)] == [6.53]


async def test_what_a_failed_step_has_spent_is_booked_with_its_attempt(queue: Queue) -> None:
    async def handle(ctx: Context) -> None:
        def fail() -> None:
            ctx.spent(cost_usd=1)
            raise Boom

        def refuse() -> object:
            ctx.spent(cost_usd=2)
            return object()  # no JSON

        await ctx.step("a", fail if ctx.task.attempts == 0 else refuse)

    await run(queue, handle, max_attempts=2)
    task_id = await only_task(queue)
    assert [attempt.cost_usd for attempt in await queue.attempts(task_id)] == [1, 2]
    assert await queue.steps(task_id) == []


async def test_an_outage_loses_no_step_that_was_paid_for(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable, "RETRY_SEC", (0.0, 0.0))
    ran: list[str] = []
    _break_each(queue, {"complete_step", "finish_effect", "steps"}, monkeypatch)

    async def handle(ctx: Context) -> list[Any]:
        step = await ctx.step("read", lambda: ran.append("read"))
        return [step, await ctx.effect("send", lambda _: ran.append("send"))]

    assert await run(queue, handle) == [None, None]
    assert ran == ["read", "send"]


@pytest.mark.parametrize("done_first", [False, True])
async def test_an_intent_whose_answer_got_lost_is_carried_out(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, *, done_first: bool
) -> None:
    monkeypatch.setattr(durable, "RETRY_SEC", (0.0, 0.0))
    _break_each(queue, {"begin_effect"}, monkeypatch, done_first=done_first)

    async def handle(ctx: Context) -> Any:
        return await ctx.effect("send", lambda _: "sent")

    assert await run(queue, handle) == "sent"


def _break_each(queue: Queue, verbs: set[str], monkeypatch: pytest.MonkeyPatch, *, done_first: bool = True) -> None:
    """The first call of each of these verbs breaks off: before it has had its effect, or after it, unanswered."""
    kind = type(queue)
    left = set(verbs)

    def breaking(name: str, verb: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
        async def call(self: Queue, *args: Any, **named: Any) -> Any:
            broken = name in left
            left.discard(name)
            if broken and not done_first:
                raise StoreUnavailable("the line is down")
            answer = await verb(self, *args, **named)
            if broken:
                raise StoreUnavailable("the line is down")
            return answer

        return call

    for name in verbs:
        monkeypatch.setattr(kind, name, breaking(name, getattr(kind, name)))


# -- effects -----------------------------------------------------------------------------------------------------


@pytest.mark.requirement("R-013", "R-032")
async def test_a_retry_does_not_act_again(queue: Queue) -> None:
    acted: list[Effect] = []

    def act(effect: Effect) -> str:
        acted.append(effect)
        return f"receipt {len(acted)}"

    async def handle(ctx: Context) -> str:
        receipt: str = await ctx.effect("charge", act)
        if ctx.task.attempts == 0:
            raise Boom
        return receipt

    assert await run(queue, handle, idempotency_key="order-1") == "receipt 1"
    (effect,) = acted
    assert (effect.key, effect.token) == ("order-1/charge", f"{await only_task(queue)}.1")


@pytest.mark.parametrize("happened", [False, True])
async def test_the_next_attempt_looks_whether_it_happened(queue: Queue, *, happened: bool) -> None:
    outside: list[str] = []

    def act(effect: Effect) -> str:
        if not outside and not happened:
            outside.append("tried")
            raise Boom
        outside.append(effect.key)
        if outside == [effect.key]:
            raise Boom  # done, and its answer lost
        return "done now"

    def look(effect: Effect) -> Happened | None:
        return Happened("had been done") if effect.key in outside else None

    async def handle(ctx: Context) -> Any:
        return await ctx.effect("charge", act, verify=look)

    assert await run(queue, handle) == ("had been done" if happened else "done now")
    assert sum(word != "tried" for word in outside) == 1


async def test_without_a_look_a_person_is_asked_and_the_task_goes_on(queue: Queue) -> None:
    tried: list[str] = []

    async def act(effect: Effect) -> str:
        tried.append(effect.token)
        raise Boom

    async def handle(ctx: Context) -> Any:
        return await ctx.effect("charge", act)

    assert await run(queue, handle) is None
    task = await queue.get(await only_task(queue))
    assert (task.status, task.failure_reason, len(tried)) == ("dead_lettered", "effect_unknown", 1)
    assert f"{task.id}/charge" in (task.last_error or "")
    (alert,) = await queue.alerts(kind="effect_unknown")
    await queue.resolve_effect(alert.data["key"], happened=True, result="receipt 7")
    await run_until_idle(worker_of(handle), queue)
    assert ((await queue.result(task.id)).data, len(tried)) == ("receipt 7", 1)


async def test_what_certainly_did_not_happen_is_tried_again(queue: Queue) -> None:
    tried: list[str] = []

    def act(effect: Effect) -> str:
        tried.append(effect.token)
        if len(tried) < 3:
            raise NotHappened("declined")
        return "accepted"

    async def handle(ctx: Context) -> Any:
        return await ctx.effect("charge", act)

    assert await run(queue, handle) == "accepted"
    assert len(tried) == 3


async def test_a_handler_that_tries_again_by_itself_is_told_that_nobody_knows(queue: Queue) -> None:
    tried: list[str] = []

    def act(effect: Effect) -> str:
        tried.append(effect.token)
        raise Boom

    async def handle(ctx: Context) -> Any:
        for _ in range(3):
            try:
                return await ctx.effect("charge", act)
            except Boom:
                continue
        return None

    await run(queue, handle)
    assert ((await queue.get(await only_task(queue))).failure_reason, len(tried)) == ("effect_unknown", 1)


async def test_an_effect_that_another_task_performs_is_taken_up_when_that_has_ended(
    queue: Queue, clock: MovedClock
) -> None:
    await queue.submit(type="other")
    (other,) = await queue.claim("bob", start=True)
    await queue.begin_effect(other.token, key="deploy")
    refused: list[str] = []

    async def handle(ctx: Context) -> Any:
        try:
            return await ctx.effect(None, lambda _: "deployed twice", key="deploy")
        except EffectInFlight as error:
            refused.append(error.code)
            await queue.finish_effect(other.token, "deploy", "deployed once")
            raise

    assert await run(queue, handle, clock, retry={}) == "deployed once"
    assert refused == ["effect_in_flight"]
    (failed,) = (await queue.tasks(type="code")).tasks[0].failure_history
    assert failed.reason == "effect_in_flight"


async def test_a_result_that_cannot_be_stored_does_not_make_it_happen_twice(queue: Queue) -> None:
    acted: list[str] = []

    def act(effect: Effect) -> Any:
        acted.append(effect.key)
        return object()

    async def handle(ctx: Context) -> Any:
        return [await ctx.effect("charge", act)]

    assert await run(queue, handle) == [None]
    assert len(acted) == 1


async def test_an_answer_of_verify_that_means_nothing_is_refused(queue: Queue) -> None:
    async def handle(ctx: Context) -> Any:
        await ctx.effect("charge", _boom, verify=lambda _: True)

    await run(queue, handle, max_attempts=2)
    task = await queue.get(await only_task(queue))
    assert "Happened(result) or None" in (task.last_error or "")


def _boom(_: Effect) -> None:
    raise Boom
