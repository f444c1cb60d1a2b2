"""Compresses large answers for clients that accept it."""

from __future__ import annotations

import gzip
import re

from starlette.requests import Request
from starlette.responses import Response

GZIP_FROM = 4096
"""Smaller answers, such as a claimed task, are not compressed: it would take a tenth of their request."""

_NEVER = re.compile(r"q\s*=\s*0(?:\.0*)?")


def packed(request: Request, response: Response) -> Response:
    """Compress a large answer. Streams, such as artifacts, are sent unchanged."""
    body = getattr(response, "body", b"")
    if len(body) < GZIP_FROM:
        return response
    response.headers["vary"] = "accept-encoding"
    if takes_gzip(request.headers.get("accept-encoding", "")):
        response.body = gzip.compress(body, 1, mtime=0)
        response.headers["content-encoding"] = "gzip"
        response.headers["content-length"] = str(len(response.body))
    return response


def takes_gzip(accepted: str) -> bool:
    """Whether Accept-Encoding names gzip, with a weight other than 0, which would exclude it."""
    for offer in accepted.lower().split(","):
        coding, *terms = (part.strip() for part in offer.split(";"))
        if coding == "gzip":
            return not any(_NEVER.fullmatch(term) for term in terms)
    return False
