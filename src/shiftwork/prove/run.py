"""One run: a fleet on a scratch store, faults that overlap, and the ledger at the end."""

from __future__ import annotations

import asyncio
import itertools
import random
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, TypeVar

from shiftwork.client import Client
from shiftwork.model import ids
from shiftwork.model.errors import StoreUnavailable
from shiftwork.prove import proxy as proxies
from shiftwork.prove import svg
from shiftwork.prove.faults import FAULTS, Permitted, excludes
from shiftwork.prove.fleet import Fleet, fleet_on, free_port
from shiftwork.prove.ledger import ENDED, Act, Ledger, Occurrence, Records, Thought, count, read_stored_totals
from shiftwork.prove.probes import AWAY, Probes
from shiftwork.prove.proxy import Proxy
from shiftwork.prove.scratch_store import Scratch, in_list, scratch_at
from shiftwork.prove.workload import PARENT, STEPS, SUBTASKS, task, thoughts_of, type_of
from shiftwork.queue import Queue

SETTINGS = {
    "heartbeat_interval_sec": 0.5,
    "heartbeat_timeout_sec": 2,
    "claim_ttl_sec": 5,
    "max_attempts": 1000,
    "max_reclaims": 10_000,
    "retry.initial_delay_sec": 0.1,
    "retry.max_delay_sec": 0.5,
    "circuit_breaker": None,
    "poison": None,
    "maintenance.retry_promoter_sec": 0.25,
}
"""Short leases, so that much happens in little time, and unlimited retries, so that every task must complete."""

PRODUCERS = 2
BATCH = 200
MIN_BACKLOG = 300
SAMPLE_SEC = 1.0
PACE_SAMPLES = 60
RECOVERY_SEC = 60.0
SETTLE_SEC = 120.0

HOLDING = """
select id, fence from tasks where status in ('claimed', 'running', 'validating') and lease_check_at > 0
  and status <> 'validating' and type <> 'probe'"""
"""Uses the index of leases, because a run may have a million tasks."""

HELD = ("claimed", "running", "ready", "retrying")
"""States of a task held at the start of a fault, until it ends or waits for its subtasks."""

Tell = Callable[[str], None]
T = TypeVar("T")


class Plan(NamedTuple):
    """The options of a run."""

    minutes: float
    tasks: int | None
    """The maximum number of submitted tasks, without subtasks."""
    workers: int
    every_sec: float
    """The pause before each fault."""
    at_once: int
    """The maximum number of overlapping faults, each counted until its recovery."""
    faults: Sequence[str]
    seed: int
    restart: Permitted | None = None
    fail_over: Permitted | None = None


class Sample(NamedTuple):
    """The number of completed tasks at a time."""

    at_sec: float
    completed: int


def rate_between(earlier: Sample, later: Sample) -> float:
    """Tasks completed per second."""
    return max(0.0, (later.completed - earlier.completed) / (later.at_sec - earlier.at_sec))


class Outcome(NamedTuple):
    """The results of a run."""

    ledger: Ledger
    samples: list[Sample]
    occurrences: list[Occurrence]


async def prove(url: str, plan: Plan, report: Tell, logs: Path | None = None) -> Outcome:
    """Inject faults into a fleet on a scratch store at this address, count the results, and remove the store.

    If there are violations, the logs of the processes are copied to `logs`.
    """
    chance = random.Random(plan.seed)
    async with scratch_at(url) as scratch:
        async with await Queue.open(scratch.url, actor="system:prove") as queue:
            await queue.settings.change(SETTINGS)
        async with _network(scratch, chance) as (network, store, server, port):
            folder, one_clock = scratch.folder, scratch.is_sqlite
            async with (
                fleet_on(store, server, port, plan.workers, folder, one_clock=one_clock) as fleet,
                await connected(server) as client,
            ):
                outcome = await Trial(scratch, fleet, network, client, chance, plan, report).run()
        if logs is not None and outcome.ledger.violations:
            shutil.copytree(folder, logs, ignore=shutil.ignore_patterns("queue.db*"), dirs_exist_ok=True)
        return outcome


