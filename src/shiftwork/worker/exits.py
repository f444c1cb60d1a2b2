"""Interprets the end of a command: exit codes, signals, and the agent's own result."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any

from shiftwork.model import reasons
from shiftwork.providers import provider_limits
from shiftwork.worker.context import Done, Fail
from shiftwork.worker.delivery import clean
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
"""Exit codes with a meaning of their own, near to what sysexits.h and timeout(1) mean by them."""

MAX_TAIL_LENGTH = 4_000


def reason_of(code: int) -> str:
    """A signal is a crash, also where a shell reports it as 128 and more; any other code is the agent's own error."""
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


def interpret(code: int, final: Final | None, stderr: str, *, cut: bool, facts: Mapping[str, Any], now: float) -> Done:
    """The result of a command that ended by itself, or the failure it stands for."""
    if code != 0 or (final is not None and final.failed):
        own = final.reason if final is not None and final.failed else None
        text = error_text(name_of(code), final, stderr)
        known = facts if final is None or final.failed else {}
        raise Fail(own or reason_of(code), text, data=_provider_data(text, known, now))
    if cut:
        raise Fail(reasons.INVALID_OUTPUT, f"it printed more in one line than the {MAX_BYTES} bytes that are kept")
    if final is None:
        raise Fail(reasons.INVALID_OUTPUT, error_text("it ended well and printed no result", None, stderr))
    return Done(final.data, text=None if final.text is None else clean(final.text, MAX_BYTES))


def _provider_data(text: str, facts: Mapping[str, Any], now: float) -> dict[str, Any] | None:
    """The provider's answer as the agent reported it, with clock times resolved in this machine's time zone."""
    data = {provider_limits.PROVIDER_ERROR: dict(facts)} if facts else None
    found = provider_limits.read(text, data, now, local_zone(now))
    if found is None:
        return None
    if found.resets_at is not None:
        return {provider_limits.PROVIDER_ERROR: {**facts, "resets_at": found.resets_at}}
    return data


def error_text(what: str, final: Final | None, stderr: str) -> str:
    """What happened, and the last words of both streams: there is where agents say why."""
    message = final.text if final is not None and final.text else ""
    tails = (text.strip()[-MAX_TAIL_LENGTH:] for text in (stderr, message))
    return clean("\n".join([what, *filter(None, tails)]), 3 * MAX_TAIL_LENGTH)
