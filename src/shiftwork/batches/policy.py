"""Which tasks go into a batch, what is sent of each, and how they are divided."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from shiftwork.batches.model import AGENT_PREFIX, AGENTS, PROVIDERS, Provider
from shiftwork.model.errors import InputError
from shiftwork.model.task import NewTask

PRICE_FACTOR = 0.5
"""What a batch costs at both providers, of the usual price."""

MAX_REQUESTS = 1000
MAX_BYTES = 100_000_000
"""Of one batch. Both are well below what the providers take, so that a batch fits into memory and a transaction."""

GRACE_SEC = 900.0
"""This long after a batch was sent without an answer, it is in the provider's list, or never will be."""

SKEW_SEC = 300.0
"""How far the clocks of a provider and of this queue may differ."""

LATE_SEC = 3600.0
"""How long after its time is over a batch may take to be read; then its tasks are released."""

KEEP_SEC = 30 * 86_400.0
"""How long an ended batch can be looked at."""


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
    """One task as a provider gets it."""

    custom_id: str
    params: dict[str, Any]


class Answer(NamedTuple):
    """What a provider made of one request: an answer, an error, or neither."""

    text: str | None = None
    content: Any = None
    """The parts of an answer that is not text alone, such as calls of tools."""
    error: str | None = None
    model: str | None = None
    tokens_in: int = 0
    tokens_out: int = 0
    cached: int = 0

    @property
    def is_missing(self) -> bool:
        """It was not done at all: the batch expired or was cancelled before."""
        return self.text is None and self.content is None and self.error is None


MISSING = Answer()


class Candidate(NamedTuple):
    """A batch in the provider's list."""

    external_id: str
    created_at: float
    requests: int
    ended: bool
    label: str | None = None
    """Our own id of it, where the provider keeps one."""


def agent_of(provider: str) -> str:
    return AGENT_PREFIX + provider


def provider_of(agent_id: str | None) -> Provider | None:
    """The provider in whose batches this agent works; None of all other agents."""
    return AGENTS.get(agent_id or "")


def check(new: NewTask, where: str) -> None:
    """A task of the batch lane says all that a provider must know, and no one else is to do it."""
    payload = new.payload
    if payload.get("provider") not in PROVIDERS:
        raise InputError(
            f"expected one of {', '.join(PROVIDERS)}, got {payload.get('provider')!r}",
            where=f"{where}.payload.provider",
            hint=_EXAMPLE,
        )
    request = payload.get("request")
    if not isinstance(request, Mapping):
        raise InputError("a task of the batch lane needs the request", where=f"{where}.payload.request", hint=_EXAMPLE)
    if not isinstance(request.get("model"), str) or not 0 < len(request["model"]) <= MAX_MODEL:
        raise InputError("expected the name of a model", where=f"{where}.payload.request.model", hint=_EXAMPLE)
    if not isinstance(request.get("messages"), list) or not request["messages"]:
        raise InputError("expected a list of messages", where=f"{where}.payload.request.messages", hint=_EXAMPLE)
    if request.get("stream"):
        raise InputError("a batch does not stream", where=f"{where}.payload.request.stream", hint="Leave it out.")
    if new.target_agent_id is not None:
        hint = "Leave out target_agent_id, or the urgency."
        raise InputError("a task of the batch lane is for no single agent", where=f"{where}.target_agent_id", hint=hint)


MAX_MODEL = 255


def custom_id(batch_id: str, place: int) -> str:
    """What the provider repeats with each answer: at most 64 letters, digits and dashes."""
    return f"{batch_id.replace('-', '')}-{place}"


def place_of(batch_id: str, custom: str) -> int | None:
    """Which task of this batch an answer is for; None where it is of another batch."""
    own, _, place = custom.rpartition("-")
    return int(place) if own == batch_id.replace("-", "") and place.isdecimal() else None


def split(sizes: Iterable[int]) -> Iterator[int]:
    """How many of these, in order, go into each batch."""
    count = total = 0
    for size in sizes:
        if count and (count == MAX_REQUESTS or total + size > MAX_BYTES):
            yield count
            count = total = 0
        count, total = count + 1, total + size
    if count:
        yield count


def candidates(found: Iterable[Candidate], requests: int, since: float, known: Sequence[str]) -> list[Candidate]:
    """Batches at the provider that may be one of ours whose answer was lost."""
    return [
        each
        for each in found
        if each.created_at >= since - SKEW_SEC and each.requests == requests and each.external_id not in known
    ]
