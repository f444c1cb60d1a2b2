"""Circuit breakers, cooldowns, rate limits and quotas, as callers see them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any

from msgspec import Meta

from shiftwork.limits.model import Breaker, BreakerConfig, Cooldown, LimitInForce, QuotaInForce
from shiftwork.limits.quota_policy import Most
from shiftwork.model.errors import ConflictError
from shiftwork.model.task import Name, Text
from shiftwork.operation.declare import Namespace, operation
from shiftwork.operation.parameters import Accepts

MAX_COOLDOWN_SEC = 366 * 86_400
Key = Annotated[str, Meta(min_length=1, max_length=2000)]
"""What a cooldown or a limit applies to: `provider:NAME`, `account:NAME`, `model:NAME`, `type:NAME`, joined by
commas."""
Seconds = Annotated[float, Meta(gt=0, le=MAX_COOLDOWN_SEC)] | timedelta


class Breakers(Namespace, name="breakers", group="Protection"):
    """Circuit breakers, one for each type of task."""

    @operation("PUT /api/breakers/config", "admin", body="config", envelope="breakers")
    async def configure(
        self, config: Annotated[BreakerConfig | Mapping[str, Any], Accepts(BreakerConfig)]
    ) -> list[Breaker]:
        """Set the rules of all breakers: `defaults`, and `overrides` by type."""

    @operation("POST /api/breakers/{type}/reset", "operate")
    async def reset(self, type: Name) -> Breaker:
        """Close a breaker and clear its failure count."""

    @operation("POST /api/breakers/{type}/trip", "operate", errors=(ConflictError,))
    async def trip(self, type: Name) -> Breaker:
        """Open a breaker. After its pause one task is handed out as a test."""

    @operation("GET /api/breakers", "read", envelope="breakers")
    async def list(
        self,
        type: Annotated[Name, Meta(description="Only this type's, even if it never had work.")] | None = None,
    ) -> list[Breaker]:
        """Return the breaker of every type that has had work, or of one type."""


class Cooldowns(Namespace, name="cooldowns", group="Protection"):
    """Cooldowns of providers, accounts, models and types."""

    @operation("PUT /api/cooldowns/{key}", "operate")
    async def set(self, key: Key, seconds: Seconds, reason: Text | None = None) -> Cooldown:
        """Hand out no work that uses this provider, account, model or type for this many seconds."""

    @operation("DELETE /api/cooldowns/{key}", "operate", envelope="lifted")
    async def lift(self, key: Key) -> bool:
        """End a cooldown; False if there is none."""

    @operation("GET /api/cooldowns", "read", envelope="cooldowns")
    async def list(self) -> list[Cooldown]:
        """Return the cooldowns in force and when they end."""


class Limits(Namespace, name="limits", group="Protection"):
    """Rate and concurrency limits shared by the whole fleet."""

    @operation("PUT /api/limits/{key}", "operate")
    async def set(
        self,
        key: Key,
        *,
        requests: Annotated[int, Meta(ge=1, le=10**9, description="Tasks in one window.")] | None = None,
        tokens: Annotated[int, Meta(ge=1, le=10**15, description="Tokens in one window.")] | None = None,
        tokens_per_task: Annotated[
            int,
            Meta(ge=1, le=10**15, description="What each task reserves; the unused rest is returned when it ends."),
        ]
        | None = None,
        window_sec: Annotated[float, Meta(ge=1, le=366 * 86_400)] | timedelta | None = None,
        concurrency: Annotated[int, Meta(ge=1, le=10**6, description="Concurrent tasks.")] | None = None,
    ) -> LimitInForce:
        """Limit how much work that uses this provider, account, model or type runs at once or in a window.

        `requests` and `tokens` count claims and tokens in any `window_sec`; a claim sets `tokens_per_task` aside.
        `concurrency` counts claims at the same time.
        """

    @operation("DELETE /api/limits/{key}", "operate", envelope="removed")
    async def remove(self, key: Key) -> bool:
        """Remove a limit; False if there is none."""

    @operation("GET /api/limits", "read", envelope="limits")
    async def list(self) -> list[LimitInForce]:
        """Return every limit and its current use."""


class Quotas(Namespace, name="quotas", group="Quotas"):
    """How much each workspace of a server may store and submit."""

    @operation("GET /api/quota", "read")
    async def get(self) -> QuotaInForce:
        """Return the quota of this workspace and what it uses."""

    @operation("PUT /api/quotas/{workspace}", "server")
    async def set(
        self,
        workspace: Name,
        *,
        max_tasks: Most | None = None,
        max_bytes: Most | None = None,
        submits_per_minute: Most | None = None,
    ) -> QuotaInForce:
        """Set how many tasks and bytes a workspace may store and how many tasks it may submit a minute.

        An omitted or null value means no limit.
        """

    @operation("GET /api/quotas", "server", envelope="quotas")
    async def list(self) -> list[QuotaInForce]:
        """Return the quotas of all workspaces that have one."""
