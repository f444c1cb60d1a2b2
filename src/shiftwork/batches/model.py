"""Batches, as callers see them, and the errors of providers."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

Provider = Literal["anthropic", "openai"]
PROVIDERS: tuple[Provider, ...] = get_args(Provider)
AGENT_PREFIX = "shiftwork-batch-"
AGENTS = {f"{AGENT_PREFIX}{provider}": provider for provider in PROVIDERS}
"""The agent that claims each provider's batches, and the provider."""

BatchStatus = Literal["gathered", "posting", "posted", "ended"]
"""Tasks are chosen; it is being sent, or may have arrived; the provider has it; it is over."""
ItemStatus = Literal["open", "completed", "failed", "released", "late"]
"""`released`: any agent can claim the task. `late`: it was cancelled or reclaimed before the answer."""


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
    """Tasks without an answer yet."""
    cost_usd: float
    """The cost of the answers so far, at half the price."""
    created_at: float
    expires_at: float
    """When the batch is cancelled: any agent can then claim its unanswered tasks."""
    posted_at: float | None = None
    ended_at: float | None = None
    external_id: str | None = None
    """Its id at the provider."""
    error: str | None = None
    """Why it could not be sent or read at the last try."""
    cancel_asked_at: float | None = None
    tasks: list[BatchTask] = []
    """Only when a single batch is read."""


class ProviderError(Exception):
    """The request did not reach the provider, or was refused. It had no effect."""


class WorkRefused(ProviderError):
    """The provider will never accept this request."""


class AnswerLost(ProviderError):
    """The request was sent, but its outcome is unknown."""
