"""Reads the utilization of an account's windows from the headers of a provider's response.

Anthropic's `anthropic-ratelimit-*` (also those of subscriptions, `-unified-5h-utilization`), OpenAI's `x-ratelimit-*`
and those of Codex, `x-codex-primary-used-percent`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import UTC
from typing import Any, Literal

from shiftwork.providers import reset_times
from shiftwork.providers.limit_signal import WindowState

MAX_HEADERS = 200
_SPANS = {"5h": "five_hour", "7d": "seven_day"}
_MINUTES = {300: "five_hour", 10_080: "seven_day"}
_UNIFIED = re.compile(r"anthropic-ratelimit-unified-(5h|7d)(?:[-_]([a-z]+))?-(utilization|reset|status)")
_ANTHROPIC = re.compile(r"anthropic-ratelimit-(requests|tokens|input-tokens|output-tokens)-(limit|remaining|reset)")
_OPENAI = re.compile(r"x-ratelimit-(limit|remaining|reset)-(requests|tokens)")
_CODEX = re.compile(r"x-codex-(primary|secondary)-(used-percent|window-minutes|reset-after-seconds|reset-at)")


def read(headers: object, now: float) -> list[WindowState]:
    """The windows in these headers; other headers are ignored."""
    if not isinstance(headers, Mapping):
        return []
    named = [(str(name).lower(), str(value)) for name, value in list(headers.items())[:MAX_HEADERS]]
    return [*_unified(named, now), *_minutes(named, now), *_codex(named, now)]


def in_report(data: Any, now: float) -> list[WindowState]:
    """The windows in the headers that workers put into the data of a failure."""
    record: Any = data.get("provider_error", data) if isinstance(data, Mapping) else None
    return read(record.get("headers"), now) if isinstance(record, Mapping) else []


def _unified(named: list[tuple[str, str]], now: float) -> Iterator[WindowState]:
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for name, value in named:
        if (match := _UNIFIED.fullmatch(name)) is not None:
            found["_".join(filter(None, (_SPANS[match[1]], match[2])))][match[3]] = value
    for window, facts in found.items():
        used, status = _number(facts.get("utilization")), facts.get("status")
        full = used is not None and used >= 1 and status is None
        yield _state(window, used, facts.get("reset"), now, refused=full or status == "rejected")


def _minutes(named: list[tuple[str, str]], now: float) -> Iterator[WindowState]:
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for name, value in named:
        if (match := _ANTHROPIC.fullmatch(name)) is not None:
            found[match[1]][match[2]] = value
        elif (match := _OPENAI.fullmatch(name)) is not None:
            found[match[2]][match[1]] = value
    for what, facts in found.items():
        limit, remaining = _number(facts.get("limit")), _number(facts.get("remaining"))
        if limit and remaining is not None:
            name, refused = f"minute_{what.replace('-', '_')}", remaining <= 0
            yield _state(name, 1 - remaining / limit, facts.get("reset"), now, refused=refused)


def _codex(named: list[tuple[str, str]], now: float) -> Iterator[WindowState]:
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for name, value in named:
        if (match := _CODEX.fullmatch(name)) is not None:
            found[match[1]][match[2]] = value
    for which, facts in found.items():
        percent, minutes = _number(facts.get("used-percent")), _number(facts.get("window-minutes"))
        after = _number(facts.get("reset-after-seconds"))
        at = facts.get("reset-at") if after is None else str(now + after)
        if percent is not None:
            yield _state(_MINUTES.get(int(minutes or 0), which), percent / 100, at, now, refused=percent >= 100)


def _state(
    window: str, utilization: float | None, reset: str | None, now: float, *, refused: bool = False
) -> WindowState:
    number = _number(reset)
    found = reset_times.until(number, now) if number and number > 1e9 else None
    if found is None and reset is not None:
        found = reset_times.when(reset.strip(), now, UTC)
    used = None if utilization is None else min(1.0, max(0.0, utilization))
    status: Literal["allowed", "rejected"] = "rejected" if refused else "allowed"
    return WindowState(window, status, used, None if found is None else found.at or now + found.wait_sec)


def _number(text: str | None) -> float | None:
    try:
        number = float((text or "")[:40])
    except ValueError:
        return None
    return number if abs(number) < 1e15 else None
