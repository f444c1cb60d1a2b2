"""What whoever looks after the queue does: breakers, cooldowns, limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shiftwork.core import keys
from shiftwork.core.breaker_file import BreakerConfig
from shiftwork.core.errors import InputError
from shiftwork.core.keys import Key
from shiftwork.policy import window
from shiftwork.policy.window import Limit
from shiftwork.queue import check
from shiftwork.queue.face.handle import Handle
from shiftwork.queue.protection import protect
from shiftwork.queue.protection.protect import Breaker, Cooldown, LimitInForce

LONGEST_KEY = 2000
LONGEST_COOLDOWN_SEC = 366 * 86_400.0


class Protecting(Handle):
    """Verbs that keep types, providers, accounts and models from being run into the ground."""

    # -- breakers --------------------------------------------------------------------------------------------------

    async def breakers(self, type: str | None = None) -> list[Breaker]:  # noqa: A002  # the task's word
        """The circuit breaker of every type that has had work here, or of one."""
        checked = check.text(type, "type", 255)
        return await self._read(lambda tx: protect.read_breakers(tx, self._engine, self.workspace, checked))

    async def reset_breaker(self, type: str) -> Breaker:  # noqa: A002  # the task's word
        """Close a breaker and forget what it has counted."""
        return await self._run(protect.reset, self.workspace, check.name(type, "type"))

    async def trip_breaker(self, type: str) -> Breaker:  # noqa: A002  # the task's word
        """Open a breaker: its type is handed out again as after any opening, one task first."""
        return await self._run(protect.trip, self.workspace, check.name(type, "type"))

    async def configure_breakers(self, config: BreakerConfig | Mapping[str, Any]) -> list[Breaker]:
        """Set the rules of all breakers as the Loki document writes them: `defaults`, and `overrides` by type."""
        checked = check.fit(check.read(config, BreakerConfig, "config"), "config")
        try:
            await self._run(protect.configure, self.workspace, checked)
        finally:
            self._engine.book.forget(self.workspace)
        return await self.breakers()

    # -- cooldowns -------------------------------------------------------------------------------------------------

    async def cooldowns(self) -> list[Cooldown]:
        """The cooldowns in force, after a rate limit or by somebody's word, and until when."""
        return await self._read(lambda tx: protect.read_cooldowns(tx, self.workspace))

    async def cool_down(self, key: str, seconds: float, reason: str | None = None) -> Cooldown:
        """Hand out no work that uses this provider, account, model or type for so many seconds."""
        if not 0 < check.read(seconds, float, "seconds") <= LONGEST_COOLDOWN_SEC:
            raise InputError(f"expected more than 0 seconds and at most a year, got {seconds!r}", where="seconds")
        return await self._run(
            protect.cool_down, self.workspace, _key(key), float(seconds), check.text(reason, "reason")
        )

    async def lift_cooldown(self, key: str) -> bool:
        """Let work that uses this key go again; False where it had no cooldown."""
        return await self._run(protect.lift_cooldown, self.workspace, _key(key))

    # -- limits ----------------------------------------------------------------------------------------------------

    async def limits(self) -> list[LimitInForce]:
        """Every limit, and what is used of it now."""
        return await self._read(lambda tx: protect.read_limits(tx, self.workspace))

    async def set_limit(self, key: str, limit: Limit | Mapping[str, Any] | None = None, **fields: Any) -> LimitInForce:
        """Hand out no more work that uses this provider, account, model or type than so much at once or in a window."""
        checked = check.read(fields if limit is None else limit, Limit, "limit")
        if (problem := window.wrong(checked)) is not None:
            raise InputError(problem, where="limit")
        return await self._run(protect.set_limit, self.workspace, _key(key), checked)

    async def remove_limit(self, key: str) -> bool:
        """Forget a limit; False where there was none."""
        return await self._run(protect.remove_limit, self.workspace, _key(key))


def _key(text: str) -> Key:
    return keys.parse(check.text(text, "key", LONGEST_KEY) or "")
