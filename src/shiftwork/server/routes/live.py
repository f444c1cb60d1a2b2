"""Events as they happen: pages that wait for them, server-sent events, and the WebSocket."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from shiftwork import views
from shiftwork.access.authenticator import Identity, require, workspace_for
from shiftwork.engine import event_log
from shiftwork.engine.api import Everyday
from shiftwork.engine.engine import Caller
from shiftwork.model import check
from shiftwork.model.bounds import MAX_CLAIM_WAIT_SEC
from shiftwork.model.errors import (
    Forbidden,
    InputError,
    Malformed,
    NotFound,
    OperationTimeout,
    Overloaded,
    ShiftworkError,
    StoreError,
    TooManyRequests,
    Unauthorized,
)
from shiftwork.model.history import EventPage
from shiftwork.model.task import Fields
from shiftwork.queue import Queue
from shiftwork.server import request_parsing, workspace_lookup
from shiftwork.server.endpoint import ViewName, serves
from shiftwork.server.event_stream import (
    NOW,
    Cursor,
    EventFilter,
    LogEntry,
    NamedEvent,
    Place,
    Subscription,
    shown,
    subscribe,
)
from shiftwork.server.hub import Hub, Listener, Reader
from shiftwork.server.request_context import RequestContext
from shiftwork.server.state import ServerState
from shiftwork.views.view import View
from shiftwork.wire import problem

log = logging.getLogger("shiftwork.server")
PROTOCOL = "shiftwork"
"""A browser that passes its token as a subprotocol also offers this one, because the answer must name one of them."""

ALIVE_SEC = 15.0
SEND_SEC = 30.0
"""A subscriber that has not read a batch by then is dropped; it may reconnect and continue from its cursor."""

CHUNK_BYTES = 65_536
RECHECK_SEC = 2.0
"""How often a busy stream checks its token; an idle one checks it with each keep-alive."""

MAX_SCANNED = 20_000
"""Rows examined for one page: a page that finds few is short, not late."""

BINARY, BAD_DATA, REFUSED, INTERNAL, RESTART, LATER = 1003, 1007, 1008, 1011, 1012, 1013
CLOSE: tuple[tuple[type[ShiftworkError], int], ...] = (
    (InputError, BAD_DATA),
    (Unauthorized, REFUSED),
    (Forbidden, REFUSED),
    (NotFound, REFUSED),
    (TooManyRequests, LATER),
    (Overloaded, LATER),
    (OperationTimeout, LATER),
    (StoreError, LATER),
)
"""Close codes of RFC 6455. The first entry that matches an error's class counts."""


class EventQuery(EventFilter):
    """The filter, the cursor, and how long to wait for an event."""

    after: Place | None = None
    """Where to begin; by default, a page begins at the start of the log, a stream now."""
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 1000
    wait_sec: Annotated[float, Meta(ge=0, le=MAX_CLAIM_WAIT_SEC)] = 0


class SocketQuery(EventFilter):
    """The initial filter of a WebSocket."""

    after: Place | None = None


class SubscriptionFilter(EventFilter):
    """New filters. An omitted workspace or view stays; null as the view means our own names."""

    view: ViewName | UnsetType | None = UNSET  # type: ignore[assignment]  # omitted is not null


class Subscribe(Fields):
    """What a WebSocket client may send: other filters, and from where. Without `after` it continues where it is."""

    subscribe: SubscriptionFilter
    after: Place | int | None = None


