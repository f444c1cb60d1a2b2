"""Uploads artifacts as files, so that an upload can be retried, and downloads them block by block."""

from __future__ import annotations

import asyncio
import hashlib
import sys
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

from shiftwork.artifacts.api import ArtifactContent, Artifacts
from shiftwork.artifacts.model import Artifact
from shiftwork.artifacts.spool import BLOCK, Source, Upload, check_expected, parts_of, spooled
from shiftwork.client.transport import Call, Transport
from shiftwork.model.errors import ArtifactDamaged
from shiftwork.model.outcome import task_of, token_text
from shiftwork.model.references import show_artifact
from shiftwork.operation.declare import Operation, operation_of


class Server(Protocol):
    """The executor that transfers the content."""

    @property
    def transport(self) -> Transport: ...

    async def execute(self, operation: Operation, values: dict[str, Any]) -> Any: ...

    def path_of(self, operation: Operation, values: Mapping[str, Any]) -> str: ...

    def identity(self) -> dict[str, str]: ...


@asynccontextmanager
async def as_file(source: Source) -> AsyncIterator[tuple[Path, str]]:
    """Yield the content as a file, with its SHA-256."""
    if isinstance(source, Path):
        whole = hashlib.sha256()
        async for block in parts_of(source):
            await asyncio.to_thread(whole.update, block)
        yield source, whole.hexdigest()
        return
    with tempfile.TemporaryDirectory(prefix="shiftwork-") as folder:
        async with spooled(source, Path(folder), sys.maxsize) as arrived:
            yield arrived.file, arrived.sha256


async def send(server: Server, upload: Upload) -> Artifact:
    """Upload content under its hash, so that an upload can be retried."""
    async with as_file(upload.source) as (file, sha256):
        check_expected(sha256, upload.artifact_id)
        artifact_id = show_artifact(sha256)
        if upload.token is None:
            operation = operation_of(ArtifactContent.put_known)
            values = {"artifact_id": artifact_id, "name": upload.name, "task": upload.task}
        else:
            operation = operation_of(ArtifactContent.attach)
            task_id = upload.task if upload.task is not None else task_of(upload.token)
            values = {"task_id": task_id, "name": upload.name, "token": token_text(upload.token)}
        headers = {**server.identity(), "Content-Type": upload.media_type}
        call = Call(operation.http_method, server.path_of(operation, values), file, headers)
        kept = await server.transport.call(call, Artifact)
    if kept.id != artifact_id:
        raise ArtifactDamaged(f"the server received different content: {kept.id}", hint="Send it again.")
    return kept


async def fetch(server: Server, artifact_id: str, start: int, end: int | None) -> AsyncGenerator[bytes, None]:
    """Download block by block: each is retried while the server is unreachable, and checked for damage on its own."""
    info: Artifact = await server.execute(operation_of(Artifacts.info), {"artifact_id": artifact_id})
    last = info.size if end is None else min(end, info.size)
    path = server.path_of(operation_of(ArtifactContent.get), {"artifact_id": artifact_id})
    while start < last:
        upto = min(start - start % BLOCK + BLOCK, last)
        headers = {**server.identity(), "Range": f"bytes={start}-{upto - 1}", "Accept": "*/*"}
        yield await server.transport.fetch(Call("GET", path, headers=headers))
        start = upto
