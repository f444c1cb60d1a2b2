"""Handlers with steps and effects: finished work is not repeated, and a person resolves unknown outcomes."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from shiftwork import Queue
from shiftwork.model.errors import EffectInFlight, StoreUnavailable
from shiftwork.operation.declare import Namespace
from shiftwork.steps.api import Effects, Steps
from shiftwork.steps.model import Effect
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
    """Run a task and return its result, or None."""
    made = await queue.submit({"type": "code", "retry": {"strategy": "immediate"}, **fields})
    await run_until_idle(worker_of(handle), queue, clock=clock)
    task = await queue.get(made.id)
    return task.result.data if task.status == "completed" and task.result else None


async def only_task(queue: Queue) -> str:
    (task,) = (await queue.tasks.list()).tasks
    return task.id


async def test_retry_repeats_only_unfinished_steps(queue: Queue) -> None:
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


async def test_repeated_step_name_is_another_step(queue: Queue) -> None:
    async def handle(ctx: Context) -> list[Any]:
        found = [await ctx.step(name, lambda: ctx.task.attempts) for name in NAMES]
        if ctx.task.attempts == 0:
            raise Boom
        return found

    assert await run(queue, handle) == [0] * len(NAMES)
    names = [step.name for step in await queue.steps.list(await only_task(queue))]
    assert names == ["turn", "turn#2", "tool", "turn#3", "turn#2#2", "tool#2"]


NAMES = ["turn", "turn", "tool", "turn", "turn#2", "tool"]


async def test_first_run_of_a_step_returns_its_json_form(queue: Queue) -> None:
    seen: list[Any] = []

    async def handle(ctx: Context) -> None:
        seen.append(await ctx.step("read", lambda: {1: ("a", "b")}))
        if ctx.task.attempts == 0:
            raise Boom

    await run(queue, handle)
    assert seen == [{"1": ["a", "b"]}] * 2


async def test_plain_step_runs_in_a_thread_and_coroutine_on_the_loop(queue: Queue) -> None:
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


async def test_large_step_result_is_found_again(store_url: str, tmp_path: Path) -> None:
    async def handle(ctx: Context) -> list[int]:
        large = await ctx.step("read", lambda: "x" * 100_000 * (ctx.task.attempts + 1))
        if ctx.task.attempts == 0:
            raise Boom
        return [len(large)]

    async with Queue.open(store_url, artifacts=str(tmp_path / "shelf")) as queue:
        assert await run(queue, handle) == [100_000]


async def test_recorded_steps_are_a_log(store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable, "PAGE", 2)
    entries = [1, "x" * 100_000, None, {"last": True}]
    read: list[Any] = []

    async def handle(ctx: Context) -> None:
        if ctx.task.attempts == 0:
            for place, entry in enumerate(entries):
                ctx.spent(tokens_in=place)
                assert await ctx.record_step(f"log {place}", entry) == entry
                await ctx.step("other", str)
            assert await ctx.record_step("log 0", "another") == 1, "the first result stands"
            raise Boom
        read.extend((step.name, step.result, step.tokens_in) for step in await ctx.read_steps("log "))

    async with Queue.open(store_url, artifacts=str(tmp_path)) as queue:
        await run(queue, handle)
    assert read == [(f"log {place}", entry, place) for place, entry in enumerate(entries)]


async def test_conversation_turns_are_rebuilt_from_steps(queue: Queue) -> None:
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
    found = await queue.steps.list(await only_task(queue))
    assert [(step.name, step.result, step.cost_usd) for step in found] == [
        (f"turn#{n}" if n > 1 else "turn", f"answer {n}", 0.1) for n in range(1, 5)
    ]


async def test_usage_belongs_to_the_step_that_spent_it(queue: Queue) -> None:
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
    assert {step.name: step.cost_usd for step in await queue.steps.list(task_id)} == {"a": 2, "b": 4, "c": 0.5}
    assert [attempt.cost_usd for attempt in await queue.tasks.attempts(task_id)] == [6.53]


async def test_usage_of_a_failed_step_is_charged_to_its_attempt(queue: Queue) -> None:
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
    assert [attempt.cost_usd for attempt in await queue.tasks.attempts(task_id)] == [1, 2]
    assert await queue.steps.list(task_id) == []


async def test_outage_loses_no_completed_step(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable, "RETRY_SEC", (0.0, 0.0))
    ran: list[str] = []
    _break_each({"complete": Steps, "finish": Effects, "list": Steps}, monkeypatch)

    async def handle(ctx: Context) -> list[Any]:
        step = await ctx.step("read", lambda: ran.append("read"))
        return [step, await ctx.effect("send", lambda _: ran.append("send"))]

    assert await run(queue, handle) == [None, None]
    assert ran == ["read", "send"]


@pytest.mark.parametrize("done_first", [False, True])
async def test_effect_whose_begin_answer_was_lost_is_performed(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, *, done_first: bool
) -> None:
    monkeypatch.setattr(durable, "RETRY_SEC", (0.0, 0.0))
    _break_each({"begin": Effects}, monkeypatch, done_first=done_first)

    async def handle(ctx: Context) -> Any:
        return await ctx.effect("send", lambda _: "sent")

    assert await run(queue, handle) == "sent"


def _break_each(
    operations: dict[str, type[Namespace]], monkeypatch: pytest.MonkeyPatch, *, done_first: bool = True
) -> None:
    """Break the first call of each operation: before its effect, or after it but before the answer."""
    left = set(operations)

    def breaking(name: str, verb: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
        async def call(self: Namespace, *args: Any, **named: Any) -> Any:
            broken = name in left
            left.discard(name)
            if broken and not done_first:
                raise StoreUnavailable("the line is down")
            answer = await verb(self, *args, **named)
            if broken:
                raise StoreUnavailable("the line is down")
            return answer

        return call

    for name, kind in operations.items():
        monkeypatch.setattr(kind, name, breaking(name, getattr(kind, name)))


@pytest.mark.requirement("R-013", "R-032")
async def test_retry_does_not_repeat_a_completed_effect(queue: Queue) -> None:
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
async def test_next_attempt_verifies_an_unfinished_effect(queue: Queue, *, happened: bool) -> None:
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


async def test_without_verify_an_unknown_effect_waits_for_an_operator(queue: Queue) -> None:
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
    (alert,) = await queue.alerts.list(kind="effect_unknown")
    await queue.effects.resolve(alert.data["key"], happened=True, result="receipt 7")
    await run_until_idle(worker_of(handle), queue)
    assert ((await queue.result(task.id)).data, len(tried)) == ("receipt 7", 1)


async def test_effect_that_did_not_happen_is_tried_again(queue: Queue) -> None:
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


async def test_effect_repeated_in_the_same_attempt_is_unknown(queue: Queue) -> None:
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


async def test_effect_in_flight_elsewhere_is_awaited_by_retry(queue: Queue, clock: MovedClock) -> None:
    await queue.submit(type="other")
    (other,) = await queue.claim("bob", start=True)
    await queue.effects.begin(other.token, key="deploy")
    refused: list[str] = []

    async def handle(ctx: Context) -> Any:
        try:
            return await ctx.effect(None, lambda _: "deployed twice", key="deploy")
        except EffectInFlight as error:
            refused.append(error.code)
            await queue.effects.finish(other.token, "deploy", "deployed once")
            raise

    assert await run(queue, handle, clock, retry={}) == "deployed once"
    assert refused == ["effect_in_flight"]
    (failed,) = (await queue.tasks.list(type="code")).tasks[0].failure_history
    assert failed.reason == "effect_in_flight"


async def test_unserialisable_effect_result_does_not_repeat_the_effect(queue: Queue) -> None:
    acted: list[str] = []

    def act(effect: Effect) -> Any:
        acted.append(effect.key)
        return object()

    async def handle(ctx: Context) -> Any:
        return [await ctx.effect("charge", act)]

    assert await run(queue, handle) == [None]
    assert len(acted) == 1


async def test_invalid_verify_answer_is_refused(queue: Queue) -> None:
    async def handle(ctx: Context) -> Any:
        await ctx.effect("charge", _boom, verify=lambda _: True)

    await run(queue, handle, max_attempts=2)
    task = await queue.get(await only_task(queue))
    assert "Happened(result) or None" in (task.last_error or "")


def _boom(_: Effect) -> None:
    raise Boom
