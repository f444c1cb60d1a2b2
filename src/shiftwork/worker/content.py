"""A handler's inputs and artifacts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from shiftwork.artifacts.model import Artifact, Attached
from shiftwork.artifacts.spool import Source
from shiftwork.engine.assignment import Assignment, Input
from shiftwork.model.errors import NotFound
from shiftwork.operation.interface import AnyQueue


class Content:
    """The part of a context for content."""

    _queue: AnyQueue
    _assignment: Assignment

    @property
    def inputs(self) -> list[Input]:
        """The inputs that the task's `spec.context_refs` refer to, in order."""
        return self._assignment.inputs

    async def read_input(self, ref: str) -> Any:
        """The bytes of an artifact, or a task's output, even if it was too large to come with the claim."""
        found = next((each for each in self.inputs if each.ref == ref), None)
        if found is None:
            raise NotFound(f"the task does not refer to {ref!r}", where="ref")
        if found.kind == "artifact":
            return b"".join([part async for part in self.open_artifact(found.id)])
        if found.reason is not None:
            raise NotFound(f"task {found.id} has no output: it is {found.status} ({found.reason})", where="ref")
        return found.data if found.inline else (await self._queue.result(found.id)).data

    async def put_artifact(self, source: Source, *, name: str | None = None, media_type: str | None = None) -> Artifact:
        """Store an artifact under this claim; pass its id in `Done(artifacts=…)` to make it part of the result."""
        return await self._queue.artifacts.put(source, name=name, media_type=media_type, token=self._assignment.token)

    async def artifacts(self) -> list[Attached]:
        """All artifacts of the task: inputs, those stored by any attempt, and results."""
        return await self._queue.artifacts.list(self._assignment.id)

    def open_artifact(self, artifact_id: str, *, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        """Stream the bytes of an artifact."""
        return self._queue.artifacts.get(artifact_id, start=start, end=end)
