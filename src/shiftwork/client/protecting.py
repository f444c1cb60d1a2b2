"""What whoever looks after the queue does: breakers, cooldowns, limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from shiftwork.client.handle import Handle, given, new_key, part
from shiftwork.core import keys
from shiftwork.core.breaker_file import BreakerConfig
from shiftwork.policy.window import Limit
from shiftwork.queue import check
from shiftwork.queue.face.protecting import LONGEST_KEY
from shiftwork.queue.protection.protect import Breaker, Cooldown, LimitInForce
from shiftwork.wire.protection import BreakerList, CooldownList, Lifted, LimitList, Removed


class Protecting(Handle):
    """Verbs that keep types, providers, accounts and models from being run into the ground."""

    async def breakers(self, type: str | None = None) -> list[Breaker]:  # noqa: A002  # the task's word
        return (await self._get("/api/breakers", BreakerList, type=type)).breakers

    async def reset_breaker(self, type: str) -> Breaker:  # noqa: A002  # the task's word
        return await self._once(f"/api/breakers/{part(type, 'type')}/reset", Breaker)

    async def trip_breaker(self, type: str) -> Breaker:  # noqa: A002  # the task's word
        return await self._once(f"/api/breakers/{part(type, 'type')}/trip", Breaker)

    async def configure_breakers(self, config: BreakerConfig | Mapping[str, Any]) -> list[Breaker]:
        checked = check.read(config, BreakerConfig, "config")
        return (await self._send("PUT", "/api/breakers/config", BreakerList, checked, key=new_key())).breakers

    async def cooldowns(self) -> list[Cooldown]:
        return (await self._get("/api/cooldowns", CooldownList)).cooldowns

    async def cool_down(self, key: str, seconds: float, reason: str | None = None) -> Cooldown:
        body = given(seconds=seconds, reason=reason)
        return await self._send("PUT", f"/api/cooldowns/{_key(key)}", Cooldown, body, key=new_key())

    async def lift_cooldown(self, key: str) -> bool:
        return (await self._send("DELETE", f"/api/cooldowns/{_key(key)}", Lifted, key=new_key())).lifted

    async def limits(self) -> list[LimitInForce]:
        return (await self._get("/api/limits", LimitList)).limits

    async def set_limit(
        self, /, key: str, limit: Limit | Mapping[str, Any] | None = None, **fields: Any
    ) -> LimitInForce:
        checked = check.read(fields if limit is None else limit, Limit, "limit")
        return await self._send("PUT", f"/api/limits/{_key(key)}", LimitInForce, checked, key=new_key())

    async def remove_limit(self, key: str) -> bool:
        return (await self._send("DELETE", f"/api/limits/{_key(key)}", Removed, key=new_key())).removed


def _key(text: str) -> str:
    """A key as one part of a path."""
    return quote(keys.parse(check.text(text, "key", LONGEST_KEY) or "").text, safe="")
