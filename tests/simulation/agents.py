"""The clients of the queue: producers, workers, operators and a reader, each of which may crash at any call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

from shiftwork import Queue
from shiftwork.engine.assignment import Assignment
from shiftwork.engine.idempotency import Repeated
from shiftwork.model.errors import InputError, OperationTimeout, ShiftworkError, StoreError, StoreUnavailable
from shiftwork.model.outcome import parse_token

if TYPE_CHECKING:
    from tests.simulation.world import World

T = TypeVar("T")
Ask = Callable[[Queue], Coroutine[Any, Any, T]]
UNANSWERED = (StoreError, OperationTimeout)
REASONS = ("crash", "rate_limit", "invalid_input", "auth_failure", "timeout")
PRICE = 0.25
"""Every amount is a multiple of it, so that an attempt is always granted what it spends."""


class Died(Exception):
    """This agent crashes and loses its memory."""


class Agent:
    """One process that makes calls."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.chance: Random = world.faults.chance

    async def live(self) -> None:
        while True:
            try:
                await self.work()
            except Died:
                self.world.log(f"{self.name} dies")
                self.forget()
                await asyncio.sleep(self.chance.uniform(0.1, 40))

    async def work(self) -> None:
        raise NotImplementedError

    def forget(self) -> None:
        """Lose all memory."""

    async def ask(self, what: str, ask: Ask[T], key: str | None = None) -> T:
        """One call. Its request or its answer may be lost, and the agent may die before, during or after it."""
        world, faults = self.world, self.world.faults
        if faults.hits("lost_request"):
            world.log(f"{self.name} {what}: the request is lost")
            raise StoreUnavailable("the request was lost")
        process = self.chance.choice(world.processes)
        dies = faults.hits("death")
        when = self.chance.choice(["before", "during", "after"]) if dies else None
        if when == "before":
            raise Died
        call = asyncio.ensure_future(process.answer(ask, self.name, key))
        if when == "during":
            world.leave(call)
            raise Died
        try:
            answer = await call
        except ShiftworkError as error:
            world.log(f"{self.name} {what}: {error}"[:120])
            if error.code == InputError.code:
                world.fail(error)  # no one here sends what cannot be read
            raise
        await world.after_call()
        if when == "after":
            raise Died
        if faults.hits("lost_answer"):
            world.log(f"{self.name} {what}: the answer is lost")
            raise StoreUnavailable("the answer was lost")
        world.log(f"{self.name} {what}: {_short(answer)}")
        return answer

    async def insist(self, what: str, ask: Ask[T], *, keyed: bool = True) -> T | None:
        """Repeat a call until it is answered, as a client does; return None if it is refused or abandoned."""
        key = f"{self.chance.getrandbits(64):x}" if keyed else None
        for _ in range(8):
            try:
                return await self.ask(what, ask, key)
            except UNANSWERED:
                await asyncio.sleep(self.chance.uniform(0.01, 5))
            except ShiftworkError:
                return None
        return None

    def some_task(self) -> str | None:
        known = self.world.known
        return self.chance.choice(known) if known else None


def _short(answer: Any) -> str:
    if isinstance(answer, list):
        return f"{len(answer)} [{', '.join(_short(each) for each in answer[:4])}]"
    name = getattr(answer, "token", None) or getattr(answer, "id", None) or getattr(answer, "task_id", None)
    status = getattr(answer, "status", "")
    return f"{name} {status}".strip() if name else type(answer).__name__


