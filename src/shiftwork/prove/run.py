"""One run: a workspace of its own, processes that are killed and frozen, and the ledger at the end."""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from shiftwork.maintenance.loop import run_once
from shiftwork.model.errors import ConflictError
from shiftwork.model.states import STORED
from shiftwork.prove.agent import thoughts_of
from shiftwork.prove.ledger import COST_USD, ENDED, Ledger, Story, count, read_thought
from shiftwork.queue import Queue

SETTINGS = {
    "heartbeat_interval_sec": 0.5,
    "heartbeat_timeout_sec": 2,
    "claim_ttl_sec": 5,
    "max_attempts": 100,
    "max_reclaims": 1000,
    "retry.initial_delay_sec": 0.1,
    "retry.max_delay_sec": 0.5,
    "circuit_breaker": None,
    "poison": None,
    "maintenance.retry_promoter_sec": 0.25,
}
"""Short leases, so that much happens in little time, and no end to trying: whatever does not complete was lost."""

WORK, PROBE = "prove", "prove-fence"
"""What the fleet does, and what we do ourselves to see that a lost claim is refused."""

PROBES = 3
FREEZE_SEC = 3.0
"""Longer than the heartbeat timeout: a process that wakes up after it is a zombie."""

PAGE = 1000


class Plan(NamedTuple):
    """How much of everything."""

    tasks: int
    agents: int
    longest_sec: float
    fault_every_sec: float
    seed: int


Tell = Callable[[str], None]


async def prove(url: str, plan: Plan, report: Tell) -> Ledger:
    """Hurt a fleet on this store, in a workspace of its own whose tasks are deleted afterwards, and count."""
    workspace = f"prove-{secrets.token_hex(4)}"
    with tempfile.TemporaryDirectory(prefix="shiftwork-prove-") as folder:
        async with Queue.open(url, workspace=workspace, actor="system:prove") as queue:
            try:
                return await Trial(queue, url, plan, Path(folder), report).run()
            finally:
                await clear(queue)


async def clear(queue: Queue) -> None:
    """Delete every task with its effects, steps and attempts, and the settings; the events age with the log."""
    for type_ in (WORK, PROBE):
        await queue.control.purge(type=type_, held=True)
    await queue.settings.set("purge.mode", "delete")
    for type_ in (WORK, PROBE):
        await queue.control.purge(type=type_, status=sorted(STORED))
    await queue.settings.change(unset=[*SETTINGS, "purge.mode"])


