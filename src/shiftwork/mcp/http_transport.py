"""MCP over streamable HTTP: many clients, authenticated as by `shiftwork serve`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from urllib.parse import parse_qs

import msgspec
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.transport_security import TransportSecuritySettings
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shiftwork.access.authenticator import ANYONE, Authenticator, Identity, check_local
from shiftwork.engine.engine import Caller
from shiftwork.mcp.mcp_server import McpServer, Options, open_context
from shiftwork.mcp.mcp_session import McpSession
from shiftwork.mcp.sdk_server import Context, build
from shiftwork.model import check
from shiftwork.model.errors import InputError, ShiftworkError, TooManyRequests
from shiftwork.operation.interface import AnyQueue
from shiftwork.queue import Queue
from shiftwork.wire import problem
from shiftwork.wire.http_server import HttpServer
from shiftwork.wire.listen_socket import check_guarded, listen
from shiftwork.wire.resource_metadata import ProtectedResource, check_url

IDLE_SEC = 600.0
"""A session without a request for this long ends; a new one costs the client one call."""
MAX_COUNT = 1000
MAX_PER_TOKEN = 100
AGAIN_SEC = 30.0


class _OpenSession:
    """One session: its token, its running requests, and when the last one ended."""

    __slots__ = ("ended_at", "holder", "under_way")

    def __init__(self, owner: str, now: float) -> None:
        self.holder = owner
        self.under_way = 0
        self.ended_at = now


class Sessions:
    """The tokens' open sessions, as far as known: the SDK ends idle ones."""

    def __init__(self, time: Callable[[], float]) -> None:
        self.most_of_token = MAX_PER_TOKEN
        self._time = time
        self._open: dict[str, _OpenSession] = {}

    def check(self, owner: str) -> None:
        """Whether this token may open one more."""
        now = self._time()
        for session in [name for name, each in self._open.items() if _is_over(each, now)]:
            del self._open[session]
        if sum(each.holder == owner for each in self._open.values()) >= self.most_of_token:
            raise TooManyRequests(
                f"this token has {self.most_of_token} sessions open, the maximum",
                hint="End sessions that are not used any more with DELETE, or wait until they have been idle.",
                retry_after=AGAIN_SEC,
            )

    def opened(self, session: str, owner: str) -> None:
        self._open[session] = _OpenSession(owner, self._time())

    def begin(self, session: str) -> None:
        if (found := self._open.get(session)) is not None:
            found.under_way += 1

    def end(self, session: str) -> None:
        if (found := self._open.get(session)) is not None:
            found.under_way -= 1
            found.ended_at = self._time()

    def close(self, session: str) -> None:
        self._open.pop(session, None)


def _is_over(each: _OpenSession, now: float) -> bool:
    return not each.under_way and now - each.ended_at > IDLE_SEC


PATH = "/mcp"
SESSION_KEY = "shiftwork.session"
SESSION = "mcp-session-id"
RESOURCE = ProtectedResource(name="Shiftwork", path=PATH)


