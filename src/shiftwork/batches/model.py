"""Batches as they are shown, and how a provider can fail."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

Provider = Literal["anthropic", "openai"]
PROVIDERS: tuple[Provider, ...] = get_args(Provider)
AGENT_PREFIX = "shiftwork-batch-"
AGENTS = {f"{AGENT_PREFIX}{provider}": provider for provider in PROVIDERS}
"""Who claims the work of each provider's batches."""

BatchStatus = Literal["gathered", "posting", "posted", "ended"]
"""Its tasks are chosen; it is being sent, or no one knows whether it arrived; the provider has it; it is over."""
ItemStatus = Literal["open", "completed", "failed", "released", "late"]
"""Of a task in a batch. `released`: any agent may take it. `late`: it was cancelled or taken back before the answer."""


class BatchTask(msgspec.Struct, frozen=True):
    """One task of a batch."""

    task_id: str
    status: ItemStatus


class Batch(msgspec.Struct, frozen=True):
    """Tasks that were sent to a provider in one request."""

    id: str
    provider: Provider
    model: str
    status: BatchStatus
    requests: int
    open: int
    """Tasks that still wait for their answer."""
    cost_usd: float
    """Of the answers that were handed back so far, at half the price."""
    created_at: float
    expires_at: float
    """When the provider is asked to stop: what it has not answered then, any agent may take."""
    posted_at: float | None = None
    ended_at: float | None = None
    external_id: str | None = None
    """Its id at the provider."""
    error: str | None = None
    """Why it could not be sent or read when that was last tried."""
    cancel_asked_at: float | None = None
    tasks: list[BatchTask] = []
    """Only where one batch is asked for."""


class ProviderError(Exception):
    """A provider could not be asked, or refused. Nothing was done there."""


class WorkRefused(ProviderError):
    """The provider will never take this."""


class AnswerLost(ProviderError):
    """It was asked, and no one knows what it did."""
