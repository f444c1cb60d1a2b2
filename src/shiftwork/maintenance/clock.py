"""Corrects timestamps after the clock went back, so that nothing waits for the old time.

A time of the future can only have been written before. Whatever counts from such a time counts from now, so that
leases, retries and cooldowns take as long as they should, and no task waits behind all that come after it. Schedules
are times of the clock: a tick that has fired does not fire again.
"""

from __future__ import annotations

import logging

from shiftwork.engine.engine import Engine
from shiftwork.maintenance.poll import went_back
from shiftwork.model import ids
from shiftwork.store.store import Tx

log = logging.getLogger("shiftwork.maintenance")

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


async def correct(tx: Tx, engine: Engine) -> dict[str, int] | None:  # noqa: ARG001  # every job is given both
    """Let what the clock left in the future count from now; None where it did not go back."""
    back = went_back(await tx.all("list_duties"), tx.now)
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
