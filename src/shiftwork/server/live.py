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
from shiftwork.server import reading, spanning
from shiftwork.server.endpoint import ViewName
from shiftwork.server.event_stream import (
    NOW,
    Cursor,
    EventFilter,
    LogEntry,
    NamedEvent,
    Place,
    Subscription,
    shown,
    subscription,
)
from shiftwork.server.handlers import serves
from shiftwork.server.hub import Hub, Listener, Reader
from shiftwork.server.request_context import RequestContext
from shiftwork.server.state import ServerState
from shiftwork.views.view import View
from shiftwork.wire import problem

log = logging.getLogger("shiftwork.server")
PROTOCOL = "shiftwork"
"""A browser that passes its token as a subprotocol also offers this one: the answer must name one of them."""

ALIVE_SEC = 15.0
SEND_SEC = 30.0
"""A subscriber that has not taken a batch by then is dropped; it may reconnect and continue from its cursor."""

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
"""Close codes of RFC 6455. The first that fits an error's class counts."""


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

    view: ViewName | UnsetType | None = UNSET  # type: ignore[assignment]  # what is not said is not null


class Subscribe(Fields):
    """What a WebSocket client may send: other filters, and from where. Without `after` it continues where it is."""

    subscribe: SubscriptionFilter
    after: Place | int | None = None


class Page:
    """Rows found so far, and how far the log was read for them."""

    def __init__(self, wanted: Subscription, limit: int) -> None:
        self.wanted = wanted
        self.limit = limit
        self.rows: list[Any] = []
        self.at_end = False
        self._taken = 0

    async def fill(self, read: Reader) -> None:
        """With what fits, as far as this reader knows the log."""
        wanted, begin = self.wanted, self.wanted.cursor.after
        while self._taken < self.limit and wanted.cursor.after - begin < MAX_SCANNED:
            entries, upto = await read(wanted.cursor.after, wanted.wanted.workspace)
            found = wanted.of(entries)
            left = self.limit - self._taken
            if len(found) > left:
                found, upto = found[:left], found[left - 1][0].event.seq
            self.at_end = upto == wanted.cursor.after
            if self.at_end:
                return
            self.rows += [row for entry, events in found for row in self._shown(entry, events)]
            self._taken += len(found)
            wanted.cursor = Cursor(upto)

    def _shown(self, entry: LogEntry, named_events: list[NamedEvent]) -> list[Any]:
        return [shown(entry, named_events)] if self.wanted.view is None else [msgspec.Raw(t.json) for t in named_events]

    async def wait(self, hub: Hub, who: Identity, seconds: float) -> None:
        """Until something is found, the time is up, or the caller goes; what was found by then is kept."""
        with suppress(TimeoutError):
            async with hub.listen(who) as listener, asyncio.timeout(seconds):
                while True:
                    listener.woken.clear()
                    await self.fill(hub.after)
                    if self.rows:
                        return
                    await listener.woken.wait()

    def answer(self) -> Any:
        last = self.wanted.cursor.after
        return EventPage(self.rows, last) if self.wanted.view is None else {"events": self.rows, "next": last}


@serves(Everyday.events, query=EventQuery)
async def events(context: RequestContext) -> Any:
    """A page, or a stream for anyone who accepts one."""
    if context.request.method == "GET" and "text/event-stream" in context.request.headers.get("accept", ""):
        return await _event_stream(context)
    wanted = await subscription(
        context.queue, context.query, context.view, context.query.after, Cursor(0), spans=context.spans
    )
    page = Page(wanted, context.query.limit)
    await page.fill(
        context.state.hub_of(context.queue.workspace).read
    )  # anyone who asks after a change of his own finds it
    if page.at_end and not page.rows:
        await _check_reached(context.queue, page.wanted.cursor)
        if context.query.wait_sec:
            await _wait(context, page)
    return page.answer()


async def _wait(context: RequestContext, page: Page) -> None:
    await reading.body(context.request)  # behind it, the next thing heard is that the caller has gone
    await context.while_wanted(
        page.wait(context.state.hub_of(context.queue.workspace), context.who, context.query.wait_sec)
    )


