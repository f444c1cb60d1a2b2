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
    """The part of a context that is about content."""

    _queue: AnyQueue
    _assignment: Assignment

    @property
    def inputs(self) -> list[Input]:
        """What the task's `spec.context_refs` lead to, in their order."""
        return self._assignment.inputs

    async def read_input(self, ref: str) -> Any:
        """The bytes of an artifact, or what a task submitted, also where that was too large to come with the claim."""
        found = next((each for each in self.inputs if each.ref == ref), None)
        if found is None:
            raise NotFound(f"the task does not refer to {ref!r}", where="ref")
        if found.kind == "artifact":
            return b"".join([part async for part in self.open_artifact(found.id)])
        if found.reason is not None:
            raise NotFound(f"task {found.id} gave no output: it is {found.status} ({found.reason})", where="ref")
        return found.data if found.inline else (await self._queue.result(found.id)).data

    async def put_artifact(self, source: Source, *, name: str | None = None, media_type: str | None = None) -> Artifact:
        """Keep what was made, under this claim; hand its id in with `Done(artifacts=…)` to make it a result."""
        return await self._queue.artifacts.put(source, name=name, media_type=media_type, token=self._assignment.token)

    async def artifacts(self) -> list[Attached]:
        """All artifacts that the task refers to: inputs, what any attempt has put, and results."""
        return await self._queue.artifacts.list(self._assignment.id)

    def open_artifact(self, artifact_id: str, *, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        """The bytes of an artifact as they come."""
        return self._queue.artifacts.get(artifact_id, start=start, end=end)
