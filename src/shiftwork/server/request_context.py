"""What a handler is given: the queue as this caller sees it, the query, the path and the view."""

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
from shiftwork.operation.parameters import ClaimRef
from shiftwork.operation.stepping import Unfinished, begin
from shiftwork.queue import Queue
from shiftwork.server import reading, rendering
from shiftwork.views.view import View
from shiftwork.wire import problem
from shiftwork.wire.shapes import ClaimRefBody, OutcomeReply, Outcomes, SubmittedBatch

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
        self.path = reading.path(request)
        self.state = state
        self.queue = queue
        self.who = who
        self.query = query
        self.view = view
        self.queues = [queue]
        """Every workspace that the call is about: one, unless a document's call means them all."""
        self.spans = False
        self.has_hung_up = False
        """Whether the caller had gone by the time that what it waited for was done."""

    def task(self, task: Task) -> Any:
        return task if self.view is None else self.view.task_out(plain(task))

    def tasks(self, tasks: Iterable[Task]) -> list[Any]:
        return [self.task(task) for task in tasks]

    async def renamed(self, shown: Any) -> Any:
        """What a view has made of our record, with tasks called as the view calls them."""
        return shown if self.view is None else await rendering.in_view(shown, self.view, self.queue)

    def ours(self, fields: dict[str, Any], place: int | None = None) -> dict[str, Any]:
        """A submission in the document's names, under ours. The workspace it names is the one spoken to."""
        assert self.view is not None
        try:
            ours = self.view.task_in(fields)
        except InputError as error:
            raise error if place is None else in_batch(error, place, fields) from None
        ours.pop("workspace_id", None)
        if self.view.has("created_by") and ours.get("created_by") is None and self.queue.caller.actor != "system":
            ours["created_by"] = self.queue.caller.actor
        return ours

    def all_ours(self, stated: dict[str, Any]) -> dict[str, Any]:
        """A body that holds `tasks`, with those under our names."""
        tasks = check.read(stated.get("tasks"), list[dict[str, Any]], "tasks")
        return {**stated, "tasks": [self.ours(fields, place) for place, fields in enumerate(tasks)]}

    def resolution(self, decision: str) -> str:
        """What a reviewer decides, in our words."""
        return decision if self.view is None else self.view.resolution_in(decision)

    async def submitted(self, made: list[Submitted]) -> Any:
        """A document's reader wants the tasks back; ours get what became of them."""
        if self.view is None:
            return SubmittedBatch(made)
        return {"tasks": self.tasks(await self.queue.batch.get([each.id for each in made]))}

    async def task_after(self, result: Outcome) -> Any:
        """A document's reader wants the task back after a change; ours get the verb's own answer."""
        return outcome(result) if self.view is None else self.task(await self.queue.get(result.task_id))

    async def tasks_after(self, outcome: Sequence[Outcome]) -> Any:
        if self.view is None:
            return outcomes(outcome)
        return {"tasks": self.tasks(await self.queue.batch.get([each.task_id for each in outcome]))}

    async def token(self, held: ClaimRefBody | ClaimRef) -> str:
        """The claim that a write is made under."""
        task_id = self.path["task_id"]
        if held.token is not None:
            await self._check_token(held.token, task_id, held.fence)
            return held.token
        if held.fence is not None:
            return f"{task_id}.{held.fence}"
        if self.view is None or self.view.name not in FENCELESS:
            raise FenceRequired("the write names no claim", where="token")
        return await self.queue.claims.current_token(task_id, agent_id=held.agent_id, runtime_id=held.runtime_id)

    async def _check_token(self, token: str, task_id: str, fence: int | None) -> None:
        """What a caller says twice must be the same: else it would write to another task than it meant."""
        parts = ids.split_token(token)
        if parts is None:
            return  # the verb says what is wrong with it
        if not await self.is_same_task(parts[0], task_id):
            raise InputError("the token is of another task", where="token")
        if fence not in {None, parts[1]}:
            raise InputError("the token has another fence", where="fence")

    async def is_same_task(self, one: str, other: str) -> bool:
        if one == other:
            return True
        first, second = ids.parse(one), ids.parse(other)
        if first and second:
            return first == second
        return (await self.queue.get(one)).id == (await self.queue.get(other)).id  # one is a submitter's name

    def is_gone(self) -> bool:
        """Whether the caller has hung up."""
        begun = begin(self.request.receive())
        if isinstance(begun, Unfinished):
            begun.close()
            return False
        return bool(begun.value["type"] == "http.disconnect")

    async def while_wanted(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Wait for something as long as the caller is there and the server is not about to stop."""
        waiting = asyncio.create_task(work)
        ends = [asyncio.ensure_future(self.request.receive()), asyncio.create_task(self.state.stopping.wait())]
        try:
            await asyncio.wait({waiting, *ends}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(0)  # what has come from the caller meanwhile is looked at, too
            self.has_hung_up = ends[0].done()  # its request has been read: nothing else comes
        finally:
            for end in ends:
                end.cancel()
            if not waiting.done():
                waiting.cancel()
        with suppress(asyncio.CancelledError):
            return await waiting
        return None


def in_batch(error: InputError, place: int, fields: dict[str, Any]) -> InputError:
    """The same refusal, which says of which task of a batch it speaks."""
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
