"""Breakers, cooldowns and limits: what keeps types, providers, accounts and models from being run into the ground."""

from __future__ import annotations

from typing import Any

from shiftwork.core.breaker_file import BreakerConfig
from shiftwork.core.errors import ConflictError
from shiftwork.policy.window import Limit
from shiftwork.queue.protection.protect import Breaker, Cooldown, LimitInForce
from shiftwork.server.ask import Ask, plain
from shiftwork.server.door import Doors, Query, ViewQuery
from shiftwork.wire.protection import BreakerList, CooldownBody, CooldownList, Lifted, LimitList, Removed

door = Doors("Protection")


class BreakerQuery(ViewQuery):
    type: str | None = None
    """That of one type, whether or not it ever had work."""


@door("GET /api/breakers", "read", query=BreakerQuery, answer=BreakerList)
async def list_breakers(ask: Ask) -> Any:
    """The circuit breaker of every type that has had work here, or of one."""
    found = await ask.queue.breakers(ask.query.type)
    return BreakerList(found) if ask.view is None else ask.view.breakers_out([plain(each) for each in found])


@door("PUT /api/breakers/config", "admin", body=BreakerConfig, answer=BreakerList)
async def configure_breakers(ask: Ask, body: BreakerConfig) -> Any:
    """Set the rules of all breakers as the Loki document writes them: `defaults`, and `overrides` by type."""
    return BreakerList(await ask.queue.configure_breakers(body))


@door("POST /api/breakers/{type}/reset", "operate", answer=Breaker)
async def reset_breaker(ask: Ask) -> Any:
    """Close a breaker and forget what it has counted."""
    return await ask.queue.reset_breaker(ask.path["type"])


@door("POST /api/breakers/{type}/trip", "operate", answer=Breaker, errors=(ConflictError,))
async def trip_breaker(ask: Ask) -> Any:
    """Open a breaker: its type is handed out again as after any opening, one task first."""
    return await ask.queue.trip_breaker(ask.path["type"])


@door("GET /api/cooldowns", "read", query=Query, answer=CooldownList)
async def list_cooldowns(ask: Ask) -> Any:
    """The cooldowns in force, after a rate limit or by somebody's word, and until when."""
    return CooldownList(await ask.queue.cooldowns())


@door("PUT /api/cooldowns/{key}", "operate", body=CooldownBody, answer=Cooldown)
async def cool_down(ask: Ask, body: CooldownBody) -> Any:
    """Hand out no work that uses this provider, account, model or type for so many seconds."""
    return await ask.queue.cool_down(ask.path["key"], body.seconds, body.reason)


@door("DELETE /api/cooldowns/{key}", "operate", answer=Lifted)
async def lift_cooldown(ask: Ask) -> Any:
    """Let work that uses this key go again; false where it had no cooldown."""
    return Lifted(await ask.queue.lift_cooldown(ask.path["key"]))


@door("GET /api/limits", "read", answer=LimitList)
async def list_limits(ask: Ask) -> Any:
    """Every limit, and what is used of it now."""
    return LimitList(await ask.queue.limits())


@door("PUT /api/limits/{key}", "operate", body=Limit, answer=LimitInForce)
async def set_limit(ask: Ask, body: Limit) -> Any:
    """Hand out no more work that uses this provider, account, model or type than so much at once or in a window."""
    return await ask.queue.set_limit(ask.path["key"], body)


@door("DELETE /api/limits/{key}", "operate", answer=Removed)
async def remove_limit(ask: Ask) -> Any:
    """Forget a limit; false where there was none."""
    return Removed(await ask.queue.remove_limit(ask.path["key"]))