class Page:
    """Rows found so far, and how far the log was read for them."""

    def __init__(self, subscription: Subscription, limit: int) -> None:
        self.subscription = subscription
        self.limit = limit
        self.rows: list[Any] = []
        self.at_end = False
        self._taken = 0

    async def fill(self, read: Reader) -> None:
        """Add matching rows, up to the end of what this reader has."""
        subscription, begin = self.subscription, self.subscription.cursor.after
        while self._taken < self.limit and subscription.cursor.after - begin < MAX_SCANNED:
            entries, upto = await read(subscription.cursor.after, subscription.filter.workspace)
            found = subscription.of(entries)
            left = self.limit - self._taken
            if len(found) > left:
                found, upto = found[:left], found[left - 1][0].event.seq
            self.at_end = upto == subscription.cursor.after
            if self.at_end:
                return
            self.rows += [row for entry, events in found for row in self._shown(entry, events)]
            self._taken += len(found)
            subscription.cursor = Cursor(upto)

    def _shown(self, entry: LogEntry, named_events: list[NamedEvent]) -> list[Any]:
        if self.subscription.view is None:
            return [shown(entry, named_events)]
        return [msgspec.Raw(each.json) for each in named_events]

    async def wait(self, hub: Hub, who: Identity, seconds: float) -> None:
        """Wait until a row matches, the time is up, or the caller disconnects; rows found by then are kept."""
        with suppress(TimeoutError):
            async with hub.listen(who) as listener, asyncio.timeout(seconds):
                while True:
                    listener.woken.clear()
                    await self.fill(hub.after)
                    if self.rows:
                        return
                    await listener.woken.wait()

    def answer(self) -> Any:
        last = self.subscription.cursor.after
        return EventPage(self.rows, last) if self.subscription.view is None else {"events": self.rows, "next": last}


@serves(Everyday.events, query=EventQuery)
async def events(context: RequestContext) -> Any:
    """Answer with a page, or with a stream if the caller accepts one."""
    if context.request.method == "GET" and "text/event-stream" in context.request.headers.get("accept", ""):
        return await _event_stream(context)
    subscription = await subscribe(
        context.queue, context.query, context.view, context.query.after, Cursor(0), spans=context.spans
    )
    page = Page(subscription, context.query.limit)
    # From the log itself, so that callers find their own changes.
    await page.fill(context.state.hub_of(context.queue.workspace).read)
    if page.at_end and not page.rows:
        await _check_reached(context.queue, page.subscription.cursor)
        if context.query.wait_sec:
            await _wait(context, page)
    return page.answer()


async def _wait(context: RequestContext, page: Page) -> None:
    await request_parsing.body(context.request)  # after the body, the only other message is a disconnect
    await context.unless_disconnected(
        page.wait(context.state.hub_of(context.queue.workspace), context.who, context.query.wait_sec)
    )


class Stream:
    """Sends one subscriber its events from its cursor on, as long as it is allowed to read and keeps up."""

    def __init__(self, state: ServerState, headers: Headers, who: Identity, subscription: Subscription) -> None:
        self.state = state
        self.hub = state.hub_of(subscription.filter.workspace)
        self.subscription = subscription
        self._headers = headers
        self._who = who
        self._recheck_at = 0.0
        self._messages: asyncio.Queue[Message] = asyncio.Queue(1)

    async def run(self, listener: Listener, receive: Receive) -> None:
        """Run until the server stops or the subscriber is gone; raises any other cause."""
        listening = asyncio.create_task(self._listen(listener, receive))
        try:
            await self.begin()
            while True:
                listener.woken.clear()
                if self.hub.stopping.is_set() or not await self._handle_messages():
                    return
                if self.state.hub_of(self.subscription.filter.workspace) is not self.hub:
                    return  # the workspace has moved to another database, where its cursor stays valid
                await self._check_token()
                if not await self._send_next():
                    await self._wait_or_keep_alive(listener)
        finally:
            listening.cancel()

    async def _listen(self, listener: Listener, receive: Receive) -> None:
        """Receive one message at a time: the next only after this one has been handled."""
        while True:
            message = await receive()
            await self._messages.put(message)
            listener.woken.set()
            if message["type"].endswith(".disconnect"):
                return

    async def _handle_messages(self) -> bool:
        while not self._messages.empty():
            message = self._messages.get_nowait()
            if message["type"].endswith(".disconnect"):
                return False
            await self.on_message(message)
        return True

    async def _check_token(self) -> None:
        loop = asyncio.get_running_loop()
        if self._who.token_id is None or loop.time() < self._recheck_at:
            return
        self._recheck_at = loop.time() + RECHECK_SEC * random.uniform(0.5, 1)  # not all at once
        self._who = await self.state.authenticator.identify(self._headers)
        require(self._who, "read")

    async def _send_next(self) -> bool:
        """Send some more rows; False if there are none."""
        subscription = self.subscription
        entries, upto = await self.hub.after(subscription.cursor.after, subscription.filter.workspace)
        if upto == subscription.cursor.after:
            return False
        found = [each for _, names in subscription.of(entries) for each in names]
        for chunk in _chunks(found):
            async with asyncio.timeout(SEND_SEC):
                await self.send(chunk)
            subscription.cursor = chunk[-1].cursor
            if not self._messages.empty():
                return True  # the filter may have changed
            await asyncio.sleep(0)  # otherwise a busy stream would starve the others
        subscription.cursor = Cursor(upto)
        return True

    async def _wait_or_keep_alive(self, listener: Listener) -> None:
        try:
            async with asyncio.timeout(ALIVE_SEC):
                await listener.woken.wait()
        except TimeoutError:
            await self.send_keep_alive()

    async def begin(self) -> None:
        """Send the cursor at which it begins."""
        raise NotImplementedError

    async def send(self, named_events: Sequence[NamedEvent]) -> None:
        raise NotImplementedError

    async def send_keep_alive(self) -> None:
        """Send a keep-alive, because there was nothing else to send for a while."""

    async def on_message(self, message: Message) -> None:
        """Handle a message from the subscriber."""


