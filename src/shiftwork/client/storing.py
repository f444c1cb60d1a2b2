"""What anybody does with artifacts: bring content in, read it back, and look what a task refers to."""

from __future__ import annotations

import asyncio
import hashlib
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from shiftwork.artifacts.spool import BLOCK, Source, parts_of, spooled
from shiftwork.client.handle import Handle, of_claim, part
from shiftwork.client.transport import Call
from shiftwork.core.errors import ArtifactDamaged
from shiftwork.core.references import show_artifact
from shiftwork.queue.content.artifacts import Artifact, Attached
from shiftwork.queue.content.inputs import Input
from shiftwork.queue.content.transfer import check_expected
from shiftwork.queue.face.storing import check_media_type, check_range, media_type_of, name_of
from shiftwork.wire.artifacts import AttachedList, InputList


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
        title = name_of(source, name)
        kind = check_media_type(media_type or media_type_of(title))
        async with _as_file(source) as (file, sha256):
            check_expected(sha256, artifact_id)
            method, path, query = _door(show_artifact(sha256), title, task, token)
            headers = {**self._headers(), "Content-Type": kind}
            call = Call(method, self._path(path, query), file, headers)
            kept = await self._transport.call(call, Artifact)
        if kept.id != show_artifact(sha256):
            raise ArtifactDamaged(f"the server got something else: {kept.id}", mend="Send it again.")
        return kept

    async def get_artifact(self, artifact_id: str, *, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        # A block at a time: it is asked for again while the server is away, and a damaged one is refused by itself.
        check_range(start, end)
        size = (await self.artifact(artifact_id)).size
        last = size if end is None else min(end, size)
        path = self._path(f"/api/artifacts/{part(artifact_id, 'artifact_id')}", {})
        while start < last:
            upto = min(start - start % BLOCK + BLOCK, last)
            wanted = {"Range": f"bytes={start}-{upto - 1}", "Accept": "*/*"}
            yield await self._transport.fetch(Call("GET", path, headers={**self._headers(), **wanted}))
            start = upto

    async def artifact(self, artifact_id: str) -> Artifact:
        return await self._get(f"/api/artifacts/{part(artifact_id, 'artifact_id')}/info", Artifact)

    async def artifacts(self, task_id: str) -> list[Attached]:
        return (await self._get(f"/api/tasks/{part(task_id, 'task_id')}/artifacts", AttachedList)).artifacts

    async def inputs(self, task_id: str) -> list[Input]:
        return (await self._get(f"/api/tasks/{part(task_id, 'task_id')}/inputs", InputList)).inputs


def _door(artifact_id: str, name: str | None, task: str | None, token: str | None) -> tuple[str, str, dict[str, Any]]:
    """Where content is sent to: under a claim, or under the id that it must come to."""
    if token is None:
        return "PUT", f"/api/artifacts/{part(artifact_id, 'artifact_id')}", {"name": name, "task": task}
    path, text = of_claim(token, "artifacts")
    if task is not None:
        path = f"/api/tasks/{part(task, 'task')}/artifacts"
    return "POST", path, {"name": name, "token": text}


@asynccontextmanager
async def _as_file(source: Source) -> AsyncIterator[tuple[Path, str]]:
    """The content as a file that can be sent more than once, and its hash."""
    if isinstance(source, Path):
        whole = hashlib.sha256()
        async for block in parts_of(source):
            await asyncio.to_thread(whole.update, block)
        yield source, whole.hexdigest()
        return
    with tempfile.TemporaryDirectory(prefix="shiftwork-") as folder:
        async with spooled(source, Path(folder), sys.maxsize) as arrived:
            yield arrived.file, arrived.sha256
