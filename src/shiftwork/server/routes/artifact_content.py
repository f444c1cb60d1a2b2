"""The content of artifacts over HTTP: streams, ranges and ETags."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any
from urllib.parse import quote

from starlette.responses import Response, StreamingResponse

from shiftwork.artifacts.api import ArtifactContent
from shiftwork.artifacts.model import Artifact
from shiftwork.model.errors import InputError, RangeNotSatisfiable
from shiftwork.operation.parameters import ClaimRef
from shiftwork.server.endpoint import serves
from shiftwork.server.request_context import RequestContext

CURL_DEFAULT = "application/x-www-form-urlencoded"
"""The content type that curl sends by default."""
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


@serves(ArtifactContent.add)
async def put_artifact(context: RequestContext, body: AsyncIterator[bytes]) -> Any:
    query = context.query
    return await context.queue.artifacts.put(body, media_type=_media_type(context), name=query.name, task=query.task)


@serves(ArtifactContent.put_known)
async def put_known_artifact(context: RequestContext, body: AsyncIterator[bytes]) -> Any:
    return await context.queue.artifacts.put(
        body,
        media_type=_media_type(context),
        name=context.query.name,
        task=context.query.task,
        artifact_id=context.path["artifact_id"],
    )


@serves(ArtifactContent.attach)
async def attach_artifact(context: RequestContext, body: AsyncIterator[bytes]) -> Any:
    token = await context.token(ClaimRef(token=context.query.token))
    return await context.queue.artifacts.put(
        body, media_type=_media_type(context), name=context.query.name, task=context.path["task_id"], token=token
    )


def _media_type(context: RequestContext) -> str | None:
    media_type = context.request.headers.get("content-type", "").strip()
    if media_type.startswith("multipart/form-data"):
        raise InputError("a form is not accepted", where="Content-Type", hint="Send the bytes alone: `curl -T FILE`.")
    return None if not media_type or media_type.startswith(CURL_DEFAULT) else media_type


@serves(ArtifactContent.get)
async def get_artifact(context: RequestContext) -> Any:
    found = await context.queue.artifacts.info(context.path["artifact_id"])
    headers = _headers(found)
    if headers["etag"] in _listed(context.request.headers.get("if-none-match", "")):
        return Response(status_code=304, headers=headers)
    start, end = _range(context, found)
    part = (start, end) != (0, found.size)
    if part:
        headers["content-range"] = f"bytes {start}-{end - 1}/{found.size}"
    headers["content-length"] = str(end - start)
    status = 206 if part else 200
    if context.request.method == "HEAD":
        return Response(status_code=status, headers=headers)
    stream = context.queue.artifacts.get(found.id, start=start, end=end)
    first = await anext(stream, b"")  # an unreadable artifact fails before the head is sent
    return StreamingResponse(_chained(first, stream), status, headers)


async def _chained(first: bytes, rest: Any) -> AsyncIterator[bytes]:
    async with aclosing(rest):
        yield first
        async for block in rest:
            yield block


def _headers(found: Artifact) -> dict[str, str]:
    """Headers that keep browsers from running content as a page of ours, whatever its media type."""
    return {
        "etag": f'"{found.id}"',
        "content-type": found.media_type,  # exactly as the uploader stated it
        "accept-ranges": "bytes",
        "cache-control": "private, max-age=31536000, immutable",
        "content-disposition": f"attachment; filename={quote(found.id.rpartition('-')[2][:12])}",
        "content-security-policy": "sandbox",
        "x-content-type-options": "nosniff",
    }


def _range(context: RequestContext, found: Artifact) -> tuple[int, int]:
    """The requested range. As HTTP requires, a range that we cannot parse is ignored."""
    whole = (0, found.size)
    condition = context.request.headers.get("if-range")
    match = _RANGE.fullmatch(context.request.headers.get("range", "").replace(" ", ""))
    if match is None or (condition is not None and condition != f'"{found.id}"'):
        return whole
    start, end = _bounds(match[1], match[2], found.size)
    if start >= found.size:
        raise RangeNotSatisfiable(f"the artifact has {found.size} bytes", where="Range", size=found.size)
    return whole if end <= start else (start, min(end, found.size))


def _bounds(first: str, last: str, size: int) -> tuple[int, int]:
    """The bounds of `2-5`, of `2-`, or of `-5`, which means the last five bytes."""
    if first:
        return int(first), int(last) + 1 if last else size
    return (size - min(int(last), size), size) if last else (0, 0)


def _listed(header: str) -> list[str]:
    return [each.strip().removeprefix("W/") for each in header.split(",")]
