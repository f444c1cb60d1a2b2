"""Artifacts: content brought in and read back as it is, and what tasks refer to."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any
from urllib.parse import quote

from starlette.responses import Response, StreamingResponse

from shiftwork.core.errors import (
    ArtifactDamaged,
    ArtifactsUnavailable,
    InputError,
    NotFound,
    QuotaExceeded,
    RangeNotSatisfiable,
)
from shiftwork.core.task import Name
from shiftwork.queue.content.artifacts import Artifact
from shiftwork.server.ask import Ask
from shiftwork.server.door import Doors, Query, Raw
from shiftwork.server.routes.working import HOLDING
from shiftwork.wire.artifacts import AttachedList, InputList
from shiftwork.wire.shapes import Held

door = Doors("Artifacts")
KEEPING = (ArtifactsUnavailable, QuotaExceeded)
NOT_SAID = "application/x-www-form-urlencoded"
"""What curl says of any bytes unless it is told otherwise."""
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


class PutQuery(Query):
    """What the content is called, and the task that it is an input of."""

    name: Name | None = None
    task: Name | None = None


class MadeQuery(Query):
    """Under which claim the content was made, and what it is called."""

    token: str | None = None
    name: Name | None = None


@door(
    "POST /api/artifacts",
    "submit",
    body=Raw,
    query=PutQuery,
    answer=Artifact,
    status=201,
    errors=(NotFound, *KEEPING),
)
async def put_artifact(ask: Ask, body: AsyncIterator[bytes]) -> Any:
    """Keep the body as an artifact; its id is made from its SHA-256, and its media type is the Content-Type."""
    query = ask.query
    return await ask.queue.put_artifact(body, media_type=_media_type(ask), name=query.name, task=query.task)


@door(
    "PUT /api/artifacts/{artifact_id}",
    "submit",
    body=Raw,
    query=PutQuery,
    answer=Artifact,
    status=201,
    errors=(NotFound, *KEEPING),
)
async def put_known_artifact(ask: Ask, body: AsyncIterator[bytes]) -> Any:
    """Keep the body as the artifact of this id; refused where it comes to another."""
    return await ask.queue.put_artifact(
        body,
        media_type=_media_type(ask),
        name=ask.query.name,
        task=ask.query.task,
        artifact_id=ask.path["artifact_id"],
    )


@door(
    "POST /api/tasks/{task_id}/artifacts",
    "work",
    body=Raw,
    query=MadeQuery,
    answer=Artifact,
    status=201,
    errors=(*HOLDING, *KEEPING),
)
async def attach_artifact(ask: Ask, body: AsyncIterator[bytes]) -> Any:
    """Keep the body as an artifact made under a claim, whose token is given as `?token=`."""
    token = await ask.token(Held(token=ask.query.token))
    return await ask.queue.put_artifact(
        body, media_type=_media_type(ask), name=ask.query.name, task=ask.path["task_id"], token=token
    )


def _media_type(ask: Ask) -> str | None:
    said = ask.request.headers.get("content-type", "").strip()
    if said.startswith("multipart/form-data"):
        raise InputError("a form is not read", where="Content-Type", mend="Send the bytes themselves: `curl -T FILE`.")
    return None if not said or said.startswith(NOT_SAID) else said


# -- reading -----------------------------------------------------------------------------------------------------


@door(
    "GET /api/artifacts/{artifact_id}",
    "read",
    answer=Raw,
    errors=(NotFound, RangeNotSatisfiable, ArtifactDamaged, ArtifactsUnavailable),
)
async def get_artifact(ask: Ask) -> Any:
    """The bytes of an artifact, or those of a `Range`; checked before they are sent. Its ETag is its hash."""
    found = await ask.queue.artifact(ask.path["artifact_id"])
    headers = _headers(found)
    if headers["etag"] in _listed(ask.request.headers.get("if-none-match", "")):
        return Response(status_code=304, headers=headers)
    start, end = _wanted(ask, found)
    part = (start, end) != (0, found.size)
    if part:
        headers["content-range"] = f"bytes {start}-{end - 1}/{found.size}"
    headers["content-length"] = str(end - start)
    status = 206 if part else 200
    if ask.request.method == "HEAD":
        return Response(status_code=status, headers=headers)
    stream = ask.queue.get_artifact(found.id, start=start, end=end)
    first = await anext(stream, b"")  # what cannot be read is refused before anything is promised
    return StreamingResponse(_chained(first, stream), status, headers)


async def _chained(first: bytes, rest: Any) -> AsyncIterator[bytes]:
    async with aclosing(rest):
        yield first
        async for block in rest:
            yield block


def _headers(found: Artifact) -> dict[str, str]:
    """What others wrote must not be run as a page of ours, whatever it says it is."""
    return {
        "etag": f'"{found.id}"',
        "content-type": found.media_type,  # as it was said, to the letter
        "accept-ranges": "bytes",
        "cache-control": "private, max-age=31536000, immutable",
        "content-disposition": f"attachment; filename={quote(found.id.rpartition('-')[2][:12])}",
        "content-security-policy": "sandbox",
        "x-content-type-options": "nosniff",
    }


def _wanted(ask: Ask, found: Artifact) -> tuple[int, int]:
    """The part that is asked for. What we do not understand is as if nothing was asked, as HTTP has it."""
    whole = (0, found.size)
    condition = ask.request.headers.get("if-range")
    asked = _RANGE.fullmatch(ask.request.headers.get("range", "").replace(" ", ""))
    if asked is None or (condition is not None and condition != f'"{found.id}"'):
        return whole
    start, end = _bounds(asked[1], asked[2], found.size)
    if start >= found.size:
        raise RangeNotSatisfiable(f"the artifact has {found.size} bytes", where="Range", size=found.size)
    return whole if end <= start else (start, min(end, found.size))


def _bounds(first: str, last: str, size: int) -> tuple[int, int]:
    """`2-5`, `2-` or the last so many, `-5`."""
    if first:
        return int(first), int(last) + 1 if last else size
    return (size - min(int(last), size), size) if last else (0, 0)


def _listed(header: str) -> list[str]:
    return [each.strip().removeprefix("W/") for each in header.split(",")]


@door("GET /api/artifacts/{artifact_id}/info", "read", answer=Artifact, errors=(NotFound,))
async def artifact_info(ask: Ask) -> Any:
    """What is known of an artifact: its size and media type, and who brought it first."""
    return await ask.queue.artifact(ask.path["artifact_id"])


@door("GET /api/tasks/{task_id}/artifacts", "read", answer=AttachedList, errors=(NotFound,))
async def list_artifacts(ask: Ask) -> Any:
    """All artifacts a task refers to: its inputs, what was made under it, and what it handed in."""
    return AttachedList(await ask.queue.artifacts(ask.path["task_id"]))


@door("GET /api/tasks/{task_id}/inputs", "read", answer=InputList, errors=(NotFound,))
async def list_inputs(ask: Ask) -> Any:
    """What the references of a task's spec lead to, as its agent gets it with the claim."""
    return InputList(await ask.queue.inputs(ask.path["task_id"]))
