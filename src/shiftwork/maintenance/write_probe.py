"""A small periodic write by each process that runs maintenance, which shows whether the store accepts writes.

Its row is among the jobs, under a name of its own, so that others can see which processes run maintenance or pause it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import time

import msgspec

from shiftwork.engine.engine import Engine
from shiftwork.model.errors import ShiftworkError
from shiftwork.observe.maintenance_health import PROCESS, SERVER, Resting
from shiftwork.store import crash_points
from shiftwork.store.store import Tx

log = logging.getLogger("shiftwork.maintenance")
BEAT_SEC = 5.0
LEAVE_SEC = 1.0
FORGOTTEN_SEC = 3600.0
"""A process that has not written for this long is gone."""


class ProcessHeartbeat:
    """Writes for one process."""

    def __init__(self, engine: Engine, kind: str = PROCESS) -> None:
        self._engine = engine
        self._name = f"{kind}{platform.node()}:{os.getpid()}"
        self._took = 0.0

    async def beat_forever(self) -> None:
        try:
            while True:
                await self.beat()
                await asyncio.sleep(BEAT_SEC)
        finally:
            await self._leave()

    async def beat(self) -> None:
        """Write once, and record whether the store accepted it."""
        began = time.perf_counter()
        try:
            await crash_points.named("process heartbeat", self._engine.store.run(self._write))
        except ShiftworkError as error:
            self._engine.store.refusal = error
            return
        self._engine.store.refusal = None
        self._took = time.perf_counter() - began

    async def _write(self, tx: Tx) -> None:
        resting = await self._resting(tx)
        counts = None if resting is None else msgspec.json.encode(resting).decode()
        again = tx.now + BEAT_SEC
        await tx.run("beat_process", name=self._name, now=tx.now, due_at=again, took=self._took, counts=counts)
        for kind in (PROCESS, SERVER):
            await tx.run("forget_processes", prefix=kind, before=tx.now - FORGOTTEN_SEC)

    async def _resting(self, tx: Tx) -> Resting | None:
        """Until when this process reclaims nothing for silence, by the timeout of the default workspace."""
        stalls = self._engine.store.stall_detector.stalls
        settings = (await self._engine.settings_cache.load_many(tx, ["default"]))["default"].settings()
        span = settings.heartbeat_timeout_sec or settings.runtime_offline_sec or 90
        if not stalls or stalls[-1].end + span <= tx.now:
            return None
        return Resting(stalls[-1].end + span, stalls[-1].why)

    async def _leave(self) -> None:
        try:
            async with asyncio.timeout(LEAVE_SEC):
                await crash_points.named(
                    "process heartbeat", self._engine.store.run(lambda tx: tx.run("leave_process", name=self._name))
                )
        except (ShiftworkError, TimeoutError) as error:
            log.info("could not deregister: %s", error)
