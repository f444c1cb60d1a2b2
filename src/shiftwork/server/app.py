"""The ASGI application: routes, authenticates, decodes and answers."""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import Receive, Scope, Send

from shiftwork import tracing, views
from shiftwork.access.authenticator import ANONYMOUS, ANYONE, Identity, check_page_body, require, workspace_for
from shiftwork.engine.engine import Caller, IdempotentRequest
from shiftwork.model import check
from shiftwork.model.errors import NotFound, ShiftworkError
from shiftwork.queue import Queue
from shiftwork.server import dashboard_pages, rendering, request_parsing, workspace_lookup
from shiftwork.server.compression import packed
from shiftwork.server.endpoint import Endpoint, Raw
from shiftwork.server.openapi import document
from shiftwork.server.request_context import RequestContext
from shiftwork.server.routes.live import websocket
from shiftwork.server.routing import Application, RouteTable
from shiftwork.server.state import ServerState
from shiftwork.views.view import View
from shiftwork.wire import problem
from shiftwork.wire.protocol import WHOLE

log = logging.getLogger("shiftwork.server")
VIEW = "shiftwork.view"
"""The key of the request's view in the ASGI scope."""
REQUEST_ID = "x-request-id"
_REQUEST_ID = REQUEST_ID.encode()
_NOSNIFF = (b"x-content-type-options", b"nosniff")
_encoder = msgspec.json.Encoder(enc_hook=problem.encode)


def build(state: ServerState, endpoints: Sequence[Endpoint]) -> Starlette:
    """The application of a server with these endpoints."""
    apps = [(endpoint.method, endpoint.path, _EndpointApp(endpoint, state)) for endpoint in endpoints]
    openapi = _Described(endpoints).answer
    app = Application(
        RouteTable(apps),
        routes=[
            *(Route(path, app, methods=[method]) for method, path, app in apps),
            Route("/openapi.json", openapi),
            *(Route(f"/openapi/{name}.json", openapi) for name in views.names() if name != views.NATIVE),
            WebSocketRoute("/ws", websocket),
            *dashboard_pages.routes(),
        ],
        middleware=[Middleware(request_parsing.RawPath)],
        exception_handlers={HTTPException: _http_exception},
    )
    app.router.redirect_slashes = False  # a redirect would repeat any host name the caller sent
    app.state.server = state
    return app


class _Described:
    """The OpenAPI documents, each built on the first request: it takes longer than the rest of a start."""

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        self._endpoints = endpoints
        self._made: dict[tuple[str, str], bytes] = {}

    async def answer(self, request: Request) -> Response:
        named = request.url.path.removeprefix("/openapi").strip("/").removesuffix(".json").strip(".")
        key = named or views.NATIVE, views.name_of(request.app.state.server.view)
        if key not in self._made:
            self._made[key] = _encoder.encode(document(self._endpoints, *key))
        headers = {"x-content-type-options": "nosniff"}
        return packed(request, Response(self._made[key], 200, headers, "application/json"))


