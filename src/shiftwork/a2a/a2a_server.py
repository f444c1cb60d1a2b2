"""The A2A server: the card, JSON-RPC and REST, with the same authentication as `shiftwork serve`."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from a2a.server.context import ServerCallContext
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes, create_rest_routes
from a2a.server.routes.common import DefaultServerCallContextBuilder
from a2a.types import AgentCard
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from shiftwork.a2a import card as cards
from shiftwork.a2a.push_sender import PushSender
from shiftwork.a2a.request_handler import CALLER, A2aCaller, QueueRequestHandler
from shiftwork.access.authenticator import ANYONE, Authenticator, Identity, check_local
from shiftwork.engine.engine import Caller
from shiftwork.model.errors import InputError, ShiftworkError
from shiftwork.operation.interface import AnyQueue
from shiftwork.queue import Queue
from shiftwork.upkeep import upkeep
from shiftwork.wire import problem
from shiftwork.wire.http_server import STOP_GRACE_SEC, HttpServer
from shiftwork.wire.listen_socket import address, check_guarded, listen
from shiftwork.wire.resource_metadata import ProtectedResource, check_url

CARD_PATH = "/.well-known/agent-card.json"
KEY = "shiftwork.a2a.caller"


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How to serve A2A."""

    host: str = "127.0.0.1"
    port: int = 8091
    tokens: bool = False
    public_url: str | None = None
    actor: str | None = None
    max_wait_sec: float = 600.0
    private_push: bool = False


class _ContextBuilder(DefaultServerCallContextBuilder):
    """Passes the caller that the gate authenticated to the SDK."""

    def build(self, request: Request) -> ServerCallContext:
        context = super().build(request)
        context.state[CALLER] = request.scope[KEY]
        return context


class A2aGate:
    """Authenticates each request before the SDK sees it. The card is public, as the protocol requires."""

    def __init__(self, app: ASGIApp, queue: AnyQueue, options: Options) -> None:
        self._app = app
        self._queue = queue
        self._options = options
        self._authenticator = (
            Authenticator(queue.find_token, tokens=options.tokens) if isinstance(queue, Queue) else None
        )
        self._resource = ProtectedResource(name="Shiftwork", path=cards.RPC_PATH, public_url=options.public_url)
        if options.tokens and self._authenticator is None:
            hint = "Name the database with --store, or serve on 127.0.0.1 without --tokens."
            raise InputError("tokens cannot be checked through another server", where="--tokens", hint=hint)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers, path = Headers(scope=scope), scope["path"]
        if self._options.tokens and self._resource.describes(path):
            body = msgspec.json.encode(self._resource.document(headers, scope["scheme"]))
            await Response(body, media_type="application/json")(scope, receive, send)
            return
        try:
            caller = None if path == CARD_PATH else await self._caller(headers)
        except ShiftworkError as error:
            challenge = self._resource.challenge(headers, scope["scheme"])
            await _refusal(error, challenge)(scope, receive, send)
            return
        await self._app({**scope, KEY: caller}, receive, send)

    async def _caller(self, headers: Headers) -> A2aCaller:
        who = await self._identify(headers)
        queue = self._queue
        if isinstance(queue, Queue) and who.workspace is not None:
            assert self._authenticator is not None
            owner = None if who.may("operate") else who.token_id
            checking = self._authenticator.checking(headers, "read")
            queue = queue.for_caller(Caller(workspace=who.workspace, holder=owner, still_allowed=checking))
        named = f"token:{who.name}" if who.name is not None else self._options.actor or "a2a"
        return A2aCaller(queue.as_caller(named), who)

    async def _identify(self, headers: Headers) -> Identity:
        if self._authenticator is not None:
            return await self._authenticator.identify(headers)
        check_local(headers)
        return ANYONE


def _refusal(error: ShiftworkError, challenge: str) -> Response:
    body = problem.of(error)
    headers = {"www-authenticate": challenge} if body.status == 401 else {}
    headers |= {"retry-after": str(math.ceil(body.facts.get("retry_after", 1)))} if body.status in {429, 503} else {}
    return Response(msgspec.json.encode(body), body.status, headers, problem.MEDIA_TYPE)


def app_of(queue: AnyQueue, card: AgentCard, base_url: str, options: Options) -> A2aGate:
    """The application: the card at its well-known address, and the methods by JSON-RPC and REST."""
    push = isinstance(queue, Queue)
    whole = cards.completed(card, options.public_url or base_url, tokens=options.tokens, push=push)
    handler = QueueRequestHandler(whole, max_wait_sec=options.max_wait_sec, allow_private=options.private_push)
    common: dict[str, Any] = {"context_builder": _ContextBuilder(), "shutdown_grace_period": STOP_GRACE_SEC - 1}
    routes = [
        *create_agent_card_routes(whole, card_url=CARD_PATH),
        *create_jsonrpc_routes(handler, cards.RPC_PATH, enable_v0_3_compat=True, **common),
        *create_rest_routes(handler, path_prefix=cards.REST_PATH, **common),
    ]
    return A2aGate(Starlette(routes=routes), queue, options)


@asynccontextmanager
async def background(queue: AnyQueue, options: Options) -> AsyncIterator[None]:
    """The background work of a server on a database: push notifications and maintenance."""
    running = [asyncio.create_task(each) for each in upkeep(queue)]
    if isinstance(queue, Queue):
        sender = PushSender(queue, allow_private=options.private_push)
        running.append(asyncio.create_task(sender.run_forever()))
    try:
        yield
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def check_options(options: Options) -> None:
    """Check the options before anything is opened or created."""
    check_guarded(options.host, "--http", tokens=options.tokens)
    if options.public_url is not None:
        check_url(options.public_url, "--public-url")


async def serve(queue: AnyQueue, card: AgentCard, options: Options, announce: Callable[[str], None]) -> None:
    """Serve until stopped; `announce` gets the address of the card."""
    check_options(options)
    with listen(options.host, options.port, "--http", "--http") as listening:
        app = app_of(queue, card, address(listening), options)
        async with background(queue, options):
            await HttpServer(app, listening, CARD_PATH, announce).serve(sockets=[listening])