class Producer(Agent):
    """Submits tasks, batches and DAGs."""

    async def work(self) -> None:
        while True:
            await asyncio.sleep(self.chance.expovariate(1 / 6))
            if self.world.may_submit():
                await self.chance.choice([self.submit, self.submit, self.submit_batch, self.submit_dag])()
            else:
                await asyncio.sleep(60)

    def task(self) -> dict[str, Any]:
        chance, world = self.chance, self.world
        task: dict[str, Any] = {"type": chance.choice(world.types), "priority": chance.randrange(100)}
        task["title"] = world.new_title()
        if chance.random() < 0.3 and world.known:
            task["dependencies"] = chance.sample(world.known, min(len(world.known), chance.randint(1, 2)))
        if "serial" in world.features and chance.random() < 0.5:
            task |= {"type": "deploy", "serial_key": chance.choice(["a", "b"])}
        optional: dict[str, Callable[[], Any]] = {
            "idempotency_key": lambda: chance.choice(["k1", "k2", "k3"]),
            "estimated_cost_usd": lambda: PRICE * chance.randint(1, 2),
            "delay": lambda: chance.uniform(1, 60),
            "expires_in": lambda: chance.uniform(61, 600),  # after its delay
            "deadline": lambda: world.faults.clock() + chance.uniform(5, 600),
            "max_attempts": lambda: chance.randint(1, 4),
            "delivery": lambda: chance.choice(["at_least_once", "at_most_once"]),
            "tree_budget_usd": lambda: PRICE * chance.randint(1, 8),
            "timeout_sec": lambda: chance.uniform(10, 100),
        }
        return task | {name: value() for name, value in optional.items() if chance.random() < 0.08}

    async def submit(self) -> None:
        task = self.task()
        made = await self.insist("submit", lambda queue: queue.submit(task))
        if made is not None:
            self.world.submitted([made], [task])

    async def submit_batch(self) -> None:
        batch = [self.task() for _ in range(self.chance.randint(1, 3))]
        made = await self.insist("submit_many", lambda queue: queue.submit_many(batch))
        if made is not None:
            self.world.submitted(made, batch)

    async def submit_dag(self) -> None:
        tasks: list[dict[str, Any]] = []
        for place in range(self.chance.randint(2, 4)):
            above = self.chance.sample(range(place), self.chance.randint(0, place))
            tasks.append(self.task() | {"key": f"n{place}", "dependencies": [f"n{each}" for each in above]})
        dag = {"tasks": tasks}
        if "budgets" in self.world.features:
            dag["budget_ceiling_usd"] = PRICE * self.chance.randint(2, 8)  # type: ignore[assignment]  # what a DAG takes
        made = await self.insist("submit_dag", lambda queue: queue.submit_dag(dag))
        if made is not None:
            self.world.submitted(list(made), tasks)


