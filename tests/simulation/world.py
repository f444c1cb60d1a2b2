"""One run: a world made from a seed, a phase of faults, a calm phase in which all work must end, and the checks."""

from __future__ import annotations

import asyncio
import gc
import logging
import traceback
from collections.abc import Awaitable, Coroutine, Sequence
from functools import partial
from random import Random
from typing import Any, NamedTuple

from shiftwork import Queue
from shiftwork.budgets.model import Budget
from shiftwork.model.states import FINAL, SETTLED
from shiftwork.settings.cache import FRESH_SEC
from shiftwork.waits.model import ApprovalRequest
from tests.simulation.agents import Agent, Ask, Operator, Producer, Reader, Worker
from tests.simulation.disk import Disk
from tests.simulation.faults import Faults, Rates
from tests.simulation.observer import Acknowledged, Observer
from tests.simulation.process import Process
from tests.simulation.virtual_time import VirtualLoop, no_real_time

FEATURES = (
    *("budgets", "guards", "serial", "limits", "breakers", "waits", "triggers"),
    *("new_rows", "fair_share", "archive", "lenient", "purges", "affinity"),
)
TYPES = ("code", "docs", "ship")
MAX_TASKS = 16
CHECK_EVERY = 12
"""Calls between two looks at the whole database."""
MAX_CALM_SEC = 3_000.0


class Failed(Exception):
    """An invariant does not hold in this world."""


class Run(NamedTuple):
    """The result of a seed."""

    seed: int
    wrong: str | None
    log: list[str]
    digest: str
    calls: int
    statements: int
    checks: int
    faults: dict[str, int]
    features: tuple[str, ...]
    virtual_sec: float