class McpAuthenticator:
    """Authenticates callers: by their token, or, without tokens, as anyone on this machine."""

    def __init__(self, mcp_server: McpServer, *, tokens: bool) -> None:
        self._server = mcp_server
        queue = mcp_server.queue
        self.tokens = tokens
        self._authenticator = Authenticator(queue.find_token, tokens=tokens) if isinstance(queue, Queue) else None
        if tokens and self._authenticator is None:
            raise InputError(
                "tokens cannot be checked through another server",
                where="--tokens",
                hint="Name the database with --store, or serve on 127.0.0.1 without --tokens.",
            )

    async def session(self, headers: Headers, query: bytes) -> tuple[McpSession, Identity]:
        who = await self._identify(headers)
        options, queue = self._server.options, self._server.queue
        named = parse_qs(query.decode("latin-1")).get("agent", [who.name or options.agent_id])[0]
        owner = None if who.may("operate") else who.token_id
        if isinstance(queue, Queue) and who.workspace is not None:
            assert self._authenticator is not None
            checking = self._authenticator.checking(headers, "work" if who.may("work") else "read")
            queue = queue.for_caller(Caller(workspace=who.workspace, holder=owner, still_allowed=checking))
        mcp_session = McpSession(
            self._server,
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
    """Authenticates each request before the SDK sees it, and notices when a client ends its session."""

    def __init__(
        self, app: ASGIApp, mcp_server: McpServer, authenticator: McpAuthenticator, resource: ProtectedResource
    ) -> None:
        self._app = app
        self._server = mcp_server
        self._authenticator = authenticator
        self._resource = resource
        self.sessions = Sessions(time.monotonic)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if (
            self._authenticator.tokens
            and self._resource.describes(scope["path"])
            and scope["method"] in {"GET", "HEAD"}
        ):
            body = msgspec.json.encode(self._resource.document(headers, scope["scheme"]))
            await Response(body, media_type="application/json")(scope, receive, send)
            return
        session = headers.get(SESSION)
        try:
            mcp_session, who = await self._authenticator.session(headers, scope["query_string"])
            if session is None and who.token_id is not None:
                self.sessions.check(who.token_id)
        except ShiftworkError as error:
            await _refusal(error, self._resource.challenge(headers, scope["scheme"]))(scope, receive, send)
            return
        known = {**scope, SESSION_KEY: mcp_session}
        if who.token_id is not None:  # the SDK then restricts a session to the token that opened it
            access = AccessToken(token="", client_id=who.token_id, scopes=sorted(who.scopes))
            known["user"] = AuthenticatedUser(access)
        self.sessions.begin(session or "")
        try:
            await self._app(known, receive, self._watching(scope, session, who, send))
        finally:
            self.sessions.end(session or "")

    def _watching(self, scope: Scope, session: str | None, who: Identity, send: Send) -> Send:
        """Watch for sessions that an answer opens or ends."""

        async def watch(message: Message) -> None:
            if message["type"] == "http.response.start":
                status, opened = message["status"], Headers(raw=message["headers"]).get(SESSION)
                if session is None and opened is not None and status < 300 and who.token_id is not None:
                    self.sessions.opened(opened, who.token_id)
                elif session is not None and (status == 404 or (scope["method"] == "DELETE" and status < 300)):
                    self.sessions.close(session)
                    if status < 300:
                        self._server.keeper.end(session)
            await send(message)

        return watch


def _refusal(error: ShiftworkError, challenge: str) -> Response:
    body = problem.of(error)
    headers = {"www-authenticate": challenge} if body.status == 401 else {}
    headers |= {"retry-after": str(math.ceil(body.facts.get("retry_after", 1)))} if body.status in {429, 503} else {}
    return Response(msgspec.json.encode(body), body.status, headers, problem.MEDIA_TYPE)


def _session_of(ctx: Context) -> McpSession:
    assert ctx.request is not None
    session: McpSession = ctx.request.scope[SESSION_KEY]
    return session


def app_of(mcp_server: McpServer, authenticator: McpAuthenticator, resource: ProtectedResource = RESOURCE) -> McpGate:
    """Build the application; our own rules check hosts and origins, so the SDK's check is off."""
    unchecked = TransportSecuritySettings(enable_dns_rebinding_protection=False)
    inner = build(mcp_server, _session_of).streamable_http_app(
        streamable_http_path=PATH, transport_security=unchecked, session_idle_timeout=IDLE_SEC, max_sessions=MAX_COUNT
    )
    return McpGate(inner, mcp_server, authenticator, resource)


class ListenAddress(msgspec.Struct, frozen=True):
    """Where to serve, and whether callers need a token."""

    host: str
    port: int
    tokens: bool = False
    public_url: str | None = None
    authorization_servers: tuple[str, ...] = ()


def check_address(address: ListenAddress) -> None:
    """Refuse invalid options before anything is opened."""
    check_guarded(address.host, "--http", tokens=address.tokens)
    if address.public_url is not None:
        check_url(address.public_url, "--public-url")
    for each in address.authorization_servers:
        check_url(each, "--authorization-server")


async def serve(queue: AnyQueue, options: Options, address: ListenAddress, announce: Callable[[str], None]) -> None:
    """Serve until stopped; `announce` gets the address."""
    check_address(address)
    with listen(address.host, address.port, "--http", "--http") as listening:
        async with open_context(queue, options) as mcp_server:
            resource = msgspec.structs.replace(
                RESOURCE, public_url=address.public_url, authorization_servers=address.authorization_servers
            )
            app = app_of(mcp_server, McpAuthenticator(mcp_server, tokens=address.tokens), resource)
            await HttpServer(app, listening, PATH, announce).serve(sockets=[listening])
