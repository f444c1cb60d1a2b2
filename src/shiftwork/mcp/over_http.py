"""MCP over streamable HTTP: many clients, let in as `shiftwork serve` lets its callers in."""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs

import msgspec
import uvicorn
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.transport_security import TransportSecuritySettings
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shiftwork.access.authenticator import ANYONE, Authenticator, Identity, check_local
from shiftwork.engine.engine import Caller
from shiftwork.mcp.desk import McpServer, McpSession, Options
from shiftwork.mcp.protocol import Context, build
from shiftwork.mcp.serving import open_context
from shiftwork.mcp.sessions import IDLE_SEC, MAX_COUNT, Sessions
from shiftwork.model import check
from shiftwork.model.errors import InputError, ShiftworkError
from shiftwork.operation.interface import AnyQueue
from shiftwork.queue import Queue
from shiftwork.wire import problem
from shiftwork.wire.listening import address, check_guarded, listen
from shiftwork.wire.protocol import BoundedHttp

PATH = "/mcp"
SEAT = "shiftwork.seat"
SESSION = "mcp-session-id"
STOP_GRACE_SEC = 5
MAX_CONNECTIONS = 10_000


class McpAuthenticator:
    """Says who calls: by their token, or anyone on this machine where none is needed."""

    def __init__(self, mcp_server: McpServer, *, tokens: bool) -> None:
        self._desk = mcp_server
        queue = mcp_server.queue
        self._authenticator = Authenticator(queue.engine, tokens=tokens) if isinstance(queue, Queue) else None
        if tokens and self._authenticator is None:
            raise InputError(
                "tokens are checked where the queue is, not through another server",
                where="--tokens",
                hint="Name the database with --store, or serve on 127.0.0.1 without --tokens.",
            )

    async def session(self, headers: Headers, query: bytes) -> tuple[McpSession, Identity]:
        who = await self._identify(headers)
        options, queue = self._desk.options, self._desk.queue
        named = parse_qs(query.decode("latin-1")).get("agent", [who.name or options.agent_id])[0]
        owner = None if who.may("operate") else who.token_id
        if isinstance(queue, Queue) and who.workspace is not None:
            assert self._authenticator is not None
            checking = self._authenticator.checking(headers, "work")
            queue = queue.speaking_as(Caller(workspace=who.workspace, holder=owner, still_allowed=checking))
        mcp_session = McpSession(
            self._desk,
            queue,
            check.name(named, "agent"),
            scopes=who.scopes,
            name=who.name,
            owner=owner,
            session=headers.get(SESSION),
        )
        return mcp_session, who

    async def _identify(self, headers: Headers) -> Identity:
        if self._authenticator is not None:
            return await self._authenticator.identify(headers)
        check_local(headers)
        return ANYONE


class McpGate:
    """Lets each request in before the SDK sees it, and notices when a client ends its session."""

    def __init__(self, app: ASGIApp, mcp_server: McpServer, entrance: McpAuthenticator) -> None:
        self._app = app
        self._desk = mcp_server
        self._entrance = entrance
        self.sessions = Sessions(time.monotonic)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        session = headers.get(SESSION)
        try:
            mcp_session, who = await self._entrance.session(headers, scope["query_string"])
            if session is None and who.token_id is not None:
                self.sessions.check(who.token_id)
        except ShiftworkError as error:
            await _refusal(error)(scope, receive, send)
            return
        known = {**scope, SEAT: mcp_session}
        if who.token_id is not None:  # the SDK then gives a session to no one but the token that began it
            access = AccessToken(token="", client_id=who.token_id, scopes=sorted(who.scopes))
            known["user"] = AuthenticatedUser(access)
        self.sessions.begin(session or "")
        try:
            await self._app(known, receive, self._watching(scope, session, who, send))
        finally:
            self.sessions.end(session or "")

    def _watching(self, scope: Scope, session: str | None, who: Identity, send: Send) -> Send:
        """The answer, from which is seen that a session was opened or is over."""

        async def watch(message: Message) -> None:
            if message["type"] == "http.response.start":
                status, given = message["status"], Headers(raw=message["headers"]).get(SESSION)
                if session is None and given is not None and status < 300 and who.token_id is not None:
                    self.sessions.opened(given, who.token_id)
                elif session is not None and (status == 404 or (scope["method"] == "DELETE" and status < 300)):
                    self.sessions.close(session)
                    if status < 300:
                        self._desk.keeper.end(session)
            await send(message)

        return watch


def _refusal(error: ShiftworkError) -> Response:
    body = problem.of(error)
    headers = {"www-authenticate": "Bearer"} if body.status == 401 else {}
    headers |= {"retry-after": str(math.ceil(body.facts.get("retry_after", 1)))} if body.status in {429, 503} else {}
    return Response(msgspec.json.encode(body), body.status, headers, problem.MEDIA_TYPE)


def _seat_of(ctx: Context) -> McpSession:
    assert ctx.request is not None
    session: McpSession = ctx.request.scope[SEAT]
    return session


def app_of(mcp_server: McpServer, entrance: McpAuthenticator) -> McpGate:
    """The application; hosts and origins are checked by our own rules, not again by the SDK's."""
    unchecked = TransportSecuritySettings(enable_dns_rebinding_protection=False)
    inner = build(mcp_server, _seat_of).streamable_http_app(
        streamable_http_path=PATH, transport_security=unchecked, session_idle_timeout=IDLE_SEC, max_sessions=MAX_COUNT
    )
    return McpGate(inner, mcp_server, entrance)


class Server(uvicorn.Server):
    """Tells where it serves, once that can be asked for."""

    def __init__(self, app: ASGIApp, listening: socket.socket, announce: Callable[[str], None]) -> None:
        self._url = address(listening) + PATH
        self._announce = announce
        super().__init__(
            uvicorn.Config(
                app,
                http=BoundedHttp,
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,
                proxy_headers=False,
                limit_concurrency=MAX_CONNECTIONS,
                timeout_graceful_shutdown=STOP_GRACE_SEC,
            )
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._announce(self._url)

    def handle_exit(self, sig: int, frame: Any) -> None:  # noqa: ARG002  # uvicorn's signature
        """A stop that was asked for is not a failure."""
        self.should_exit = True


class ListenAddress(msgspec.Struct, frozen=True):
    """Where to serve, and whether callers need a token."""

    host: str
    port: int
    tokens: bool = False


def check_place(place: ListenAddress) -> None:
    """Before anything is opened or made."""
    check_guarded(place.host, "--http", tokens=place.tokens)


async def serve(queue: AnyQueue, options: Options, place: ListenAddress, announce: Callable[[str], None]) -> None:
    """Serve until stopped; `announce` is told where."""
    check_place(place)
    with listen(place.host, place.port, "--http", "--http") as listening:
        async with open_context(queue, options) as mcp_server:
            app = app_of(mcp_server, McpAuthenticator(mcp_server, tokens=place.tokens))
            await Server(app, listening, announce).serve(sockets=[listening])