class World:
    """Everything that takes part in a run."""

    def __init__(self, seed: int, loop: VirtualLoop, features: Sequence[str] | None) -> None:
        chance = Random(seed)
        self.chance = chance
        self.loop = loop
        self.lines: list[str] = []
        self.disk = Disk()
        self.faults = Faults(chance, self.disk, self.log)
        self.faults.unforeseen = self.note
        drawn = tuple(name for name in FEATURES if chance.random() < 0.35)
        self.features = drawn if features is None else tuple(features)
        self.types = TYPES
        self.calm = True
        self.wrong: str | None = None
        self.known: list[str] = []
        self.dags: dict[str, str] = {}
        self.tokens: list[str] = []
        self.calls = 0
        self.acknowledged = Acknowledged()
        polls = chance.random() < 0.05
        self.duration = chance.uniform(30, 60) if polls else chance.uniform(60, 240)
        self.processes = [Process(f"server {n}", self.faults, polls=polls) for n in range(chance.randint(1, 2))]
        self.workers = [Worker(self, f"worker{n}") for n in range(chance.randint(2, 4))]
        self.agents: list[Agent] = [*self.workers, Producer(self, "producer"), Reader(self, "reader")]
        self.agents += [Operator(self, f"operator{n}") for n in range(chance.randint(0, 2))]
        self.limits = {"code": chance.randint(1, 2)} if "limits" in self.features else {}
        self.observer = Observer(self.faults, self.acknowledged, self.limits)
        self._titles = 0
        self._left: dict[asyncio.Future[Any], None] = {}

    def log(self, line: str) -> None:
        self.lines.append(f"{self.loop.time():9.3f} {line}")

    def draw_rates(self) -> Rates:
        """Draw the rates. Half of the worlds lack each kind of fault, since one fault can hide another."""
        chance = self.chance
        most = Rates(0.03, 0.1, 0.08, 0.05, 0.03, 0.03, 0.01)
        return Rates(*(rate * chance.random() if chance.random() < 0.6 else 0.0 for rate in most))

    def new_title(self) -> str:
        """Return a unique title, so that a submission executed twice is detected."""
        self._titles += 1
        return f"work {self._titles}"

    def may_submit(self) -> bool:
        return not self.calm and len(self.known) < MAX_TASKS

    def submitted(self, made: Sequence[Any], tasks: Sequence[dict[str, Any]]) -> None:
        for handle, task in zip(made, tasks, strict=True):
            self.acknowledged.submitted[handle.id] = None
            if handle.id not in self.known:
                self.known.append(handle.id)
            if handle.dag_id is not None:
                self.dags[handle.id] = handle.dag_id
            if "serial_key" in task and not handle.duplicate:
                self.acknowledged.serial_keys[handle.id] = task["serial_key"]

    def leave(self, call: asyncio.Future[Any]) -> None:
        """Let a call end by itself after its caller has died."""
        self._left[call] = None
        call.add_done_callback(self._ended)

    def _ended(self, call: asyncio.Future[Any]) -> None:
        self._left.pop(call, None)
        if not call.cancelled():
            call.exception()  # no one hears it

    async def after_call(self) -> None:
        self.calls += 1
        if self.calls % CHECK_EVERY == 0:
            await self.look()

    async def look(self) -> Any:
        try:
            return await self.observer.check()
        except AssertionError as error:
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        self.wrong = self.wrong or f"{type(error).__name__}: {error}"
        raise Failed(self.wrong) from error

    def unforeseen(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Record an unhandled error."""
        self.note(context.get("exception") or RuntimeError(context["message"]))

    def note(self, error: BaseException) -> None:
        where = traceback.extract_tb(error.__traceback__)
        place = f" at {where[-1].filename}:{where[-1].lineno}" if where else ""
        self.wrong = self.wrong or f"{type(error).__name__}: {error}{place}"

    async def set_up(self) -> None:
        for process in self.processes:
            process.start()
        queue = self.processes[0].queue
        short: dict[str, Any] = {
            "heartbeat_timeout_sec": 30,
            "retry.initial_delay_sec": 5,
            "rate_limit.base_sec": 10,
            "rate_limit.max_wait_sec": 40,
            "circuit_breaker.cooldown_seconds": 30,
            "dependency_wait_sec": 60,
        }
        for name, value in short.items():
            await queue.settings.set(name, value)
        values: dict[str, list[tuple[str, Any]]] = {
            "guards": [("guards", [{"type": "ship", "expire_after_sec": 60.0}])],
            "serial": [],
            "breakers": [("circuit_breaker.failure_threshold", 2), ("circuit_breaker.half_open_after", 20)],
            "budgets": [("budget.daily_usd", 8.0)],
            "new_rows": [("retry.mode", "new_task")],
            "fair_share": [("fair_share.by", "created_by")],
            "archive": [("archive_after_sec", 60.0)],
            "lenient": [("on_stale", "reclaim"), ("on_claim_expired", "release"), ("on_dependency_failed", "cancel")],
            "purges": [("purge.mode", self.chance.choice(["cancel", "delete"]))],
            "affinity": [("affinity_sec", 10)],
        }
        for feature in self.features:
            for name, value in values.get(feature, ()):
                await queue.settings.set(name, value)
        await queue.settings.set("serialize_by", "key", type="deploy")
        for type_, most in self.limits.items():
            await queue.limits.set(f"type:{type_}", concurrency=most)
        if "triggers" in self.features:
            on = {"kind": "cron", "at": "* * * * *"}
            await queue.triggers.save("often", on=on, task={"type": "docs"}, overlap="skip")

    async def live(self) -> None:
        await self.set_up()
        await asyncio.sleep(FRESH_SEC + 1)  # by now every process works with these settings
        self.faults.rates = self.draw_rates()
        self.calm = False
        self.log(f"features {', '.join(self.features)}; {self.faults.rates}")
        living = [self.loop.create_task(agent.live()) for agent in self.agents]
        try:
            await self._or_failure(living, asyncio.sleep(self.duration))
            self.faults.end()
            self.calm = True
            self.log("calm")
            for process in self.processes:
                process.slow_down()
            await self._or_failure(living, self.settle())
            await self.finish_reading()
            try:
                await self.observer.check_end()
            except AssertionError as error:
                self.fail(error)
        finally:
            for task in living:
                task.cancel()
            await asyncio.gather(*living, return_exceptions=True)

    async def _or_failure(self, living: Sequence[asyncio.Task[None]], until: Awaitable[Any]) -> None:
        """Wait for this, or for the failure of an agent."""
        waiting = asyncio.ensure_future(until)
        done, _ = await asyncio.wait([waiting, *living], return_when=asyncio.FIRST_COMPLETED)
        if waiting not in done:
            waiting.cancel()
        for task in done:
            await task

    async def settle(self) -> None:
        """Lift every hold that people can lift, and let the fleet work until there is no progress."""
        begun = self.loop.time()
        while self.loop.time() - begun < MAX_CALM_SEC:
            await asyncio.sleep(45)
            if not all(process.is_up for process in self.processes):
                continue
            now = await self.look()
            open_ = [row for row in now.tasks.values() if row["status"] not in FINAL | SETTLED]
            if not open_ or (all(row["status"] == "pending" for row in open_) and not await self.is_waiting()):
                return
            await self.lift_holds()

    async def is_waiting(self) -> bool:
        """Whether something waits for a person or a moment."""
        queue = self.observer.queue
        tasks = (await queue.tasks.list(status="pending", limit=1000)).tasks
        return any(task.waits for task in tasks) or bool(await queue.approvals.list())

    async def lift_holds(self) -> None:
        """Do what people would do so that work continues."""
        queue = self.observer.queue
        for type_ in (None, *self.types, "deploy"):
            await self.lift("resume", partial(_resume, type_))
        for worker in self.workers:
            await self.lift("return", partial(_return, worker.name))
        if "triggers" in self.features:
            await self.lift("pause trigger", lambda queue: queue.triggers.pause("often"))
        for budget in await queue.budgets.list(limit=1000):
            if budget.ceiling_usd is not None and budget.kind != "day":
                await self.lift("raise", partial(_raise_ceiling, budget))
        await self.lift("raise", lambda queue: queue.settings.set("budget.daily_usd", None))
        for request in await queue.approvals.list():
            await self.lift("decide", partial(_decide, request))
        for task in (await queue.tasks.list(status="pending", limit=1000)).tasks:
            if any(wait.kind == "signal" for wait in task.waits):
                await self.lift("signal", partial(_signal, task.id))

    async def lift(self, what: str, ask: Ask[Any]) -> None:
        await Agent(self, "lifter").insist(what, ask)

    async def finish_reading(self) -> None:
        reader = next(agent for agent in self.agents if isinstance(agent, Reader))
        while True:
            before = self.acknowledged.read_to
            await reader.read()
            if self.acknowledged.read_to == before:
                return

    def close(self) -> None:
        for process in self.processes:
            process.stop()


def _resume(type_: str | None, queue: Queue) -> Coroutine[Any, Any, Any]:
    return queue.control.resume(type_)


def _return(agent: str, queue: Queue) -> Coroutine[Any, Any, Any]:
    return queue.agents.set_status(agent, "active")


def _raise_ceiling(budget: Budget, queue: Queue) -> Coroutine[Any, Any, Any]:
    return queue.budgets.set(budget.kind, budget.id, ceiling_usd=1000)


def _decide(request: ApprovalRequest, queue: Queue) -> Coroutine[Any, Any, Any]:
    if request.kind == "approval":
        return queue.approvals.approve(request.task_id)
    return queue.approvals.answer(request.task_id, "yes")


def _signal(task_id: str, queue: Queue) -> Coroutine[Any, Any, Any]:
    return queue.waits.signal("go", 1, task=task_id)


class _Complaints(logging.Handler):
    """Treat logged errors of the engine as failures: it repaired an inconsistency."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.ERROR or record.exc_info:
            cause = f" {record.exc_info[1]!r}" if record.exc_info else ""
            self.said.append(f"{record.name}: {record.getMessage()}{cause}")


def run(seed: int, features: Sequence[str] | None = None) -> Run:
    """Everything that happens for a seed, with these features or those it draws. The same seed, the same events."""
    loop = VirtualLoop(Random(seed ^ 0x5EED))
    complaints = _Complaints()
    logger = logging.getLogger("shiftwork")
    propagates, logger.propagate = logger.propagate, False
    logger.addHandler(complaints)
    gc.disable()  # when it runs depends on what ran before, and coroutines that are left end then
    try:
        world = _live(seed, loop, features)
    finally:
        gc.enable()
        logger.removeHandler(complaints)
        logger.propagate = propagates
        loop.close()
    wrong = world.wrong or (f"the engine complains: {complaints.said[0]}" if complaints.said else None)
    return Run(
        seed,
        wrong,
        world.lines,
        world.disk.digest,
        world.calls,
        world.disk.statements,
        world.observer.checks,
        world.faults.happened,
        world.features,
        loop.time(),
    )


def _live(seed: int, loop: VirtualLoop, features: Sequence[str] | None) -> World:
    asyncio.set_event_loop(loop)
    made: list[World] = []

    async def live() -> None:
        world = World(seed, loop, features)
        made.append(world)
        loop.set_exception_handler(world.unforeseen)
        try:
            await world.live()
        except Failed:
            pass
        except Exception as error:  # noqa: BLE001  # a world that breaks is a finding as well
            world.note(error)
        finally:
            world.close()
            rest = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in sorted(rest, key=lambda task: task.get_name()):
                task.cancel()
            await asyncio.gather(*rest, return_exceptions=True)

    try:
        with no_real_time(loop, lambda: loop.time() + (made[0].faults.offset if made else 0.0)):
            loop.run_until_complete(live())
    finally:
        asyncio.set_event_loop(None)
    (world,) = made
    world.disk.close()
    return world
