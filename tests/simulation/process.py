"""A server process: a queue on the shared database, whose memory is lost in a crash."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import queue as queues
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from shiftwork import Queue
from shiftwork.engine.engine import Caller, Engine, IdempotentRequest
from shiftwork.engine.idempotency import Repeated
from shiftwork.engine.participants import PARTICIPANTS
from shiftwork.maintenance.loop import run_forever, run_once
from shiftwork.model.errors import OperationTimeout, ShiftworkError, StoreError, StoreUnavailable
from shiftwork.model.ids import IdMaker
from shiftwork.operation.shared import Shared
from shiftwork.store.sqlite import SqliteStore, _deliver
from shiftwork.store.sqlite_job import UNKNOWN, Job
from shiftwork.store.stalls import StallDetector
from tests.simulation.disk import Crash
from tests.simulation.faults import Faults

T = TypeVar("T")
Ask = Callable[[Queue], Coroutine[Any, Any, T]]


class SimulatedStore(SqliteStore):
    """The SQLite store with its writer on the loop; a fault may happen at every step."""

    def __init__(self, faults: Faults, on_crash: Callable[[], None]) -> None:
        self._faults = faults
        self._on_crash = on_crash
        super().__init__("sqlite://:memory:", faults.disk.connection, None, faults.clock, 0)
        self._thread.join()
        self.stall_detector = StallDetector(faults.clock, steady=self._loop.time)
        self._crashed = False
        self._turn_is_due = False

    def _work(self) -> None:
        """Run without a thread."""

    async def run(self, verb: Any, /) -> Any:
        await self._faults.pause()
        loop = asyncio.get_running_loop()
        if not self._turn_is_due:
            self._turn_is_due = True
            loop.call_later(self._faults.delay(), self._take_turn)
        return await super().run(verb)

    def _take_turn(self) -> None:
        self._turn_is_due = False
        if self._crashed or self._jobs.empty():
            return
        group = self._next_group()
        if group is None:
            return
        disk = self._faults.disk
        self._faults.arm()
        news: tuple[frozenset[int], frozenset[str]] = frozenset(), frozenset()
        with contextlib.suppress(Crash):
            news = self._run_group(group)
            self._faults.crash_after_commit()
        died, disk.doom = disk.dead, None
        disk.lose_open_transaction()
        if died:
            self._on_crash()
            return
        for job in group:
            if job.error is None and self._faults.loses_answer():
                job.error = StoreUnavailable("the connection broke during the commit", hint=UNKNOWN)
        self._loop.call_later(self._faults.delay(), _deliver, group, partial(self._announce, *news))

    def crash(self) -> None:
        """Crash: every waiting caller loses its connection."""
        self._crashed = self._closed = True
        while True:
            try:
                job = self._jobs.get_nowait()
            except queues.Empty:
                return
            if isinstance(job, Job) and not job.future.done():
                job.future.cancel()

    async def close(self) -> None:
        self._closed = True


class Process:
    """Opens the queue, runs maintenance, answers calls, crashes, and comes back."""

    def __init__(self, name: str, faults: Faults, *, polls: bool) -> None:
        self.name = name
        self._faults = faults
        self._polls = polls
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._queue: Queue | None = None

    @property
    def is_up(self) -> bool:
        return self._queue is not None

    @property
    def queue(self) -> Queue:
        assert self._queue is not None
        return self._queue

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        chance = self._faults.chance
        engine = Engine(
            SimulatedStore(self._faults, self.crash), "standard", chance.getrandbits(32), participants=PARTICIPANTS
        )
        engine.ids = IdMaker(chance.randbytes)
        self._queue = Queue(Shared(engine), "default", Caller())
        self.keep(loop.create_task(run_forever(engine) if self._polls else self._maintain(engine)))

    async def _maintain(self, engine: Engine) -> None:
        """The rounds of `run_forever`, further apart: a virtual day costs less."""
        while True:
            try:
                await run_once(engine)
            except (StoreError, OperationTimeout) as error:
                self._faults.log(f"{self.name} maintenance: {error}"[:200])
            await asyncio.sleep(self._faults.chance.uniform(0.5, 12))

    def keep(self, task: asyncio.Task[T]) -> asyncio.Task[T]:
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) and not isinstance(error, ShiftworkError | Repeated):
            self._faults.unforeseen(error)

    def crash(self) -> None:
        """Lose all memory; calls end without an answer."""
        if self._queue is None:
            return
        self._faults.log(f"{self.name} crashes")
        store = self._queue.engine.store
        assert isinstance(store, SimulatedStore)
        store.crash()
        for task in list(self._tasks):
            task.cancel()
        self._queue = None
        later = self._faults.chance.uniform(0.1, 20)
        asyncio.get_running_loop().call_later(later, self.start, context=contextvars.Context())  # it remembers nothing

    def slow_down(self) -> None:
        """Run maintenance less often during long calm phases."""
        if self._polls:
            self._polls = False
            self.crash()

    def stop(self) -> None:
        """Stop the process at the end of the run."""
        if self._queue is not None:
            store = self._queue.engine.store
            assert isinstance(store, SimulatedStore)
            store.crash()
        self._queue = None

    async def answer(self, ask: Ask[T], actor: str, key: str | None) -> T:
        """Handle one request as a server does: it continues even if its caller has disconnected."""
        if self._queue is None:
            raise StoreUnavailable("no server answers")
        request = None if key is None else IdempotentRequest(key, key)
        queue = self._queue
        speaking = queue.for_caller(queue.caller._replace(actor=actor, idempotency=request))
        task = self.keep(asyncio.get_running_loop().create_task(ask(speaking)))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise StoreUnavailable("the server went away", hint=UNKNOWN) from None
            raise
