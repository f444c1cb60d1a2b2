"""The queue of a server as a program holds it: the verbs of `Queue`, so that only the address changes."""

from __future__ import annotations

import asyncio
import os
import time
from types import TracebackType
from typing import Self

import msgspec

from shiftwork.client.claiming import Claiming
from shiftwork.client.handle import Handle, Speaker, actor_header, header
from shiftwork.client.notifying import Notifying
from shiftwork.client.operating import Operating
from shiftwork.client.producing import Producing
from shiftwork.client.protecting import Protecting
from shiftwork.client.reading import Reading
from shiftwork.client.spending import Spending
from shiftwork.client.stepping import Stepping
from shiftwork.client.storing import Storing
from shiftwork.client.transport import Transport
from shiftwork.client.triggering import Triggering
from shiftwork.client.waiting import Waiting
from shiftwork.client.working import Working
from shiftwork.queue.book import check_workspace
from shiftwork.queue.queue import Queue
from shiftwork.wire.shapes import Me

TOKEN = "SHIFTWORK_TOKEN"  # noqa: S105  # the name of a variable
TIMEOUT_SEC = 30.0
PATIENCE_SEC = 10.0


class Client(
    Producing,
    Claiming,
    Working,
    Stepping,
    Waiting,
    Storing,
    Operating,
    Protecting,
    Reading,
    Spending,
    Notifying,
    Triggering,
):
    """A queue behind a server. Every method is answered after its commit there, and has its effect once."""

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        token: str | None = None,
        workspace: str | None = None,
        actor: str = "system",
        timeout_sec: float = TIMEOUT_SEC,
        patience_sec: float = PATIENCE_SEC,
    ) -> Client:
        """Connect to the server at `http://host:port`, with the token given or that of SHIFTWORK_TOKEN.

        An answer may take `timeout_sec`. While the server cannot be reached, a call is sent again for `patience_sec`.
        """
        if workspace is not None:
            check_workspace(workspace)
        secret = token or os.environ.get(TOKEN) or None
        if secret is not None:
            header(secret, "token")
        speaker = Speaker(actor_header(actor), workspace=workspace)
        transport = Transport(url, secret, timeout_sec=timeout_sec, patience_sec=patience_sec)
        try:
            asked = time.time()
            me = await Handle(transport, "", speaker)._get("/api/me", Me)  # noqa: SLF001  # a client about to be
            transport.ahead_sec = me.now - (asked + time.time()) / 2
        except BaseException:
            await transport.close()
            raise
        return cls(transport, me.workspace, speaker)

    def __repr__(self) -> str:
        return f"Client({self.url!r}, workspace={self.workspace!r})"

    @property
    def url(self) -> str:
        return self._transport.url

    def now(self) -> float:
        return time.time() + self._transport.ahead_sec

    def in_workspace(self, name: str) -> Client:
        """The same server, another workspace; a token has its own and opens no other."""
        speaker = msgspec.structs.replace(self._speaker, workspace=check_workspace(name))
        return Client(self._transport, name, speaker)

    def as_caller(self, actor: str, request_id: str | None = None) -> Client:
        """The same server, spoken to by somebody else. One who comes with a token goes by the token's name."""
        if request_id is not None:
            header(request_id, "request_id")
        speaker = msgspec.structs.replace(self._speaker, actor=actor_header(actor), request_id=request_id)
        return Client(self._transport, self.workspace, speaker)

    async def close(self) -> None:
        """Answer what is under way, then close the connections."""
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.shield(self.close())


def _borrow_descriptions() -> None:
    """What a verb does is said once, by the queue's own."""
    for name in dir(Client):
        verb = getattr(Client, name)
        if callable(verb) and not name.startswith("_") and verb.__doc__ is None:
            verb.__doc__ = getattr(Queue, name).__doc__


_borrow_descriptions()