async def _begin(
    queue: Queue,
    requested: EventFilter,
    view: View | None,
    place: str | None,
    otherwise: Cursor | None = None,
    *,
    spans: bool = False,
) -> Subscription:
    """Create the subscription; the cursor must exist."""
    begun = await subscribe(queue, requested, view, place, otherwise, spans=spans)
    if place is not None and place != NOW:
        await _check_reached(queue, begun.cursor)
    return begun


async def _check_reached(queue: Queue, cursor: Cursor) -> None:
    """Refuse a cursor of another queue, at which a subscriber would wait forever."""
    end = await queue.engine.store.read(event_log.last)
    if cursor.after > end:
        raise InputError(
            f"{cursor} is after the end of the log, so it is not a cursor of this queue",
            where="after",
            hint="Start at 0, or at `now`.",
        )


def _chunks(named_events: Iterable[NamedEvent]) -> Iterator[list[NamedEvent]]:
    """Split events into writes of limited size: a subscriber that does not read holds no more in memory."""
    chunk: list[NamedEvent] = []
    size = 0
    for each in named_events:
        chunk.append(each)
        size += len(each.json)
        if size >= CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


async def _event_stream(context: RequestContext) -> Response:
    """Answer with a stream. A reconnecting browser's Last-Event-ID takes precedence over the query."""
    place = context.request.headers.get("last-event-id") or context.query.after
    subscription = await _begin(context.queue, context.query, context.view, place, spans=context.spans)
    context.state.hub_of(context.queue.workspace).stream_limit.check(context.who)
    return EventStream(context, subscription)


class EventStream(Response):
    """An answer that never ends by itself."""

    media_type = "text/event-stream"

    def __init__(self, context: RequestContext, subscription: Subscription) -> None:
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._context = context
        self._subscription = subscription

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        context = self._context
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        lines = Lines(context.state, context.request.headers, context.who, self._subscription, send)
        with suppress(ShiftworkError, TimeoutError, OSError):  # the answer has begun, so an error can only end it
            async with lines.hub.listen(context.who) as listener:
                await lines.run(listener, receive)
        with suppress(TimeoutError, OSError):
            async with asyncio.timeout(SEND_SEC):
                await send({"type": "http.response.body", "body": b"", "more_body": False})


class Lines(Stream):
    """Server-sent events: the id is the cursor."""

    def __init__(
        self, state: ServerState, headers: Headers, who: Identity, subscription: Subscription, send: Send
    ) -> None:
        super().__init__(state, headers, who, subscription)
        self._send = send

    async def begin(self) -> None:
        await self._write(b"retry: 1000\nid: %b\n\n" % _bytes(self.subscription.cursor))

    async def send(self, named_events: Sequence[NamedEvent]) -> None:
        await self._write(b"".join([b"id: %b\nevent: %b\ndata: %b\n\n" % _block(each) for each in named_events]))

    async def send_keep_alive(self) -> None:
        """Includes the cursor, so that a subscriber to few events need not scan the log again."""
        async with asyncio.timeout(SEND_SEC):
            await self._write(b": still here\nid: %b\n\n" % _bytes(self.subscription.cursor))

    async def _write(self, body: bytes) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": True})