class Worker(Agent):
    """Claims, works and reports, sometimes too late or twice."""

    async def work(self) -> None:
        await self.insist("register", self.register, keyed=False)
        while True:
            await asyncio.sleep(self.chance.expovariate(1 / 3))
            await self.claim(25 if self.world.calm else self.chance.choice([0, 0, 0, 20]))

    def register(self, queue: Queue) -> Coroutine[Any, Any, Any]:
        budget = PRICE * 8 if "budgets" in self.world.features else None
        return queue.agents.register(id=self.name, max_concurrent_tasks=2, budget_remaining_usd=budget)

    async def claim(self, wait: float) -> None:
        chance = self.chance
        count, start = chance.randint(1, 2), chance.random() < 0.7
        request = f"{self.name} {chance.getrandbits(64):x}"
        key = request if not wait and chance.random() < 0.5 else None
        for _ in range(2 if key else 1):
            try:
                got = await self.ask(
                    "claim", lambda queue: queue.claim(self.name, count, wait=wait, start=start), key=key
                )
            except UNANSWERED:
                continue
            except (ShiftworkError, Repeated):  # what a repeated claim was given is known to the first alone
                return
            for assignment in got:
                self.world.acknowledged.claim(assignment.token, request)
            for assignment in got:
                await self.perform(assignment, started=start)
            return

    async def perform(self, assignment: Assignment, *, started: bool) -> None:
        token, chance = assignment.token, self.chance
        self.world.tokens.append(token)
        if not started and await self.insist("start", lambda queue: queue.start(token), keyed=False) is None:
            return
        spent = False
        for _ in range(chance.randint(0, 3)):
            await asyncio.sleep(chance.choice([0.1, 1, 10, 25, 150 if not self.world.calm else 1]))
            act = chance.choice([self.beat, self.step, self.spawn, self.park, self.beat_and_spend])
            if act == self.beat_and_spend:
                spent, act = True, self.beat if spent else act
            if not await act(token):
                return
        await self.end(token, spent=spent)
        if not self.world.calm and chance.random() < 0.1:
            await self.write_late()

    async def beat(self, token: str) -> bool:
        answer = await self.insist("heartbeat", lambda queue: queue.heartbeat(token, {"at": 1}), keyed=False)
        return answer is None or answer.action == "continue" or self.chance.random() < 0.3

    async def beat_and_spend(self, token: str) -> bool:
        usage = {"cost_usd": PRICE, "tokens_in": 3}
        await self.insist("heartbeat", lambda queue: queue.heartbeat(token, None, usage))
        return True

    async def step(self, token: str) -> bool:
        name = self.chance.choice(["one", "two"])
        await self.insist("step", lambda queue: queue.steps.complete(token, name, {"by": token}), keyed=False)
        return True

    async def spawn(self, token: str) -> bool:
        if not self.world.may_submit():
            return True
        wait = self.chance.random() < 0.5
        types = [self.chance.choice(self.world.types) for _ in range(self.chance.randint(1, 2))]
        tasks = [{"type": type_, "title": self.world.new_title()} for type_ in types]
        made = await self.insist("spawn", lambda queue: queue.spawn(token, tasks, wait=wait))
        if made is not None:
            self.world.submitted(made, tasks)
        return not wait

    async def park(self, token: str) -> bool:
        """Release the slot until something happens."""
        if "waits" not in self.world.features or self.world.calm:
            return True
        form = self.chance.choice(["until", "signal", "question"])
        name = f"{form} {self.chance.choice('ab')}"
        later = self.world.faults.clock() + self.chance.uniform(1, 200)
        forms: dict[str, Any] = {"until": later, "signal": "go", "question": "may I?"}
        terms = {form: forms[form]}
        if form != "until" and self.chance.random() < 0.5:
            terms["timeout_sec"] = self.chance.uniform(5, 300)
        answer = await self.insist("wait", lambda queue: queue.waits.wait(token, name, **terms))
        return answer is None or answer.status != "open"

    async def end(self, token: str, *, spent: bool) -> None:
        chance, acknowledged = self.chance, self.world.acknowledged
        usage = {"cost_usd": PRICE} if not spent and chance.random() < 0.5 else None
        how = chance.choices(["complete", "fail", "release"], [6, 1 if self.world.calm else 3, 1])[0]
        if how == "complete":
            done = await self.insist("complete", lambda queue: queue.complete(token, {"by": token}, usage=usage))
            if done is not None and done.status == "completed":
                acknowledged.completed[token] = None
        elif how == "fail":
            reason, again = chance.choice(REASONS), chance.random() < 0.9
            ended = await self.insist(
                "fail", lambda queue: queue.fail(token, reason, "it broke", usage=usage, retry=again)
            )
            if ended is not None:
                acknowledged.failed[token] = None
        else:
            await self.insist("release", lambda queue: queue.release(token))

    async def write_late(self) -> None:
        """Write under a random token, which is usually outdated."""
        token = self.chance.choice(self.world.tokens)
        how = self.chance.choice(["complete", "fail", "release", "heartbeat", "start"])
        asks: dict[str, Ask[Any]] = {
            "complete": lambda queue: queue.complete(token, {"by": token}),
            "fail": lambda queue: queue.fail(token, "crash"),
            "release": lambda queue: queue.release(token),
            "heartbeat": lambda queue: queue.heartbeat(token),
            "start": lambda queue: queue.start(token),
        }
        done = await self.insist(f"late {how}", asks[how], keyed=False)
        if how == "complete" and done is not None and done.status == "completed":
            self.world.acknowledged.completed[token] = None
        parse_token(token)


