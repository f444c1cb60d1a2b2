"""Bounds that client and server enforce, whichever way a call comes in."""

from __future__ import annotations

MAX_NAME = 255
"""The longest id or name that a caller can choose, in characters."""

MAX_TEXT = 65_536
"""The longest text without a bound of its own, in characters."""

MAX_BATCH = 1000
"""The most items of one call: claimed, started, reported, cancelled or read together."""

MAX_PAGE = 1000
"""The most rows on one page of a listing."""

MAX_SEARCH = 500
"""The longest search, in characters."""

MAX_CLAIM_WAIT_SEC = 25.0
"""The longest that one call waits for work: less than the usual timeout of proxies."""

MAX_COOLDOWN_SEC = 366 * 86_400.0

MAX_BODY_BYTES = 16 * 1024 * 1024
"""The largest HTTP request, except uploads of artifacts."""

HEADER_TEXT = r"[!-~](?:[ -~]{0,253}[!-~])?"
"""Header values are printable ASCII: programs disagree about anything else."""

MAX_NUMBER = 1e10
"""The longest duration in a setting: one of 300 years is a mistake, and would not fit a date."""
