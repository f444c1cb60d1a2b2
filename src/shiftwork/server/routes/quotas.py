"""Quotas: what the operator of the server lets each workspace have."""

from __future__ import annotations

from typing import Any

from shiftwork.core.scopes import SERVER
from shiftwork.policy.quota import Quota
from shiftwork.queue.protection.quotas import QuotaInForce
from shiftwork.server.ask import Ask
from shiftwork.server.door import Doors
from shiftwork.wire.shapes import QuotaList

door = Doors("Quotas")


@door("GET /api/quota", "read", answer=QuotaInForce)
async def quota(ask: Ask) -> Any:
    """What this workspace may have, and has of it."""
    return await ask.queue.quota()


@door("GET /api/quotas", SERVER, answer=QuotaList)
async def list_quotas(ask: Ask) -> Any:
    """The quotas of all workspaces that have one."""
    return QuotaList(await ask.queue.quotas())


@door("PUT /api/quotas/{workspace}", SERVER, body=Quota, answer=QuotaInForce)
async def set_quota(ask: Ask, body: Quota) -> Any:
    """Set what a workspace may have; what is left out or null has no limit."""
    return await ask.queue.set_quota(ask.path["workspace"], body)
