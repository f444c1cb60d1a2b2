"""The queue of a server as a program holds it: the verbs of `Queue`, so that only the address changes."""

from __future__ import annotations

import time
from typing import Self

import msgspec

from shiftwork import config
from shiftwork.access.api import Account
from shiftwork.access.model import Me
from shiftwork.client.executor import CallerIdentity, HttpExecutor, actor_header, header
from shiftwork.client.transport import Transport
from shiftwork.model import check
from shiftwork.operation.declare import operation_of
from shiftwork.operation.interface import AnyQueue
from shiftwork.operation.opening import Opening

TIMEOUT_SEC = 30.0
PATIENCE_SEC = 10.0


class Client(AnyQueue):
    """A queue behind a server. Every method is answered after its commit there, and has its effect once."""

    def __init__(self, transport: Transport, workspace: str, speaker: CallerIdentity) -> None:
        super().__init__(HttpExecutor(transport, workspace, speaker))
        self._transport = transport
        self._speaker = speaker

    @classmethod
    def open(
        cls,
        url: str,
        *,
        token: str | None = None,
        workspace: str | None = None,
        actor: str = "system",
        timeout_sec: float = TIMEOUT_SEC,
        patience_sec: float = PATIENCE_SEC,
    ) -> Opening[Self]:
        """Connect to the server at `http://host:port`.

        Await it, or use it with `async with`. Without a token it is that of SHIFTWORK_TOKEN, or that in the file
        SHIFTWORK_TOKEN_FILE. An answer may take `timeout_sec`. While the server cannot be reached, a call is sent again
        for `patience_sec`.
        """

        async def opened() -> Self:
            if workspace is not None:
                check.name(workspace, "workspace")
            secret = token or (found.value if (found := config.token_of_environment()) else None)
            if secret is not None:
                header(secret, "token")
            speaker = CallerIdentity(actor_header(actor), workspace=workspace)
            transport = Transport(url, secret, timeout_sec=timeout_sec, patience_sec=patience_sec)
            try:
                asked = time.time()
                me: Me = await HttpExecutor(transport, "", speaker).execute(operation_of(Account.me), {})
                transport.ahead_sec = me.now - (asked + time.time()) / 2
            except BaseException:
                await transport.close()
                raise
            return cls(transport, me.workspace, speaker)

        return Opening(opened)

    def __repr__(self) -> str:
        return f"Client({self.url!r}, workspace={self.workspace!r})"

    @property
    def url(self) -> str:
        return self._transport.url

    def now(self) -> float:
        return time.time() + self._transport.ahead_sec

    def in_workspace(self, name: str) -> Self:
        speaker = msgspec.structs.replace(self._speaker, workspace=check.name(name, "workspace"))
        return type(self)(self._transport, name, speaker)

    def as_caller(self, actor: str, request_id: str | None = None) -> Self:
        if request_id is not None:
            header(request_id, "request_id")
        speaker = msgspec.structs.replace(self._speaker, actor=actor_header(actor), request_id=request_id)
        return type(self)(self._transport, self.workspace, speaker)

    async def close(self) -> None:
        await self._transport.close()