class Stream:
    """Tells one subscriber what it wants from its cursor on, as long as it may hear it and takes it."""

    def __init__(self, state: ServerState, headers: Headers, who: Identity, wanted: Subscription) -> None:
        self.state = state
        self.hub = state.hub_of(wanted.wanted.workspace)
        self.wanted = wanted
        self._headers = headers
        self._who = who
        self._recheck_at = 0.0
        self._news: asyncio.Queue[Message] = asyncio.Queue(1)

    async def run(self, listener: Listener, receive: Receive) -> None:
        """Run until the server stops or the subscriber is gone; raises any other cause."""
        listening = asyncio.create_task(self._listen(listener, receive))
        try:
            await self.begin()
            while True:
                listener.woken.clear()
                if self.hub.stopping.is_set() or not await self._heed():
                    return
                if self.state.hub_of(self.wanted.wanted.workspace) is not self.hub:
                    return  # the workspace is in another database now: its cursor holds there
                await self._check_token()
                if not await self._go_on():
                    await self._rest(listener)
        finally:
            listening.cancel()

    async def _listen(self, listener: Listener, receive: Receive) -> None:
        """Read one message at a time: the next once this one has been handled."""
        while True:
            message = await receive()
            await self._news.put(message)
            listener.woken.set()
            if message["type"].endswith(".disconnect"):
                return

    async def _heed(self) -> bool:
        while not self._news.empty():
            message = self._news.get_nowait()
            if message["type"].endswith(".disconnect"):
                return False
            await self.heed(message)
        return True

    async def _check_token(self) -> None:
        loop = asyncio.get_running_loop()
        if self._who.token_id is None or loop.time() < self._recheck_at:
            return
        self._recheck_at = loop.time() + RECHECK_SEC * random.uniform(0.5, 1)  # not all at once
        self._who = await self.state.authenticator.identify(self._headers)
        require(self._who, "read")

    async def _go_on(self) -> bool:
        """Send some more rows; False if there were none."""
        wanted = self.wanted
        entries, upto = await self.hub.after(wanted.cursor.after, wanted.wanted.workspace)
        if upto == wanted.cursor.after:
            return False
        found = [each for _, names in wanted.of(entries) for each in names]
        for chunk in _chunks(found):
            async with asyncio.timeout(SEND_SEC):
                await self.send(chunk)
            wanted.cursor = chunk[-1].cursor
            if not self._news.empty():
                return True  # the filter may have changed
            await asyncio.sleep(0)  # a stream that always has events would starve others
        wanted.cursor = Cursor(upto)
        return True

    async def _rest(self, listener: Listener) -> None:
        try:
            async with asyncio.timeout(ALIVE_SEC):
                await listener.woken.wait()
        except TimeoutError:
            await self.show_life()

    async def begin(self) -> None:
        """Send the cursor at which it begins."""
        raise NotImplementedError

    async def send(self, named_events: Sequence[NamedEvent]) -> None:
        raise NotImplementedError

    async def show_life(self) -> None:
        """Called when there was nothing to send for a while."""

    async def heed(self, message: Message) -> None:
        """Handle a message of the subscriber."""


async def _begin(
    queue: Queue,
    wanted: EventFilter,
    view: View | None,
    place: str | None,
    otherwise: Cursor | None = None,
    *,
    spans: bool = False,
) -> Subscription:
    """The subscription, from a cursor that exists."""
    begun = await subscription(queue, wanted, view, place, otherwise, spans=spans)
    if place is not None and place != NOW:
        await _check_reached(queue, begun.cursor)
    return begun


async def _check_reached(queue: Queue, cursor: Cursor) -> None:
    """Refuse a cursor of another queue, at which it would wait forever."""
    end = await queue.engine.store.read(event_log.last)
    if cursor.after > end:
        raise InputError(
            f"{cursor} is after the end of the log, so it is not a cursor of this queue",
            where="after",
            hint="Begin at 0, or at `now`.",
        )


def _chunks(named_events: Iterable[NamedEvent]) -> Iterator[list[NamedEvent]]:
    """Bytes per write: the most that waits in memory for a subscriber that does not read."""
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
    """The Last-Event-ID that a reconnecting browser sends takes precedence over the address."""
    place = context.request.headers.get("last-event-id") or context.query.after
    wanted = await _begin(context.queue, context.query, context.view, place, spans=context.spans)
    context.state.hub_of(context.queue.workspace).shares.check(context.who)
    return EventStream(context, wanted)


