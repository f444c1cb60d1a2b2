"""Task types, as callers see them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from msgspec import Meta

from shiftwork.model.errors import NotFound, UnknownSetting
from shiftwork.model.task import Name
from shiftwork.operation.declare import Namespace, operation
from shiftwork.operation.parameters import Accepts
from shiftwork.task_types.model import JsonSchema, TaskType, TypeDeclaration

MAX_TYPES = 1_000
"""The most types that one worker can declare."""
Schema = Annotated[Mapping[str, Any] | None, Accepts(JsonSchema | None)]
Declared = Annotated[TypeDeclaration | Mapping[str, Any], Accepts(TypeDeclaration)]


class Types(Namespace, name="types", group="Types"):
    """Task types: schemas of their payloads and results."""

    @operation("GET /api/types/{name}", "read", errors=(NotFound,))
    async def get(self, name: Name) -> TaskType:
        """Return one type: its schemas, its options, and where workers declare it differently."""

    @operation("PUT /api/types/{name}", "admin")
    async def save(self, name: Name, *, payload_schema: Schema = None, result_schema: Schema = None) -> TaskType:
        """Set the JSON Schemas of a type's payloads and results; null accepts anything.

        Workers do not change schemas saved here: if they declare others, the type shows drift. A payload that does not
        fit is refused when it is submitted; waiting tasks are not affected.
        """

    @operation("DELETE /api/types/{name}", "admin", envelope="removed")
    async def remove(self, name: Name) -> bool:
        """Remove a type: its payloads and results are no longer checked until a worker declares it again."""

    @operation("POST /api/types", "work", envelope="types", key="never", errors=(UnknownSetting,))
    async def declare(
        self, agent_id: Name, types: Annotated[Sequence[Declared], Meta(max_length=MAX_TYPES)]
    ) -> list[TaskType]:
        """Register the types that a worker does, with their schemas and options, and return what is in force.

        The newest declaration wins. A replaced one does not return while an active worker declares the one in force;
        and none replaces what an operator has saved. Such differences are `drift`.
        """

    @operation("GET /api/types", "read", envelope="types")
    async def list(self) -> list[TaskType]:
        """Return the registered types, each with where workers declare it differently."""
