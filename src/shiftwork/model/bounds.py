"""Bounds that both sides of the wire keep, and every way into the queue."""

from __future__ import annotations

MAX_NAME = 255
"""Characters of an id or name that a caller chose."""

MAX_TEXT = 65_536
"""Characters of a text, unless it says otherwise."""

MAX_BATCH = 1000
"""Items of one call: claimed, started, reported, cancelled or read together."""

MAX_PAGE = 1000
"""Rows of one page of a listing."""

MAX_SEARCH = 500
"""Characters of a search."""

MAX_CLAIM_WAIT_SEC = 25.0
"""How long one call waits for work: shorter than what proxies give an answer."""

MAX_COOLDOWN_SEC = 366 * 86_400.0

MAX_BODY_BYTES = 16 * 1024 * 1024
"""Of one HTTP request, artifacts aside."""

HEADER_TEXT = r"[!-~](?:[ -~]{0,253}[!-~])?"
"""What is written to and read from a header: printable ASCII, since beyond it no two programs agree."""

MAX_NUMBER = 1e10
"""Of a setting: a time of 300 years is a mistake, and would not fit a date."""