class EventStream(Response):
    """An answer that does not end."""

    media_type = "text/event-stream"

    def __init__(self, context: RequestContext, wanted: Subscription) -> None:
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._context = context
        self._wanted = wanted

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        context = self._context
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        lines = Lines(context.state, context.request.headers, context.who, self._wanted, send)
        with suppress(ShiftworkError, TimeoutError, OSError):  # it has begun, so it can only be ended
            async with lines.hub.listen(context.who) as listener:
                await lines.run(listener, receive)
        with suppress(TimeoutError, OSError):
            async with asyncio.timeout(SEND_SEC):
                await send({"type": "http.response.body", "body": b"", "more_body": False})


class Lines(Stream):
    """Server-sent events: the id is the cursor."""

    def __init__(self, state: ServerState, headers: Headers, who: Identity, wanted: Subscription, send: Send) -> None:
        super().__init__(state, headers, who, wanted)
        self._send = send

    async def begin(self) -> None:
        await self._write(b"retry: 1000\nid: %b\n\n" % _bytes(self.wanted.cursor))

    async def send(self, named_events: Sequence[NamedEvent]) -> None:
        await self._write(b"".join([b"id: %b\nevent: %b\ndata: %b\n\n" % _block(each) for each in named_events]))

    async def show_life(self) -> None:
        """Includes the cursor, so that a subscriber to few events need not scan the log again."""
        async with asyncio.timeout(SEND_SEC):
            await self._write(b": still here\nid: %b\n\n" % _bytes(self.wanted.cursor))

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
            query: SocketQuery = reading.query(socket, SocketQuery, state.view)
            queue = _queue(state, who, query)
            view = state.view_for(query.view)
            spans = spanning.spans(view, who, query.workspace)
            wanted = await _begin(queue, query, view, query.after, spans=spans)
            messages = Messages(state, who, wanted, socket)
            async with messages.hub.listen(who) as listener:
                await messages.run(listener, socket.receive)


def _queue(state: ServerState, who: Identity, wanted: EventFilter) -> Queue:
    workspace = check.name(workspace_for(who, wanted.workspace), "workspace")
    return state.queue.speaking_as(Caller(workspace=workspace))


@asynccontextmanager
async def _closing(socket: WebSocket) -> AsyncIterator[None]:
    """Close with the code for the cause, after sending the error if there was one."""
    try:
        yield
    except BadFrame:
        await _refuse(socket, Malformed("a message is text, not bytes"), BINARY)
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

    def __init__(self, state: ServerState, who: Identity, wanted: Subscription, socket: WebSocket) -> None:
        super().__init__(state, socket.headers, who, wanted)
        self._socket = socket

    async def begin(self) -> None:
        await self._socket.send_text(
            msgspec.json.encode({"event": "subscribed", "cursor": str(self.wanted.cursor)}).decode()
        )

    async def send(self, named_events: Sequence[NamedEvent]) -> None:
        await self._socket.send({"type": "websocket.send", "frames": b"".join([each.frame for each in named_events])})

    async def heed(self, message: Message) -> None:
        """New filters, in force after the answer to this message."""
        text = message.get("text")
        if text is None:
            raise BadFrame
        stated: Subscribe = reading.decode(text.encode(), self._decoder)
        asked = self._completed(stated.subscribe)
        queue = _queue(self.state, self._who, asked)
        place = None if stated.after is None else str(stated.after)
        view = self.wanted.view if asked.view is UNSET else views.chosen(asked.view or views.NATIVE)
        spans = spanning.spans(view, self._who, asked.workspace)
        self.wanted = await _begin(queue, asked, view, place, self.wanted.cursor, spans=spans)
        await self.begin()

    def _completed(self, asked: SubscriptionFilter) -> SubscriptionFilter:
        """Keep what the message omits: narrowing a filter must not change the workspace."""
        return msgspec.structs.replace(asked, workspace=asked.workspace or self.wanted.wanted.workspace)