class _EndpointApp:
    """An endpoint as an ASGI app: Starlette's wrappers around a function took a twentieth of a request."""

    def __init__(self, endpoint: Endpoint, state: ServerState) -> None:
        self._endpoint = endpoint
        self._state = state
        self._name, self._changes = endpoint.name, endpoint.changes
        self._decoder = (
            msgspec.json.Decoder(endpoint.body) if endpoint.body is not None and endpoint.body is not Raw else None
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = request_parsing.Call(scope, receive, send)
        response = await self._answer(request)
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        endpoint, state = self._endpoint, self._state
        request_id = _request_id(request, state)
        began = time.perf_counter()
        try:
            with _traced(request, endpoint):
                response = await _serve(request, endpoint, state, self._decoder, request_id)
            if self._changes:
                state.nudge()
        except ShiftworkError as error:
            response = _refusal(await _describe(problem.of(error, request_id), request))
        except ClientDisconnect:
            return Response(status_code=400)  # the caller has disconnected
        except Exception:
            log.exception("%s %s failed", endpoint.method, request.url.path, extra={"request_id": request_id})
            response = _refusal(msgspec.structs.replace(problem.INTERNAL, request_id=request_id))
        took = time.perf_counter() - began
        response.raw_headers += (
            (_REQUEST_ID, request_id.encode("latin-1")),
            _NOSNIFF,
            (b"server-timing", b"app;dur=%.2f" % (1000 * took)),
        )
        state.latencies.record(self._name, response.status_code, took)
        return packed(request, response)


async def _describe(refusal: problem.Problem, request: Request) -> problem.Problem:
    """Convert an error to the names of the caller's view."""
    view: View | None = request.scope.get(VIEW)
    if view is None:
        return refusal
    names = rendering.Names(view, {})
    with suppress(ShiftworkError):  # answer even if the store is unreachable
        names = await rendering.names_in(refusal, view, request.app.state.server.queue)
    return rendering.problem_in(refusal, view, names)


def _traced(request: Request, endpoint: Endpoint) -> AbstractContextManager[None]:
    """Open a span for a call within a trace; submissions start a trace, polls and heartbeats have no span."""
    parent = tracing.read(request.headers.get("traceparent"))
    if parent is None and not (endpoint.scope == "submit" and tracing.is_on()):
        return nullcontext()
    return tracing.span(f"{endpoint.method} {endpoint.path}", "server", parent, operation=endpoint.name)


async def _serve(
    request: Request, endpoint: Endpoint, state: ServerState, decoder: msgspec.json.Decoder[Any] | None, request_id: str
) -> Response:
    if request.headers.get(REQUEST_ID) != request_id:
        request_parsing.header(request, "X-Request-Id")  # raises an error about the caller's own value
    if endpoint.scope is None:
        query = request_parsing.query(request, endpoint.query, state.view)
        view = request.scope[VIEW] = state.view_for(query.view)
        context = RequestContext(request, state, state.queue, ANONYMOUS, query, view)
        return answer(await _shown(await endpoint.handler(context), context), endpoint.status)
    who = await state.authenticator.identify(request.headers, plain_get=_is_plain_get(request, endpoint))
    require(who, endpoint.scope)
    query = request_parsing.query(request, endpoint.query, state.view)
    view = request.scope[VIEW] = state.view_for(query.view)
    raw = await request_parsing.body(request) if endpoint.changes and endpoint.body is not Raw else b""
    if raw and who is ANYONE:
        check_page_body(request.headers)
    named = await _named(state, view, who, request, query, raw)
    queue = _handle(state, endpoint, who, named, request, request_id, raw)
    context = RequestContext(request, state, queue, who, query, view)
    context.spans = workspace_lookup.spans(view, who, named)
    if context.spans:
        context.queues = await workspace_lookup.everywhere(queue)
    if endpoint.body is Raw:
        result = await endpoint.handler(context, request_parsing.stream(request))
    elif decoder is None:
        result = await endpoint.handler(context)
    else:
        result = await endpoint.handler(context, _body(raw, endpoint, decoder, view))
    return answer(await _shown(result, context), endpoint.status)


def _body(raw: bytes, endpoint: Endpoint, decoder: msgspec.json.Decoder[Any], view: View | None) -> Any:
    """The request body. In a view it may be in the document's names, translated by the handler or here."""
    if view is None:
        return request_parsing.decode(raw, decoder)
    if view.claims and endpoint.of_claims:
        raw = request_parsing.in_our_words(raw, view.claims)
    if endpoint.viewed_body:
        return request_parsing.decode(raw, request_parsing.in_document(endpoint))
    return request_parsing.in_our_times(raw, endpoint.body, decoder)


async def _shown(result: Any, context: RequestContext) -> Any:
    """Convert an answer to the requested names."""
    if context.view is None or result is None or isinstance(result, Response):
        return result
    return await rendering.in_view(result, context.view, context.queue)


def _is_plain_get(request: Request, endpoint: Endpoint) -> bool:
    """Whether a call is read-only and ends at once: no stream, and no wait for events."""
    return not endpoint.changes and b"wait_sec" not in request.scope["query_string"] and not _wants_stream(request)


def _wants_stream(request: Request) -> bool:
    return "text/event-stream" in request.headers.get("accept", "")


def answer(result: Any, status: int) -> Response:
    if isinstance(result, Response):
        return result
    if result is None:
        return Response(status_code=204)
    return Answer(_encoder.encode(result), status)


class Answer(Response):
    """A JSON answer. Its headers are prebuilt: computing them took a tenth of a request."""

    def __init__(self, body: bytes, status: int) -> None:
        self.status_code = status
        self.background = None
        self.body = body
        self.raw_headers = [(b"content-length", b"%d" % len(body)), (b"content-type", b"application/json")]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        whole = scope.get("extensions", {}).get(WHOLE)
        if whole is None or not whole["send"](self.status_code, self.raw_headers, self.body):
            await super().__call__(scope, receive, send)


def _refusal(body: problem.Problem) -> Response:
    headers = {"www-authenticate": "Bearer"} if body.status == 401 else {}
    headers |= {"retry-after": str(math.ceil(body.facts.get("retry_after", 1)))} if body.status in {429, 503} else {}
    return Response(_encoder.encode(body), body.status, headers, problem.MEDIA_TYPE)


async def _http_exception(request: Request, error: Exception) -> Response:
    """An unknown path, or a method it does not support."""
    assert isinstance(error, HTTPException)
    request_id = _request_id(request, request.app.state.server)
    body = problem.of(
        NotFound(f"there is no path {request.url.path}", hint="/openapi.json lists every path."), request_id
    )
    headers = {REQUEST_ID: request_id, "x-content-type-options": "nosniff"}
    if error.status_code == 405:
        headers["allow"] = _allowed(request)
        body = problem.wrong_method(request.method, request.url.path, headers["allow"], request_id)
    response = _refusal(body)
    response.headers.update(headers)
    return response


def _allowed(request: Request) -> str:
    """Return all methods of this path; each is a separate route."""
    path = request.url.path
    found = [route for route in request.app.routes if isinstance(route, Route) and route.path_regex.match(path)]
    return ", ".join(sorted({method for route in found for method in route.methods or ()}))


def _request_id(request: Request, state: ServerState) -> str:
    """The caller's request id, or a new one if it is missing or not storable."""
    sent = request.headers.get(REQUEST_ID)
    return sent if sent is not None and request_parsing.is_header_text(sent) else state.new_request_id()


def _handle(  # all of these determine the caller
    state: ServerState,
    endpoint: Endpoint,
    who: Identity,
    named: str | None,
    request: Request,
    request_id: str,
    raw: bytes,
) -> Queue:
    """The queue as this caller sees it."""
    workspace = check.name(workspace_for(who, named), "workspace")
    caller = Caller(
        _actor(endpoint, who, request),
        request_id,
        workspace,
        holder=None if who.may("operate") else who.token_id,
        idempotency=_idempotent_request(endpoint, who, request, raw),
        still_allowed=state.authenticator.checking(request.headers, endpoint.scope or "read") if who.token_id else None,
    )
    return state.queue.for_caller(caller)


async def _named(  # any of them may name it
    state: ServerState, view: View | None, who: Identity, request: Request, query: Any, raw: bytes
) -> str | None:
    """The workspace of a call: from its query or, in some documents, from its body or id."""
    if view is None or not view.names_workspaces:
        return query.workspace  # type: ignore[no-any-return]  # every query has it
    named = workspace_lookup.in_body(raw)
    if named is not None and who.workspace not in {None, named}:
        raise NotFound(f"there is no workspace {named!r}", where=workspace_lookup.FIELD)
    if named is not None and query.workspace not in {None, named}:
        raise NotFound(f"this call is for the workspace {query.workspace!r}", where=workspace_lookup.FIELD)
    if named is not None or query.workspace is not None or who.workspace is not None:
        return named or query.workspace
    return await workspace_lookup.of_path(state.queue, request_parsing.path(request))


def _actor(endpoint: Endpoint, who: Identity, request: Request) -> str:
    """The actor: under a claim the agent itself, otherwise the token or the actor named by the caller."""
    named = request_parsing.header(request, "X-Actor")
    if endpoint.scope == "work":
        return "system"
    return f"token:{who.name}" if who.name is not None else named or "system"


def _idempotent_request(endpoint: Endpoint, who: Identity, request: Request, raw: bytes) -> IdempotentRequest | None:
    key = request_parsing.header(request, "Idempotency-Key") if endpoint.changes else None
    if key is None:
        return None
    signed = f"{who.token_id} {endpoint.method} {request.url.path}?{request.url.query}\n".encode() + raw
    return IdempotentRequest(key, hashlib.sha256(signed).hexdigest())
