"""Bounds that client and server enforce, whichever way a call comes in."""

from __future__ import annotations

MAX_NAME = 255
"""Characters of an id or name that a caller chose."""

MAX_TEXT = 65_536
"""Characters of a text without a bound of its own."""

MAX_BATCH = 1000
"""Items of one call: claimed, started, reported, cancelled or read together."""

MAX_PAGE = 1000
"""Rows of one page of a listing."""

MAX_SEARCH = 500
"""Characters of a search."""

MAX_CLAIM_WAIT_SEC = 25.0
"""How long one call waits for work: less than the usual timeout of proxies."""

MAX_COOLDOWN_SEC = 366 * 86_400.0

MAX_BODY_BYTES = 16 * 1024 * 1024
"""Of one HTTP request, except uploads of artifacts."""

HEADER_TEXT = r"[!-~](?:[ -~]{0,253}[!-~])?"
"""Header values are printable ASCII: programs disagree about anything else."""

MAX_NUMBER = 1e10
"""Of a setting: a time of 300 years is a mistake, and would not fit a date."""
