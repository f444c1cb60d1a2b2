"""The methods of A2A on the queue: a message becomes a task, which agents claim as usual."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from typing import Any, NamedTuple, ParamSpec, TypeVar
from uuid import uuid4

from a2a.server.context import ServerCallContext
from a2a.server.request_handlers.request_handler import RequestHandler, validate_request_params
from a2a.types import (
    AgentCard,
    AuthenticationInfo,
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetExtendedAgentCardRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTaskPushNotificationConfigsResponse,
    ListTasksRequest,
    ListTasksResponse,
    SendMessageRequest,
    SubscribeToTaskRequest,
    TaskArtifactUpdateEvent,
    TaskPushNotificationConfig,
    TaskState,
    TaskStatusUpdateEvent,
)
from a2a.types import Task as A2aTask
from a2a.utils.errors import (
    A2AError,
    ExtendedAgentCardNotConfiguredError,
    InternalError,
    InvalidParamsError,
    InvalidRequestError,
    PushNotificationNotSupportedError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)

from shiftwork.a2a import a2a_tasks, messages, push_configs
from shiftwork.a2a.a2a_tasks import ENDED, STOPPED, Found
from shiftwork.a2a.push_configs import PushConfig
from shiftwork.access.authenticator import Identity
from shiftwork.model.errors import Forbidden, InputError, NotFound, ShiftworkError, Unauthorized, WrongState
from shiftwork.operation.interface import AnyQueue
from shiftwork.operation.local import check_allowed
from shiftwork.queue import Queue

CALLER = "caller"
FOLLOW_SEC = 20.0
PAGE = 50
MAX_PAGE = 100
IN_STATE: dict[int, str] = {
    TaskState.TASK_STATE_SUBMITTED: "ready,pending,retrying",
    TaskState.TASK_STATE_WORKING: "ready,pending,retrying,claimed,running,validating",
    TaskState.TASK_STATE_INPUT_REQUIRED: "waiting_approval,pending",
    TaskState.TASK_STATE_COMPLETED: "completed",
    TaskState.TASK_STATE_FAILED: "failed,dead_lettered",
    TaskState.TASK_STATE_CANCELED: "cancelled",
}
P = ParamSpec("P")
T = TypeVar("T")
Event = A2aTask | TaskStatusUpdateEvent | TaskArtifactUpdateEvent


class A2aCaller(NamedTuple):
    """A caller, and the queue with the caller's rights."""

    queue: AnyQueue
    identity: Identity

    def require(self, scope: str) -> AnyQueue:
        """The queue; raises Forbidden if the caller lacks this scope."""
        if not self.identity.may(scope):
            raise Forbidden(f"this needs the scope {scope}", needs=scope, has=sorted(self.identity.scopes))
        return self.queue


def caller_of(context: ServerCallContext) -> A2aCaller:
    found: A2aCaller = context.state[CALLER]
    return found


def as_error(error: ShiftworkError) -> A2AError:
    """Convert an error of the queue to one of A2A."""
    kinds: tuple[tuple[type[ShiftworkError], type[A2AError]], ...] = (
        (NotFound, TaskNotFoundError),
        (InputError, InvalidParamsError),
        (WrongState, UnsupportedOperationError),
        (Forbidden, InvalidRequestError),
        (Unauthorized, InvalidRequestError),
        (ShiftworkError, InternalError),
    )
    return next(kind(message=str(error)) for base, kind in kinds if isinstance(error, base))


