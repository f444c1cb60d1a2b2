"""Decides which tasks go into a batch, what is sent for each, and how batches are split."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from shiftwork.batches.model import AGENT_PREFIX, AGENTS, PROVIDERS, Provider
from shiftwork.model.errors import InputError
from shiftwork.model.task import NewTask

PRICE_FACTOR = 0.5
"""The price of a batch at both providers, relative to the usual price."""

MAX_REQUESTS = 1000
MAX_BYTES = 100_000_000
"""Bounds of one batch, well below the providers' own, so that it fits into memory and a transaction."""

GRACE_SEC = 900.0
"""If a batch sent without an answer is not in the provider's list by then, it never will be."""

SKEW_SEC = 300.0
"""The most by which the clocks of a provider and this queue can differ."""

LATE_SEC = 3600.0
"""How long after its expiry a batch can still be read; then its tasks are released."""

KEEP_SEC = 30 * 86_400.0
"""How long an ended batch can be read."""


class Access(NamedTuple):
    """The variables with a provider's key and address, and its usual address."""

    key: str
    base: str
    default: str


ACCESS: dict[Provider, Access] = {
    "anthropic": Access("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "https://api.anthropic.com"),
    "openai": Access("OPENAI_API_KEY", "OPENAI_BASE_URL", "https://api.openai.com/v1"),
}

_EXAMPLE = 'Write {"provider": "anthropic", "request": {"model": ..., "max_tokens": ..., "messages": [...]}}.'


def configured(environment: Mapping[str, str]) -> list[Provider]:
    """The providers whose key this process has."""
    return [provider for provider in PROVIDERS if environment.get(ACCESS[provider].key)]


class Request(NamedTuple):
    """One task's request to a provider."""

    custom_id: str
    params: dict[str, Any]


class Answer(NamedTuple):
    """A provider's answer to one request: an answer, an error, or neither."""

    text: str | None = None
    content: Any = None
    """The parts of an answer that is more than text, such as tool calls."""
    error: str | None = None
    model: str | None = None
    tokens_in: int = 0
    tokens_out: int = 0
    cached: int = 0

    @property
    def is_missing(self) -> bool:
        """Whether the request was never processed: the batch expired or was cancelled first."""
        return self.text is None and self.content is None and self.error is None


MISSING = Answer()


class Candidate(NamedTuple):
    """A batch in the provider's list."""

    external_id: str
    created_at: float
    requests: int
    ended: bool
    label: str | None = None
    """Our own id of the batch, if the provider stores one."""


def agent_of(provider: str) -> str:
    return AGENT_PREFIX + provider


def provider_of(agent_id: str | None) -> Provider | None:
    """The provider of a batch agent; None for any other agent."""
    return AGENTS.get(agent_id or "")


def check(new: NewTask, where: str) -> None:
    """Check that a task of the batch lane has a complete request and names no agent."""
    payload = new.payload
    if payload.get("provider") not in PROVIDERS:
        raise InputError(
            f"expected one of {', '.join(PROVIDERS)}, got {payload.get('provider')!r}",
            where=f"{where}.payload.provider",
            hint=_EXAMPLE,
        )
    request = payload.get("request")
    if not isinstance(request, Mapping):
        raise InputError("a task of the batch lane needs a request", where=f"{where}.payload.request", hint=_EXAMPLE)
    if not isinstance(request.get("model"), str) or not 0 < len(request["model"]) <= MAX_MODEL:
        raise InputError("expected a model name", where=f"{where}.payload.request.model", hint=_EXAMPLE)
    if not isinstance(request.get("messages"), list) or not request["messages"]:
        raise InputError("expected a list of messages", where=f"{where}.payload.request.messages", hint=_EXAMPLE)
    if request.get("stream"):
        raise InputError("a batch cannot stream", where=f"{where}.payload.request.stream", hint="Leave it out.")
    if new.target_agent_id is not None:
        hint = "Leave out target_agent_id, or the urgency."
        raise InputError("a task of the batch lane cannot name an agent", where=f"{where}.target_agent_id", hint=hint)


MAX_MODEL = 255


def custom_id(batch_id: str, place: int) -> str:
    """The id that the provider returns with each answer: at most 64 letters, digits and dashes."""
    return f"{batch_id.replace('-', '')}-{place}"


def place_of(batch_id: str, custom: str) -> int | None:
    """The place of an answer's task in this batch; None if the answer is from another batch."""
    own, _, place = custom.rpartition("-")
    return int(place) if own == batch_id.replace("-", "") and place.isdecimal() else None


def split(sizes: Iterable[int]) -> Iterator[int]:
    """Split requests in order; yields how many go into each batch."""
    count = total = 0
    for size in sizes:
        if count and (count == MAX_REQUESTS or total + size > MAX_BYTES):
            yield count
            count = total = 0
        count, total = count + 1, total + size
    if count:
        yield count


def candidates(found: Iterable[Candidate], requests: int, since: float, known: Sequence[str]) -> list[Candidate]:
    """Batches at the provider that may be ours, sent without an answer."""
    return [
        each
        for each in found
        if each.created_at >= since - SKEW_SEC and each.requests == requests and each.external_id not in known
    ]