def _bytes(word: object) -> bytes:
    return str(word).encode()


def _block(named_event: NamedEvent) -> tuple[bytes, bytes, bytes]:
    return _bytes(named_event.cursor), _bytes(named_event.name), named_event.json


async def websocket(socket: WebSocket) -> None:
    """`/ws`: one JSON message for each named event. An error is sent before the socket is closed."""
    await socket.accept(PROTOCOL if PROTOCOL in socket.scope["subprotocols"] else None)
    with suppress(WebSocketDisconnect, TimeoutError):
        async with _closing(socket):
            state: ServerState = socket.app.state.server
            who = await state.authenticator.identify(socket.headers)
            require(who, "read")
            query: SocketQuery = request_parsing.query(socket, SocketQuery, state.view)
            queue = _queue(state, who, query)
            view = state.view_for(query.view)
            spans = workspace_lookup.spans(view, who, query.workspace)
            subscription = await _begin(queue, query, view, query.after, spans=spans)
            messages = Messages(state, who, subscription, socket)
            async with messages.hub.listen(who) as listener:
                await messages.run(listener, socket.receive)


def _queue(state: ServerState, who: Identity, requested: EventFilter) -> Queue:
    workspace = check.name(workspace_for(who, requested.workspace), "workspace")
    return state.queue.for_caller(Caller(workspace=workspace))


@asynccontextmanager
async def _closing(socket: WebSocket) -> AsyncIterator[None]:
    """Close with the code for the cause, after sending the error if there was one."""
    try:
        yield
    except BadFrame:
        await _refuse(socket, Malformed("expected a text message, got bytes"), BINARY)
    except ShiftworkError as error:
        await _refuse(socket, error, next((code for kind, code in CLOSE if isinstance(error, kind)), INTERNAL))
    except (WebSocketDisconnect, TimeoutError):
        raise
    except Exception:
        log.exception("a WebSocket failed")
        await _close(socket, INTERNAL)
    else:
        await _close(socket, RESTART)


async def _refuse(socket: WebSocket, error: ShiftworkError, code: int) -> None:
    found = {"event": "error", **msgspec.to_builtins(problem.of(error))}
    async with asyncio.timeout(SEND_SEC):
        await socket.send_text(msgspec.json.encode(found).decode())
    await _close(socket, code)


async def _close(socket: WebSocket, code: int) -> None:
    async with asyncio.timeout(SEND_SEC):
        await socket.close(code)


class BadFrame(Exception):
    """Raised for a message of bytes instead of text."""


class Messages(Stream):
    """The WebSocket of one client."""

    _decoder = msgspec.json.Decoder(Subscribe)

    def __init__(self, state: ServerState, who: Identity, subscription: Subscription, socket: WebSocket) -> None:
        super().__init__(state, socket.headers, who, subscription)
        self._socket = socket

    async def begin(self) -> None:
        await self._socket.send_text(
            msgspec.json.encode({"event": "subscribed", "cursor": str(self.subscription.cursor)}).decode()
        )

    async def send(self, named_events: Sequence[NamedEvent]) -> None:
        await self._socket.send({"type": "websocket.send", "frames": b"".join([each.frame for each in named_events])})

    async def on_message(self, message: Message) -> None:
        """Change the filters; they are in force after the answer to this message."""
        text = message.get("text")
        if text is None:
            raise BadFrame
        request: Subscribe = request_parsing.decode(text.encode(), self._decoder)
        filters = self._completed(request.subscribe)
        queue = _queue(self.state, self._who, filters)
        place = None if request.after is None else str(request.after)
        view = self.subscription.view if filters.view is UNSET else views.chosen(filters.view or views.NATIVE)
        spans = workspace_lookup.spans(view, self._who, filters.workspace)
        self.subscription = await _begin(queue, filters, view, place, self.subscription.cursor, spans=spans)
        await self.begin()

    def _completed(self, filters: SubscriptionFilter) -> SubscriptionFilter:
        """Keep what the message omits: narrowing a filter must not change the workspace."""
        return msgspec.structs.replace(filters, workspace=filters.workspace or self.subscription.filter.workspace)