async def connected(server: str) -> Client:
    """Connect with short timeouts, so that an earlier fault does not hold up a batch."""
    async with asyncio.timeout(RECOVERY_SEC):
        while True:
            with suppress(StoreUnavailable):
                return await Client.open(server, patience_sec=1.0, timeout_sec=5.0)
            await asyncio.sleep(0.2)


@asynccontextmanager
async def _network(scratch: Scratch, chance: random.Random) -> AsyncIterator[tuple[list[Proxy], str, str, int]]:
    """Yield the proxies, the addresses of store and server through them, and the port to serve on."""
    port = free_port()
    network = [Proxy("127.0.0.1", port, chance, http=True)]
    hosts = [] if scratch.is_sqlite else proxies.hosts_of(scratch.url)
    network += [Proxy(host.name, host.port, chance, http=False) for host in hosts]
    async with AsyncExitStack() as stack:
        ports = [await stack.enter_async_context(proxies.listening(proxy)) for proxy in network]
        store = proxies.through(scratch.url, ports[1:]) if hosts else scratch.url
        yield network, store, f"http://127.0.0.1:{ports[0]}", port


class Trial:
    """A working fleet and the faults injected into it."""

    def __init__(
        self,
        scratch: Scratch,
        fleet: Fleet,
        network: list[Proxy],
        client: Client,
        chance: random.Random,
        plan: Plan,
        report: Tell,
    ) -> None:
        self.scratch, self.fleet, self.proxies, self.chance = scratch, fleet, network, chance
        self.restart, self.fail_over = plan.restart, plan.fail_over
        self._client, self._plan, self._report = client, plan, report
        self._probes = Probes(client)
        self._numbers = itertools.count()
        self._acknowledged: dict[str, str] = {}
        self._expected = 0
        """Acknowledged tasks, including the subtasks that they will spawn."""
        self._samples = [Sample(0.0, 0)]
        self._occurrences: list[Occurrence] = []
        self._began = time.monotonic()
        self._producing = True
        self._unanswered = 0
        """Batches sent at least once and not acknowledged yet."""
        self._under_way: dict[str, asyncio.Task[None]] = {}
        self._now = ""
        self._again: int | None = None
        """The number of a task that was refused because the disk was full."""

    @property
    def _at(self) -> float:
        return time.monotonic() - self._began

    async def run(self) -> Outcome:
        background = [self._produce() for _ in range(PRODUCERS)]
        background += [self._sample(), self.fleet.supervise(), self._probes.run()]
        running = [asyncio.ensure_future(work) for work in background]
        producers = running[:PRODUCERS]
        working = asyncio.ensure_future(self._work())
        try:
            await asyncio.wait([working, *running[PRODUCERS:]], return_when=asyncio.FIRST_COMPLETED)
            for ended in running:
                if ended.done():
                    ended.result()  # raises its error
            await working
        finally:
            for work in (working, *running):
                work.cancel()
            await asyncio.gather(working, *running, return_exceptions=True)
        took = self._at
        records = await self._records(
            took, all_answered=all(each.done() and not each.cancelled() for each in producers)
        )
        ledger = count(records, with_effects=frozenset({STEPS}), subtasks=SUBTASKS)
        return Outcome(ledger, self._samples, self._occurrences)

    async def _work(self) -> None:
        await self._until(lambda: self._samples[-1].completed > 0, RECOVERY_SEC)
        await self._inject_all()
        await self._until(lambda: self._probes.tried > 0, RECOVERY_SEC)
        self._producing = False
        self._now = "waiting for the rest"
        await self._until_settled()

    async def _inject_all(self) -> None:
        """Inject faults in random order, in rounds, until the time is up and all were tried, or no work is left."""
        end = self._began + 60 * self._plan.minutes
        try:
            await self._rounds(end)
            await asyncio.gather(*self._under_way.values())
        finally:
            for injected in self._under_way.values():
                injected.cancel()
            await asyncio.gather(*self._under_way.values(), return_exceptions=True)
        await self._until(lambda: time.monotonic() >= end or self._exhausted, 60 * self._plan.minutes)

    async def _rounds(self, end: float) -> None:
        rounds = 0
        left = list(self._plan.faults)
        while left and (time.monotonic() < end or not rounds):
            for name in self.chance.sample(left, len(left)):
                await self._room_for(name)
                if (rounds and time.monotonic() >= end) or not await self._pause():
                    return
                self._under_way[name] = asyncio.create_task(self._inject(name))
            left = [name for name in left if not FAULTS[name].once]
            rounds += 1

    async def _room_for(self, name: str) -> None:
        """Wait for the recovery from earlier faults if they are too many, or if one excludes this fault."""
        while True:
            for other in [each for each, injected in self._under_way.items() if injected.done()]:
                self._under_way.pop(other).result()  # raises its error
            if len(self._under_way) < self._plan.at_once and not any(excludes(each, name) for each in self._under_way):
                return
            await asyncio.wait(self._under_way.values(), return_when=asyncio.FIRST_COMPLETED)

    async def _pause(self) -> bool:
        """Pause between two faults; returns whether there is still work afterwards."""
        await self._until(lambda: self._exhausted, self._plan.every_sec)
        return not self._exhausted

    @property
    def _exhausted(self) -> bool:
        """Whether all tasks of the plan have been submitted and completed."""
        full = self._plan.tasks is not None and len(self._acknowledged) >= self._plan.tasks
        return full and self._samples[-1].completed >= self._expected

    async def _inject(self, name: str) -> None:
        began = time.monotonic()
        held = await self._held()
        affected = await FAULTS[name].inject(self)
        lasted = time.monotonic() - began
        freed = recovered = None
        while recovered is None and time.monotonic() - began < lasted + RECOVERY_SEC:
            with suppress(StoreUnavailable):
                if freed is None and await self._all_freed(held):
                    freed = time.monotonic() - began
                if freed is not None and await self._all_ended(held):
                    recovered = time.monotonic() - began
                    break
            await asyncio.sleep(0.1)
        self._occurrences.append(Occurrence(name, began - self._began, lasted, affected, recovered, freed))

    async def _held(self) -> dict[str, int]:
        """The fence of each held task."""
        return {str(row[0]): row[1] for row in await self._retry_read(lambda: self.scratch.rows(HOLDING))}

    async def _all_freed(self, held: Mapping[str, int]) -> bool:
        """Whether none of these tasks is still under its original claim."""
        now = f"select id, fence from tasks where id in ({in_list(list(held))}) and status in ('claimed', 'running')"  # noqa: S608  # ids of ours
        return not held or not any(held[str(row[0])] == row[1] for row in await self.scratch.rows(now))

    async def _all_ended(self, held: Mapping[str, int]) -> bool:
        """Whether all of these tasks have ended or wait for their subtasks, which frees their slots."""
        some = f"select 1 from tasks where id in ({in_list(list(held))}) and status in ({in_list(HELD)}) limit 1"  # noqa: S608  # ids and words of ours
        return not held or not await self.scratch.rows(some)

    async def _retry_read(self, read: Callable[[], Awaitable[T]]) -> T:
        """Retry a read while the database is unavailable."""
        async with asyncio.timeout(RECOVERY_SEC):
            while True:
                try:
                    return await read()
                except StoreUnavailable:
                    await asyncio.sleep(0.2)

    async def _produce(self) -> None:
        """Submit as many tasks as the fleet can do, and retry each batch until it is acknowledged."""
        while self._producing:
            if self._is_full():
                await asyncio.sleep(0.05)
                continue
            numbers = self._next(BATCH)
            if not numbers:
                return
            self._unanswered += 1
            while not await self._sent(numbers):  # noqa: ASYNC110  # another process
                await asyncio.sleep(0.2)
            self._unanswered -= 1

    async def _sent(self, numbers: Sequence[int]) -> bool:
        try:
            await self._send(numbers)
        except AWAY:
            return False
        return True

    def _is_full(self) -> bool:
        """Whether more work waits than the fleet completes in three seconds at its best: enough for after a fault."""
        recent = self._samples[-PACE_SAMPLES:]
        rate = max((rate_between(*pair) for pair in pairwise(recent)), default=0.0)
        ahead = 3 + self._at - recent[-1].at_sec
        return self._expected - recent[-1].completed > max(MIN_BACKLOG, ahead * rate)

    def _next(self, most: int) -> list[int]:
        numbers = [next(self._numbers) for _ in range(most)]
        tasks = self._plan.tasks
        return numbers if tasks is None else [number for number in numbers if number < tasks]

    async def submit_one(self) -> None:
        """Submit a task beyond the plan; a refused one is retried after the fault."""
        if self._again is None:
            self._again = next(self._numbers)
        number = self._again
        await self._send([number])
        self._again = None

    async def _send(self, numbers: Sequence[int]) -> None:
        batch = [task(number, f"prove-{number}") for number in numbers]
        made = await self._client.submit_many(batch)
        new = [number for number in numbers if f"prove-{number}" not in self._acknowledged]
        self._acknowledged |= {
            f"prove-{number}": ids.parse(each.id) or each.id for number, each in zip(numbers, made, strict=True)
        }
        self._expected += sum(1 + SUBTASKS * (type_of(number) == PARENT) for number in new)

    async def _sample(self) -> None:
        query = "select count(*) from attempts where outcome = 'completed'"
        while True:
            began = time.monotonic()
            completed = self._samples[-1].completed
            with suppress(StoreUnavailable):
                completed = await self.scratch.value(query) - self._probes.completed
            self._samples.append(Sample(self._at, completed))
            faults = sum(each.affected > 0 for each in self._occurrences)
            line = f"{self._at:.0f} s: {completed:,} of {self._expected:,} completed, {faults} faults"
            now = self._now or ", ".join(name for name, injected in self._under_way.items() if not injected.done())
            self._report(f"{line}, {now}" if now else line)
            took = time.monotonic() - began
            await asyncio.sleep(max(SAMPLE_SEC - took, 10 * took))

    async def _until(self, reached: Callable[[], bool], most_sec: float) -> bool:
        end = time.monotonic() + most_sec
        while not reached():
            if time.monotonic() >= end:
                return False
            await asyncio.sleep(0.05)
        return True

    async def _until_settled(self) -> None:
        """Wait until everything sent is acknowledged and has ended, or until there is no progress for too long."""
        open_ = f"select 1 from tasks where status not in ({in_list(sorted(ENDED))}) and type <> 'probe' limit 1"  # noqa: S608  # words of ours
        end = time.monotonic() + SETTLE_SEC
        while time.monotonic() < end:
            if self._again is not None:
                with suppress(*AWAY):
                    await self.submit_one()
            with suppress(StoreUnavailable):
                if self._again is None and not self._unanswered and not await self.scratch.rows(open_):
                    return
            if self._samples[-1].completed > self._samples[-min(len(self._samples), 10)].completed:
                end = max(end, time.monotonic() + SETTLE_SEC / 4)
            await asyncio.sleep(0.25)

    async def _records(self, took: float, *, all_answered: bool) -> Records:
        stored = await self._retry_read(lambda: read_stored_totals(self.scratch.snapshot))
        world = self.scratch.folder / "world"
        return Records(
            acknowledged=self._acknowledged,
            unanswered=(0 if all_answered else BATCH * PRODUCERS) + (self._again is not None),
            **stored._asdict(),
            acts=[Act.read(line) for line in _lines(world)],
            thoughts=[Thought.read(line) for line in _lines(thoughts_of(world))],
            late_writes=self._probes.tried,
            late_accepted=self._probes.accepted,
            took_sec=took,
            chosen=self._plan.faults,
            occurrences=self._occurrences,
        )


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def throughput(outcome: Outcome) -> str:
    """Draw the tasks completed per second, with the faults marked."""
    rates = [(later.at_sec, rate_between(earlier, later)) for earlier, later in pairwise(outcome.samples)]
    marks = [svg.Mark(each.at_sec, each.lasted_sec, each.fault) for each in outcome.occurrences if each.affected]
    return svg.charts("Throughput while faults are injected", [svg.Series("tasks completed per second", rates)], marks)
