"""The faults that a run can inject, by name. Each returns how much it affected; with 0, it did not happen."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import NamedTuple, Protocol

from shiftwork.model.errors import StoreFull, StoreUnavailable
from shiftwork.prove.fleet import Fleet
from shiftwork.prove.proxy import Proxy
from shiftwork.prove.scratch_store import Scratch

FREEZE_SEC = 3.0
"""Longer than the heartbeat timeout, so that a process loses its tasks before it wakes up."""

WINDOW_SEC = 3.0
"""How long a fault of messages, clocks or the disk lasts."""

PATIENCE_SEC = 20.0
"""How long a fault may take to affect something, even on a busy machine."""

DELAY_SEC = 0.2
STEP_SEC = 3600.0
SHARE = 0.3

Permitted = Callable[[], Awaitable[None]]


class Target(Protocol):
    """The run that a fault is injected into."""

    scratch: Scratch
    fleet: Fleet
    proxies: list[Proxy]
    chance: random.Random
    restart: Permitted | None
    fail_over: Permitted | None

    async def submit_one(self) -> None:
        """Submit one more task; raises the queue's error."""


async def kill(target: Target) -> int:
    await target.chance.choice(target.fleet.members).replace()
    return 1


async def freeze(target: Target) -> int:
    member = target.chance.choice(target.fleet.members)
    member.signal(signal.SIGSTOP)
    try:
        await asyncio.sleep(FREEZE_SEC)
    finally:
        member.signal(signal.SIGCONT)
    return 1


async def cut(target: Target) -> int:
    return sum(proxy.cut() for proxy in target.proxies)


async def silence(target: Target) -> int:
    return sum(proxy.silence() for proxy in target.proxies)


def _window(setting: str, value: float, counted: str) -> Callable[[Target], Awaitable[int]]:
    """Set a property of the proxies for a while, longer if no message is affected; returns how many were."""

    async def inject(target: Target) -> int:
        def met() -> int:
            return sum(proxy.counts[counted] for proxy in target.proxies)

        before = met()
        try:
            for proxy in target.proxies:
                setattr(proxy, setting, value)
            await asyncio.sleep(WINDOW_SEC)
            with suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE_SEC):
                    while met() == before:  # noqa: ASYNC110  # other processes
                        await asyncio.sleep(0.1)
        finally:
            for proxy in target.proxies:
                setattr(proxy, setting, 0.0)
        return met() - before

    return inject


async def clock(target: Target) -> int:
    """Step the clock ahead or back by an hour, and back again after a while; it happened if a process has read it.

    On SQLite, the processes of a machine share a clock. On PostgreSQL, the database provides the time, so one process
    starts with a wrong clock of its own.
    """
    member = target.chance.choice(target.fleet.members)
    controls, step = member.controls, target.chance.choice((-STEP_SEC, STEP_SEC))
    try:
        controls.clock_sec = step
        if not target.scratch.is_sqlite:
            await member.replace()
        async with asyncio.timeout(PATIENCE_SEC):
            while controls.seen_sec != step:  # noqa: ASYNC110  # another process
                await asyncio.sleep(0.05)
        await asyncio.sleep(WINDOW_SEC)
    except TimeoutError:
        return 0
    finally:
        controls.clock_sec = 0.0
    return 1


async def disk_full(target: Target) -> int:
    """Stop the file from growing; it happened if submissions were refused."""
    refused, began = 0, time.monotonic()
    pages = await target.scratch.value("pragma page_count")
    try:
        for controls in target.fleet.controls:
            controls.max_pages = pages
        while (passed := time.monotonic() - began) < WINDOW_SEC or (not refused and passed < PATIENCE_SEC):
            try:
                await target.submit_one()
            except StoreFull:
                refused += 1
            except StoreUnavailable:
                pass
            await asyncio.sleep(0.05)
    finally:
        for controls in target.fleet.controls:
            controls.max_pages = 0
    return refused


async def restart(target: Target) -> int:
    assert target.restart is not None
    return await _changed(target, target.restart, "select pg_postmaster_start_time()")


async def failover(target: Target) -> int:
    assert target.fail_over is not None
    return await _changed(target, target.fail_over, "select left(pg_walfile_name(pg_current_wal_lsn()), 8)")


async def _changed(target: Target, permitted: Permitted, witness: str) -> int:
    """Whether the server's own value has changed afterwards; the server may take a while to answer."""
    before = await target.scratch.value(witness)
    await permitted()
    async with asyncio.timeout(60):
        while True:
            with suppress(StoreUnavailable):
                return int(await target.scratch.value(witness) != before)
            await asyncio.sleep(0.1)


class Fault(NamedTuple):
    """One kind of fault."""

    name: str
    what: str
    inject: Callable[[Target], Awaitable[int]]
    where: str = "everywhere"
    once: bool = False


FAULTS = {
    fault.name: fault
    for fault in (
        Fault("kill", "kill -9 a worker or the server, which is then restarted", kill),
        Fault("freeze", f"stop a process for {FREEZE_SEC:g} s, longer than its lease", freeze),
        Fault("cut", "reset all connections", cut),
        Fault("silence", "drop all data on every other connection without closing it", silence),
        Fault("slow", f"delay every message by {DELAY_SEC:g} s", _window("delay_sec", DELAY_SEC, "slowed")),
        Fault("lose-answers", "drop answers after the commit, and the connection", _window("lose", SHARE, "lost")),
        Fault("repeat", "send requests a second time, up to 1 s later", _window("repeat", SHARE, "repeated")),
        Fault("reorder", "hold requests back while others pass them", _window("hold", SHARE, "overtaken")),
        Fault("clock", "step clocks ahead or back by an hour, and restore them", clock),
        Fault("disk-full", "stop the file from growing", disk_full, "SQLite"),
        Fault("restart", "restart PostgreSQL", restart, "PostgreSQL with --restart-command"),
        Fault("failover", "let a standby take over", failover, "PostgreSQL with --failover-command", once=True),
    )
}


def excludes(one: str, other: str) -> bool:
    """Whether two faults must not overlap, because they change the same thing."""
    return one == other or {one, other} == {"restart", "failover"}


def applicable(*, sqlite: bool, restart: bool, fail_over: bool) -> list[str]:
    """The faults that can be injected here."""
    missing = {"restart", "failover"} if sqlite else {"disk-full"}
    missing |= set() if restart else {"restart"}
    missing |= set() if fail_over else {"failover"}
    return [name for name in FAULTS if name not in missing]
