"""An A2A server on a real socket, a client of the protocol's own SDK, and an agent that pulls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import httpx
from a2a.client import Client, ClientConfig, create_client
from a2a.types import (
    AgentCard,
    Message,
    Part,
    Role,
    SendMessageConfiguration,
    SendMessageRequest,
    StreamResponse,
    TaskPushNotificationConfig,
    TaskState,
)
from a2a.types import Task as A2aTask
from google.protobuf.json_format import ParseDict
from google.protobuf.struct_pb2 import Value

from shiftwork import AnyQueue
from shiftwork.a2a.a2a_server import CARD_PATH, Options, app_of
from shiftwork.wire.http_server import HttpServer
from shiftwork.wire.listen_socket import address, listen

PATIENCE_SEC = 60
CARD = {
    "name": "Coder",
    "description": "Writes code.",
    "version": "1.0.0",
    "skills": [
        {"id": "code", "name": "Code", "description": "Writes a program.", "tags": ["code"]},
        {"id": "draw", "name": "Draw", "description": "Draws a picture.", "tags": ["art"]},
    ],
}


def card() -> AgentCard:
    found: AgentCard = ParseDict(CARD, AgentCard())
    return found


@asynccontextmanager
async def serving(queue: AnyQueue, **options: Any) -> AsyncIterator[str]:
    """Yield the server's address. Nothing is pushed and no maintenance runs unless the test does it."""
    chosen = Options(**options)
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    with listen("127.0.0.1", 0) as listening:
        app = app_of(queue, card(), address(listening), chosen)
        server = HttpServer(app, listening, CARD_PATH, ready.set_result)
        running = asyncio.create_task(server.serve(sockets=[listening]))
        try:
            yield (await ready).removesuffix(CARD_PATH)
        finally:
            server.should_exit = True
            await running


class A2aClient:
    """The SDK's client with shorter calls."""

    def __init__(self, client: Client) -> None:
        self.sdk = client

    async def send(
        self,
        text: str | None = None,
        *,
        data: Any = None,
        wait: bool = False,
        push: TaskPushNotificationConfig | None = None,
        metadata: dict[str, Any] | None = None,
        **fields: str,
    ) -> A2aTask:
        """Return the task that a message created or continued, as in the last answer."""
        last: A2aTask | None = None
        request = self._request(text, data, push, metadata, fields, wait=wait)
        async with asyncio.timeout(PATIENCE_SEC):
            async for event in self.sdk.send_message(request):
                last = event.task
        assert last is not None
        return last

    def stream(self, text: str, **fields: str) -> AsyncIterator[StreamResponse]:
        return self.sdk.send_message(self._request(text, None, None, None, fields, wait=True))

    def _request(
        self, text: str | None, data: Any, push: Any, metadata: Any, fields: dict[str, str], *, wait: bool
    ) -> SendMessageRequest:
        parts = [] if text is None else [Part(text=text)]
        if data is not None:
            parts.append(Part(data=ParseDict(data, Value())))
        named = {"message_id": uuid4().hex, **fields}
        message = Message(role=Role.ROLE_USER, parts=parts, metadata=metadata, **named)
        chosen = SendMessageConfiguration(return_immediately=not wait, task_push_notification_config=push)
        return SendMessageRequest(message=message, configuration=chosen)


@asynccontextmanager
async def connected(
    url: str, *, streaming: bool = False, binding: str = "JSONRPC", secret: str | None = None
) -> AsyncIterator[A2aClient]:
    headers = {} if secret is None else {"authorization": f"Bearer {secret}"}
    async with httpx.AsyncClient(timeout=PATIENCE_SEC, headers=headers) as http:
        config = ClientConfig(streaming=streaming, httpx_client=http, supported_protocol_bindings=[binding])
        async with await create_client(url, config) as client:
            yield A2aClient(client)


def state(task: A2aTask) -> str:
    return TaskState.Name(task.status.state).removeprefix("TASK_STATE_").lower()


async def take(queue: AnyQueue) -> Any:
    """Claim a task for an agent that pulls."""
    async with asyncio.timeout(PATIENCE_SEC):
        while not (taken := await queue.claim("crab", start=True, wait=20)):
            pass
    return taken[0]
