"""Compresses large answers for clients that accept it."""

from __future__ import annotations

import gzip
import re

from starlette.requests import Request
from starlette.responses import Response

GZIP_FROM = 4096
"""Bytes of an answer from which packing pays: a claimed task is smaller, and packing it cost a tenth of its request."""

_NEVER = re.compile(r"q\s*=\s*0(?:\.0*)?")


def packed(request: Request, response: Response) -> Response:
    """The answer, packed where it is whole and large. Bytes that stream, as those of artifacts, go as they are."""
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
    """Whether it is named in Accept-Encoding, and not with the weight 0, which means: anything but this."""
    for offer in accepted.lower().split(","):
        coding, *terms = (part.strip() for part in offer.split(";"))
        if coding == "gzip":
            return not any(_NEVER.fullmatch(term) for term in terms)
    return False