def answering(method: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Wrap a method so that it raises A2A errors."""

    @functools.wraps(method)
    async def answer(*args: P.args, **named: P.kwargs) -> T:
        try:
            return await method(*args, **named)
        except ShiftworkError as error:
            raise as_error(error) from None

    checked: Callable[P, Coroutine[Any, Any, T]] = validate_request_params(answer)
    return checked


class QueueRequestHandler(RequestHandler):
    """Serves A2A from the queue. It holds no state: any server on the same queue can answer."""

    def __init__(self, card: AgentCard, *, max_wait_sec: float, allow_private: bool = False) -> None:
        self.card = card
        self._max_wait_sec = max_wait_sec
        self._allow_private = allow_private

    # Messages

    @answering
    async def on_message_send(self, params: SendMessageRequest, context: ServerCallContext) -> A2aTask:
        queue, task_id = await self._receive(params, context)
        _check_history(params.configuration)
        found = await a2a_tasks.find(queue, task_id)
        if not params.configuration.return_immediately:
            found = await self._until_stopped(queue, found, task_id)
        return a2a_tasks.shown(found, task_id, history=_history(params.configuration))

    async def on_message_send_stream(
        self, params: SendMessageRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event]:
        try:
            queue, task_id = await self._receive(params, context)
            new = not params.message.task_id
            async for event in self._changes(queue, task_id, _history(params.configuration), new=new):
                yield event
        except ShiftworkError as error:
            raise as_error(error) from None

    async def _receive(self, params: SendMessageRequest, context: ServerCallContext) -> tuple[AnyQueue, str]:
        """The task of a message: a new one, or the one it continues."""
        caller, message = caller_of(context), params.message
        if not message.parts:
            raise InputError("a message needs at least one part", where="message.parts")
        if message.task_id:
            queue = caller.require("operate")
            await self._continue(queue, await a2a_tasks.find(queue, message.task_id), message)
            task_id = message.task_id
        else:
            queue = caller.require("submit")
            new = messages.new_task(message, self.card)
            task_id = (await queue.submit(new)).id
        config = params.configuration.task_push_notification_config
        if config.url:
            await self._save_push(queue, task_id, config)
        return queue, task_id

    async def _continue(self, queue: AnyQueue, found: Found, message: Any) -> None:
        if a2a_tasks.state_of(found) in ENDED:
            raise UnsupportedOperationError(
                message=f"task {found.task.id} has ended; send a message of its context without a task id"
            )
        if not found.questions:
            await queue.tell(found.task.id, messages.words_of(message))
            return
        question = found.questions[0]
        if question.kind == "question":
            await queue.approvals.answer(question.task_id, messages.answer(message, question))
            return
        chosen, note = messages.decision(message)
        decide = queue.approvals.approve if chosen == "approve" else queue.approvals.reject
        await decide(question.task_id, revision=question.revision, note=note)

    async def _until_stopped(self, queue: AnyQueue, found: Found, task_id: str) -> Found:
        """Wait until the task has ended or asks something, or the longest wait is over."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._max_wait_sec
        cursor = (await queue.events("now", limit=1)).next
        found = await a2a_tasks.find(queue, task_id)
        while a2a_tasks.state_of(found) not in STOPPED and (left := deadline - loop.time()) > 0:
            page = await queue.events(cursor, wait=min(left, FOLLOW_SEC), task=found.task.id)
            cursor = page.next
            await check_allowed(queue)
            found = await a2a_tasks.find(queue, task_id)
        return found

    async def on_subscribe_to_task(
        self, params: SubscribeToTaskRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event]:
        try:
            queue = caller_of(context).require("read")
            if a2a_tasks.state_of(await a2a_tasks.find(queue, params.id)) in ENDED:
                raise UnsupportedOperationError(message=f"task {params.id} has ended; get it instead")
            async for event in self._changes(queue, params.id, None):
                yield event
        except ShiftworkError as error:
            raise as_error(error) from None

    async def _changes(
        self, queue: AnyQueue, task_id: str, history: int | None, *, new: bool = False
    ) -> AsyncGenerator[Event]:
        """Yield the task, then every change of it, until it has ended or asks something.

        A new task is first sent as submitted, even if an agent has already finished it: clients expect the artifact in
        an update.
        """
        cursor = (await queue.events("now", limit=1)).next
        found = await a2a_tasks.find(queue, task_id)
        last = a2a_tasks.shown(found, task_id, history=history)
        if new and last.status.state in ENDED:
            submitted = a2a_tasks.as_submitted(found, task_id, history=history)
            yield submitted
            for update in _updates(last, submitted):
                yield update
            return
        yield last
        while last.status.state not in STOPPED:
            page = await queue.events(cursor, wait=FOLLOW_SEC, task=found.task.id)
            cursor = page.next
            await check_allowed(queue)
            if not page.events:
                continue
            found = await a2a_tasks.find(queue, task_id)
            now = a2a_tasks.shown(found, task_id)
            for update in _updates(now, last):
                yield update
            last = now

    # Tasks

    @answering
    async def on_get_task(self, params: GetTaskRequest, context: ServerCallContext) -> A2aTask:
        _check_history(params)
        found = await a2a_tasks.find(caller_of(context).require("read"), params.id)
        return a2a_tasks.shown(found, params.id, history=_history(params))

    @answering
    async def on_list_tasks(self, params: ListTasksRequest, context: ServerCallContext) -> ListTasksResponse:
        _check_history(params)
        queue = caller_of(context).require("read")
        size = params.page_size or PAGE
        if not 1 <= size <= MAX_PAGE:
            raise InputError(f"a page has 1 to {MAX_PAGE} tasks", where="pageSize")
        tag = messages.CONTEXT + messages.check_context(params.context_id) if params.context_id else messages.TAG
        status = None
        if params.status:
            status = IN_STATE.get(params.status)
            if status is None:  # no task ever has this state
                return ListTasksResponse(page_size=size)
        after = params.page_token or None
        page = await queue.tasks.list(tag=tag, status=status, after=after, limit=size, newest=True)
        counts = await queue.tasks.count(tag=tag, status=status)
        reply = ListTasksResponse(page_size=size, next_page_token=page.next or "", total_size=sum(counts.values()))
        since = (
            params.status_timestamp_after.ToMilliseconds() / 1000 if params.HasField("status_timestamp_after") else 0
        )
        for task in page.tasks:
            found = await a2a_tasks.find(queue, task.id)
            if found.task.updated_at >= since and params.status in {0, a2a_tasks.state_of(found)}:
                artifacts = params.include_artifacts
                reply.tasks.append(a2a_tasks.shown(found, task.id, history=_history(params), artifacts=artifacts))
        return reply

    @answering
    async def on_cancel_task(self, params: CancelTaskRequest, context: ServerCallContext) -> A2aTask:
        queue = caller_of(context).require("operate")
        found = await a2a_tasks.find(queue, params.id)
        if a2a_tasks.state_of(found) in ENDED:
            raise TaskNotCancelableError(message=f"task {params.id} has ended")
        await queue.cancel(found.task.id, "cancelled by its A2A client")
        return a2a_tasks.shown(await a2a_tasks.find(queue, params.id), params.id)

    # Push notifications

    @answering
    async def on_create_task_push_notification_config(
        self, params: TaskPushNotificationConfig, context: ServerCallContext
    ) -> TaskPushNotificationConfig:
        return await self._save_push(caller_of(context).require("submit"), params.task_id, params)

    @answering
    async def on_get_task_push_notification_config(
        self, params: GetTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> TaskPushNotificationConfig:
        for config in await self._pushes(context, params.task_id):
            if config.id == params.id:
                return _shown_push(config, params.task_id)
        raise TaskNotFoundError(message=f"task {params.task_id} has no push notification config {params.id!r}")

    @answering
    async def on_list_task_push_notification_configs(
        self, params: ListTaskPushNotificationConfigsRequest, context: ServerCallContext
    ) -> ListTaskPushNotificationConfigsResponse:
        found = await self._pushes(context, params.task_id)
        return ListTaskPushNotificationConfigsResponse(configs=[_shown_push(each, params.task_id) for each in found])

    @answering
    async def on_delete_task_push_notification_config(
        self, params: DeleteTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> None:
        queue = _database(caller_of(context).require("submit"))
        task = await queue.get(params.task_id)
        if not await push_configs.remove(queue, task, params.id):
            raise TaskNotFoundError(message=f"task {params.task_id} has no push notification config {params.id!r}")

    async def _save_push(
        self, queue: AnyQueue, task_id: str, params: TaskPushNotificationConfig
    ) -> TaskPushNotificationConfig:
        database = _database(queue)
        auth = params.authentication
        config = PushConfig(params.id or uuid4().hex, params.url, params.token, auth.scheme, auth.credentials)
        push_configs.check_config(config, allow_private=self._allow_private)
        await push_configs.save(database, await database.get(task_id), config)
        return _shown_push(config, task_id)

    async def _pushes(self, context: ServerCallContext, task_id: str) -> list[PushConfig]:
        queue = _database(caller_of(context).require("submit"))
        return await push_configs.list_of(queue, await queue.get(task_id))

    async def on_get_extended_agent_card(
        self,
        params: GetExtendedAgentCardRequest,  # noqa: ARG002  # the SDK's signature
        context: ServerCallContext,  # noqa: ARG002  # likewise
    ) -> AgentCard:
        raise ExtendedAgentCardNotConfiguredError(message="there is one card for all callers")


def _database(queue: AnyQueue) -> Queue:
    if not isinstance(queue, Queue):
        raise PushNotificationNotSupportedError(message="push notifications need a server on the database itself")
    return queue


def _shown_push(config: PushConfig, task_id: str) -> TaskPushNotificationConfig:
    """Without credentials, which only the receiver needs."""
    auth = AuthenticationInfo(scheme=config.scheme) if config.scheme else None
    return TaskPushNotificationConfig(
        id=config.id, task_id=task_id, url=config.url, token=config.token, authentication=auth
    )


def _history(params: Any) -> int | None:
    length: int | None = params.history_length if params.HasField("history_length") else None
    return length


def _check_history(params: Any) -> None:
    if params.history_length < 0:
        raise InputError("a history has 0 or more messages", where="historyLength")


def _updates(now: A2aTask, last: A2aTask) -> Iterator[Event]:
    for artifact in now.artifacts:
        yield TaskArtifactUpdateEvent(task_id=now.id, context_id=now.context_id, artifact=artifact, last_chunk=True)
    if _differ(now, last):
        yield TaskStatusUpdateEvent(task_id=now.id, context_id=now.context_id, status=now.status)


def _differ(one: A2aTask, other: A2aTask) -> bool:
    """Whether a client would notice a difference: in the state, or in the agent's text."""
    return one.status.state != other.status.state or list(one.status.message.parts) != list(other.status.message.parts)