class Operator(Agent):
    """People and programs that change what others have submitted."""

    async def work(self) -> None:
        while True:
            await asyncio.sleep(self.chance.expovariate(1 / 7) + 60 * self.world.calm)
            what = self.chance.choice(self.verbs())
            task = self.some_task()
            if task is not None and not self.world.calm:
                await what(task)

    def verbs(self) -> list[Callable[[str], Coroutine[Any, Any, None]]]:
        return [
            self.cancel,
            self.review,
            self.update,
            self.rerun,
            self.decide,
            self.decide,
            self.control,
            self.runtimes,
        ]

    async def cancel(self, task: str) -> None:
        if self.chance.random() < 0.5:
            await self.insist("cancel", lambda queue: queue.cancel(task))
        else:
            dag = self.world.dags.get(task)
            if dag is not None and self.chance.random() < 0.3:
                await self.insist("cancel DAG", lambda queue: queue.dags.cancel(dag))

    async def review(self, task: str) -> None:
        decision = self.chance.choice(["retry", "retry_later", "cancel", "modify_and_retry"])
        more: dict[str, Any] = {"chain": self.chance.random() < 0.3}
        if decision == "retry_later":
            more["at"] = self.world.faults.clock() + 20
        if decision == "modify_and_retry":
            more["change"] = {"priority": 9}
        letters = await self.insist("letters", lambda queue: queue.dead_letters.list(), keyed=False)
        if letters:
            task = self.chance.choice(letters).task_id
        await self.insist("review", lambda queue: queue.dead_letters.review(task, decision, **more))  # type: ignore[arg-type]  # one of them

    async def update(self, task: str) -> None:
        other = self.some_task()
        change: dict[str, Any] = self.chance.choice([{"priority": 80}, {"dependencies": [other]}, {"dependencies": []}])
        await self.insist("update", lambda queue: queue.tasks.update(task, change))

    async def rerun(self, task: str) -> None:
        if self.world.may_submit():
            await self.insist("rerun", lambda queue: queue.tasks.rerun(task))

    async def decide(self, task: str) -> None:
        """Approve, reject, answer, signal."""
        waiting = await self.insist("approvals", lambda queue: queue.approvals.list(), keyed=False)
        if waiting:
            task = self.chance.choice(waiting).task_id
        asks: list[tuple[str, Ask[Any]]] = [
            ("approve", lambda queue: queue.approvals.approve(task)),
            ("approve", lambda queue: queue.approvals.approve(task)),
            ("reject", lambda queue: queue.approvals.reject(task)),
            ("answer", lambda queue: queue.approvals.answer(task, "yes")),
            ("signal", lambda queue: queue.waits.signal("go", 1, task=task)),
        ]
        what, ask = self.chance.choice(asks)
        await self.insist(what, ask)

    async def control(self, _: str) -> None:
        type_ = self.chance.choice(self.world.types)
        asks: list[tuple[str, Ask[Any]]] = [
            ("pause", lambda queue: queue.control.pause(type_)),
            ("resume", lambda queue: queue.control.resume(type_)),
            ("resume", lambda queue: queue.control.resume(type_)),
            ("cooldown", lambda queue: queue.cooldowns.set(f"type:{type_}", 30)),
            ("lift", lambda queue: queue.cooldowns.lift(f"type:{type_}")),
            ("trip", lambda queue: queue.breakers.trip(type_)),
            ("reset", lambda queue: queue.breakers.reset(type_)),
            ("rebalance", lambda queue: queue.agents.rebalance()),
        ]
        if "purges" in self.world.features:
            asks.append(("purge", lambda queue: queue.control.purge(status=["ready"], type=type_)))
        if "triggers" in self.world.features:
            asks += [("fire", lambda queue: queue.triggers.fire("often"))] * 2
        what, ask = self.chance.choice(asks)
        await self.insist(what, ask)

    async def runtimes(self, _: str) -> None:
        """Report a process as dead, correctly or not."""
        runtime = self.chance.choice(self.world.workers).name
        asks: list[tuple[str, Ask[Any]]] = [
            ("gone", lambda queue: queue.runtimes.report_gone(runtime)),
            ("recover", lambda queue: queue.runtimes.recover(runtime)),
            ("rest", lambda queue: queue.agents.set_status(runtime, "draining")),
            ("return", lambda queue: queue.agents.set_status(runtime, "active")),
        ]
        what, ask = self.chance.choice(asks)
        await self.insist(what, ask)


class Reader(Agent):
    """Follows the event log from its stored cursor."""

    async def work(self) -> None:
        while not self.world.calm:
            await asyncio.sleep(self.chance.expovariate(1 / 20))
            await self.read()
        await asyncio.Event().wait()

    async def read(self) -> None:
        seen = self.world.acknowledged
        begin = seen.read_to
        page = await self.insist("events", lambda queue: queue.events(begin, limit=50), keyed=False)
        if page is not None and seen.read_to == begin:
            seen.read.update(event.seq for event in page.events)
            seen.read_to = page.next
