"""Which error texts are provider messages, and which only resemble them."""

import time
from collections.abc import Callable

import pytest

from shiftwork.engine.fingerprint import fingerprint
from shiftwork.providers import provider_limits, provider_messages
from tests.unit.provider_texts import LOOK_ALIKES, MESSAGES

NOON = 1_794_916_800.0
"""2026-11-17, in UTC."""


@pytest.mark.parametrize(("text", "kind", "scope", "wait"), MESSAGES)
def test_provider_message_is_recognised(text: str, kind: str, scope: str, wait: float | None) -> None:
    found = provider_limits.read(text, None, NOON)
    assert found is not None
    assert (found.kind, found.scope, found.wait_sec) == (kind, scope, pytest.approx(wait) if wait else None)


@pytest.mark.parametrize("text", LOOK_ALIKES)
def test_text_resembling_a_message_is_ignored(text: str) -> None:
    assert provider_limits.read(text, None, NOON) is None


def test_log_of_resembling_texts_is_ignored() -> None:
    assert provider_limits.read("exit code 1\n" + "\n".join(LOOK_ALIKES), None, NOON) is None


IN_WORDS = [message for message in MESSAGES if not message[0].isdigit()]
"""A number alone is a message only where nothing else is said."""


@pytest.mark.parametrize(("text", "kind", "scope", "wait"), IN_WORDS)
def test_message_at_the_end_of_a_long_log_is_found(text: str, kind: str, scope: str, wait: float | None) -> None:
    log = "exit code 1\n" + "compiled 429 files in 12 s, all tests pass\n" * 1_300 + text + "\n"
    found = provider_limits.read(log, None, NOON)
    assert found is not None
    assert (found.kind, found.scope, found.wait_sec) == (kind, scope, pytest.approx(wait) if wait else None)


def test_message_at_the_beginning_of_a_long_text_is_found() -> None:
    assert provider_limits.read("HTTP 429\n" + "x" * 60_000, None, NOON) is not None


def test_most_specific_of_related_messages_decides() -> None:
    log = """Error code: 429 - {
      'error': {
        'message': 'You exceeded your current quota, please check your plan and billing details.',
        'type': 'insufficient_quota',
      }
    }"""
    found = provider_limits.read(log, None, NOON)
    assert found is not None
    assert (found.kind, found.wait_sec) == ("quota", None)


def test_wait_after_the_message_counts_not_an_earlier_one() -> None:
    log = "Attempt 1 failed: quota. Retrying after 6173ms\nRate limit exceeded\nPlease try again in 40s"
    found = provider_limits.read(log, None, NOON)
    assert found is not None
    assert found.wait_sec == 40


HOSTILE: dict[str, Callable[[int], str]] = {
    "blanks after retry-after": lambda n: "retry-after" + " " * n,
    "retry-after again and again": lambda n: "retry-after:" * (n // 12),
    "blanks": lambda n: " " * n + "429",
    "digits": lambda n: "resets at " + "1" * n,
    "words": lambda n: "you've hit your " + "a " * (n // 2),
    "one word": lambda n: "you've hit your " + "a" * n,
    "limits": lambda n: "you've hit your limit " * (n // 22),
    "quotes": lambda n: "\"'" * (n // 2) + "429 too many requests",
    "backslashes": lambda n: '{"error": "' + "\\" * n + '429"}',
    "statuses": lambda n: "status 429 " * (n // 11),
    "lines": lambda n: "429\n" * (n // 4),
    "frames": lambda n: 'File "' * (n // 6) + "429",
    "paths": lambda n: "/a" * (n // 2) + " 429",
    "dots": lambda n: "." * n + "rate limit exceeded",
    "json": lambda n: '{"type":' * (n // 8) + '"rate_limit_error"',
    "hex": lambda n: "exit code 1\n" + "9a4290b " * (n // 8),
    "tracebacks": lambda n: "Traceback (most recent call last):\n" * (n // 36),
}


def _read(text: str) -> None:
    provider_limits.read(text, None, NOON)
    fingerprint("code", "crash", text)


def _cpu_sec(text: str) -> float:
    """Return the minimum of several runs, since other load only adds."""
    taken = []
    for _ in range(5):
        start = time.process_time()
        _read(text)
        taken.append(time.process_time() - start)
    return min(taken)


@pytest.mark.parametrize("name", HOSTILE)
def test_reading_time_grows_linearly_with_text_length(name: str) -> None:
    make, size = HOSTILE[name], provider_messages.HEAD + provider_messages.TAIL
    quarter, half, whole = (_cpu_sec(make(n)) for n in (size // 4, size // 2, size))
    floor = 0.002
    assert half <= 3 * max(quarter, floor)
    assert whole <= 3 * max(half, floor)
    assert _cpu_sec(make(4 * size)) <= 3 * max(whole, floor)