class Trial:
    """A fleet and anyone who hurts it."""

    def __init__(self, queue: Queue, url: str, plan: Plan, folder: Path, report: Tell) -> None:
        self._queue = queue
        self._url = url
        self._plan = plan
        self._folder = folder
        self._world = folder / "world"
        self._emit = report
        self._chance = random.Random(plan.seed)
        self._agents: dict[str, asyncio.subprocess.Process] = {}
        self._hired = 0
        self.faults: Counter[str] = Counter()
        self._probes = Probes(queue)

    async def run(self) -> Ledger:
        began = time.monotonic()
        for key, value in SETTINGS.items():
            await self._queue.settings.set(key, value)
        submitted = await self._submit()
        await self._probes.begin()
        try:
            for _ in range(self._plan.agents):
                await self._hire()
            await self._until_done(began)
        finally:
            await self._dismiss()
        return count(await self._remember(submitted, time.monotonic() - began))

    async def _submit(self) -> list[str]:
        """Every task is sent twice under its key, as by producers whose answers got lost."""
        made: list[str] = []
        for start in range(0, self._plan.tasks, PAGE):
            numbers = range(start, min(start + PAGE, self._plan.tasks))
            batch = [
                {"type": WORK, "payload": {"number": number}, "idempotency_key": f"prove-{number}"}
                for number in numbers
            ]
            made += [task.id for task in await self._queue.submit_many(batch)]
            again = [task.id for task in await self._queue.submit_many(batch)]
            self.faults["flood"] += len(again)
            made += [task for task in again if task not in made]
        return made

    async def _hire(self) -> None:
        self._hired += 1
        name = f"agent-{self._hired}"
        with (self._folder / "agents.log").open("ab") as log:
            self._agents[name] = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "shiftwork.prove.agent", self._queue.workspace, name, str(self._world),
                env={**os.environ, "SHIFTWORK_STORE": self._url},
                stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    async def _dismiss(self) -> None:
        for process in self._agents.values():
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGCONT)
                process.kill()
        await asyncio.gather(*(process.wait() for process in self._agents.values()))

    async def _hurt(self) -> None:
        """Kill one, or freeze one until its lease is over; a killed one is replaced."""
        name = self._chance.choice(sorted(self._agents))
        process = self._agents[name]
        if self._chance.random() < 0.5:
            self.faults["kill"] += 1
            self._agents.pop(name)
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            await self._hire()
        else:
            self.faults["freeze"] += 1
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGSTOP)
            asyncio.get_running_loop().call_later(FREEZE_SEC, _thaw, process.pid)

    async def _until_done(self, began: float) -> None:
        """Hurt the fleet until nothing is left to do; then no one could be hurt any more."""
        due = began + self._plan.fault_every_sec
        while (now := time.monotonic()) - began < self._plan.longest_sec:
            await run_once(self._queue.engine)
            await self._probes.go_on()
            counts = (await self._queue.status()).counts
            left = sum(number for status, number in counts.items() if status not in ENDED)
            self._emit(f"{counts.get('completed', 0)} of {self._plan.tasks} done, {self.faults['kill']} killed")
            if not left:
                return
            if now >= due:
                await self._hurt()
                due = time.monotonic() + self._plan.fault_every_sec
            await asyncio.sleep(0.1)

    async def _remember(self, submitted: list[str], took: float) -> Story:
        statuses: dict[str, str] = {}
        costs: dict[str, float] = {}
        after = None
        while True:
            page = await self._queue.tasks.list(after=after, limit=PAGE)
            for task in page.tasks:
                statuses[task.id] = task.status
                costs[task.id] = task.cost_usd
            after = page.next
            if after is None:
                break
        accepted, attempt_costs, attempts = await self._accepted(statuses)
        world = self._world.read_text().split() if self._world.exists() else []
        thoughts = thoughts_of(self._world)
        thought = thoughts.read_text().splitlines() if thoughts.exists() else []
        return Story(
            submitted=submitted,
            statuses=statuses,
            accepted=accepted,
            attempts=attempts,
            world=world,
            thoughts=[read_thought(line) for line in thought],
            late_accepted=self._probes.accepted,
            costs=costs,
            attempt_costs=attempt_costs / 1e6,
            kills=self.faults["kill"],
            freezes=self.faults["freeze"],
            floods=self.faults["flood"],
            took_sec=round(took, 1),
        )

    async def _accepted(self, statuses: dict[str, str]) -> tuple[dict[str, int], int, int]:
        """How often each result was taken, what all attempts cost, and how many there were."""
        accepted: Counter[str] = Counter()
        cursor = 0
        while True:
            news = await self._queue.events(cursor, limit=10_000)
            events, following = news.events, news.next
            accepted.update(event.task_id for event in events if event.verb == "completed" and event.task_id)
            if following == cursor:
                break
            cursor = following
        costs = attempts = 0
        for task in statuses:
            for attempt in await self._queue.tasks.attempts(task):
                attempts += 1
                costs += round(1e6 * attempt.cost_usd)
        return dict(accepted), costs, attempts


class Probes:
    """Claims that are lost on purpose. Whether a frozen process writes late is chance; these do, each time."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._lost: dict[str, str] = {}
        """The claim that a task was lost under, until the probe is over."""
        self.accepted = 0

    async def begin(self) -> None:
        """Take tasks as a process that then falls silent."""
        await self._queue.submit_many([{"type": PROBE}] * PROBES)
        await self._queue.agents.register(id="zombie", types=[PROBE], max_concurrent_tasks=PROBES)
        await self._queue.agents.register(id="heir", types=[PROBE], max_concurrent_tasks=PROBES)
        for claim in await self._queue.claim("zombie", PROBES, start=True, types=[PROBE]):
            self._lost[claim.id] = claim.token

    async def go_on(self) -> None:
        """Once a lease is over: the heir takes the task, the zombie writes late, the heir ends it."""
        if not self._lost:
            return
        for claim in await self._queue.claim("heir", PROBES, start=True, types=[PROBE]):
            late = self._lost.pop(claim.id)
            for write in (self._queue.steps.complete(late, "think", "late"), self._queue.complete(late, "late")):
                self.accepted += not await _is_refused(write)
            with suppress(ConflictError):  # a late result that was accepted has ended it
                await self._queue.complete(claim.token, "in time", usage={"cost_usd": COST_USD})


async def _is_refused(write: Coroutine[Any, Any, Any]) -> bool:
    """Whatever a late write comes to, other than its refusal, is wrong."""
    try:
        await write
    except ConflictError:
        return True
    except Exception:  # noqa: BLE001  # it got past the fence, and broke something behind it
        return False
    return False


def _thaw(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)
