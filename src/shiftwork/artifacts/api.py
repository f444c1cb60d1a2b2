"""Artifacts, as callers see them."""

from __future__ import annotations

import mimetypes
import re
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Annotated

from shiftwork.artifacts.model import Artifact, Attached
from shiftwork.artifacts.spool import Source, Upload
from shiftwork.engine.assignment import Input
from shiftwork.model import check
from shiftwork.model.errors import (
    ArtifactDamaged,
    ArtifactsUnavailable,
    FenceRequired,
    InputError,
    LeaseLost,
    NotFound,
    NotYourClaim,
    QuotaExceeded,
    RangeNotSatisfiable,
    WrongState,
)
from shiftwork.model.task import Name
from shiftwork.operation.declare import Namespace, Raw, operation
from shiftwork.operation.parameters import Accepts

ANY_BYTES = "application/octet-stream"
MEDIA_TYPE = r"[A-Za-z0-9!#$&^_.+-]{1,100}/[A-Za-z0-9!#$&^_.+-]{1,100}( *;[ -~]{0,50})?"
_MEDIA_TYPE = re.compile(MEDIA_TYPE)
Content = Annotated[Source, Accepts(Raw)]
KEEPING = (ArtifactsUnavailable, QuotaExceeded)
HOLDING = (NotFound, LeaseLost, WrongState, FenceRequired, NotYourClaim)


class ArtifactContent(Namespace, name="artifacts", group="Artifacts"):
    """The routes of an artifact's bytes, which `Artifacts.put` and `Artifacts.get` use."""

    @operation("POST /api/artifacts", "submit", body="content", status=201, errors=(NotFound, *KEEPING))
    async def add(self, content: Content, *, name: Name | None = None, task: Name | None = None) -> Artifact:
        """Store the body as an artifact; its id is made from its SHA-256, and its media type is the Content-Type."""

    @operation("PUT /api/artifacts/{artifact_id}", "submit", body="content", status=201, errors=(NotFound, *KEEPING))
    async def put_known(
        self, artifact_id: str, content: Content, *, name: Name | None = None, task: Name | None = None
    ) -> Artifact:
        """Store the body as the artifact with this id; refused if its content has another."""

    @operation("POST /api/tasks/{task_id}/artifacts", "work", body="content", status=201, errors=(*HOLDING, *KEEPING))
    async def attach(
        self, task_id: str, content: Content, *, token: str | None = None, name: Name | None = None
    ) -> Artifact:
        """Store the body as an artifact made under a claim, whose token is given as `?token=`."""

    @operation(
        "GET /api/artifacts/{artifact_id}",
        "read",
        answer=Raw,
        errors=(NotFound, RangeNotSatisfiable, ArtifactDamaged, ArtifactsUnavailable),
    )
    async def get(self, artifact_id: str) -> bytes:
        """Return the bytes of an artifact, or those of a `Range`, checked before they are sent. The ETag is its id."""


class Artifacts(Namespace, name="artifacts", group="Artifacts"):
    """Content of any size that tasks refer to."""

    async def put(
        self,
        source: Source,
        *,
        media_type: str | None = None,
        name: str | None = None,
        task: str | None = None,
        token: str | None = None,
        artifact_id: str | None = None,
    ) -> Artifact:
        """Store content for as long as a task refers to it: the named task, or that of the given claim's token.

        The content is bytes, a `Path`, a binary file, or an async iterable of bytes. `artifact_id` is the id it must
        have. Without a task, it is kept for `artifacts.keep_unreferenced_sec`, or as long as a task refers to it.
        """
        title = _name_of(source, name)
        kind = _check_media_type(media_type or _media_type_of(title))
        return await self._executor.upload(Upload(source, kind, title, task, token, artifact_id))

    async def get(self, artifact_id: str, *, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        """Stream the bytes of an artifact, or those from `start` up to `end`; damage is an error."""
        if start < 0 or (end is not None and end < start):
            raise InputError(f"there are no bytes from {start} up to {end}", where="start")
        async with aclosing(self._executor.download(artifact_id, start, end)) as parts:
            async for part in parts:
                yield part

    @operation("GET /api/artifacts/{artifact_id}/info", "read", errors=(NotFound,))
    async def info(self, artifact_id: str) -> Artifact:
        """Return the size and media type of an artifact, and who added it first."""

    @operation("GET /api/tasks/{task_id}/inputs", "read", envelope="inputs", errors=(NotFound,))
    async def inputs(self, task_id: Name) -> list[Input]:
        """Return a task's inputs, as its agent gets them with the claim."""

    @operation("GET /api/tasks/{task_id}/artifacts", "read", envelope="artifacts", errors=(NotFound,))
    async def list(self, task_id: Name) -> list[Attached]:
        """Return all artifacts of a task: its inputs, those stored under its claims, and its result."""


def _name_of(source: Source, name: str | None) -> str | None:
    """The name that the caller gives, or that of its file."""
    named = source.name if name is None and isinstance(source, Path) else name
    return None if named is None else check.name(named, "name")


def _media_type_of(name: str | None) -> str:
    return (mimetypes.guess_type(name)[0] if name else None) or ANY_BYTES


def _check_media_type(text: str) -> str:
    if _MEDIA_TYPE.fullmatch(check.text(text, "media_type", 255) or "") is None:
        raise InputError(f"{text!r} is not a media type", where="media_type", hint="Write it as text/markdown.")
    return text
