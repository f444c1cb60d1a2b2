"""Large answers are packed for whoever takes them packed."""

from __future__ import annotations

import gzip

from starlette.requests import Request
from starlette.responses import Response

GZIP_FROM = 4096
"""Bytes of an answer from which packing pays: a claimed task is smaller, and packing it cost a tenth of its request."""


def packed(request: Request, response: Response) -> Response:
    """The answer, packed where it is whole and large. Bytes that stream, as those of artifacts, go as they are."""
    body = getattr(response, "body", b"")
    if len(body) < GZIP_FROM:
        return response
    response.headers["vary"] = "accept-encoding"
    if "gzip" in request.headers.get("accept-encoding", ""):
        response.body = gzip.compress(body, 1, mtime=0)
        response.headers["content-encoding"] = "gzip"
        response.headers["content-length"] = str(len(response.body))
    return response
