"""What is taken out of a notification before it leaves: values under names of secrets, and what looks like one."""

from __future__ import annotations

import re
from typing import Any

REDACTED = "[redacted]"
LONGEST_TEXT = 2000
LOOKED_THROUGH = 16_384
"""Characters of a text that are looked through for secrets; what stands after them is not sent."""
_NAMES = re.compile(
    r"passw|passphrase|secret|api[_-]?key|access[_-]?key|private[_-]?key|authorization|credential|cookie|token$",
    re.IGNORECASE,
)
_LOOKS = re.compile(
    r"\bsw_[0-9a-z]{12}_[\w-]{43}|\bwhsec_[\w+/=]{16,200}"  # our own
    r"|\b(?:sk|rk|pk)[-_][\w-]{16,200}|\bgh[pousr]_\w{20,255}|\bgithub_pat_\w{20,255}|\bglpat-[\w-]{16,200}"
    r"|\bxox[a-z]-[\w-]{8,200}|\bA(?:KIA|SIA)[0-9A-Z]{16}\b|\bAIza[\w-]{30,100}|\beyJ[\w-]{8,600}\.[\w-]{8,4000}\.[\w-]{0,4000}"
    r"|-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----[\w+/=\s\\]{0,8000}"
    r"|(?<=://)[^\s/@]{1,200}(?=@)"  # a user and a password inside an address
    r"|(?<=hooks\.slack\.com/services/)\S{1,200}"
)
_SAID = re.compile(
    r"(\b(?:bearer|basic)\s+|\b\w{0,40}(?:passw(?:or)?d|passphrase|secret|api[_-]?key|token)\"?\s{0,3}[=:]\s{0,3}[\"']?)"
    r"[^\s\"',;&]{4,4000}",
    re.IGNORECASE,
)


def clean(value: Any) -> Any:
    """The same value without what nobody outside should read."""
    if isinstance(value, str):
        return text(value)
    if isinstance(value, dict):
        return {text(str(name)): _member(str(name), inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [clean(inner) for inner in value]
    return value


def _member(name: str, value: Any) -> Any:
    """Numbers, such as how many tokens were used, are no secrets."""
    hidden = isinstance(value, str | list | dict) and _NAMES.search(name)
    return REDACTED if hidden else clean(value)


def text(value: str) -> str:
    """A text without secrets that can be told by their looks, and no longer than people read."""
    # Cut after it was looked through: half a secret would not be known as one.
    cleaned = _SAID.sub(rf"\g<1>{REDACTED}", _LOOKS.sub(REDACTED, value[:LOOKED_THROUGH]))
    if len(value) > LOOKED_THROUGH and len(cleaned) < LONGEST_TEXT:
        # So much was taken out that the end of what was looked through shows, which may be such a half.
        return cleaned[: cleaned.rfind(REDACTED) + len(REDACTED)] + "…"
    return cleaned if len(cleaned) <= LONGEST_TEXT else cleaned[: LONGEST_TEXT - 1] + "…"
