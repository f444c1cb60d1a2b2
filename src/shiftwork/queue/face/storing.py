"""What anybody does with artifacts: bring content in, read it back, and look what a task refers to."""

from __future__ import annotations

import mimetypes
import re
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

from shiftwork.artifacts.spool import Source
from shiftwork.core.errors import InputError
from shiftwork.queue import check, read
from shiftwork.queue.content import artifacts, inputs, transfer
from shiftwork.queue.content.artifacts import Artifact, Attached, Owner
from shiftwork.queue.content.inputs import Input
from shiftwork.queue.face.handle import Handle
from shiftwork.store.store import Tx

ANY_BYTES = "application/octet-stream"
MEDIA_TYPE = r"[A-Za-z0-9!#$&^_.+-]{1,100}/[A-Za-z0-9!#$&^_.+-]{1,100}( *;[ -~]{0,50})?"
_MEDIA_TYPE = re.compile(MEDIA_TYPE)


class Storing(Handle):
    """Verbs of artifacts."""

    async def put_artifact(
        self,
        source: Source,
        *,
        media_type: str | None = None,
        name: str | None = None,
        task: str | None = None,
        token: str | None = None,
        artifact_id: str | None = None,
    ) -> Artifact:
        """Keep content for good while a task refers to it: the one named, or that of the claim whose token is given.

        It is given as bytes, a `Path`, a file opened in binary, or as bytes that come. `artifact_id` is the id that it
        must come to. Without a task it is kept for `artifacts.keep_unreferenced_sec`, or until one refers to it.
        """
        title = name_of(source, name)
        owner = await self._owner(title or "", task, token)
        kind = check_media_type(media_type or media_type_of(title))
        return await transfer.put(
            self._engine, self._run, self.workspace, source, kind, owner, artifact_id, self.caller.once
        )

    async def get_artifact(self, artifact_id: str, *, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        """The bytes of an artifact as they come, or those from `start` up to `end`; what is damaged is an error."""
        check_range(start, end)
        async with aclosing(transfer.stream(self._engine, self.workspace, artifact_id, start, end)) as parts:
            async for part in parts:
                yield part

    async def artifact(self, artifact_id: str) -> Artifact:
        """What is known of an artifact."""
        return artifacts.read(await self._read(lambda tx: artifacts.find(tx, self.workspace, artifact_id)))

    async def artifacts(self, task_id: str) -> list[Attached]:
        """All artifacts a task refers to: its inputs, what was made under it, and what it handed in."""

        async def load(tx: Tx) -> list[Attached]:
            uuid = await read.must_find(tx, self._engine, self.workspace, task_id)
            return await artifacts.of_task(tx, self.workspace, uuid)

        return await self._read(load)

    async def inputs(self, task_id: str) -> list[Input]:
        """What the references of a task's spec lead to, as its agent gets it with the claim."""

        async def load(tx: Tx) -> list[Input]:
            uuid = await read.must_find(tx, self._engine, self.workspace, task_id)
            return await inputs.of_task(tx, self.workspace, uuid)

        return await self._read(load)

    async def _owner(self, name: str, task: str | None, token: str | None) -> Owner | None:
        if token is not None:
            claim = await self._token(token)
            if task is not None and await self._find(task) != claim.id:
                raise InputError("the token is of another task", where="token")
            return Owner(claim.id, claim, name)
        return None if task is None else Owner(await self._find(task), None, name)


def name_of(source: Source, name: str | None) -> str | None:
    """How the content is called: as the caller says, or as its file is."""
    named = source.name if name is None and isinstance(source, Path) else name
    return None if named is None else check.name(named, "name")


def media_type_of(name: str | None) -> str:
    """As its name lets expect."""
    return (mimetypes.guess_type(name)[0] if name else None) or ANY_BYTES


def check_media_type(text: str) -> str:
    if _MEDIA_TYPE.fullmatch(check.text(text, "media_type", 255) or "") is None:
        raise InputError(f"{text!r} is not a media type", where="media_type", mend="Write it as text/markdown.")
    return text


def check_range(start: int, end: int | None) -> None:
    if start < 0 or (end is not None and end < start):
        raise InputError(f"there are no bytes from {start} up to {end}", where="start")
