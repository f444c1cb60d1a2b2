"""Interprets the end of a command: exit codes, signals, and the agent's own result."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from shiftwork.model import reasons
from shiftwork.providers import provider_limits
from shiftwork.worker.context import Done, Fail
from shiftwork.worker.error_text import clean
from shiftwork.worker.output import MAX_BYTES, Final
from shiftwork.worker.provider_errors import local_zone

REASONS: dict[int, str] = {
    65: reasons.INVALID_INPUT,
    66: reasons.SESSION_LOST,
    69: reasons.RESOURCE_UNAVAILABLE,
    75: reasons.RATE_LIMIT,
    77: reasons.AUTH_FAILURE,
    124: reasons.TIMEOUT,
}
"""Exit codes with a meaning, close to sysexits.h and timeout(1)."""

MAX_TAIL_LENGTH = 4_000
_GONE = (
    "no conversation found with session id",  # Claude Code
    "no rollout found for thread id",  # Codex
    "error resuming session",  # Gemini CLI
    "session not found",  # OpenCode
)


def reason_of(code: int) -> str:
    """A signal is a crash, also if a shell reports it as 128 plus its number; any other code is the agent's own
    error.
    """
    if code < 0 or 128 < code <= 128 + signal.NSIG:
        return reasons.CRASH
    return REASONS.get(code, reasons.AGENT_ERROR)


def name_of(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def session_is_gone(code: int, final: Final | None, stderr: str) -> bool:
    """Whether an agent that should resume a session reports that it has no such session.

    An exit code with a meaning takes precedence.
    """
    if code == 0 or code in REASONS:
        return False
    text = f"{stderr}\n{final.text if final is not None and final.text else ''}".lower()
    return any(words in text for words in _GONE)


class Facts(NamedTuple):
    """What is known of the provider's answer and the call: provider, account and model."""

    answer: Mapping[str, Any] = MappingProxyType({})
    use: Mapping[str, str] = MappingProxyType({})


def interpret(code: int, final: Final | None, stderr: str, *, cut: bool, facts: Facts, now: float) -> Done:
    """The result or failure of a command that ended by itself."""
    if code != 0 or (final is not None and final.failed):
        text = error_text(name_of(code), final, stderr)
        known = facts if final is None or final.failed else facts._replace(answer={})
        raise Fail(_reason(code, final), text, data=provider_data(text, known, now))
    if cut:
        raise Fail(reasons.INVALID_OUTPUT, f"it printed a line longer than the {MAX_BYTES} bytes that are kept")
    if final is None:
        raise Fail(reasons.INVALID_OUTPUT, error_text("it ended well and printed no result", None, stderr))
    return Done(final.data, text=None if final.text is None else clean(final.text, MAX_BYTES))


def _reason(code: int, final: Final | None) -> str:
    """An agent that reported its own failure did not crash: Gemini CLI exits with 173 for a status of 429."""
    if final is None or not final.failed:
        return reason_of(code)
    return final.reason or (REASONS.get(code, reasons.AGENT_ERROR) if code >= 0 else reasons.CRASH)


def provider_data(text: str, facts: Facts, now: float) -> dict[str, Any] | None:
    """The provider's answer as the agent reported it, with clock times resolved in this machine's time zone."""
    data = {provider_limits.PROVIDER_ERROR: dict(facts.answer)} if facts.answer else None
    found = provider_limits.read(text, data, now, local_zone(now))
    if found is None:
        return None
    reset = {} if found.resets_at is None else {"resets_at": found.resets_at}
    known = {**facts.answer, **facts.use, **reset}
    return {provider_limits.PROVIDER_ERROR: known} if known else None


def error_text(what: str, final: Final | None, stderr: str) -> str:
    """What happened, with the end of both streams, where agents report causes."""
    message = final.text if final is not None and final.text else ""
    tails = (text.strip()[-MAX_TAIL_LENGTH:] for text in (stderr, message))
    return clean("\n".join([what, *filter(None, tails)]), 3 * MAX_TAIL_LENGTH)
