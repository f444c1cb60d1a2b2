"""Corrects timestamps after the clock went back, so that nothing waits for the old time.

A time in the future can only have been written before the clock went back. Everything that counts from such a time
counts from now instead, so that leases, retries and cooldowns take as long as they should, and no task waits behind
newer ones. Schedules follow the clock: a tick that has fired does not fire again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from shiftwork.engine.engine import Engine
from shiftwork.model import ids
from shiftwork.store.store import Row, Tx

log = logging.getLogger("shiftwork.maintenance")

BACK_SEC = 2.0
"""A job that ran so far in the future ran before the clock went back."""

CORRECTED = (
    "places_of_the_future",
    "ranks_of_the_future",
    "blocks_of_the_future",
    "agents_of_the_future",
    "runtimes_of_the_future",
    "waits_of_the_future",
    "approvals_of_the_future",
    "gates_of_the_future",
    "breakers_of_the_future",
    "serials_of_the_future",
    "deliveries_of_the_future",
    "sinks_of_the_future",
    "jobs_of_the_future",
)


def went_back(jobs: Iterable[Row], now: float) -> float:
    """The seconds by which the clock went back, judged by the jobs' last runs; 0 if it did not."""
    newest = max((job["last_run_at"] or 0.0 for job in jobs), default=0.0)
    return newest - now if newest > now + BACK_SEC else 0.0


async def correct(tx: Tx, engine: Engine) -> dict[str, int] | None:  # noqa: ARG001  # every job gets both
    """Make timestamps in the future count from now; None if the clock did not go back."""
    back = went_back(await tx.all("list_jobs"), tx.now)
    if not back:
        return None
    claims = await tx.all("claims_of_the_future", now=tx.now)
    retries = await tx.all("retries_of_the_future", now=tx.now)
    await tx.run("tasks_of_the_future", now=tx.now, newest=ids.first_at(tx.now))
    for name in CORRECTED:
        await tx.run(name, now=tx.now)
    counts = {"back_sec": round(back), "claims": len(claims), "retries": len(retries)}
    log.warning("the clock went back by %(back_sec)d s; %(claims)d claims, %(retries)d retries count from now", counts)
    return counts
