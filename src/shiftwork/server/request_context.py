"""The context of a handler: the caller's queue, the query, the path and the view."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from starlette.requests import Request

from shiftwork.access.authenticator import Identity
from shiftwork.model import check, ids
from shiftwork.model.errors import FenceRequired, InputError
from shiftwork.model.outcome import Outcome
from shiftwork.model.task import Submitted, Task
from shiftwork.operation.first_step import Unfinished, begin
from shiftwork.operation.parameters import ClaimRef
from shiftwork.queue import Queue
from shiftwork.server import rendering, request_parsing
from shiftwork.views.view import View
from shiftwork.wire import problem
from shiftwork.wire.shapes import OutcomeReply, Outcomes, SubmittedBatch

if TYPE_CHECKING:
    from shiftwork.server.state import ServerState

T = TypeVar("T")
FENCELESS = ("aegis", "loki")
"""Documents whose workers know only the task's id (K-10)."""


class RequestContext:
    """One call."""

    def __init__(  # made in one place only
        self, request: Request, state: ServerState, queue: Queue, who: Identity, query: Any, view: View | None
    ) -> None:
        self.request = request
        self.path = request_parsing.path(request)
        self.state = state
        self.queue = queue
        self.who = who
        self.query = query
        self.view = view
        self.queues = [queue]
        """The workspaces of the call: one, unless a document's call spans all of them."""
        self.spans = False
        self.has_disconnected = False
        """Whether the caller had disconnected by the time its wait ended."""

    def task(self, task: Task) -> Any:
        return task if self.view is None else self.view.task_out(plain(task))

    def tasks(self, tasks: Iterable[Task]) -> list[Any]:
        return [self.task(task) for task in tasks]

    async def with_names(self, shown: Any) -> Any:
        """Replace task ids in a record of the view by the view's names."""
        return shown if self.view is None else await rendering.in_view(shown, self.view, self.queue)

    def ours(self, fields: dict[str, Any], place: int | None = None) -> dict[str, Any]:
        """Convert a submission from the document's names to ours. Its workspace has already been used for routing."""
        assert self.view is not None
        try:
            ours = self.view.task_in(fields)
        except InputError as error:
            raise error if place is None else in_batch(error, place, fields) from None
        ours.pop("workspace_id", None)
        if self.view.has("created_by") and ours.get("created_by") is None and self.queue.caller.actor != "system":
            ours["created_by"] = self.queue.caller.actor
        return ours

    def all_ours(self, body: dict[str, Any]) -> dict[str, Any]:
        """Convert the `tasks` in a body to our names."""
        tasks = check.read(body.get("tasks"), list[dict[str, Any]], "tasks")
        return {**body, "tasks": [self.ours(fields, place) for place, fields in enumerate(tasks)]}

    def resolution(self, decision: str) -> str:
        """A reviewer's decision in our words."""
        return decision if self.view is None else self.view.resolution_in(decision)

    async def submitted(self, made: list[Submitted]) -> Any:
        """The answer to a submission: whole tasks in a document's view, otherwise the outcomes."""
        if self.view is None:
            return SubmittedBatch(made)
        return {"tasks": self.tasks(await self.queue.batch.get([each.id for each in made]))}

    async def task_after(self, result: Outcome) -> Any:
        """The answer to a change: the whole task in a document's view, otherwise the outcome."""
        return outcome(result) if self.view is None else self.task(await self.queue.get(result.task_id))

    async def tasks_after(self, outcome: Sequence[Outcome]) -> Any:
        if self.view is None:
            return outcomes(outcome)
        return {"tasks": self.tasks(await self.queue.batch.get([each.task_id for each in outcome]))}

    async def token(self, held: ClaimRef) -> str:
        """The claim that a write is made under."""
        task_id = self.path["task_id"]
        if held.token is not None:
            await self._check_token(held.token, task_id, held.fence)
            return held.token
        if held.fence is not None:
            return f"{task_id}.{held.fence}"
        if self.view is None or self.view.name not in FENCELESS:
            raise FenceRequired("the write does not name a claim", where="token")
        return await self.queue.claims.current_token(task_id, agent_id=held.agent_id, runtime_id=held.runtime_id)

    async def _check_token(self, token: str, task_id: str, fence: int | None) -> None:
        """Refuse a token that contradicts the path or the fence: the write would change the wrong task."""
        parts = ids.split_token(token)
        if parts is None:
            return  # the verb raises the error
        if not await self.is_same_task(parts[0], task_id):
            raise InputError("the token belongs to another task", where="token")
        if fence not in {None, parts[1]}:
            raise InputError("the token has another fence", where="fence")

    async def is_same_task(self, one: str, other: str) -> bool:
        if one == other:
            return True
        first, second = ids.parse(one), ids.parse(other)
        if first and second:
            return first == second
        return (await self.queue.get(one)).id == (await self.queue.get(other)).id  # one of them is a submitter's name

    def is_disconnected(self) -> bool:
        """Whether the caller has disconnected."""
        begun = begin(self.request.receive())
        if isinstance(begun, Unfinished):
            begun.close()
            return False
        return bool(begun.value["type"] == "http.disconnect")

    async def unless_disconnected(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Await the work until the caller disconnects or the server stops."""
        waiting = asyncio.create_task(work)
        ends = [asyncio.ensure_future(self.request.receive()), asyncio.create_task(self.state.stopping.wait())]
        try:
            await asyncio.wait({waiting, *ends}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(0)  # process what the caller has sent meanwhile
            self.has_disconnected = ends[0].done()  # the request has been read, so this is a disconnect
        finally:
            for end in ends:
                end.cancel()
            if not waiting.done():
                waiting.cancel()
        with suppress(asyncio.CancelledError):
            return await waiting
        return None


def in_batch(error: InputError, place: int, fields: dict[str, Any]) -> InputError:
    """The same error, with the position of its task in the batch."""
    named = next((fields[name] for name in ("id", "task_id", "key") if isinstance(fields.get(name), str)), None)
    facts = {**error.facts, "item": place, **({} if named is None else {"item_id": named})}
    return type(error)(error.what, where=f"tasks[{place}].{error.where or ''}".rstrip("."), hint=error.hint, **facts)


def outcome(result: Outcome) -> OutcomeReply:
    refused = None if result.error is None else problem.of(result.error)
    return OutcomeReply(result.task_id, result.status and str(result.status), result.repeated, result.data, refused)


def outcomes(result: Iterable[Outcome]) -> Outcomes:
    return Outcomes([outcome(each) for each in result])


def plain(value: Any) -> dict[str, Any]:
    built: dict[str, Any] = msgspec.to_builtins(value)
    return built
